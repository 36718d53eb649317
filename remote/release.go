package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// release handles layers that are on record and no longer select the child.
func (p *push) release(ctx context.Context, selected []*v1alpha1.Layer) {
	var keep []v1alpha1.ChildLayer
	for _, entry := range p.child.Status.Layers {
		if slices.ContainsFunc(selected, func(s *v1alpha1.Layer) bool { return s.Name == entry.Name }) {
			keep = append(keep, entry)
			continue
		}
		done, err := p.releaseLayer(ctx, &entry)
		if done {
			delete(p.notes.layers, entry.Name)
			continue
		}
		recordOutcome(&entry, judged(err), metav1.NewTime(p.Now()))
		keep = append(keep, entry)
	}
	p.child.Status.Layers = keep
}

// leave records why the layers that no longer select the child are not taken off it. One that
// said why a moment ago says nothing else while the child has no time.
func (p *push) leave(selected []*v1alpha1.Layer, why error) {
	for i := range p.child.Status.Layers {
		entry := &p.child.Status.Layers[i]
		if slices.ContainsFunc(selected, func(s *v1alpha1.Layer) bool { return s.Name == entry.Name }) || !entry.Ready && refused(why) {
			continue
		}
		recordOutcome(entry, judged(why), metav1.NewTime(p.Now()))
	}
}

// releaseLayer does what is to become of a layer that no longer selects the child. done:
// the child has nothing of the layer any more that the parent answers for.
func (p *push) releaseLayer(ctx context.Context, entry *v1alpha1.ChildLayer) (done bool, err error) {
	layer, err := p.unselected(ctx, entry.Name)
	if err != nil {
		return false, err
	}
	decision := plan.Released(layer)
	if decision == plan.Hold {
		return false, reason.Because(v1alpha1.ReasonSuspended, fmt.Errorf("layer %s does not select this cluster any more; while it is suspended, what it applied stays", entry.Name))
	}
	removes := decision == plan.Remove
	granted := removes && plan.Granted(layer, p.child.UID)
	if removes && !granted && onRecord(entry) {
		return false, keeps(layer, entry)
	}
	key := types.NamespacedName{Namespace: p.child.Namespace, Name: entry.Name}
	rec, err := p.openRecord(ctx, key, entry)
	if err != nil {
		return false, err
	}
	lost := removes && granted && !rec.Exists() && len(rec.Inventory) == 0 && entry.Objects > 0
	if removes && len(rec.Inventory) > 0 {
		if !granted {
			// The status did not say that there is something. Now it does, and counts.
			noteRecord(entry, rec)
			return false, keeps(layer, entry)
		}
		as, err := p.Accounts.Of(ctx, layer)
		if err != nil {
			return false, err
		}
		if err := p.remove(ctx, rec, entry, as); err != nil {
			return false, err
		}
	}
	objects := entry.Objects
	done, err = p.forgetLayer(ctx, rec, entry)
	switch {
	case done && lost:
		p.Events.Eventf(p.child, corev1.EventTypeWarning, "ObjectsLeft",
			"The record of layer %s was deleted in this cluster, and nothing has the labels of the layer: of %d objects, what is there without them stays", entry.Name, objects)
	case done && layer == nil && entry.DeletionPolicy == v1alpha1.DeletionDelete && len(rec.Inventory) > 0:
		p.Events.Eventf(p.child, corev1.EventTypeWarning, "ObjectsLeft",
			"Layer %s is gone without having been taken off this cluster: %d objects that it applied stay", entry.Name, len(rec.Inventory))
	}
	return done, err
}

// keeps is the reason why a child keeps a layer that it is not to have any more: its
// Layer has not granted the removal.
func keeps(layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer) error {
	removal := layer.Status.Removal
	if removal == nil || !removal.Held {
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("waiting for Layer %s to let go of what it applied", layer.Name))
	}
	changeHeld(entry, func(held *v1alpha1.Held) { held.Removal = &v1alpha1.HeldRemoval{Hash: removal.Hash} })
	return reason.Because(v1alpha1.ReasonRemovalHeld, errors.New(plan.RemovalMessage(layer)))
}

// remove deletes what a layer applied, but for what another layer of the child declares, as
// the layer's account. It returns nil once nothing of it is left.
func (p *push) remove(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer, as account.Account) error {
	if err := p.grant(ctx, access.BaseRole, access.BaseRights()); err != nil {
		return err
	}
	// To see what a Namespace holds, and which kinds are gone, takes more rights than
	// the layer has.
	parent, err := p.session.Administrator(ctx)
	if err != nil {
		return cannotReach(err)
	}
	cluster, err := acting(parent, as)
	if err != nil {
		return err
	}
	declared, err := p.declared(ctx)
	if err != nil {
		return err
	}
	res, err := apply.New(cluster, ownerOf(rec.Layer.Namespace, rec.Layer.Name), nil, p.Now).Remove(ctx, rec.Inventory, apply.Options{
		Target: p.child.Status.Identity.KubeSystemUID, LowerTier: true, Approved: p.child.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: undecided(entry),
		Claimed:   p.notes.of(rec.Layer.Name).claims(declared, rec.Layer.String(), rec.Inventory, p.Now()),
	})
	noteHeld(entry, res.Plan)
	if !inventory.Equal(rec.Inventory, res.Inventory) {
		rec.Inventory = res.Inventory
		if perr := p.putRecord(ctx, rec, entry, parent); perr != nil {
			return errors.Join(perr, err)
		}
	}
	if err != nil {
		return pruneFailed(err, as)
	}
	if err := heldBack(entry, res, p.named()); err != nil {
		return err
	}
	if left := len(res.Inventory) - len(res.Plan.Claimed); left > 0 {
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("waiting for %d objects to be deleted", left))
	}
	return nil
}

// forgetLayer removes the record of a layer from the child, and then the rights that the
// parent had for the layer.
func (p *push) forgetLayer(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) (done bool, err error) {
	if err := p.grant(ctx, access.BaseRole, access.BaseRights()); err != nil {
		return false, err
	}
	cluster, err := p.session.Administrator(ctx)
	if err != nil {
		return false, cannotReach(err)
	}
	if err := p.dropRecord(ctx, rec, cluster); err != nil {
		return false, err
	}
	entry.Inventory = nil
	if err := p.session.Revoke(ctx, access.LayerRole(p.child.Namespace, entry.Name)); err != nil {
		return false, reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return true, nil
}
