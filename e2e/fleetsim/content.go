package fleetsim

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unique"
	"weak"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

type digest [sha256.Size]byte

// interner keeps one of equal values, as long as anybody uses it.
type interner[T any] struct {
	mu  sync.Mutex
	all map[digest]weak.Pointer[T]
}

// get returns the value of a digest, which create makes if there is none.
func (i *interner[T]) get(d digest, create func() *T) *T {
	i.mu.Lock()
	defer i.mu.Unlock()
	if v := i.all[d].Value(); v != nil {
		return v
	}
	v := create()
	if i.all == nil {
		i.all = map[digest]weak.Pointer[T]{}
	}
	i.all[d] = weak.Make(v)
	runtime.AddCleanup(v, func(d digest) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.all[d].Value() == nil {
			delete(i.all, d)
		}
	}, d)
	return v
}

func (i *interner[T]) len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.all)
}

// content is an object without what two clusters have different: it is shared
// between all clusters that hold it.
type content struct {
	// body is the object as JSON without its first bracket, type and the holes.
	body  []byte
	holes []hole
	// labels in the form that labels.ConvertSelectorToLabelsMap reads.
	labels unique.Handle[string]
	// intent identifies everything but metadata and status: what a generation
	// counts.
	intent [8]byte
	// finalized: the object has finalizers; leaving: it was deleted before.
	finalized, leaving bool
}

// hole is a place in a body at which a value of the record stands.
type hole struct {
	at   uint32
	kind holeKind
}

type holeKind uint8

// In the order in which they stand in an object.
const (
	holeCreated holeKind = iota
	holeGeneration
	holeManaged
	holeVersion
	holeUID
	holeRenewed
)

// marks stand for holes while an object is encoded. Nobody else can write them.
var marks = func() (marks [6]string) {
	nonce := rand.Text()
	for i := range marks {
		marks[i] = fmt.Sprintf("%s-%d", nonce, i)
	}
	return marks
}()

// store has what is shared between clusters.
type store struct {
	contents interner[content]
	managed  interner[managedSet]
	catalogs interner[catalog]
	kinds    interner[kind]
}

const managedKey = `"managedFields":`

// content makes an object of a kind shared. It takes the object over.
func (s *store) content(k *kind, object map[string]any) (*content, error) {
	m, ok := object["metadata"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("cannot encode object: it has no metadata")
	}
	delete(object, "apiVersion")
	delete(object, "kind")
	m["creationTimestamp"], m["resourceVersion"], m["uid"], m["managedFields"] = marks[holeCreated], marks[holeVersion], marks[holeUID], marks[holeManaged]
	delete(m, "generation")
	if k.Generation {
		m["generation"] = marks[holeGeneration]
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode object: %w", err)
	}
	c := &content{}
	text = text[1:]
	for {
		first, kind := -1, holeKind(0)
		for k, mark := range marks {
			if i := bytes.Index(text, []byte(`"`+mark+`"`)); i >= 0 && (first < 0 || i < first) {
				first, kind = i, holeKind(k)
			}
		}
		if first < 0 {
			break
		}
		before, after := text[:first], text[first+len(marks[kind])+2:]
		if kind == holeManaged {
			// The key belongs to the hole: an object without managers has none.
			before, after = bytes.TrimSuffix(before, []byte(managedKey)), bytes.TrimPrefix(after, []byte(","))
		}
		c.body = append(c.body, before...)
		c.holes = append(c.holes, hole{at: uint32(len(c.body)), kind: kind})
		text = after
	}
	c.body = bytes.Clone(append(c.body, text...))
	h := sha256.New()
	fmt.Fprint(h, c.holes)
	h.Write(c.body)
	return s.contents.get(digest(h.Sum(nil)), func() *content {
		c.labels = unique.Make(labels.Set(stringMap(m["labels"])).String())
		_, c.leaving = m["deletionTimestamp"]
		list, _ := m["finalizers"].([]any)
		c.finalized = len(list) > 0
		intent := map[string]any{}
		for k, v := range object {
			if k != "metadata" && k != "status" {
				intent[k] = v
			}
		}
		if k.Group == appsv1.GroupName {
			intent["annotations"] = m["annotations"] // they count there
		}
		text, _ := json.Marshal(intent)
		sum := sha256.Sum256(text)
		copy(c.intent[:], sum[:])
		return c
	}), nil
}

func stringMap(v any) map[string]string {
	from, _ := v.(map[string]any)
	to := make(map[string]string, len(from))
	for k, v := range from {
		to[k], _ = v.(string)
	}
	return to
}

// object decodes a content, without what the holes stand for.
func (c *content) object() (map[string]any, error) {
	text := make([]byte, 0, len(c.body)+64)
	text = append(text, '{')
	from := uint32(0)
	for _, h := range c.holes {
		text = append(text, c.body[from:h.at]...)
		if h.kind != holeManaged {
			text = append(text, "null"...)
		}
		from = h.at
	}
	text = append(text, c.body[from:]...)
	var object map[string]any
	if err := utiljson.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("cannot decode object: %w", err)
	}
	if m, ok := object["metadata"].(map[string]any); ok {
		for _, key := range []string{"creationTimestamp", "generation", "resourceVersion", "uid"} {
			if m[key] == nil {
				delete(m, key)
			}
		}
	}
	return object, nil
}

func (c *content) matches(s labels.Selector) bool {
	if s == nil || s.Empty() {
		return true
	}
	set, err := labels.ConvertSelectorToLabelsMap(c.labels.Value())
	return err == nil && s.Matches(set)
}

// managedSet are the field managers of an object without the times of their
// writes, shared between all objects that have the same.
type managedSet struct {
	entries []managedEntry
}

type managedEntry struct {
	// text is the entry as JSON up to its time.
	text string
	meta metav1.ManagedFieldsEntry
}

// managed makes a list of managers shared.
func (s *store) managedSet(entries []metav1.ManagedFieldsEntry) *managedSet {
	set := &managedSet{entries: make([]managedEntry, len(entries))}
	h := sha256.New()
	for i, e := range entries {
		e.Time = nil
		text, _ := json.Marshal(e) // of strings and valid JSON
		set.entries[i] = managedEntry{text: string(text[:len(text)-1]), meta: e}
		h.Write(text)
	}
	return s.managed.get(digest(h.Sum(nil)), func() *managedSet { return set })
}

func (m *managedSet) with(times []int64) []metav1.ManagedFieldsEntry {
	if m == nil {
		return nil
	}
	entries := make([]metav1.ManagedFieldsEntry, len(m.entries))
	for i, e := range m.entries {
		entries[i] = e.meta
		entries[i].Time = &metav1.Time{Time: time.Unix(times[i], 0).UTC()}
	}
	return entries
}

// inherit gives entries of a new set that were in the old one their times, and
// the others the time of now.
func (m *managedSet) inherit(old *managedSet, times []int64, now int64) []int64 {
	out := make([]int64, len(m.entries))
	for i, e := range m.entries {
		out[i] = now
		if old == nil {
			continue
		}
		for j, o := range old.entries {
			if o.text == e.text {
				out[i] = times[j]
			}
		}
	}
	return out
}

// record is an object in one cluster. It is immutable: a write makes another.
type record struct {
	kind      *kind
	namespace string
	name      string
	content   *content
	managed   *managedSet
	// times of the writes of managed, in Unix seconds.
	times      []int64
	uid        uid
	version    uint64
	generation int64
	created    int64
	// renewing: the object is a lease that somebody renews all the time.
	renewing bool
}

type uid [16]byte

func (u uid) String() string {
	var b [36]byte
	hex.Encode(b[:8], u[:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:], u[10:])
	return string(b[:])
}

// uidOf derives a UID.
func uidOf(of ...any) uid {
	sum := sha256.Sum256(fmt.Append(nil, of...))
	var u uid
	copy(u[:], sum[:])
	u[6] = u[6]&0x0f | 0x40 // version 4
	u[8] = u[8]&0x3f | 0x80
	return u
}

// form says how an object is written.
type form struct {
	// version of the kind in which it is asked for; empty for the one in which
	// it is stored. Items of a list of a built-in kind have no type.
	version string
	untyped bool
}

// renewal is the state of what moves by itself, at one moment.
type renewal struct {
	version uint64
	at      time.Time
}

func (r *record) append(b []byte, f form, now renewal) []byte {
	b = append(b, '{')
	if !f.untyped {
		b = append(b, `"kind":`...)
		b = strconv.AppendQuote(b, r.kind.Kind)
		b = append(b, `,"apiVersion":`...)
		b = strconv.AppendQuote(b, r.kind.apiVersion(f.version))
		b = append(b, ',')
	}
	c := r.content
	from := uint32(0)
	for _, h := range c.holes {
		b = append(b, c.body[from:h.at]...)
		from = h.at
		switch h.kind {
		case holeCreated:
			b = appendTime(b, r.created)
		case holeGeneration:
			b = strconv.AppendInt(b, r.generation, 10)
		case holeManaged:
			b = r.appendManaged(b)
		case holeVersion:
			b = append(b, '"')
			b = strconv.AppendUint(b, r.at(now), 10)
			b = append(b, '"')
		case holeUID:
			b = append(append(append(b, '"'), r.uid.String()...), '"')
		case holeRenewed:
			b = append(b, '"')
			b = now.at.UTC().AppendFormat(b, metav1.RFC3339Micro)
			b = append(b, '"')
		}
	}
	return append(b, c.body[from:]...)
}

// at is the resource version of the record.
func (r *record) at(now renewal) uint64 {
	if r.renewing {
		return max(r.version, now.version)
	}
	return r.version
}

func (r *record) appendManaged(b []byte) []byte {
	if len(r.managed.entries) == 0 {
		return b
	}
	b = append(append(b, managedKey...), '[')
	for i, e := range r.managed.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, e.text...), `,"time":`...)
		b = append(appendTime(b, r.times[i]), '}')
	}
	return append(b, ']', ',')
}

func appendTime(b []byte, unix int64) []byte {
	b = append(b, '"')
	b = time.Unix(unix, 0).UTC().AppendFormat(b, time.RFC3339)
	return append(b, '"')
}
