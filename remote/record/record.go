package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/epoch"
)

// Bounds of a record.
const (
	// maxPacked bounds the packed inventory, so that the ConfigMap stays below the
	// limit of the API server, which is a MiB.
	maxPacked = 900 << 10
	// maxRoom bounds the room of one record that is read, and listRoom that of all records in a child: the text of
	// their inventories, and entryRoom for each entry. The largest one has 32 MiB of text and MaxEntries.
	maxRoom   = 40 << 20
	listRoom  = 64 << 20
	entryRoom = 160
	// mostText bounds the text of one entry. The names in it have most of a kilobyte together.
	mostText = 16 << 10
	// smallText is an inventory, unpacked, for which a compressor with state is too much:
	// it takes most of a megabyte, and a child is seeded with two records for each layer. It
	// would make a fifth of all garbage.
	smallText = 64 << 10
	// MaxEntries bounds the objects of one layer in one child.
	MaxEntries = 50_000
)

// format is the version of the form that records have.
const format = 1

// Keys of the ConfigMap.
const (
	headKey      = "record.json"
	inventoryKey = "inventory.json.gz"
)

// State is one rendering of a layer.
type State struct {
	// Revision of the source, and Digest of the rendering.
	Revision string `json:"revision,omitempty"`
	Digest   string `json:"digest,omitempty"`
}

// Cluster is the Cluster API Cluster for which the layer was rendered. A child that has none has
// the name of its Child, and no UID; earlier versions left the name out as well.
type Cluster struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// UID is the variable cluster_uid. In a parent that restored the Cluster from a
	// backup the Cluster has another UID.
	UID string `json:"uid,omitempty"`
}

// Record is what a parent applied of one layer.
type Record struct {
	// Layer in the parent.
	Layer types.NamespacedName `json:"-"`
	// Cluster that the layer was rendered for, and Parent, the process that wrote
	// the record.
	Cluster Cluster    `json:"cluster,omitzero"`
	Parent  epoch.Mark `json:"parent,omitzero"`
	// Attempted is what was sent last, perhaps in part. Applied is what was sent
	// completely last.
	Attempted State `json:"attempted,omitzero"`
	Applied   State `json:"applied,omitzero"`
	// Ownership is the apply.Ownership of the objects after they were applied completely.
	Ownership string `json:"ownership,omitempty"`
	// Inputs identify what the rendering in Applied was made from and by which version, and Sent
	// are its objects as apply.Sent.Bytes has them. A process that begins need not render what it
	// would find in place. Both are empty where this is not known: earlier versions drop them.
	Inputs string `json:"inputs,omitempty"`
	Sent   []byte `json:"sent,omitempty"`
	// Pinned is what each Rollout let the child have when the layer was sent last, as words <rollout>=<revision>,
	// empty if none moved it. A version that knows no Rollouts drops it, and sends what is newest; earlier ones
	// leave out the names.
	Pinned string `json:"pinned,omitempty"`
	// Rights identify those that the parent had when it pushed the layer last.
	Rights string `json:"rights,omitempty"`
	// Settled: the layer was applied with all the Clusters that it declares. From then
	// on its Clusters are created without approval.
	Settled bool `json:"settled,omitempty"`
	// Inventory of the objects that the layer answers for.
	Inventory []inventory.Entry `json:"-"`

	// version is the resource version that was read or written last, empty for a record
	// that is not in the child, and text and packed are what stands there. packed is of
	// the inventory there.
	version, text string
	packed        []byte
	there         []inventory.Entry
	// by is Parent as it stands there.
	by epoch.Mark
}

// head is the part of a record that people read.
type head struct {
	Format int    `json:"format"`
	Layer  string `json:"layer"`
	Record
}

// entry is the form of an entry in a packed inventory.
type entry struct {
	ID      string `json:"id"`
	Version string `json:"v"`
}

// Exists reports whether the record is in the child.
func (r *Record) Exists() bool { return r.version != "" }

// Version is the resource version of the record that was read or written last, empty for
// one that is not in the child.
func (r *Record) Version() string { return r.version }

// Adopted reports whether another process wrote what stands in the child, so that Put will
// write the record in any case.
func (r *Record) Adopted() bool { return r.Exists() && r.by != r.Parent }

// InPlace reports whether a rendering was applied completely and nothing else was
// attempted since.
func (r *Record) InPlace(digest string) bool {
	return digest != "" && r.Applied.Digest == digest && r.Attempted.Digest == digest
}

// Name of the ConfigMap of a layer.
func Name(layer types.NamespacedName) string {
	name := v1alpha1.RecordPrefix + layer.Namespace + "." + layer.Name
	if len(name) > 253 {
		sum := sha256.Sum256([]byte(name))
		name = v1alpha1.RecordPrefix + hex.EncodeToString(sum[:])
	}
	return name
}

// encode makes the ConfigMap of a record.
func (r *Record) encode() (*corev1.ConfigMap, error) {
	text, err := json.MarshalIndent(head{Format: format, Layer: r.Layer.String(), Record: *r}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the record of layer %s: %w", r.Layer, err)
	}
	packed := r.packed
	if packed == nil || !inventory.Equal(r.Inventory, r.there) {
		// Inventories seldom change. In which order they come says nothing.
		if packed, err = pack(inventory.Union(nil, r.Inventory)); err != nil {
			return nil, fmt.Errorf("cannot encode the record of layer %s: %w", r.Layer, err)
		}
	}
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.AgentNamespace, Name: Name(r.Layer), ResourceVersion: r.version,
			Labels: map[string]string{v1alpha1.RecordLabel: "layer"},
		},
		Data:       map[string]string{headKey: string(text)},
		BinaryData: map[string][]byte{inventoryKey: packed},
	}, nil
}

// decode reads a record of a layer from its ConfigMap, and takes from room what it needs.
func decode(layer types.NamespacedName, cm *corev1.ConfigMap, room *int64) (*Record, error) {
	failed := func(err error) error {
		return fmt.Errorf("%w, of layer %s: %w; repair or delete ConfigMap %s/%s", ErrUnusable, layer, err, cm.Namespace, cm.Name)
	}
	var h head
	if err := json.Unmarshal([]byte(cm.Data[headKey]), &h); err != nil {
		return nil, failed(err)
	}
	if h.Format > format {
		return nil, fmt.Errorf("%w, of layer %s: it has format %d, and this version reads %d: a later one wrote it; upgrade this tier to that again", ErrUnusable, layer, h.Format, format)
	}
	if h.Format != format {
		return nil, failed(fmt.Errorf("it has format %d, this version reads %d", h.Format, format))
	}
	if h.Layer != layer.String() {
		return nil, failed(fmt.Errorf("it is about layer %s", h.Layer))
	}
	r := h.Record
	r.Layer, r.version, r.text, r.packed = layer, cm.ResourceVersion, cm.Data[headKey], cm.BinaryData[inventoryKey]
	var err error
	if r.Inventory, err = unpack(r.packed, room); err != nil {
		return nil, failed(err)
	}
	r.there, r.by = slices.Clone(r.Inventory), r.Parent
	return &r, nil
}

// ErrUnusable: a record is there and says nothing that this version understands.
var ErrUnusable = errors.New("cannot use the record in the child")

// ErrTooLarge: a layer has more objects in a child than its record can hold.
var ErrTooLarge = errors.New("the layer has too many objects in this child for its record: split it into several layers")

// pack encodes an inventory.
func pack(entries []inventory.Entry) ([]byte, error) {
	if len(entries) > MaxEntries {
		return nil, fmt.Errorf("%w: %d are more than %d", ErrTooLarge, len(entries), MaxEntries)
	}
	list := make([]entry, 0, len(entries))
	for _, e := range entries {
		list = append(list, entry{ID: e.ID(), Version: e.Version})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("cannot encode inventory: %w", err)
	}
	level := gzip.StatelessCompression
	if len(text) > smallText {
		level = gzip.DefaultCompression
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, level)
	if err != nil {
		return nil, fmt.Errorf("cannot pack inventory: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return nil, fmt.Errorf("cannot pack inventory: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("cannot pack inventory: %w", err)
	}
	if packed.Len() > maxPacked {
		return nil, fmt.Errorf("%w: %d bytes are more than %d", ErrTooLarge, packed.Len(), maxPacked)
	}
	return packed.Bytes(), nil
}

// unpackers keeps what is needed to unpack an inventory, the tables of which are 40 KB: a
// process that starts unpacks ten for each child. No state is in it: each starts anew.
var unpackers = sync.Pool{New: func() any { return new(gzip.Reader) }}

// unpack decodes an inventory, and takes from room what it needs.
func unpack(packed []byte, room *int64) ([]inventory.Entry, error) {
	if len(packed) == 0 {
		return nil, errors.New("its inventory is missing")
	}
	u := unpackers.Get().(*gzip.Reader)
	defer unpackers.Put(u)
	if err := u.Reset(bytes.NewReader(packed)); err != nil {
		return nil, fmt.Errorf("cannot unpack inventory: %w", err)
	}
	entries, needs, err := parse(u, min(*room, maxRoom))
	*room -= needs
	if err != nil {
		return nil, fmt.Errorf("cannot unpack inventory: %w", err)
	}
	return entries, nil
}

// parse reads the text of an inventory, entry by entry: a list that is decoded as a whole is in memory before
// anybody counts its elements, each of which takes ten times its text. needs is the room for what was read,
// also with an error, which is one as soon as that is more than room.
func parse(text io.Reader, room int64) (entries []inventory.Entry, needs int64, err error) {
	next := &io.LimitedReader{R: text, N: mostText}
	d := json.NewDecoder(next)
	expect := func(want json.Delim) error {
		t, err := d.Token()
		if err == nil && t != want {
			err = fmt.Errorf("there is no %s where it belongs", want)
		}
		return err
	}
	if err := expect('['); err != nil {
		return nil, 0, err
	}
	entries = []inventory.Entry{}
	for next.N = mostText; d.More(); next.N = mostText {
		var e entry
		if err := d.Decode(&e); err != nil {
			return nil, needs, err
		}
		needs = d.InputOffset() + int64(len(entries)+1)*entryRoom
		if needs > room || len(entries) == MaxEntries {
			return nil, needs, fmt.Errorf("it has more than %d entries, or takes more than %d bytes", MaxEntries, room)
		}
		parsed, err := inventory.Parse(e.ID, e.Version)
		if err != nil {
			return nil, needs, err
		}
		entries = append(entries, parsed)
	}
	if err := expect(']'); err != nil {
		return nil, needs, err
	}
	// To its end, where its sum is.
	switch _, err = d.Token(); {
	case errors.Is(err, io.EOF):
		return entries, needs, nil
	case err == nil:
		err = errors.New("something stands behind it")
	}
	return nil, needs, err
}
