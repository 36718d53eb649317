package apply

import (
	"context"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
)

// Ownership identifies which fields of which objects belong to a field manager after it
// applied them, as the API server tells in metadata.managedFields. Whoever changes the value
// of a field takes it from the manager that applied it, so that an object of which all fields
// still belong to their manager has the values that were applied
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
// It outlives the process that applied the objects, and does not change with the fields of
// others. Empty says nothing.
type Ownership string

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

// ownership of all these objects, empty if that of one is not known.
func (s Sent) ownership() Ownership {
	var sum uint64
	for key, at := range s {
		if at.owned == 0 {
			return ""
		}
		sum += number(digest.Of(string(key[:]), strconv.FormatUint(at.owned, 16)))
	}
	if len(s) == 0 {
		return ""
	}
	return Ownership(strconv.FormatUint(sum, 16))
}

// learn takes what the sweep shows for what an earlier process applied, if the fields of all
// objects belong to whom they belonged then. Without it, each object would be applied once
// after every restart.
func (r *run) learn(ctx context.Context) error {
	o := &r.options
	if o.Ownership == "" || o.Sweep == nil || len(r.packed) > 0 || o.Sent == nil || o.Sent.ownership() != "" {
		return nil
	}
	learned := Sent{}
	for _, p := range r.phases {
		bodies := p.bodies()
		for _, u := range p.Objects {
			if directive.Selects(directive.Skip(), u) {
				return nil
			}
			body, err := bodies.of(u)
			if err != nil {
				return nil // applying it tells
			}
			sent := sentKeyOf(u, body)
			if _, before := o.Sent[sent]; !before {
				return nil
			}
			it, err := r.locate(u, body)
			if err != nil {
				return nil // applying it tells
			}
			live, trusted, err := o.Sweep.find(ctx, it.place(), it.key.Name.Name)
			if err != nil {
				return err
			}
			if live == nil || !trusted || !r.owner.owns(live.Labels) {
				return nil // another owner with the same field manager may have applied it
			}
			if at := r.client.reader.Of(live); at.Deleting || at.Foreign || at.Skip {
				return nil
			}
			learned[sent] = seenOf(r.owner.FieldManager, u, live)
		}
	}
	if learned.ownership() == o.Ownership {
		o.Sent = learned
	}
	return nil
}
