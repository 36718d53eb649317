package apply

import (
	"encoding/json"
	"fmt"
	"io"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Frozen is an object as one owner applies it: labelled and encoded once, for any number
// of clusters. It is immutable and safe for concurrent use. Its object must not be
// modified.
type Frozen struct {
	object *unstructured.Unstructured
	// body is what is sent, and sent identifies it together with the object.
	body []byte
	sent sentKey
	// before is the text between head and tail of body before the object was labelled.
	before     []byte
	head, tail int
}

// Freeze labels an object for its owner and encodes it. The caller must not modify it from
// then on.
func Freeze(owner Owner, u *unstructured.Unstructured) (*Frozen, error) {
	declared, err := encode(u)
	if err != nil {
		return nil, err
	}
	ssautil.RemoveCABundleFromCRD(u)
	owner.label(u)
	body, err := encode(u)
	if err != nil {
		return nil, err
	}
	f := &Frozen{object: u, body: body, sent: sentKeyOf(u, body), tail: len(body)}
	for f.head < min(len(declared), len(body)) && declared[f.head] == body[f.head] {
		f.head++
	}
	end := len(declared)
	for end > f.head && f.tail > f.head && declared[end-1] == body[f.tail-1] {
		end, f.tail = end-1, f.tail-1
	}
	f.before = append(f.before, declared[f.head:end]...) // a copy, so that declared may go
	return f, nil
}

// Object must not be modified.
func (f *Frozen) Object() *unstructured.Unstructured { return f.object }

// Size is about how many bytes the object takes.
func (f *Frozen) Size() int { return 6*cap(f.body) + cap(f.before) }

// Size is about how many bytes the objects of a frozen phase take.
func (p Phase) Size() int {
	size := 0
	for _, f := range p.frozen {
		size += f.Size()
	}
	return size
}

// declared writes the object as json.Encoder does, from before it was labelled.
func (f *Frozen) declared(w io.Writer) error {
	for _, text := range [...][]byte{f.body[:f.head], f.before, f.body[f.tail:], {'\n'}} {
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// PhaseOf is a phase of objects that are frozen for its owner.
func PhaseOf(objects []*Frozen) Phase {
	p := Phase{Objects: make([]*unstructured.Unstructured, 0, len(objects)), frozen: objects}
	for _, f := range objects {
		p.Objects = append(p.Objects, f.object)
	}
	return p
}

// Declared writes what identifies the objects of the phase as they are declared, before
// anything is done to apply them. Layers have recorded digests of it in their clusters:
// another form would have each of them pushed again.
func (p Phase) Declared(w io.Writer) error {
	if p.digest != "" {
		_, err := io.WriteString(w, p.digest)
		return err
	}
	e := json.NewEncoder(w)
	for n, u := range p.Objects {
		var err error
		if p.frozen != nil {
			err = p.frozen[n].declared(w)
		} else {
			err = e.Encode(u.Object)
		}
		if err != nil {
			return fmt.Errorf("cannot encode %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	if p.Packed != nil {
		return e.Encode(p.Packed.Digest())
	}
	return nil
}
