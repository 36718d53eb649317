package status

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Field managers of what Flux's controllers write.
const (
	// SourceManager writes the status of sources.
	SourceManager = "source-controller"
	// KustomizationManager writes the status of Kustomizations.
	KustomizationManager = "gotk-kustomize-controller"
	// HelmManager writes the status of HelmReleases, and HelmCharts.
	HelmManager = "helm-controller"
	// ObjectManager applies the objects of a Kustomization.
	ObjectManager = "kustomize-controller"
)

// Terminal begins the message of a failure that only a change of the object
// ends, as with Flux.
const Terminal = "Reconciliation failed terminally due to configuration error"

// FluxMessage is an error whose text tools compare, as Flux writes it.
type FluxMessage string

func (m FluxMessage) Error() string { return string(m) }

// Object is an object with Flux's conditions.
type Object interface {
	client.Object
	GetConditions() []metav1.Condition
	SetConditions([]metav1.Condition)
}

// SetCondition sets a condition of the object's generation. A long message is cut
// to what Flux writes at most.
func SetCondition(o Object, kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
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

// RemoveCondition removes the conditions of these types, if they are there.
func RemoveCondition(o Object, kinds ...string) {
	conditions := o.GetConditions()
	for _, kind := range kinds {
		apimeta.RemoveStatusCondition(&conditions, kind)
	}
	o.SetConditions(conditions)
}

// MarkReady marks success: the abnormal conditions go.
func MarkReady(o Object, reason, format string, args ...any) {
	RemoveCondition(o, meta.ReconcilingCondition, meta.StalledCondition)
	SetCondition(o, meta.ReadyCondition, metav1.ConditionTrue, reason, format, args...)
}

// MarkFailing marks a failure that is tried again.
func MarkFailing(o Object, reason string, err error) {
	RemoveCondition(o, meta.StalledCondition)
	SetCondition(o, meta.ReadyCondition, metav1.ConditionFalse, reason, "%s", err)
	SetCondition(o, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingWithRetryReason, "%s", err)
}

// MarkStalled marks a failure that only a change of the object can end.
func MarkStalled(o Object, reason string, err error) {
	RemoveCondition(o, meta.ReconcilingCondition)
	SetCondition(o, meta.ReadyCondition, metav1.ConditionFalse, reason, "%s", err)
	SetCondition(o, meta.StalledCondition, metav1.ConditionTrue, reason, "%s", err)
}

// MarkProgressing marks work that goes on.
func MarkProgressing(o Object, format string, args ...any) {
	RemoveCondition(o, meta.StalledCondition)
	SetCondition(o, meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Reconciliation in progress")
	SetCondition(o, meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason, format, args...)
}

// MarkSuspended ends what was under way when an object was suspended: nobody goes on with it, and a
// status that says that somebody does would say so for as long as it is suspended. It returns what
// Ready says then, empty if nothing was under way.
func MarkSuspended(o Object) (why string) {
	// What is ready stays so, as one that waited for memory to look anew, and what a failure says of the last
	// attempt stays true; that another one runs does not.
	RemoveCondition(o, meta.ReconcilingCondition)
	ready := apimeta.FindStatusCondition(o.GetConditions(), meta.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionUnknown {
		return ""
	}
	why = "it was suspended before it was done; resume it to go on"
	if ready.Message != "" {
		why += " with: " + ready.Message // which may be deletions
	}
	SetCondition(o, meta.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonSuspended, "%s", why)
	return why
}

// Patch writes the difference between two versions of an object's status;
// callers skip it when there is none. A reconcile that ran out of time still writes.
func Patch(ctx context.Context, c client.Client, before, after client.Object, manager string) error {
	ctx, cancel := ofItsOwn(ctx)
	defer cancel()
	err := c.Status().Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(manager))
	if apierrors.IsNotFound(err) {
		return nil // deleted meanwhile: there is nobody left to tell
	}
	if err != nil {
		return fmt.Errorf("cannot write status of %s/%s: %w", after.GetNamespace(), after.GetName(), err)
	}
	return nil
}
