package apply

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
)

// Packed is a list of objects that many clusters get. It takes little memory
// while it is not applied. Its digest and its entries are known without
// unpacking. What it says does not change, and it is safe for concurrent use.
type Packed struct {
	data      []byte
	digest    string
	entries   []inventory.Entry
	providers []string
	outline   []*unstructured.Unstructured

	mu sync.Mutex
	// sent are the keys of the objects as owners send them: those of a layer are the same for
	// each cluster.
	sent map[Owner][]sentKey
}

// Pack packs objects, which it does not change or keep.
func Pack(objects []*unstructured.Unstructured) (*Packed, error) {
	p := &Packed{entries: inventory.OfAll(objects), providers: providersOf(objects)}
	for _, u := range objects {
		p.outline = append(p.outline, outlineOf(u))
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	h := sha256.New()
	e := json.NewEncoder(io.MultiWriter(z, h))
	for _, u := range objects {
		if err := e.Encode(u.Object); err != nil {
			return nil, fmt.Errorf("cannot encode %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("cannot pack objects: %w", err)
	}
	p.data, p.digest = bytes.Clone(packed.Bytes()), "sha256:"+hex.EncodeToString(h.Sum(nil))
	return p, nil
}

// Digest identifies the content.
func (p *Packed) Digest() string { return p.digest }

// Size is about how many bytes it takes.
func (p *Packed) Size() int {
	const outlineSize = 2 << 10 // of an object, with its entry
	return cap(p.data) + outlineSize*len(p.entries)
}

// Entries of the objects. The caller must not change them.
func (p *Packed) Entries() []inventory.Entry { return p.entries }

// Outline are the objects as far as it takes to know what they are and who may
// write them: names, what a definition defines, and what a binding binds. The
// caller must not modify them.
func (p *Packed) Outline() []*unstructured.Unstructured { return p.outline }

func outlineOf(u *unstructured.Unstructured) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(u.GetAPIVersion())
	o.SetKind(u.GetKind())
	o.SetName(u.GetName())
	o.SetNamespace(u.GetNamespace())
	for _, path := range [][]string{{"spec", "group"}, {"spec", "names"}, {"spec", "scope"}, {"roleRef"}} {
		if path[0] == "spec" && !ssautil.IsCRD(u) {
			continue
		}
		if value, ok, err := unstructured.NestedFieldCopy(u.Object, path...); ok && err == nil {
			_ = unstructured.SetNestedField(o.Object, value, path...) // into a map that was just made
		}
	}
	return o
}

// Objects unpacks: each call gives objects of its own.
func (p *Packed) Objects() ([]*unstructured.Unstructured, error) {
	z, err := gzip.NewReader(bytes.NewReader(p.data))
	if err != nil {
		return nil, fmt.Errorf("cannot unpack objects: %w", err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("cannot unpack objects: %w", err)
	}
	objects := make([]*unstructured.Unstructured, 0, len(p.entries))
	for line := range bytes.Lines(text) {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(line); err != nil {
			return nil, fmt.Errorf("cannot unpack objects: %w", err)
		}
		objects = append(objects, u)
	}
	return objects, nil
}

// sentBy are the keys of the objects as an owner sends them. They are unpacked for the first
// that asks.
func (p *Packed) sentBy(owner Owner) ([]sentKey, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if keys, known := p.sent[owner]; known {
		return keys, nil
	}
	objects, err := p.Objects()
	if err != nil {
		return nil, err
	}
	keys := make([]sentKey, 0, len(objects))
	for _, u := range objects {
		owner.label(u)
		body, err := encode(u)
		if err != nil {
			return nil, err
		}
		keys = append(keys, sentKeyOf(u, body))
	}
	if p.sent == nil {
		p.sent = map[Owner][]sentKey{}
	}
	p.sent[owner] = keys
	return keys, nil
}

// providersOf are the providers that objects are components of, sorted.
func providersOf(objects []*unstructured.Unstructured) []string {
	var providers []string
	for _, u := range objects {
		if p := u.GetLabels()[clusterapi.ProviderLabel]; p != "" && !slices.Contains(providers, p) {
			providers = append(providers, p)
		}
	}
	slices.Sort(providers)
	return providers
}
