package apply

import (
	"encoding/json"
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
)

// Sent is a set of objects as they were applied, in a few bytes each.
type Sent map[sentKey]struct{}

// sentKey identifies an object together with its body.
type sentKey [8]byte

func sentKeyOf(u *unstructured.Unstructured, body []byte) (key sentKey) {
	sum := digest.Of([]byte(inventory.Of(u).ID()), body)
	copy(key[:], sum[:])
	return key
}

// SentOf returns the set of the phases' objects, which the owner is known to
// have applied as they are, perhaps in an earlier process. Packed objects are
// left out.
func SentOf(owner Owner, phases []Phase) (Sent, error) {
	sent := Sent{}
	for _, p := range phases {
		for _, u := range p.Objects {
			if p.bodies[u] == nil {
				owner.label(u)
			}
			body, err := p.bodies.of(u)
			if err != nil {
				return nil, err
			}
			sent[sentKeyOf(u, body)] = struct{}{}
		}
	}
	return sent, nil
}

// bodies are request bodies of objects that were encoded before.
type bodies map[*unstructured.Unstructured][]byte

// of returns the body of an object.
func (b bodies) of(u *unstructured.Unstructured) ([]byte, error) {
	if body := b[u]; body != nil {
		return body, nil
	}
	ssautil.RemoveCABundleFromCRD(u)
	return encode(u)
}

// encode is the body of an apply request. Equal objects have equal bodies.
func encode(u *unstructured.Unstructured) ([]byte, error) {
	body, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", ssautil.FmtUnstructured(u), err)
	}
	return body, nil
}
