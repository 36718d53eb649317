package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/health"
)

// Phase is a part of a rendering that is applied before the parts after it.
type Phase struct {
	// Name stands in errors about the phase; it may be empty.
	Name    string
	Objects []*unstructured.Unstructured
	// Packed are further objects, nil if there are none.
	Packed *Packed
	// Await lets the next phase begin only when the objects are healthy and
	// Check, if there is one, has nothing to wait for.
	Await bool
	Check func(ctx context.Context, c *Cluster) (Health, error)
	// Applied: the objects were applied and are not sent again, by the call whose result
	// Options.Sent is and of the same rendering. Await says whether they are waited for.
	Applied bool
	// frozen are the objects of a frozen phase, in their order; nil for others.
	frozen []*Frozen
	digest string
}

// Freeze labels the objects for their owner and encodes them, once for any
// number of clusters. They must not be modified from then on.
func (p Phase) Freeze(owner Owner) (Phase, error) {
	h := sha256.New()
	p.frozen = make([]*Frozen, 0, len(p.Objects))
	for _, u := range p.Objects {
		f, err := Freeze(owner, u)
		if err != nil {
			return p, err
		}
		p.frozen = append(p.frozen, f)
		h.Write(f.body)
		h.Write([]byte{'\n'})
	}
	p.digest = hex.EncodeToString(h.Sum(nil))
	return p, nil
}

// bodies are what is sent of the objects of a frozen phase.
func (p Phase) bodies() bodies {
	if p.frozen == nil {
		return nil
	}
	b := make(bodies, len(p.frozen))
	for _, f := range p.frozen {
		b[f.object] = f.body
	}
	return b
}

// Entries of all objects of the phase.
func (p Phase) Entries() []inventory.Entry {
	entries := inventory.OfAll(p.Objects)
	if p.Packed == nil {
		return entries
	}
	return append(entries, p.Packed.Entries()...)
}

// Vanished marks Jobs that the cluster removed after they were done: they are waited for no
// more. Of those that are packed nobody knows.
func (p Phase) Vanished(found Health) {
	for _, u := range p.Objects {
		if !health.Vanishes(u) {
			continue
		}
		for i := range found {
			found[i].Vanishes = found[i].Vanishes || found[i].Entry == inventory.Of(u)
		}
	}
}

// Outline are the objects of the phase, those that are packed as far as it takes
// to know what they are and who may write them. They must not be modified.
func (p Phase) Outline() []*unstructured.Unstructured {
	if p.Packed == nil {
		return p.Objects
	}
	return append(slices.Clone(p.Objects), p.Packed.Outline()...)
}

// Defines are the kinds that definitions of the phase define, with the names of
// their resources.
func (p Phase) Defines() map[schema.GroupKind]string {
	defined := map[schema.GroupKind]string{}
	for _, u := range p.Outline() {
		if ssautil.IsCRD(u) {
			group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			defined[schema.GroupKind{Group: group, Kind: kind}], _, _ = unstructured.NestedString(u.Object, "spec", "names", "plural")
		}
	}
	return defined
}

// all the objects of a phase, which the caller may modify.
func (p Phase) all() ([]*unstructured.Unstructured, error) {
	if p.Packed == nil {
		return p.Objects, nil
	}
	objects, err := p.Packed.Objects()
	return append(objects, p.Objects...), err
}

// WaitError: a phase or a stage is applied but not healthy yet. Calling Sync
// again later goes on.
type WaitError struct {
	// Phase is the name of the phase, if it has one.
	Phase  string
	Health Health
}

func (e *WaitError) Error() string {
	if e.Phase != "" {
		return "waiting for " + e.Phase + ": " + e.Health.Message()
	}
	return "waiting for " + e.Health.Message()
}

// Going reports whether nothing but the end of objects is waited for.
func (e *WaitError) Going() bool {
	return len(e.Health) > 0 && !slices.ContainsFunc(e.Health, func(r health.Result) bool { return r.Status != status.TerminatingStatus })
}

// inPhase names the phase in an error.
func inPhase(name string, err error) error {
	var waiting *WaitError
	switch {
	case name == "":
		return err
	case errors.As(err, &waiting):
		waiting.Phase = name
		return err
	}
	return fmt.Errorf("cannot apply %s: %w", name, err)
}
