package remote

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// seedManager is the field manager of everything that a layer brings into a child.
const seedManager = "cascade-seed"

// seeding is the push of one layer into one child.
type seeding struct {
	*push
	layer *v1alpha1.Layer
	// as whom the layer is pushed; nil before that is known.
	as   *account.Account
	vars map[string]string
	// refers are the Secrets and ConfigMaps that were asked for, as they are named for this
	// child.
	refers []use
	notes  *layerNotes
	// sensitive values among vars.
	sensitive []string
	snapshot  *source.Snapshot
	// content identifies what the layer reads of the snapshot in this process, and read in all;
	// zero before it is known what it reads.
	content string
	read    digest.Short
	// credentials are the Secrets to deliver, as they are in the parent.
	credentials []credential
	// pin is what a Rollout lets the child have of the layer, nil if none moves it.
	pin *v1alpha1.RolloutRevision
	// ahead: the layer is rendered as if no Rollout moved anything.
	ahead bool
	// handed is what another layer has by now, and is left to it. whole: nothing is.
	handed []inventory.Entry
	whole  bool
	// standing is why a layer that is in place gets nothing new; empty if it may.
	standing string
	// unvisited: nothing was found out about the layer, and nothing done. What is asked of it
	// counts as handled later.
	unvisited bool
	// brought: the layer was brought into the child, or that was tried.
	brought bool
	// image of the layer's agent; empty if it has none.
	image string
	// components are what spec.providers is rendered from.
	components components
	// rendered is what the layer declares in this child, nil before it is rendered.
	rendered *rendered
	// leftover: the layer was applied completely, and its inventory has what it no longer
	// declares, which is to be deleted in this run.
	leftover bool
	// awaiting tells what of that stays for a Kustomization.
	awaiting awaiting
	// complete: all that the layer declares is in place and, where the layer says wait,
	// healthy. What it no longer declares may still be there.
	complete bool
	// progressed: the child took a part of what was sent.
	progressed bool
	// touched are objects of a layer that was in place and healthy which are not in the
	// state of then.
	touched []inventory.Entry
}

// rendered is what one layer declares in one child.
type rendered struct {
	// phases are nil once they are in the child and nothing else is to be done with them.
	phases  []apply.Phase
	entries []inventory.Entry
	digest  string
}

func (s *seeding) key() types.NamespacedName {
	return types.NamespacedName{Namespace: s.layer.Namespace, Name: s.layer.Name}
}

func (s *seeding) owner() apply.Owner { return ownerOf(s.layer.Namespace, s.layer.Name) }

func ownerOf(namespace, layer string) apply.Owner {
	return apply.Owner{FieldManager: seedManager, LabelGroup: v1alpha1.LayerLabelGroup, Name: layer, Namespace: namespace}
}

// revision of the source, empty without one.
func (s *seeding) revision() string {
	if s.snapshot == nil {
		return ""
	}
	return s.snapshot.Revision
}

// render finds out what the layer declares in the child, after its inputs were gathered.
func (s *seeding) render(ctx context.Context) error {
	if s.rendered != nil {
		return nil
	}
	made, err := s.rendering(ctx)
	if err != nil {
		return err
	}
	s.rendered = made
	s.handed = s.movedAway(ctx)
	if s.notes.handed = len(s.handed) > 0; s.notes.handed {
		s.rendered, err = s.rendering(ctx)
	}
	return err
}

// rendering is what the layer declares without what it handed over.
func (s *seeding) rendering(ctx context.Context) (*rendered, error) {
	phases, err := s.phases(ctx)
	if err != nil {
		return nil, err
	}
	digest, err := digestOf(phases)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return &rendered{phases: phases, entries: declared(phases), digest: digest}, nil
}

// bring brings the layer into the child. It returns nil once all that the layer declares
// is there and, where the layer says wait, healthy. It keeps entry current, the layer's
// entry in the Child's status.
func (s *seeding) bring(ctx context.Context, entry *v1alpha1.ChildLayer) error {
	ctx, cancel := context.WithTimeout(ctx, s.layer.Spec.Timeout.Duration)
	defer cancel()
	if entry.Digest != "" {
		entry.DeletionPolicy = s.layer.Spec.DeletionPolicy // the present policy counts for what is in place
	}
	s.moversAnew()
	inputs, now := s.inputs(), s.Now()
	s.shortenDue(inputs)
	facts := plan.Layer{
		Changed: s.notes.inputs != inputs, Asked: s.notes.inputs != "" && s.notes.requested != s.requested() || s.reassigned(),
		Undecided: entry.Reason == v1alpha1.ReasonPruneBlocked, Due: s.notes.due, RetryAt: s.notes.retryAt,
		Spent: s.postponed() != nil,
	}
	if !facts.Changed && s.notes.looked && (entry.Ready || facts.Undecided || now.Before(s.notes.retryAt)) && now.Before(s.notes.due) {
		// Nothing that the layer is rendered from has changed, and nothing is due.
		return s.stands(entry)
	}
	if !s.notes.looked && (facts.Spent || entry.Ready && s.othersFirst(entry)) {
		if entry.Ready {
			// It stands as it was: whether it has what it may have now, nobody looked.
			s.complete, s.unvisited = true, true
			return nil
		}
		return s.postponed()
	}
	if !facts.Changed && !facts.Asked && !facts.Spent && s.notes.looked && entry.Ready {
		// It is due, and nothing else.
		if s.crowded() {
			s.notes.due = now.Add(s.afterOthers())
			return s.stands(entry)
		}
		switch unbroken, err := s.sealed(ctx); {
		case s.mayWait(err):
			return s.stands(entry)
		case err != nil:
			return err
		case unbroken:
			s.compared()
			return s.stands(entry)
		}
	}
	var rec *record.Record // nil unless it is read before the layer is rendered
	if !s.notes.looked && (entry.Ready || s.child.Status.SupersededBy != nil) {
		// What is in place by its record is not rendered, nor is anything for a child that another
		// management cluster took over.
		var err error
		if rec, err = s.openRecord(ctx, s.key(), entry); err != nil {
			return err
		}
		if s.adopt(rec, entry, inputs) {
			return s.stands(entry)
		}
	}
	if err := s.render(ctx); err != nil {
		return err
	}
	inputs = s.inputs() // it is known by now which pins they have
	if !s.notes.looked {
		if err := s.look(ctx, rec, entry); err != nil {
			return err
		}
		facts.Due = s.notes.due
	}
	facts.Wanted, facts.Attempted, facts.Applied = s.rendered.digest, entry.LastAttemptedDigest, entry.Digest
	action := plan.Decide(facts, now)
	if action != plan.Wait && action != plan.Postpone {
		// What is tried now is tried again alone, should it fail, until something changes.
		s.notes.inputs, s.notes.requested, s.notes.as = inputs, s.requested(), s.as
	}
	switch action {
	case plan.Wait:
		return s.stands(entry)
	case plan.Postpone:
		return s.postponed()
	case plan.Send, plan.Compare:
		if s.run.notes.slow {
			park.Aside(ctx)
		}
		ready := entry.Ready
		switch err := s.apply(ctx, entry, action == plan.Compare, facts.Asked); {
		case ready && facts.InPlace() && s.mayWait(err):
			s.unvisited = true
			return s.stands(entry)
		case err != nil:
			return err
		}
	case plan.Keep:
		if facts.Undecided {
			return s.stands(entry) // a person's decision changes the inputs
		}
		s.leftover = s.layer.Spec.Prune && s.notes.leftover && !now.Before(s.notes.deleting.again)
	}
	s.has(entry)
	unsure := s.touched
	if !entry.Ready {
		unsure = slices.Clone(s.rendered.entries) // which is shortened
	}
	if s.layer.Spec.Wait && len(unsure) > 0 {
		if err := s.await(ctx, entry, unsure); err != nil {
			return err
		}
	}
	s.complete = true
	return nil
}

// has records the revision that the child has of the layer.
func (s *seeding) has(entry *v1alpha1.ChildLayer) {
	entry.Revision, entry.LastAttemptedRevision, entry.AgentImage = s.revision(), s.revision(), s.image
	if s.pin != nil {
		entry.AgentImage = s.pin.Image
	}
}

// compared sets when the layer is due again.
func (s *seeding) compared() { s.notes.due = s.nextDue() }

// shortenDue has the layer due earlier if its interval is shorter now, or the clock was set back,
// which may be by days where a machine booted with a wrong one: when it is due is a time of day.
// After a start it is due one interval later than from then on.
func (s *seeding) shortenDue(inputs string) {
	next := s.nextDue()
	if s.notes.inputs != inputs && next.Before(s.notes.due) || s.notes.due.After(next.Add(s.layer.Spec.Interval.Duration+adoptFirst)) {
		s.notes.due = next
	}
}

func (s *seeding) nextDue() time.Time {
	return plan.NextDue(s.begun, s.layer.Spec.Interval.Duration, s.run.notes.phase)
}

// stands is the outcome that stands: nothing was done.
func (s *seeding) stands(entry *v1alpha1.ChildLayer) error {
	s.complete = entry.Ready
	if entry.Ready {
		// Perhaps of another commit with the same content.
		s.has(entry)
		return nil
	}
	return reason.Because(entry.Reason, errors.New(entry.Message))
}

// await is nil once these objects of the layer are healthy.
func (s *seeding) await(ctx context.Context, entry *v1alpha1.ChildLayer, unsure []inventory.Entry) error {
	// The rights were granted when the layer was pushed. Reading health writes nothing.
	parent, err := s.session.Account(ctx)
	if err != nil {
		return cannotReach(err)
	}
	cluster, err := acting(parent, *s.as)
	if err != nil {
		return err
	}
	found, err := apply.New(cluster, s.owner(), nil, s.Now).Health(ctx, slices.DeleteFunc(unsure, still), nil)
	if err != nil {
		return reason.Because(v1alpha1.ReasonUnreachable, err)
	}
	return s.healthy(entry, found)
}

// healthy is nil if what was found of the layer's objects is as it should be.
func (s *seeding) healthy(entry *v1alpha1.ChildLayer, found apply.Health) error {
	for _, phase := range s.rendered.phases {
		phase.Vanished(found)
	}
	waited := time.Duration(0)
	if entry.Reason == v1alpha1.ReasonProgressing || entry.Reason == v1alpha1.ReasonHealthCheckFailed {
		waited = s.Now().Sub(entry.Since.Time)
	}
	switch verdict := health.Judge(found, true); {
	case verdict == health.Healthy:
		return nil
	case verdict == health.Stalled || waited > s.layer.Spec.Timeout.Duration, entry.Reason == v1alpha1.ReasonHealthCheckFailed:
		return reason.Because(v1alpha1.ReasonHealthCheckFailed, errors.New(found.Message()))
	}
	return reason.Because(v1alpha1.ReasonProgressing, errors.New("waiting for "+found.Message()))
}

// apply applies what the layer declares and is not known to be there. To compare is to
// hold what is known against what is there now; if somebody asked for that, nothing counts
// as known. It deletes nothing.
func (s *seeding) apply(ctx context.Context, entry *v1alpha1.ChildLayer, compare, asked bool) error {
	phases := s.rendered.phases
	if compare && s.begun.Before(s.notes.due) {
		s.notes.due = s.begun // as long as there is nothing to compare it with
	}
	rec, err := s.openRecord(ctx, s.key(), entry)
	if err != nil {
		return err
	}
	survey, err := s.survey(ctx, rec.Inventory, phases)
	if err != nil {
		return err
	}
	known, sweep, err := s.known(ctx, rec.Inventory, compare, asked)
	if err != nil {
		return err
	}
	if err := s.permit(ctx, phases, rec); err != nil {
		return err
	}
	if s.layer.Spec.Agent != nil && !rec.Exists() && rec.Applied.Digest == "" {
		if err := s.beginAgent(ctx); err != nil {
			return err
		}
	}
	firstSync, err := s.firstSync(ctx, phases, rec)
	if err != nil {
		return err
	}
	parent, cluster, err := s.connect(ctx, firstSync)
	if err != nil {
		return err
	}
	if err := s.migrate(ctx, rec); err != nil {
		return err
	}
	if rec.Adopted() && rec.InPlace(s.rendered.digest) {
		// It is written in any case, now.
		s.describe(rec, s.notes.sent)
	}
	state := s.state(rec)
	tried := attempting(rec, state)
	healthy := entry.Ready && known != nil && sweep != nil
	entry.Ready, s.leftover = healthy, false
	s.resume(phases, s.rendered.digest)
	s.notes.sent, s.notes.seal = nil, nil // not known while this push is under way
	res, err := apply.New(cluster, s.owner(), nil, s.Now).Sync(ctx, phases, apply.Options{
		Owned: rec.Inventory, Prune: s.layer.Spec.Prune, Defer: s.layer.Spec.Prune, LowerTier: true, KeepNewer: s.layer.Spec.Agent != nil,
		// What is about to be sent is recorded before any of it is.
		AlwaysRecord: true,
		Record: func(ctx context.Context, entries []inventory.Entry) error {
			rec.Inventory, rec.Attempted, rec.Pinned = entries, tried, s.let()
			s.notes.given = rec.Pinned
			if err := s.putRecord(ctx, rec, entry, parent); err != nil {
				return err
			}
			entry.LastAttemptedRevision = s.revision()
			return nil
		},
		Target:    s.child.Status.Identity.KubeSystemUID,
		FirstSync: firstSync,
		Sent:      known,
		Sweep:     sweep,
		Seal:      true,
		Healthy:   healthy,
		Ownership: apply.Ownership(rec.Ownership),
		Survey:    survey,
	})
	if compare && !sweep.Failed() {
		s.compared()
	}
	s.touched, s.progressed = res.Touched, len(res.Touched) > 0
	s.advance(phases, s.rendered.digest, res)
	s.notes.migration.after(err)
	// What was refused is tried again alone.
	s.notes.sent = res.Sent
	if err = mask.Error(err, s.sensitive); err != nil {
		if err = s.failure(err); reason.Of(err) == v1alpha1.ReasonAgentNotReady && entry.Reason == v1alpha1.ReasonAgentNotReady && s.Now().Sub(entry.Since.Time) >= startingFor {
			err = s.hindered(ctx, s.session, err)
		}
		return err
	}
	rec.Inventory = res.Inventory
	if res.Creation.Blocked() {
		return s.holdCreation(ctx, rec, entry, parent, res)
	}
	rec.Settled = rec.Settled || len(inventory.ClustersAmong(s.rendered.entries)) > 0
	if !rec.InPlace(s.rendered.digest) {
		s.describe(rec, res.Sent)
	}
	rec.Attempted, rec.Applied, rec.Ownership = state, state, string(res.Ownership)
	if err := s.putRecord(ctx, rec, entry, parent); err != nil {
		return err
	}
	entry.DeletionPolicy = s.layer.Spec.DeletionPolicy
	s.leaves(rec, entry)
	if err := s.session.DropAdministrator(ctx); err != nil {
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	s.notes.seal = &seal{res.Seal, rec.Version()}
	return nil
}

// holdCreation records what was applied without the Clusters that are not to be created.
func (s *seeding) holdCreation(ctx context.Context, rec *record.Record, entry *v1alpha1.ChildLayer, parent *apply.Cluster, res apply.Result) error {
	if err := s.putRecord(ctx, rec, entry, parent); err != nil {
		return err
	}
	if err := s.session.DropAdministrator(ctx); err != nil {
		return reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	changeHeld(entry, func(held *v1alpha1.Held) { held.Create = res.Creation.Hold() })
	return reason.Because(v1alpha1.ReasonCreateHeld, errors.New(res.Creation.Message()))
}

// failure gives the error of an apply its reason.
func (s *seeding) failure(err error) error {
	var waiting *apply.WaitError
	switch {
	case isForbidden(err, *s.as):
		return forbidden(err, *s.as)
	case reason.Given(err):
		return err
	case errors.As(err, &waiting) && waiting.Phase != "":
		return reason.Because(v1alpha1.ReasonProviderNotReady, err)
	case errors.As(err, &waiting):
		return reason.Because(v1alpha1.ReasonAgentNotReady, err)
	}
	return reason.Because(v1alpha1.ReasonSeedFailed, err)
}

// cannotReach gives an error that has no reason yet the one of a child that cannot be
// called.
func cannotReach(err error) error {
	if reason.Given(err) {
		return err
	}
	return reason.Because(v1alpha1.ReasonUnreachable, err)
}
