package kustomization

import (
	"context"
	"fmt"
	"slices"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// run is one reconcile of a Kustomization under way.
type run struct {
	*status.Record[*kustomizev1.Kustomization]

	known *progress
	start time.Time
	// requested: a person asked for this reconcile.
	requested bool
	// unanswered: nothing was looked at, and who asked is answered when something was: set by find.
	unanswered bool

	// held is what a person has to decide about, as far as it was on record when
	// the reconcile began; apply, aim and finalize bring it up to date.
	held v1alpha1.Held

	// checker judges health: set by check.
	checker *health.Checker
	// snapshot is what is to be applied: set by find.
	snapshot *source.Snapshot
	// inputs are those of the rendering, besides the files: set by build.
	inputs render.Build
	// governed is what Rollouts say of the Clusters, nil without a Rollout: set by pins.
	governed *governed
	// key identifies the spec, the inputs of the build besides the files, and governed.
	key string
	// rendering is nil if the last one stands: set by render. compose puts each Cluster at
	// the revision that it may have, and sets composed, which is nil without a Rollout.
	rendering *render.Rendering
	composed  *composed
	// unbuilt is the newest snapshot while it cannot be built, and snapshot the one that stands in for it.
	unbuilt *source.Snapshot
	// composes: what Clusters may have was composed and tried, or all of it is in place.
	composes bool
	// unidentified: it is not known whether the target is the cluster that the inventory is
	// about. Set by aim.
	unidentified bool
	// unproven: nor is it where the reference is the same, and Clusters that are switched off are not there: the question
	// stays open for when they are switched on. Set by aim.
	unproven bool
	// sweeps: everything is verified by requests, whatever the memo says. Set by render.
	sweeps bool
	// cluster is what is applied to, memo what is known of it. target leads to the
	// cluster. Set by aim.
	cluster *apply.Cluster
	memo    *memo.Memo
	target  target.Ref
	// sync is nil if nothing had to be applied: set by apply.
	sync *apply.Result
	// lapsed is an approval of what is not to be deleted any more: set by settle.
	lapsed string
	// tried: all objects were applied or deleted, or refused: something of it was forbidden.
	tried, refused bool
}

// newRun begins a reconcile of an object that was read.
func newRun(record *status.Record[*kustomizev1.Kustomization], known *progress, now time.Time) *run {
	held, _ := v1alpha1.HeldOf(record.Obj)
	return &run{
		Record: record, known: known, start: now, held: held,
		requested: record.Obj.Annotations[meta.ReconcileRequestAnnotation] != record.Obj.Status.LastHandledReconcileAt,
	}
}

// keeps takes in what a plan keeps for later. A plan that does not say what is deleted, or
// that a failure may have cut short, takes nothing off the record.
func (run *run) keeps(res apply.Result, err error) {
	none := err == nil && !res.Plan.Superseded && !res.Creation.Blocked()
	if kept := res.Plan.Kept(); kept != nil || none {
		run.held.Kept = kept
	}
	if res.Plan.Hash != "" || none {
		run.held.Last = res.Decided
	}
}

// sensitive are values that no message may have: of variables from Secrets, and what was
// decrypted.
func (run *run) sensitive() []string {
	values := slices.Concat(run.inputs.Sensitive, run.known.olderPlain())
	if d := run.inputs.Decrypter; d != nil {
		values = append(values, d.Plain()...)
	}
	return values
}

// undecided reports whether the last plan was held for a person to decide.
func (run *run) undecided() bool {
	blocked := apimeta.IsStatusConditionTrue(run.Obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	return inventory.Undecided(blocked, run.held.Prune)
}

// prunes reports whether what is no longer declared is deleted. Else it is forgotten.
func (run *run) prunes() bool { return run.Obj.Spec.Prune && !run.unidentified }

// current reports whether the status says that the snapshot was applied as the spec has it.
func (run *run) current() bool {
	s := &run.Obj.Status
	return s.LastAppliedRevision == run.snapshot.Revision && s.ObservedGeneration == run.Obj.Generation
}

// renderedBefore reports whether the rendering is the last one that was applied, as the history
// has it: variables, and what is decrypted, may make another one of the same revision. A status
// without a history does not tell.
func (run *run) renderedBefore() bool {
	for _, attempt := range run.Obj.Status.History {
		if attempt.Digest != run.rendering.Digest {
			return false
		}
		if attempt.LastReconciledStatus != meta.ReconciliationFailedReason {
			return true // all of it was applied, whatever became of it
		}
	}
	return len(run.Obj.Status.History) == 0
}

func (run *run) name() types.NamespacedName { return client.ObjectKeyFromObject(run.Obj) }

// declared lists what is in the cluster on behalf of the object and not exempt.
func (run *run) declared() []inventory.Entry {
	if run.sync == nil {
		list, _ := entries(run.Obj.Status.Inventory) // was read before
		return list
	}
	return run.touched(ssa.CreatedAction, ssa.ConfiguredAction, ssa.UnchangedAction)
}

// changed lists what this reconcile changed.
func (run *run) changed() []inventory.Entry {
	return run.touched(ssa.CreatedAction, ssa.ConfiguredAction)
}

func (run *run) touched(actions ...ssa.Action) []inventory.Entry {
	if run.sync == nil {
		return nil
	}
	var list []inventory.Entry
	for _, c := range run.sync.Changes.Entries {
		if slices.Contains(actions, c.Action) {
			m := c.ObjMetadata
			list = append(list, inventory.Entry{
				Namespace: m.Namespace, Name: m.Name, Group: m.GroupKind.Group, Kind: m.GroupKind.Kind, Version: c.GroupVersion,
			})
		}
	}
	return list
}

// attempt is what goes into the history.
func (run *run) attempt(reason string, now time.Time) status.Attempt {
	digest := run.known.digest()
	if run.rendering != nil {
		digest = run.rendering.Digest
	}
	return status.Attempt{
		Digest: digest, Status: reason, At: now, Took: now.Sub(run.start),
		Revision: run.snapshot.Revision, OriginRevision: run.snapshot.OriginRevision, Requested: run.requested,
		Rollouts: run.governed != nil, Inputs: run.builtWith(),
	}
}

// recordAttempt records an attempt in the history.
func (run *run) recordAttempt(attempt status.Attempt) {
	if !run.governed.past() {
		status.RecordAttempt(&run.Obj.Status.History, attempt)
	}
}

// step does its part of a reconcile, or ends it.
type step func(context.Context, *run) *end

// reconcile takes the steps in Flux's order.
func (r *Reconciler) reconcile(ctx context.Context, run *run) (ctrl.Result, error) {
	for _, step := range []step{r.check, r.find, r.cancel, r.depend, r.build, r.pins, r.render, r.compose, r.aim, r.apply, r.health} {
		if end := step(ctx, run); end != nil {
			return end.result, end.err
		}
	}
	end := r.succeeded(ctx, run)
	return end.result, end.err
}

// check refuses expressions that only a change of the object can mend.
func (r *Reconciler) check(_ context.Context, run *run) *end {
	var err error
	if run.checker, err = health.New(run.Obj.Spec.HealthCheckExprs, r.workers(run.Obj)); err == nil {
		err = depend.Compile(dependencies(run.Obj))
	}
	if err != nil {
		return r.misconfigured(run, meta.InvalidCELExpressionReason, fmt.Errorf("%s: %w", status.Terminal, err))
	}
	if err := depend.ReadsOthers(run.Obj.Namespace, dependencies(run.Obj)); err != nil && r.Rules.NoCrossNamespaceRefs {
		return r.misconfigured(run, "AccessDenied", err)
	}
	return nil
}

func entries(i *kustomizev1.ResourceInventory) ([]inventory.Entry, error) {
	if i == nil {
		return nil, nil
	}
	out := make([]inventory.Entry, 0, len(i.Entries))
	for _, ref := range i.Entries {
		e, err := inventory.Parse(ref.ID, ref.Version)
		if err != nil {
			return nil, fmt.Errorf("cannot read status.inventory: %w", err)
		}
		out = append(out, e)
	}
	return out, nil
}

func refs(entries []inventory.Entry) *kustomizev1.ResourceInventory {
	out := &kustomizev1.ResourceInventory{Entries: make([]kustomizev1.ResourceRef, 0, len(entries))}
	for _, e := range entries {
		out.Entries = append(out.Entries, kustomizev1.ResourceRef{ID: e.ID(), Version: e.Version})
	}
	return out
}
