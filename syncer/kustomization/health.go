package kustomization

import (
	"context"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// health looks once at the objects whose health is not known, and returns: no
// worker waits. It ends the reconcile unless all of them are healthy, or nobody
// asks.
func (r *Reconciler) health(ctx context.Context, run *run) *end {
	obj := run.Obj
	next, glances := r.glance(run)
	pending, since, err := r.pending(run)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	if !obj.Spec.Wait && len(obj.Spec.HealthChecks) == 0 || obj.Spec.Wait && len(run.declared()) == 0 {
		run.known.noHealth()
		status.RemoveCondition(obj, meta.HealthyCondition)
		return nil
	}
	timeout := obj.GetTimeout()
	// An expression may wait for a worker for longer than anybody waits for health.
	looking, cancel := context.WithTimeout(ctx, max(timeout-r.Now().Sub(since), leastLook))
	defer cancel()
	found, err := r.applierOf(run).Health(looking, health.Without(pending, run.name()), run.checker)
	took := r.Now().Sub(since)
	if glances && (err != nil || health.Judge(found, !r.Rules.NoFailFast) != health.Healthy) {
		if err == nil {
			pending = found.Pending()
		}
		run.known.glanced(pending)
		stillUnhealthy(run)
		return again(r.beforeHandOver(run, next))
	}
	if err != nil {
		// Not to know is not to be healthy, and no reason to wait for ever.
		run.known.waits(pending)
		if took > timeout {
			run.known.unhealthy(pending, r.Now())
			status.SetCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", err)
			return r.unhealthy(ctx, run, took, err)
		}
		status.MarkProgressing(obj, "%s: %s", checking(run), err)
		return again(healthPoll)
	}
	run.known.vanished(found)
	verdict := health.Judge(found, !r.Rules.NoFailFast)
	wasHealthy := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.HealthyCondition)
	switch {
	case verdict == health.Healthy:
		run.known.healthy()
		message := fmt.Sprintf("Health check passed in %s", took.Round(time.Millisecond))
		if !wasHealthy || len(run.changed()) > 0 {
			status.SetCondition(obj, meta.HealthyCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
			r.eventOf(run, meta.ProgressingReason, corev1.EventTypeNormal, nil, "%s", message)
		}
		return nil
	case verdict == health.Stalled || took > timeout:
		run.known.unhealthy(found.Pending(), r.Now())
		why := health.TimeoutError(found)
		if verdict == health.Stalled {
			why = health.StalledError(found)
		}
		status.SetCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", why)
		return r.unhealthy(ctx, run, took, why)
	}
	run.known.waits(found.Pending())
	status.MarkProgressing(obj, "%s", checking(run))
	status.SetCondition(obj, meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "%s", checking(run))
	return again(min(healthPoll, max(time.Second, timeout-took)))
}

// leastLook is what a look at the health of objects may take in any case.
const leastLook = 5 * time.Second

// checking says in Flux's words what goes on.
func checking(run *run) string {
	return fmt.Sprintf("Running health checks for revision %s with a timeout of %s", run.snapshot.Revision, run.Obj.GetTimeout())
}

// unhealthy records that objects are not as they should be, or that nobody can tell. The
// checks are tried again, and Reconciling says so, as with Flux.
func (r *Reconciler) unhealthy(ctx context.Context, run *run, took time.Duration, why error) *end {
	end := r.failed(ctx, run, meta.HealthCheckFailedReason, fmt.Errorf("health check failed after %s: %w", took.Round(time.Millisecond), why))
	status.SetCondition(run.Obj, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingWithRetryReason, "%s", checking(run))
	end.result.RequeueAfter = r.beforeHandOver(run, end.result.RequeueAfter)
	return end
}

// beforeHandOver is when to look again at the latest: the time that objects are kept for others is
// counted while somebody looks. That is no other try.
func (r *Reconciler) beforeHandOver(run *run, next time.Duration) time.Duration {
	if run.sync == nil || run.sync.HandOver == nil {
		return next
	}
	return min(next, r.handOverPause(run.sync.HandOver))
}

// cancel ends the wait for the health of what was applied when something else is asked
// for now, and tells who asks. A commit that changes no file of it asks for nothing else.
func (r *Reconciler) cancel(_ context.Context, run *run) *end {
	what, waited := inputsOf(run), run.known.awaits()
	if waited != "" && waited != what.revision && run.known.sameFiles(run.snapshot) {
		what.revision = waited
	}
	if !run.known.cancel(what) {
		return nil
	}
	trigger := kustomizev1.KustomizationKind + "/" + run.name().String()
	if waited != what.revision {
		key := sourceKey(run.Obj)
		trigger = key.Kind + "/" + key.NamespacedName.String()
	}
	r.eventOf(run, meta.HealthCheckCanceledReason, corev1.EventTypeNormal, nil, "Health checks canceled due to new reconciliation triggered by %s", trigger)
	return nil
}

// glance reports whether the health is looked at only because something that was not healthy in
// time has changed, and when the next try is due. Ready says what came of the last one, and goes on
// to unless all are healthy now.
func (r *Reconciler) glance(run *run) (next time.Duration, ok bool) {
	ready := apimeta.FindStatusCondition(run.Obj.Status.Conditions, meta.ReadyCondition)
	if ready == nil || ready.Reason != meta.HealthCheckFailedReason && !saysWork(run) {
		return 0, false
	}
	return run.known.glance(run, r.Now())
}

// saysWork reports whether Ready says of a failed wait that something goes on: a worker was waited
// for, or it took long to verify what was applied.
func saysWork(run *run) bool {
	is := func(kind, reason string) bool {
		c := apimeta.FindStatusCondition(run.Obj.Status.Conditions, kind)
		return c != nil && c.Reason == reason
	}
	return is(meta.ReadyCondition, meta.ProgressingReason) && is(meta.HealthyCondition, meta.HealthCheckFailedReason)
}

// stillUnhealthy has Ready say again what came of the last wait, and Reconciling what the next is for.
func stillUnhealthy(run *run) {
	if saysWork(run) {
		why := apimeta.FindStatusCondition(run.Obj.Status.Conditions, meta.HealthyCondition).Message
		status.SetCondition(run.Obj, meta.ReadyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "health check failed: %s", why)
	}
	status.SetCondition(run.Obj, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingWithRetryReason, "%s", checking(run))
}

// pending are the objects whose health has to be looked at, and since when they
// are waited for.
func (r *Reconciler) pending(run *run) ([]inventory.Entry, time.Time, error) {
	if run.Obj.Spec.Wait || len(run.Obj.Spec.HealthChecks) == 0 {
		pending, since := run.known.await(run, r.Now())
		return pending, since, nil
	}
	referenced, err := health.Referenced(run.Obj.Spec.HealthChecks)
	return referenced, run.known.awaitOnly(run, r.Now()), err
}
