package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// What a Rollout lets a child have is in the Child's status. Here it takes effect: a layer is
// rendered at the revision that the child may have of it, and an object that a layer brings
// is pinned to the one that the child may have of that. A child that a Rollout governs gets
// nothing new of what is moved before the Rollout let it have something.

// waitingError says why a layer gets nothing new for now. What is in place of it stands.
type waitingError struct{ error }

func (e *waitingError) Unwrap() error { return e.error }

func waitsBecause(why, format string, args ...any) error {
	return reason.Because(why, &waitingError{fmt.Errorf(format, args...)})
}

func isWaitingError(err error) bool { return errors.As(err, new(*waitingError)) }

// governs finds out which Rollouts govern the child.
func (r *run) governs(ctx context.Context) error {
	all, err := r.rollouts.list(ctx, r.Client, r.child.Namespace)
	if err != nil {
		return err
	}
	r.governing = rollout.Of(all, r.labels)
	return nil
}

// retain has the revisions kept that the child may have of its layers.
func (r *run) retain(selected []*v1alpha1.Layer) {
	var need []source.Pinned
	for _, layer := range selected {
		mover := r.governing.Layer(layer.Name)
		if mover.Name == "" || layer.Spec.SourceRef == nil {
			continue
		}
		if pin := rollout.Pin(r.child, mover); pin != nil && pin.Revision != "" {
			if p := (source.Pinned{Key: layerSource(layer), Revision: pin.Revision}); !slices.Contains(need, p) {
				need = append(need, p)
			}
		}
	}
	r.Snapshots.Retain(holderOf(r.key()), need...)
}

// pinned finds out what a Rollout lets the child have of the layer, nil if none moves it.
func (s *seeding) pinned() (*v1alpha1.RolloutRevision, error) {
	if s.ahead {
		return nil, nil
	}
	ref := s.layer.Spec.SourceRef
	mover := s.governing.Layer(s.layer.Name)
	switch {
	case len(mover.Conflict) > 0:
		return nil, waitsBecause(v1alpha1.ReasonRolloutConflict, "Rollouts %s move layer %s of this cluster; nothing new of it is pushed until only one does",
			strings.Join(mover.Conflict, " and "), s.layer.Name)
	case !mover.Moves():
		return nil, nil
	case ref != nil && ref.Kind == sourcev1.BucketKind:
		return nil, waitsBecause(v1alpha1.ReasonInvalidSpec, "Rollout %s cannot move layer %s: its source is a Bucket, which has no older revisions; use a GitRepository or an OCIRepository",
			mover.Name, s.layer.Name)
	}
	pin := rollout.Pin(s.child, mover)
	if pin == nil || ref != nil && pin.Revision == "" {
		return nil, waitsBecause(v1alpha1.ReasonRolloutPending, "Rollout %s has not let this cluster have a revision of layer %s yet", mover.Name, s.layer.Name)
	}
	return pin, nil
}

// let is what each Rollout let the child have of the layer and its objects, as the record of the layer
// says it; empty if none moves any of that.
func (s *seeding) let() string {
	var pins []string
	if s.pin != nil {
		pins = append(pins, s.governing.Layer(s.layer.Name).Name+"="+cmp.Or(s.pin.Revision, s.pin.Image))
	}
	for _, o := range s.moves() {
		mover := s.governing.Object(o)
		if pin := rollout.Pin(s.child, mover); pin != nil {
			pins = append(pins, mover.Name+"="+pin.Revision)
		}
	}
	return strings.Join(pins, " ")
}

// isOf reports whether the record of the layer says that a Rollout let the child have what was sent last. A word
// without a name is of an earlier version, and says so of any, unless another one is known to have moved the layer.
func (s *seeding) isOf(rec *record.Record, rollout string) bool {
	return slices.ContainsFunc(strings.Fields(rec.Pinned), func(word string) bool {
		name, _, named := strings.Cut(word, "=")
		return !named && !s.notes.others || named && name == rollout
	})
}

// moves are the objects of the last rendering that Rollouts move.
func (s *seeding) moves() []v1alpha1.RolloutPinnedSource {
	return slices.DeleteFunc(slices.Clone(s.governing.Objects()), func(o v1alpha1.RolloutPinnedSource) bool { return slices.Contains(s.notes.idle, o) })
}

// moversAnew has the layer looked at as after a start if a Rollout moves it, or an object of it, that did not when it
// was looked at last: one that was pointed at it since, or selects the child again. What that let the child have may be
// of something else, or long ago.
func (s *seeding) moversAnew() {
	var movers []string
	add := func(m rollout.Mover) {
		if rollout.Pin(s.child, m) != nil {
			movers = append(movers, m.Name)
		}
	}
	if s.pin != nil {
		add(s.governing.Layer(s.layer.Name))
	}
	if !s.ahead {
		for _, o := range s.moves() {
			add(s.governing.Object(o))
		}
	}
	if slices.ContainsFunc(movers, func(m string) bool { return !slices.Contains(s.notes.movers, m) }) && s.notes.looked {
		s.notes.looked, s.notes.others = false, len(s.notes.movers) > 0
	}
	s.notes.movers = movers
}

// unpinned is an error if the child has what came past its Rollout: a version that knows no Rollouts
// was here, and sent the newest one to all children, or this one had begun to before the Rollout
// came; another Rollout did, which moved the layer before. To send what the pin says would change all of them
// back at once, so that nothing is sent before the Rollout has taken what is there for what the child has. A
// child that was restored from a backup has a record of then, with its pin, and is brought back. entry says
// what the record does.
func (s *seeding) unpinned(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) error {
	if rec.Applied.Digest == "" || rec.InPlace(s.rendered.digest) {
		return nil
	}
	has, pin, by, err := s.past(ctx, rec, entry)
	if entry.Past = by; by == "" {
		return err
	}
	return waitsBecause(v1alpha1.ReasonRolloutPending, "%s was brought, and not %s, which Rollout %s let this cluster have: by an agent of an earlier version, or before the Rollout came; nothing is pushed before the Rollout goes on from what is there", has, pin, by)
}

// past is what the child has of the layer, or of an object of it, and what of its pin, if that came past the Rollout of the
// pin; empty if it did not. Of objects the child's own agent tells. A Rollout that the record names let the child have it.
func (s *seeding) past(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer) (has, pin, by string, err error) {
	if mover := s.governing.Layer(s.layer.Name); s.pin != nil && !s.isOf(rec, mover.Name) {
		is := v1alpha1.RolloutRevision{Revision: sentOf(entry), Image: s.pin.Image}
		if is.Image != "" && s.layer.Spec.Agent != nil {
			image, err := s.agentImage(ctx)
			if err != nil {
				return "", "", "", err
			}
			is.Image = cmp.Or(image, is.Image)
		}
		if rollout.IsPast(rollout.OnRecord(s.child, mover), is) {
			entry.AgentImage = is.Image
			if is.Revision == s.pin.Revision {
				return "the agent " + is.Image, s.pin.Image, mover.Name, nil
			}
			return "revision " + is.Revision, s.pin.Revision, mover.Name, nil
		}
	}
	said := s.child.Status.Report
	if said == nil {
		return "", "", "", nil
	}
	for _, o := range s.moves() {
		mover := s.governing.Object(o)
		if s.isOf(rec, mover.Name) {
			continue
		}
		pin := rollout.OnRecord(s.child, mover)
		has, _ := report.BroughtRevision(said, o)
		if has != "" && pin != nil && !isContent(o.Kind, has, pin.Revision) && rollout.IsPast(pin, v1alpha1.RolloutRevision{Revision: has}) {
			return "revision " + has, pin.Revision, mover.Name, nil
		}
	}
	return "", "", "", nil
}

// sentOf is the revision of a layer that was sent last, perhaps in part: for a Rollout that is what the child has, which
// goes on with it until a run gives it another one. A later commit with the same content counts.
func sentOf(entry *v1alpha1.ChildLayer) string {
	if sentInPart(entry) {
		return entry.LastAttemptedRevision
	}
	return entry.Revision
}

// sentInPart reports whether something else of a layer was begun than what is on record as in place.
func sentInPart(entry *v1alpha1.ChildLayer) bool {
	return entry.LastAttemptedDigest != "" && entry.LastAttemptedDigest != entry.Digest
}

// noteBrought has the Child say of each revision that a run found in place, and of which no layer brings the object. Given is what Rollouts let the child have
// when the layers were looked at; another run looks at what they wrote since. What was said before a Rollout gave
// something back says nothing of it: what was taken back may be on its way, in a run that has not ended or never will.
func (p *push) noteBrought(given []v1alpha1.ChildRollout) {
	for _, o := range p.governing {
		pin := rollout.OnRecord(p.child, rollout.MoverOf(o))
		if of := o.Spec.Moves.Source; pin != nil {
			pin.Idle = of != nil && p.idle(*of, pin.Idle) // which says nothing of a layer that it moves by now
		}
		if pin == nil || pin.Idle || pin.Brought || wasProven(pin) || o.Spec.Moves.KustomizationRef != nil || !slices.ContainsFunc(given, pin.Same) {
			continue
		}
		pin.Brought = p.brought(o.Spec.Moves, pin)
	}
}

// idle reports whether no layer brings an object that a Rollout moves, by what was rendered of them last. Of one that was not
// rendered since this process began nobody knows: what was known before stands.
func (p *push) idle(of v1alpha1.RolloutPinnedSource, before bool) bool {
	all := true
	for _, s := range p.layers {
		switch {
		case s.notes.idle == nil:
			all = all && before
		case !slices.Contains(s.notes.idle, of):
			return false
		}
	}
	return all
}

// brought reports whether this run found in place what a Rollout moves, as the Rollouts let the child have it.
func (p *push) brought(moves v1alpha1.RolloutMoves, pin *v1alpha1.ChildRollout) bool {
	found := func(s *seeding) bool { return s.complete && !s.unvisited }
	if ref := moves.LayerRef; ref != nil {
		return slices.ContainsFunc(p.layers, func(s *seeding) bool { return s.layer.Name == ref.Name && s.standing == "" && found(s) })
	}
	// Which layer brings an object is not known of one that is not rendered. What waits for something else, or for a
	// person, sends nothing; it may have sent what the child had before.
	return !slices.ContainsFunc(p.layers, func(s *seeding) bool {
		switch {
		case slices.Contains(s.notes.idle, *moves.Source):
			return false
		case s.layer.Spec.Suspend, s.standing != "":
			return slices.ContainsFunc(strings.Fields(s.notes.given), func(word string) bool {
				revision, by := strings.CutPrefix(word, pin.Name+"=")
				return by && revision != pin.Revision
			})
		}
		return !found(s)
	})
}

// imageOf is the image of the layer's agent in this child.
func (s *seeding) imageOf() (string, error) {
	if s.pin != nil && s.pin.Image != "" && s.layer.Spec.Agent != nil {
		return s.pin.Image, nil
	}
	return imageOf(s.layer)
}

// snapshotOf is the snapshot of a source that the layer is rendered from: of the layer's own
// source at the revision that the child may have. It is nil while there is none.
func (s *seeding) snapshotOf(key source.Key) (*source.Snapshot, error) {
	if s.pin == nil || s.layer.Spec.SourceRef == nil || key != layerSource(s.layer) {
		return s.seen(key), nil
	}
	if snapshot := s.Snapshots.At(key, s.pin.Revision); snapshot != nil {
		return snapshot, nil
	}
	if err := s.Snapshots.Failure(key, s.pin.Revision); err != nil {
		return nil, reason.Because(v1alpha1.ReasonSourceNotReady, &waitingError{err})
	}
	return nil, waitsBecause(v1alpha1.ReasonSourceNotReady, "revision %s of %s %s, which a Rollout lets this cluster have, has not been fetched yet", s.pin.Revision, key.Kind, key.Name)
}

// pinObjects pins those of the layer's objects that Rollouts move. Objects are shared by the
// children: those that are pinned are copies.
func (s *seeding) pinObjects(objects []*apply.Frozen) ([]*apply.Frozen, error) {
	moved := s.governing.Objects()
	if s.ahead || len(moved) == 0 {
		return objects, nil
	}
	found := map[int]v1alpha1.RolloutPinnedSource{}
	idle := slices.Clone(moved)
	for n, f := range objects {
		if is, ok := rollout.Identify(f.Object()); ok && slices.Contains(moved, is) {
			found[n] = is
			idle = slices.DeleteFunc(idle, func(o v1alpha1.RolloutPinnedSource) bool { return o == is })
		}
	}
	s.notes.idle = idle
	if len(found) == 0 {
		return objects, nil
	}
	objects = slices.Clone(objects)
	for _, n := range slices.Sorted(maps.Keys(found)) {
		revision, err := s.revisionOf(found[n])
		if err != nil {
			return nil, err
		}
		u, err := rollout.Apply(objects[n].Object(), revision)
		if err != nil {
			return nil, reason.Because(v1alpha1.ReasonInvalidSpec, &waitingError{err})
		}
		if objects[n], err = apply.Freeze(s.owner(), u); err != nil {
			return nil, reason.Because(v1alpha1.ReasonBuildFailed, err)
		}
	}
	return objects, nil
}

// revisionOf is the revision that the child may have of an object.
func (s *seeding) revisionOf(of v1alpha1.RolloutPinnedSource) (string, error) {
	what := fmt.Sprintf("%s %s/%s", of.Kind, of.Namespace, of.Name)
	mover := s.governing.Object(of)
	if len(mover.Conflict) > 0 {
		return "", waitsBecause(v1alpha1.ReasonRolloutConflict, "Rollouts %s move %s of this cluster; nothing new of layer %s is pushed until only one does",
			strings.Join(mover.Conflict, " and "), what, s.layer.Name)
	}
	pin := rollout.Pin(s.child, mover)
	if pin == nil || pin.Revision == "" {
		return "", waitsBecause(v1alpha1.ReasonRolloutPending, "Rollout %s has not let this cluster have a revision of %s yet", mover.Name, what)
	}
	return pin.Revision, nil
}

// objectPins are the pins that the rendering of the layer depends on: those of its objects.
// One that the last rendering had nothing to do with is left out, until the rest changes.
func (s *seeding) objectPins() []string {
	if s.ahead {
		return nil
	}
	var pins []string
	for _, o := range s.governing.Objects() {
		if slices.Contains(s.notes.idle, o) {
			continue
		}
		mover := s.governing.Object(o)
		revision := ""
		if pin := rollout.Pin(s.child, mover); pin != nil {
			revision = pin.Revision
		}
		pins = append(pins, strings.Join([]string{o.Kind, o.Namespace, o.Name, mover.Name, strings.Join(mover.Conflict, ","), revision}, " "))
	}
	return pins
}

// waits is the outcome of a layer that gets nothing new: what is in place stands, and stays
// ready if it is. The child tells what that is, where this tier does not know. Nothing is
// written to the child.
func (s *seeding) waits(ctx context.Context, entry *v1alpha1.ChildLayer, why error) error {
	if !s.notes.looked && !s.notes.noted && s.postponed() == nil {
		if err := s.repaired(func() error { return s.noteApplied(ctx, entry) }); err != nil {
			return err
		}
	}
	if err := s.repaired(func() error { return s.noteImage(ctx, entry) }); err != nil {
		return err
	}
	if !entry.Ready {
		return why
	}
	s.complete, s.standing = true, report.Cut(why.Error(), maxLayerMessage)
	return nil
}

// noteApplied has the Child's status say what the child has of the layer, by the record.
func (s *seeding) noteApplied(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	rec, err := s.openRecord(ctx, s.key(), entry)
	if err != nil {
		return err
	}
	if rec.Exists() || rec.Applied.Digest != "" {
		noteRecord(entry, rec)
	}
	// A push that a process before this one began may not have come to its end.
	entry.Ready = entry.Ready && rec.InPlace(rec.Applied.Digest)
	s.notes.noted = true
	return nil
}

// declaredAhead is what a layer that is rendered at an older revision will declare in the
// child at the newest one; false if that is no other one. What moves to it from another
// layer, which has the newest already, or is taken off the child by it, is not to be deleted in between. asked is
// from after the Layers were read.
func (s *seeding) declaredAhead(ctx context.Context, asked int) (plan.Declared, bool) {
	if s.unfetched(ctx, asked) {
		return plan.Declared{Layer: s.key().String(), Ahead: true}, true
	}
	return s.atNewest(ctx)
}

// atNewest is what declaredAhead tells, by the newest revision that this process has fetched.
func (s *seeding) atNewest(ctx context.Context) (plan.Declared, bool) {
	if s.pin == nil || s.layer.Spec.SourceRef == nil || s.snapshot == nil {
		return plan.Declared{}, false
	}
	newest := s.seen(layerSource(s.layer))
	if newest == nil || newest.Revision == s.snapshot.Revision {
		return plan.Declared{}, false
	}
	next := &seeding{push: s.push, layer: s.layer, as: s.as, vars: maps.Clone(s.push.vars), notes: &layerNotes{}, ahead: true}
	err := s.gather(ctx, next)
	if err == nil {
		err = next.render(ctx)
	}
	d := plan.Declared{Layer: s.key().String(), Known: err == nil, Ahead: true}
	if d.Known {
		d.Entries = next.rendered.entries
	}
	return d, true
}

// movedAway is what the layer has at an older revision, where a Rollout holds it, and lacks at the newest one, and what
// another layer of the child has applied: a later commit moved it there. Both would send it as they have it, in turn, each
// time that they compare. It is the layer's again once the other one drops it.
func (s *seeding) movedAway(ctx context.Context) []inventory.Entry {
	if s.ahead || s.whole || s.pin == nil || s.layer.Spec.SourceRef == nil || s.snapshot == nil {
		return nil
	}
	newest := s.seen(layerSource(s.layer))
	if newest == nil || newest.Revision == s.snapshot.Revision || s.contents.same(s.layer, s.snapshot, newest) {
		return nil
	}
	next, ok := s.atNewest(ctx)
	if !ok || !next.Known {
		return nil
	}
	former := inventory.Difference(s.rendered.entries, next.Entries)
	if len(former) == 0 {
		return nil
	}
	var others []plan.Declared
	for _, o := range s.layers {
		if o.layer.Name != s.layer.Name {
			others = append(others, o.inPlace(ctx))
		}
	}
	claimed := plan.Claims(others, s.key().String())
	return slices.DeleteFunc(former, func(e inventory.Entry) bool {
		c, err := claimed(ctx, e, e)
		return err != nil || c.Owner == "" || c.Kind != apply.Recorded
	})
}

// inPlace is what a layer of the child declares, if all of it is there. It has a rendering of its own: the layer may not
// have had its turn.
func (s *seeding) inPlace(ctx context.Context) plan.Declared {
	entry, d := entryOf(s.child, s.layer.Name), plan.Declared{Layer: s.key().String(), Known: true}
	if entry == nil || entry.Digest == "" || entry.Digest != entry.LastAttemptedDigest {
		return d
	}
	is := s.rendered
	if is == nil {
		now := &seeding{push: s.push, layer: s.layer, as: s.as, vars: maps.Clone(s.push.vars), notes: &layerNotes{}, whole: true}
		if s.gather(ctx, now) != nil || now.render(ctx) != nil {
			return d
		}
		is = now.rendered
	}
	if d.Applied = is.digest == entry.Digest; d.Applied {
		d.Entries = is.entries
	}
	return d
}

// holderOf is who retains revisions for a child.
func holderOf(child client.ObjectKey) source.Holder {
	return source.Holder{Kind: "Child", NamespacedName: child}
}
