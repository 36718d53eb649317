package syncer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Field managers of status, as Flux's controllers use them.
const (
	sourceManager        = "source-controller"
	kustomizationManager = "gotk-kustomize-controller"
	// releaseManager writes the status of HelmReleases, and HelmCharts.
	releaseManager = "helm-controller"
	// objectManager applies the objects of a Kustomization.
	objectManager = "kustomize-controller"
	ownerGroup    = "kustomize.toolkit.fluxcd.io"
)

// Retries of errors of the API server itself: quick at first, bounded so that
// the state converges soon after an outage ends.
const (
	minRetry = 750 * time.Millisecond
	maxRetry = 2 * time.Minute
)

func rateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetry, maxRetry)
}

// conditioned is an object with Flux's conditions.
type conditioned interface {
	client.Object
	GetConditions() []metav1.Condition
	SetConditions([]metav1.Condition)
}

func setCondition(o conditioned, kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	const most = 20000 // Flux's MaxConditionMessageLength; the CRD allows 32768
	if len(message) > most {
		message = message[:most-3] + "..."
	}
	conditions := o.GetConditions()
	apimeta.SetStatusCondition(&conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: o.GetGeneration(),
	})
	o.SetConditions(conditions)
}

func removeCondition(o conditioned, kinds ...string) {
	conditions := o.GetConditions()
	for _, kind := range kinds {
		apimeta.RemoveStatusCondition(&conditions, kind)
	}
	o.SetConditions(conditions)
}

// ready marks success: the abnormal conditions go.
func ready(o conditioned, reason, format string, args ...any) {
	removeCondition(o, meta.ReconcilingCondition, meta.StalledCondition)
	setCondition(o, meta.ReadyCondition, metav1.ConditionTrue, reason, format, args...)
}

// failing marks a failure that is tried again.
func failing(o conditioned, reason string, err error) {
	removeCondition(o, meta.StalledCondition)
	setCondition(o, meta.ReadyCondition, metav1.ConditionFalse, reason, "%s", err)
	setCondition(o, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingWithRetryReason, "%s", err)
}

// stalled marks a failure that only a change of the object can end.
func stalled(o conditioned, reason string, err error) {
	removeCondition(o, meta.ReconcilingCondition)
	setCondition(o, meta.ReadyCondition, metav1.ConditionFalse, reason, "%s", err)
	setCondition(o, meta.StalledCondition, metav1.ConditionTrue, reason, "%s", err)
}

// progressing marks work that goes on.
func progressing(o conditioned, format string, args ...any) {
	removeCondition(o, meta.StalledCondition)
	setCondition(o, meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Reconciliation in progress")
	setCondition(o, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason, format, args...)
}

// patchStatus writes the difference between two versions of an object's status;
// callers skip it when there is none.
func patchStatus(ctx context.Context, c client.Client, before, after client.Object, manager string) error {
	err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(manager))
	if apierrors.IsNotFound(err) {
		return nil // deleted meanwhile: there is nobody left to tell
	}
	if err != nil {
		return fmt.Errorf("cannot write status of %s/%s: %w", after.GetNamespace(), after.GetName(), err)
	}
	return nil
}

// jittered spreads intervals by 5 % either way, as Flux does, so that objects
// that were created together do not stay together.
func jittered(d time.Duration) time.Duration {
	return max(time.Second, d+time.Duration((rand.Float64()*0.1-0.05)*float64(d)))
}

// changed passes what a reconciler reacts to: a new generation, a request to
// reconcile, or a change of one of the annotations.
func changed(annotations ...string) predicate.Predicate {
	annotations = append(annotations, meta.ReconcileRequestAnnotation)
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			if e.ObjectOld == nil || e.ObjectNew == nil {
				return false
			}
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				!e.ObjectNew.GetDeletionTimestamp().Equal(e.ObjectOld.GetDeletionTimestamp()) {
				return true
			}
			for _, a := range annotations {
				if e.ObjectOld.GetAnnotations()[a] != e.ObjectNew.GetAnnotations()[a] {
					return true
				}
			}
			return false
		},
	}
}
