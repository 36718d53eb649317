package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// pruneLayers deletes what layers that were applied completely no longer declare.
func (p *push) pruneLayers(ctx context.Context) {
	for _, s := range p.layers {
		if !s.leftover {
			continue
		}
		entry := p.entry(s.layer.Name)
		err := p.postponed()
		if err == nil {
			err = s.awaitsDeclarer(ctx)
		}
		if err == nil {
			err = s.repaired(func() error { return s.prune(ctx, entry) })
		}
		// A layer that is not healthy yet stays so when it is pruned.
		if err != nil || s.complete {
			p.record(s, entry, err)
		}
	}
}

// prune deletes what the layer, which was applied completely, no longer declares, but for
// what another layer of the child declares.
func (s *seeding) prune(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	ctx, cancel := context.WithTimeout(ctx, s.layer.Spec.Timeout.Duration)
	defer cancel()
	rec, err := s.openRecord(ctx, s.key(), entry)
	if err != nil {
		return err
	}
	declared, err := s.declared(ctx)
	if err != nil {
		return err
	}
	// A prune plan depends on what an object holds and on what needs it, which the
	// parent's own account may not read.
	parent, err := s.session.Administrator(ctx)
	if err != nil {
		return cannotReach(err)
	}
	cluster, err := acting(parent, *s.as)
	if err != nil {
		return err
	}
	phases := slices.Clone(s.rendered.phases)
	for i := range phases {
		phases[i].Applied, phases[i].Await = true, false
	}
	res, err := apply.New(cluster, s.owner(), nil, s.Now).Sync(ctx, phases, apply.Options{
		Owned: rec.Inventory, Prune: true, LowerTier: true,
		Record: func(ctx context.Context, entries []inventory.Entry) error {
			rec.Inventory = entries
			return s.putRecord(ctx, rec, entry, parent)
		},
		Target:    s.child.Status.Identity.KubeSystemUID,
		Approved:  s.child.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: undecided(entry),
		Claimed:   s.awaiting.claims(s.notes.claims(declared, s.key().String(), s.notes.left, s.Now())),
	})
	noteHeld(entry, res.Plan)
	rec.Inventory = res.Inventory
	if perr := s.putRecord(ctx, rec, entry, parent); perr != nil {
		return errors.Join(perr, err)
	}
	if err != nil {
		return pruneFailed(err, *s.as)
	}
	if err := s.session.DropAdministrator(ctx); err != nil {
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return s.pruned(entry, res)
}

// claims are those of other layers. For one of which nobody knows whether it is for the child, what is left waits as long
// as for any other owner that may declare it.
func (n *layerNotes) claims(declared []plan.Declared, except string, left []inventory.Entry, now time.Time) apply.Claims {
	claims := plan.Claims(declared, except)
	if !slices.ContainsFunc(declared, func(d plan.Declared) bool { return d.Unsure }) {
		n.unsure = nil
		return claims
	}
	n.unsure = n.unsure.Still(left, now)
	waits := n.unsure
	return func(ctx context.Context, e, other inventory.Entry) (apply.Claim, error) {
		claim, err := claims(ctx, e, other)
		if claim.Unsure && waits.Overdue(e, now) {
			claim = apply.Claim{}
		}
		return claim, err
	}
}

// leaves notes whether a layer that was applied completely has something to delete. That is
// known until it is deleted, however often the prune fails.
func (s *seeding) leaves(rec *record.Record, entry *v1alpha1.ChildLayer) {
	candidates := inventory.Candidates(rec.Inventory, s.rendered.entries)
	left := len(candidates) > 0
	if !left {
		changeHeld(entry, func(held *v1alpha1.Held) { held.Prune = nil }) // all of it is declared again
		s.notes.awaiting = nil
	}
	s.leftover = s.layer.Spec.Prune && left
	s.notes.leftover, s.notes.left = s.leftover, nil
	if s.leftover {
		s.notes.left = candidates
	}
}

// pruned is the outcome of a prune in which nothing failed: an error while deletes are held,
// or have begun and are not confirmed.
func (s *seeding) pruned(entry *v1alpha1.ChildLayer, res apply.Result) error {
	if len(res.Plan.Keep) > 0 {
		s.notes.seal = nil // a seal tells nothing of what keeps the rest
	}
	if err := heldBack(entry, res, s.named()); err != nil {
		return err
	}
	if rest := underWay(res); len(rest) > 0 {
		return s.stillDeleting(rest)
	}
	s.notes.leftover, s.notes.left, s.notes.deleting, s.notes.awaiting = false, nil, deleting{}, nil
	return nil
}

// deleting is what is known of deletes that have begun and are not confirmed.
type deleting struct {
	// left identifies what they are of, and since when: what else changes does not count.
	left  string
	since time.Time
	// again is when they are looked at again, and says what is told until then, once that took
	// longer than the layer's timeout.
	again time.Time
	says  string
}

// lingers says what is still being deleted of a layer that is in place, if that takes long.
func (n *layerNotes) lingers() string {
	if !n.leftover {
		return ""
	}
	return n.deleting.says
}

// deletesMost bounds the pause between two looks at objects that do not go.
const deletesMost = 10 * time.Minute

// stillDeleting is an error as long as objects may be expected to go. After the layer's timeout
// a finalizer holds them, or a volume that is in use: what the layer declares is in place all the
// same, and nobody is to wait for the rest, as with a Kustomization.
func (s *seeding) stillDeleting(rest []inventory.Entry) error {
	d, now := &s.notes.deleting, s.Now()
	if left := inventory.Identify(s.notes.left); d.since.IsZero() || d.left != left {
		*d = deleting{left: left, since: now}
	}
	waited := now.Sub(d.since)
	if waited <= s.layer.Spec.Timeout.Duration {
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("waiting for %d objects to be deleted, the first is %s", len(rest), rest[0]))
	}
	d.again = now.Add(min(max(time.Minute, waited/4), deletesMost))
	d.says = fmt.Sprintf("in place; %d objects that are not declared any more are still being deleted, the first is %s", len(rest), rest[0])
	return nil
}

// deletesBegan has deletes that a process before this one began go on as its status has them: a layer that was ready
// all the same is not to wait for them once more.
func (s *seeding) deletesBegan(entry *v1alpha1.ChildLayer) {
	d := deleting{left: inventory.Identify(s.notes.left), since: entry.Since.Time}
	switch {
	case !s.leftover:
		return
	case entry.Ready:
		d.since = d.since.Add(-s.layer.Spec.Timeout.Duration - time.Second)
	case entry.Reason != v1alpha1.ReasonProgressing:
		return
	}
	s.notes.deleting = d
}

// underWay are the objects of a prune that are deleted soon. What another owner has, and what
// is a part of a Cluster that stays, may stay for good.
func underWay(res apply.Result) []inventory.Entry {
	rest := slices.Concat(res.Plan.Waiting, res.Plan.Queued)
	for _, e := range res.Deleted {
		if slices.Contains(res.Inventory, e) {
			rest = append(rest, e)
		}
	}
	if len(res.Deleted) > 0 {
		rest = append(rest, res.Plan.OfCluster...) // whose Cluster may be gone by now
	}
	return rest
}

// pruneFailed gives an error of a prune its reason.
func pruneFailed(err error, as account.Account) error {
	if isForbidden(err, as) {
		return forbidden(err, as)
	}
	return reason.Because(v1alpha1.ReasonPruneFailed, err)
}

// noteHeld has the layer's entry say what waits for a person, until a plan settles that.
func noteHeld(entry *v1alpha1.ChildLayer, made inventory.Plan) {
	if made.Blocked() || made.Settles() {
		changeHeld(entry, func(held *v1alpha1.Held) { held.Prune = made.Hold(held.Prune) })
	}
}

// heldBack is an error while deletes are held.
func heldBack(entry *v1alpha1.ChildLayer, res apply.Result, named string) error {
	switch {
	case res.Plan.Blocked():
		return reason.Because(v1alpha1.ReasonPruneBlocked, errors.New(res.Plan.Message(named)))
	case len(res.Plan.HandOver) > 0:
		changeHeld(entry, func(held *v1alpha1.Held) {
			if held.HandOver == nil || held.HandOver.Hash != res.HandOver.Hash {
				held.HandOver = &v1alpha1.HandOver{Hash: res.HandOver.Hash, Since: res.HandOver.Since} // nobody counts from it
			}
		})
		why := "which may declare them and has not applied them yet: let it be applied, or remove it there too"
		if res.Plan.Unsure {
			why = fmt.Sprintf("whose clusterSelector cannot be used, so that it may declare them for this cluster: correct it; after %d minutes they are deleted all the same, but never what is protected",
				int(inventory.HandOverBound.Minutes()))
		}
		return reason.Because(v1alpha1.ReasonHandOverPending, fmt.Errorf("%s stay for %s, %s", inventory.Names(res.Plan.HandOver), res.Plan.NewOwner, why))
	}
	return nil
}
