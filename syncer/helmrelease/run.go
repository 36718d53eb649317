package helmrelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// run is one reconcile of a HelmRelease under way: the object, and what each step
// found for those that follow.
type run struct {
	*status.Record[*helmv2.HelmRelease]

	// from is the source of the chart, snapshot its content: set by find.
	from     sourcev1.Source
	snapshot *source.Snapshot
	// values, chart and ociDigest are what is released: set by build. redact takes
	// out of a text what Secrets had among the values.
	values    map[string]any
	chart     release.Chart
	ociDigest string
	redact    func(string) string
	// memory has the values until the reconcile ends.
	memory *release.Share
	// cluster is what is released to, target leads to it, firstSync is what is on record of its
	// Clusters: set by aim.
	cluster   *apply.Cluster
	target    target.Ref
	firstSync firstsync.Keeper
	// outcome is what apply or uninstall held back; nil before that.
	outcome *release.Outcome
	// handOver is what was kept for others, without the time in which nobody looked; nil
	// without a record.
	handOver *v1alpha1.HandOver
	// kept is told by apply or uninstall, if they judged what goes later: judged.
	kept   *v1alpha1.HeldKept
	judged bool
	// outstanding: what the request to reconcile asks for was not come to: set by find and build, if
	// nothing can be looked at yet, by reconcile, if a step refused, and by apply. What is stalled
	// waits for a change of the object, which is tried without a request.
	outstanding bool
}

// held is what the object holds: what was on record, or what apply held back by now.
func (run *run) held() v1alpha1.Held {
	held, _ := v1alpha1.HeldOf(run.Obj)
	if run.judged {
		held.Kept = run.kept
	}
	if run.handOver != nil {
		held.HandOver = run.handOver
	}
	if run.outcome == nil {
		return held
	}
	held.HandOver = run.outcome.HandOver
	if run.outcome.Creation.Blocked() || run.outcome.Creation.Withholding() {
		held.Create = run.outcome.Creation.Hold()
	}
	return held
}

// keep takes in what goes later without a person.
func (run *run) keep(kept *v1alpha1.HeldKept) { run.kept, run.judged = kept, true }

// noteRevision writes down at which revision of its Rollout the release is complete, after the
// status that says so. What the release was made of, values included, was read after the mark
// of the revision, with which all else of the revision was applied.
func (run *run) noteRevision(ctx context.Context) error {
	marked, noted := run.Obj.Annotations[v1alpha1.RolloutRevisionAnnotation], run.Obj.Annotations[v1alpha1.ReleasedRevisionAnnotation]
	switch complete := run.outcome != nil && !run.outcome.Again && isReady(run.Obj); {
	case marked == noted, marked != "" && !complete:
		return nil
	case marked == "":
		delete(run.Obj.Annotations, v1alpha1.ReleasedRevisionAnnotation)
	default:
		run.Obj.Annotations[v1alpha1.ReleasedRevisionAnnotation] = marked
	}
	return client.IgnoreNotFound(run.WriteMetadata(ctx))
}

// step finds what the later ones need, or refuses.
type step func(context.Context, *run) *refusal

// reconcile takes the steps of a release in Flux's order. One that refuses ends
// the reconcile.
func (r *Reconciler) reconcile(ctx context.Context, run *run) (ctrl.Result, error) {
	for _, step := range []step{r.check, r.template, r.depend, r.find, r.build, r.aim, r.move} {
		if refused := step(ctx, run); refused != nil {
			run.outstanding = run.outstanding || !refused.stalls && outstanding(run.Obj)
			return r.refuse(ctx, run, refused)
		}
	}
	return r.apply(ctx, run)
}

// check refuses what only a change of the object can mend.
func (r *Reconciler) check(_ context.Context, run *run) *refusal {
	obj := run.Obj
	if obj.HasChartRef() == obj.HasChartTemplate() {
		return &refusal{reason: "InvalidChartReference", err: errors.New("invalid Chart reference: set one of spec.chart and spec.chartRef"), stalls: true, event: true}
	}
	if err := depend.Compile(dependencies(obj)); err != nil {
		return &refusal{reason: meta.InvalidCELExpressionReason, err: fmt.Errorf("%s: %w", status.Terminal, err), stalls: true, event: true}
	}
	if err := depend.ReadsOthers(obj.Namespace, dependencies(obj)); err != nil && r.Rules.NoCrossNamespaceRefs {
		return &refusal{reason: reasonAccessDenied, err: err, stalls: true, event: true}
	}
	return nil
}

// apply lets the release take its next action, and says when to look again.
func (r *Reconciler) apply(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.Obj
	r.seen.releases(client.ObjectKeyFromObject(obj), run.target)
	outcome, err := r.Releases.Sync(ctx, release.Request{
		Object: obj, OCIDigest: run.ociDigest, Values: run.values, Memory: run.memory,
		Cluster: run.cluster, Local: run.target.Local(), Redact: run.redact, Log: log.FromContext(ctx),
		FirstSync: run.firstSync, Chart: run.chart, Save: run.Write, SaveLast: run.WriteAhead,
		Claimed: r.Claims.Except(obj, run.target, r.applied(ctx, run)), HandOver: run.held().HandOver, Keep: run.keep,
	})
	run.outstanding = !outcome.Stalled && outstanding(obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	run.outcome = &outcome
	r.FirstSync.Note(helmv2.HelmReleaseKind, client.ObjectKeyFromObject(obj), outcome.Creation)
	if !outcome.Again && !outcome.Refused && !outcome.Creation.Blocked() && !outcome.Creation.Withholding() {
		obj.Status.ObservedGeneration = obj.Generation
	}
	return r.soon(obj, outcome), nil
}

// outstanding reports whether the request to reconcile asks for a force or reset that is still
// to be handled. Flux counts neither for a request that was handled before.
func outstanding(obj *helmv2.HelmRelease) bool {
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	asks := func(annotation, handled string) bool {
		return requested != "" && obj.Annotations[annotation] == requested && handled != requested
	}
	return asks(helmv2.ForceRequestAnnotation, obj.Status.LastHandledForceAt) || asks(helmv2.ResetRequestAnnotation, obj.Status.LastHandledResetAt)
}

// soon is when a release is looked at again.
func (r *Reconciler) soon(obj *helmv2.HelmRelease, o release.Outcome) ctrl.Result {
	switch {
	case o.Again:
		// Not at once: what fails, is remedied and fails again would never rest.
		//lint:ignore SA1019 nothing else asks for the pauses of the rate limiter
		return ctrl.Result{Requeue: true}
	case o.After > 0:
		return ctrl.Result{RequeueAfter: r.Jitter(o.After)}
	case o.Stalled:
		return ctrl.Result{}
	case o.Refused, o.Held, o.Creation.Blocked(), o.Creation.Withholding():
		return ctrl.Result{RequeueAfter: r.Jitter(min(obj.GetRequeueAfter(), heldPoll))}
	}
	return ctrl.Result{RequeueAfter: r.Jitter(obj.GetRequeueAfter())}
}

// refusal ends a reconciliation before the release was looked at.
type refusal struct {
	reason string
	err    error
	// event is recorded with the reason.
	event bool
	// kind of the event; a warning, if it is empty.
	kind string
	// stalls: only a person can end it, by a change of the object in most cases.
	stalls bool
	// wait is when to look again, 0 for as soon as the backoff allows, or for never if it stalls.
	wait time.Duration
	// passing: it is known to end by itself, or its condition tells of it, and Ready stays as it is.
	passing bool
}

// refuse records why nothing was done.
func (r *Reconciler) refuse(ctx context.Context, run *run, f *refusal) (ctrl.Result, error) {
	obj := run.Obj
	if f.passing {
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	was := apimeta.FindStatusCondition(run.Written().Status.Conditions, meta.ReadyCondition)
	message := f.err.Error()
	if f.stalls {
		status.MarkStalled(obj, f.reason, f.err)
		obj.Status.ObservedGeneration = obj.Generation
	} else {
		status.MarkFailing(obj, f.reason, f.err)
	}
	if f.event && (was == nil || was.Reason != f.reason || was.Message != message) {
		kind := f.kind
		if kind == "" {
			kind = corev1.EventTypeWarning
		}
		r.Events.Event(obj, kind, f.reason, message)
	}
	switch {
	case f.stalls:
		return ctrl.Result{RequeueAfter: f.wait}, nil
	case f.wait > 0:
		log.FromContext(ctx).Info(message)
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot release HelmRelease %s/%s: %w", obj.Namespace, obj.Name, f.err)
}
