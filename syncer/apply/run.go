package apply

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/inventory"
)

// run is one call of Sync. Its steps are taken one after the other, and each
// leaves in the result what the ones before it did.
type run struct {
	*Applier
	options Options
	phases  []Phase
	// scopes tells how the API server keys the entries of what is declared and of what
	// is owned. unscoped is why it does not for some kind; nothing is pruned then.
	scopes   scopes
	unscoped error
	// objects are those of all phases but for the packed ones, packed the entries
	// of these, rendered the entries of both, owned those of the inventory.
	objects  []*unstructured.Unstructured
	packed   []inventory.Entry
	rendered []inventory.Entry
	owned    []inventory.Entry
	// provided are the providers of Cluster API of which the rendering has
	// components.
	provided map[string]bool
	// begun is when the call began; slow: the caller was told that it takes long.
	begun time.Time
	slow  bool
	// stuck are the kinds with whose objects the API server does not get done.
	stuck kindSet
	// places are those of the sweep that were looked at. loose: an object was not as the
	// sweep had to show it.
	places map[unique.Handle[place]]struct{}
	loose  atomic.Bool
	// answers are those to applies, where they are to be sealed.
	answers []answered
	// sent becomes the result's. tried are objects that failed.
	sent  map[sentKey]seen
	tried map[sentKey]struct{}
	res   Result
}

// begin labels the objects of the phases, removes the namespaces of those that have no
// business with one, and gathers what they have.
func (a *Applier) begin(phases []Phase, o Options) *run {
	r := &run{
		Applier: a, options: o, begun: a.now(), phases: slices.Clone(phases), provided: map[string]bool{}, places: map[unique.Handle[place]]struct{}{}, sent: map[sentKey]seen{}, tried: map[sentKey]struct{}{},
		res: Result{Changes: ssa.NewChangeSet(), Inventory: o.Owned, Complete: true},
	}
	entries := slices.Clone(o.Owned)
	for _, p := range phases {
		entries = append(entries, p.Entries()...)
	}
	r.scopes, r.unscoped = a.client.scopes(entries, scopesDefined(phases))
	r.owned = r.scopes.ofAll(o.Owned)
	for n, p := range r.phases {
		p.Objects = r.prepare(p.Objects, p.bodies())
		r.phases[n] = p
		r.objects = append(r.objects, p.Objects...)
		r.rendered = append(r.rendered, r.scopes.ofAll(p.Entries())...)
		providers := providersOf(p.Objects)
		if p.Packed != nil {
			r.packed = append(r.packed, r.scopes.ofAll(p.Packed.Entries())...)
			providers = append(providers, p.Packed.providers...)
		}
		for _, name := range providers {
			r.provided[name] = true
		}
	}
	return r
}

// prepare readies objects that are to be sent. Those of a frozen phase are shared and
// ready, but for what this cluster alone says of their kind: such an object is copied.
func (r *run) prepare(objects []*unstructured.Unstructured, bodies bodies) []*unstructured.Unstructured {
	ready := objects
	for i, u := range objects {
		switch {
		case bodies[u] == nil:
			r.owner.label(u)
			r.scopes.place(u)
		case r.scopes.misplaced(u):
			own := u.DeepCopy()
			r.scopes.place(own)
			if &ready[0] == &objects[0] {
				ready = slices.Clone(objects)
			}
			ready[i] = own
		}
	}
	return ready
}

// holdCreation decides which Clusters must not be created.
func (r *run) holdCreation(ctx context.Context) (err error) {
	r.res.Creation, err = r.Creation(ctx, r.objects, r.options.FirstSync)
	return err
}

// recordAhead writes down everything that may be created, before anything is.
func (r *run) recordAhead(ctx context.Context) error {
	declared := r.scopes.ofAll(inventory.OfAll(withoutHeld(r.objects, r.res.Creation)))
	ahead := inventory.Union(r.owned, append(r.packed, declared...))
	if r.options.AlwaysRecord || !inventory.Equal(ahead, r.owned) {
		if err := r.options.Record(ctx, ahead); err != nil {
			return &RecordError{Err: err}
		}
	}
	r.res.Inventory, r.res.Recorded = ahead, !r.res.Creation.Withholding()
	return nil
}

// poll has a memo that does not watch compare what it remembers with the cluster.
func (r *run) poll(ctx context.Context) error {
	r.memo.Poll(ctx, r.client.reader, r.owner.key(), func(e inventory.Entry) (schema.GroupVersionResource, error) {
		mapping, err := r.client.served(e)
		if err != nil {
			return schema.GroupVersionResource{}, err
		}
		return mapping.Resource, nil
	})
	return ctx.Err()
}

// applyPhases applies one phase after the other and waits for each.
func (r *run) applyPhases(ctx context.Context) error {
	for _, p := range r.phases {
		p.Objects = withoutHeld(p.Objects, r.res.Creation)
		if err := r.phase(ctx, p); err != nil {
			return inPhase(p.Name, err)
		}
		r.res.Done++
	}
	return nil
}

// unreached keeps what was known of declared objects that a run which failed did not come to. Else
// it would be forgotten what was applied because one list was not answered, and all of it applied
// again by the next comparison. Objects that failed are not known: somebody may have changed them.
func (r *run) unreached() {
	if len(r.options.Sent) <= len(r.sent) || r.res.Creation.Withholding() {
		// Nothing more was known, as while a push waits between its phases; or Clusters are gone of which
		// it would be said that they were sent.
		return
	}
	declared, err := SentOf(r.owner, r.phases)
	if err != nil {
		return // all is applied again
	}
	for _, o := range declared {
		before, known := r.options.Sent.of(o.key)
		_, tried := r.tried[o.key]
		if _, now := r.sent[o.key]; known && !tried && !now {
			r.sent[o.key] = before
		}
	}
}

// stillSent keeps what is known of the objects of a phase that was applied a moment ago. Packed
// ones are not unpacked for that: all that the call before sent was of the same rendering.
func (r *run) stillSent(p Phase) error {
	if p.Packed != nil {
		for _, o := range r.options.Sent {
			r.sent[o.key] = o.seen
		}
		return nil
	}
	bodies := p.bodies()
	for _, u := range p.Objects {
		body, err := bodies.of(u)
		if err != nil {
			return err
		}
		sent := sentKeyOf(u, body)
		if before, ok := r.options.Sent.of(sent); ok {
			r.sent[sent] = before
		}
	}
	return nil
}

// phase applies one phase and waits for it.
func (r *run) phase(ctx context.Context, p Phase) error {
	touched := len(r.res.Touched)
	if p.Applied {
		if err := r.stillSent(p); err != nil {
			return err
		}
	} else {
		objects, err := p.all()
		if err != nil {
			return err
		}
		bodies := p.bodies()
		objects = r.prepare(objects, bodies)
		if err := r.stages(ctx, objects, bodies); err != nil {
			return Redact(err, objects)
		}
	}
	r.res.Applied++
	if !p.Await {
		return nil
	}
	var health Health
	var err error
	if !r.options.Healthy || r.options.Sweep == nil || p.Applied || len(r.res.Touched) > touched {
		health, err = r.Health(ctx, r.scopes.ofAll(p.Entries()), nil)
		p.Vanished(health)
	}
	if err == nil && health.Done() && p.Check != nil {
		health, err = p.Check(ctx, r.client)
	}
	if err == nil && !health.Done() {
		err = &WaitError{Health: health}
	}
	return err
}

// pruneRest removes what the rendering no longer declares, or forgets it. What
// is not applied completely is not pruned.
func (r *run) pruneRest(ctx context.Context) error {
	defer func() { r.res.Inventory = inOrder(r.res.Inventory, r.res.Changes) }()
	r.memo.Retain(r.owner.key(), r.rendered)
	o, stays := r.options, r.rendered
	if len(o.Keep) > 0 {
		stays = inventory.Union(r.rendered, r.scopes.ofAll(o.Keep))
	}
	switch {
	case r.res.Creation.Blocked(), o.Defer:
		return nil
	case !o.Prune:
		r.res.Inventory = inventory.Union(nil, stays)
		return nil
	}
	if r.unscoped != nil {
		return &PruneError{Err: r.unscoped}
	}
	if r.isSlow() {
		r.tellSlow(ctx)
	}
	if r.slow {
		o.Slow = nil
	}
	err := r.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: r.owned, Rendered: stays, LowerTier: o.LowerTier, Approved: o.Approved, Undecided: o.Undecided,
		HandOver: o.HandOver, Decided: o.Decided,
	}, o, r.provided, &r.res)
	if err != nil {
		return &PruneError{Err: err}
	}
	return nil
}

// inOrder sorts entries as they were applied, which is how people read them, and
// puts what is left of others behind.
func inOrder(entries []inventory.Entry, changes *ssa.ChangeSet) []inventory.Entry {
	rank := make(map[string]int, len(changes.Entries))
	for i, c := range changes.Entries {
		rank[c.ObjMetadata.String()] = i - len(changes.Entries)
	}
	type ranked struct {
		entry inventory.Entry
		rank  int
	}
	all := make([]ranked, 0, len(entries))
	for _, e := range entries {
		all = append(all, ranked{e, rank[e.ID()]})
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })
	sorted := make([]inventory.Entry, 0, len(all))
	for _, r := range all {
		sorted = append(sorted, r.entry)
	}
	return sorted
}
