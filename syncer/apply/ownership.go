package apply

import (
	"context"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// Ownership identifies which fields of which objects belong to a field manager after it
// applied them, as the API server tells in metadata.managedFields. Whoever changes the value
// of a field takes it from the manager that applied it, so that an object of which all fields
// still belong to their manager has the values that were applied
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
// It outlives the process that applied the objects, and does not change with the fields of
// others.
//
// It has a part for each share of the objects, so that not knowing one of them leaves the
// others known, and stays short however many there are. An empty part says nothing.
type Ownership string

// ownershipParts is how many parts an Ownership has: most layers have fewer objects.
const ownershipParts = 32

const betweenParts = ","

// part is that of an object.
func (k sentKey) part() int { return int(k[0]) % ownershipParts }

// parts of an Ownership. Those of the form that an earlier version wrote say nothing.
func (o Ownership) parts() (parts [ownershipParts]string) {
	if list := strings.Split(string(o), betweenParts); len(list) == ownershipParts {
		copy(parts[:], list)
	}
	return parts
}

func joined(parts [ownershipParts]string) Ownership {
	if parts == ([ownershipParts]string{}) {
		return ""
	}
	return Ownership(strings.Join(parts[:], betweenParts))
}

// ownedBy identifies an object and the fields that a manager applied to it; zero if it
// applied none.
func ownedBy(manager string, live *metav1.PartialObjectMetadata) uint64 {
	for _, e := range live.ManagedFields {
		if e.Manager == manager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == "" && e.FieldsV1 != nil {
			return number(digest.Of(string(live.UID), e.APIVersion, e.FieldsV1.GetRawString()))
		}
	}
	return 0
}

// ownership of these objects. Where that of one is not known, the part is the one that was
// recorded: a part that is not true any more is one that no cluster shows.
func (s Sent) ownership(recorded Ownership) Ownership {
	var sums [ownershipParts]uint64
	var has, unknown [ownershipParts]bool
	for _, o := range s {
		n := o.key.part()
		has[n] = true
		unknown[n] = unknown[n] || o.owned == 0
		sums[n] += number(digest.Of(string(o.key[:]), strconv.FormatUint(o.owned, 16)))
	}
	parts := recorded.parts()
	for n := range parts {
		switch {
		case !has[n]:
			parts[n] = ""
		case !unknown[n]:
			parts[n] = strconv.FormatUint(sums[n], 36)
		}
	}
	return joined(parts)
}

// unknown are the parts of an Ownership of which the owner of an object is not known, and
// that says something.
func (s Sent) unknown(recorded Ownership) (unknown [ownershipParts]bool, some bool) {
	parts := recorded.parts()
	for _, o := range s {
		if n := o.key.part(); o.owned == 0 && parts[n] != "" {
			unknown[n], some = true, true
		}
	}
	return unknown, some
}

// learn takes what the sweep shows for what an earlier process applied, where the fields of
// the objects belong to whom they belonged then. Without it, each object would be applied
// once after every restart.
func (r *run) learn(ctx context.Context) error {
	o := &r.options
	if o.Sweep == nil || len(r.packed) > 0 {
		return nil
	}
	unknown, some := o.Sent.unknown(o.Ownership)
	if !some {
		return nil
	}
	shown := map[sentKey]seen{}
	for _, p := range r.phases {
		bodies := p.bodies()
		for _, u := range p.Objects {
			body, err := bodies.of(u)
			if err != nil {
				continue // applying it tells
			}
			key := sentKeyOf(u, body)
			if _, sent := o.Sent.of(key); !sent || !unknown[key.part()] {
				continue
			}
			switch now, known, err := r.shown(ctx, u, body); {
			case err != nil:
				return err
			case known:
				shown[key] = now
			}
		}
	}
	recorded, now := o.Ownership.parts(), sentOf(shown).ownership("").parts()
	learned := slices.Clone(o.Sent)
	for i, object := range learned {
		if n := object.key.part(); unknown[n] && now[n] == recorded[n] {
			learned[i].seen = shown[object.key]
		}
	}
	o.Sent = learned
	return nil
}

// shown is the state in which the sweep shows an object, if that is one of which it can be
// the owner who applied it.
func (r *run) shown(ctx context.Context, u *unstructured.Unstructured, body []byte) (now seen, known bool, err error) {
	if directive.Selects(directive.Skip(), u) {
		return seen{}, false, nil
	}
	it, err := r.locate(u, body)
	if err != nil {
		return seen{}, false, nil // applying it tells
	}
	live, trusted, err := r.options.Sweep.find(ctx, it.place(), it.key.Name.Name)
	if err != nil {
		return seen{}, false, err
	}
	if live == nil || !trusted || !r.owner.owns(live.Labels) {
		return seen{}, false, nil // another owner with the same field manager may have applied it
	}
	if at := r.client.reader.Of(live); at.Deleting || at.Foreign || at.Skip {
		return seen{}, false, nil
	}
	return seenOf(r.owner.FieldManager, u, live), true, nil
}
