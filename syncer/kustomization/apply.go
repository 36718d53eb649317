package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// apply applies what was rendered, if anything was, and prunes.
func (r *Reconciler) apply(ctx context.Context, run *run) *end {
	r.conflicts(run)
	if run.rendering == nil {
		run.composes = true
		run.known.completes(run)
		return nil
	}
	obj := run.Obj
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	tier := firstsync.Keeper(r.FirstSync)
	if !run.target.Local() {
		tier = firstsync.Other{Reader: run.cluster}
	}
	record, err := tier.For(ctx, run.rendering.Objects)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	r.doubtful(ctx, run)
	mode := r.driftMode(obj)
	sync, err := r.applierOf(run).Sync(ctx, []apply.Phase{{Objects: run.rendering.Objects}}, r.options(ctx, run, owned, record))
	run.sync = &sync
	run.attempted(err)
	run.keeps(sync, err)
	err = mask.Error(err, run.sensitive())
	obj.Status.Inventory = refs(sync.Inventory)
	r.FirstSync.Note(kustomizev1.KustomizationKind, run.name(), sync.Creation)
	// What goes with a Cluster is looked at again: nothing tells when that is gone.
	final := err == nil && sync.Complete && !run.composed.waits() && !run.composed.looksAgain() && !sync.Creation.Blocked() && !sync.Creation.Withholding() && !sync.Plan.Blocked() && !sync.Pending &&
		len(sync.Plan.OfCluster) == 0 && len(sync.Drifted) == 0 && run.memo.Watches()
	run.known.synced(run, sync.Recorded, final, r.sweepAt(run.start))
	r.tell(run, sync)
	complete := err == nil && !sync.Creation.Blocked()
	if complete {
		run.known.completes(run)
	}
	r.noteComposition(run, complete)
	var unrecorded *apply.RecordError
	if errors.As(err, &unrecorded) && apierrors.IsConflict(unrecorded) {
		// The spec was changed while it was reconciled, which is no failure: the change
		// wakes the next reconcile.
		return again(time.Second)
	}
	var waiting *apply.WaitError
	var pruneErr *apply.PruneError
	if errors.As(err, &waiting) {
		return r.awaitStage(ctx, run, waiting)
	}
	var going *apply.GoingError
	if errors.As(err, &going) {
		return r.goes(ctx, run, run.known.stageSince(run.start, true), err)
	}
	run.known.stageOver()
	switch {
	case errors.As(err, &pruneErr):
		r.settleFailed(run, sync.Plan)
		return r.failed(ctx, run, meta.PruneFailedReason, err)
	case err != nil:
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	r.drifted(run, mode, sync.Drifted)
	r.handsOver(run, sync)
	r.managedElsewhere(run, sync)
	if sync.Creation.Blocked() {
		return r.held(run, sync)
	}
	status.RemoveCondition(obj, v1alpha1.CreateHeldCondition)
	waits := r.tellRollout(run)
	if sync.Plan.Blocked() {
		r.noteApplied(run, v1alpha1.ReasonPruneBlocked)
		return r.blocked(run, sync)
	}
	r.settle(run, sync.Plan)
	if sync.Plan.Superseded {
		return again(time.Second) // what is declared by now wakes the next reconcile, too
	}
	if waits != nil {
		r.noteApplied(run, apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition).Reason)
	}
	return waits
}

// options of applying what was rendered.
func (r *Reconciler) options(ctx context.Context, run *run, owned []inventory.Entry, record *inventory.FirstSync) apply.Options {
	obj := run.Obj
	return apply.Options{
		Owned: owned,
		Record: func(ctx context.Context, ahead []inventory.Entry) error {
			obj.Status.Inventory = refs(ahead)
			status.MarkProgressing(obj, "Applying revision %s with a timeout of %s", run.snapshot.Revision, obj.GetTimeout())
			return run.WriteAhead(ctx)
		},
		Slow:              func(ctx context.Context) { r.appliesSlowly(ctx, run) },
		Force:             obj.Spec.Force,
		Ignore:            ignoreRules(obj),
		Stages:            r.Rules.Stages,
		MigrateAPIVersion: r.Rules.MigrateAPIVersion,
		FirstSync:         record,
		Prune:             run.prunes(),
		Keep:              run.kept(),
		Target:            run.name().String(),
		Approved:          obj.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided:         run.undecided(),
		LowerTier:         !run.target.Local(),
		HandOver:          run.held.HandOver,
		Decided:           run.held.Last,
		Ignored: func(gone []inventory.Entry) (map[inventory.Entry]string, error) {
			return r.ignored(ctx, run, gone)
		},
		Claimed:   r.Claims.Except(obj, run.target, r.applied(ctx, run)),
		Report:    r.driftMode(obj) == DriftReport,
		Secretive: len(run.inputs.Sensitive) > 0 || run.inputs.Decrypter != nil,
		Ran:       func(u *unstructured.Unstructured) bool { return run.known.ran(run, u) },
		Applied:   run.current() && run.renderedBefore(),
	}
}

// appliesSlowly says in the status what is applied, which is in the cluster in part by now. It
// would tell of the revision before for as long as that takes, and who depends on it would go on.
func (r *Reconciler) appliesSlowly(ctx context.Context, run *run) {
	if run.current() && run.renderedBefore() {
		return // all of it was in place, and is verified
	}
	status.MarkProgressing(run.Obj, "Applying revision %s with a timeout of %s", run.snapshot.Revision, run.Obj.GetTimeout())
	if err := run.Write(ctx); err != nil {
		log.FromContext(ctx).Error(err, "cannot say that it takes long to apply")
	}
}

func ignoreRules(obj *kustomizev1.Kustomization) []jsondiff.IgnoreRule {
	var rules []jsondiff.IgnoreRule
	for _, rule := range obj.Spec.Ignore {
		out := jsondiff.IgnoreRule{Paths: rule.Paths}
		if t := rule.Target; t != nil {
			out.Selector = &jsondiff.Selector{
				Group: t.Group, Version: t.Version, Kind: t.Kind, Name: t.Name, Namespace: t.Namespace,
				AnnotationSelector: t.AnnotationSelector, LabelSelector: t.LabelSelector,
			}
		}
		rules = append(rules, out)
	}
	return rules
}

func (r *Reconciler) applierOf(run *run) applier {
	return r.applier(run.cluster, apply.Owner{
		FieldManager: status.ObjectManager, LabelGroup: kustomizev1.GroupVersion.Group, Name: run.Obj.Name, Namespace: run.Obj.Namespace,
	}, run.memo)
}

// awaitStage comes back until an early stage is usable. No worker waits.
func (r *Reconciler) awaitStage(ctx context.Context, run *run, waiting *apply.WaitError) *end {
	if since := run.known.stageSince(run.start, waiting.Going()); r.Now().Sub(since) > stageTimeout {
		err := fmt.Errorf("timeout waiting for: [%s]", waiting.Health.Message())
		if waiting.Going() {
			return r.goes(ctx, run, since, err)
		}
		run.known.stageOver()
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	status.MarkProgressing(run.Obj, "Waiting for the first objects of revision %s to be usable: %s", run.snapshot.Revision, waiting.Health.Message())
	return again(stagePoll)
}

// goes records a failure while an object that is deleted, to be created again, is not gone. It is
// missing from then on, which nothing tells of in another cluster: it is looked for soon, and less
// often the longer a finalizer takes.
func (r *Reconciler) goes(ctx context.Context, run *run, since time.Time, err error) *end {
	end := r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	end.result.RequeueAfter = min(end.result.RequeueAfter, max(goingPoll, r.Now().Sub(since)/4))
	return end
}

// sweepAt is when everything is to be verified next. It is spread, so that
// what was applied together is not verified together.
func (r *Reconciler) sweepAt(now time.Time) time.Time {
	return now.Add(r.Rules.Sweep + time.Duration(r.Random()*float64(r.Rules.Sweep/2)))
}
