package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/plan"
)

// deletes reports whether a layer takes what it applied from children that are not to
// have it any more.
func deletes(layer *v1alpha1.Layer) bool {
	return layer.Spec.DeletionPolicy == v1alpha1.DeletionDelete && !layer.Spec.Suspend
}

// onRecord reports whether something of a layer may be in a child, by the child's status.
func onRecord(entry *v1alpha1.ChildLayer) bool {
	return entry != nil && (entry.Objects > 0 || entry.Digest != "" || entry.LastAttemptedDigest != "" || len(entry.Inventory) > 0)
}

// countRecords counts what the layer has in the children of its namespace.
func countRecords(layer *v1alpha1.Layer, children []v1alpha1.Child) *v1alpha1.OnRecord {
	counts := &v1alpha1.OnRecord{}
	for i := range children {
		if entry := entryOf(&children[i], layer.Name); onRecord(entry) {
			counts.Children++
			counts.Objects += int64(max(int(entry.Objects), len(entry.Inventory)))
		}
	}
	return counts
}

// holdersOf are the children that have something of the layer. While nobody can tell whom the layer
// selects, it is not known which of them leave.
func holdersOf(layer *v1alpha1.Layer, children []v1alpha1.Child) []plan.Holder {
	var holders []plan.Holder
	selector, err := selectorOf(layer)
	for i := range children {
		child := &children[i]
		if !child.DeletionTimestamp.IsZero() || !onRecord(entryOf(child, layer.Name)) {
			continue
		}
		goes := !layer.DeletionTimestamp.IsZero()
		unknown := !goes && (err != nil || stays(layer, child))
		holders = append(holders, plan.Holder{
			Name: child.Name, UID: child.UID, Unknown: unknown,
			Leaves: goes || !unknown && !selector.Matches(labels.Set(child.Labels)),
		})
	}
	return holders
}

// decideRemoval decides from which children the layer may be removed, and records it in
// the status of the layer, which is not written yet. It returns the children that were
// let go and how soon to ask again, zero if only an event changes the decision.
func (r *Layers) decideRemoval(layer *v1alpha1.Layer, children []v1alpha1.Child) (granted []types.NamespacedName, again time.Duration) {
	status := &layer.Status
	status.OnRecord = countRecords(layer, children)
	switch {
	case layer.Spec.DeletionPolicy != v1alpha1.DeletionDelete:
		status.Removal = nil
	case !layer.Spec.Suspend:
		before := map[types.UID]bool{}
		if status.Removal != nil {
			for _, g := range status.Removal.Granted {
				before[g.UID] = true
			}
		}
		status.Removal, again = plan.Guard(plan.Removal{
			Layer: layer.UID, Holders: holdersOf(layer, children), Recorded: status.Removal, Approved: layer.Annotations[v1alpha1.ApproveRemovalAnnotation],
			Confirmed: !layer.DeletionTimestamp.IsZero() && layer.Annotations[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed,
		}, r.Now())
		if status.Removal == nil {
			break
		}
		for _, g := range status.Removal.Granted {
			if !before[g.UID] {
				granted = append(granted, types.NamespacedName{Namespace: layer.Namespace, Name: g.Name})
			}
		}
	}
	if message := plan.RemovalMessage(layer); message != "" && deletes(layer) {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: v1alpha1.RemovalHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonRemovalHeld,
			Message: short(message), ObservedGeneration: layer.Generation,
		})
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.RemovalHeldCondition)
	}
	return granted, again
}

// leavers sums up the children that are not to have the layer any more and have it: it
// counts in the status those that do not get on, and changes the readiness, which is
// about those that the layer selects.
func leavers(layer *v1alpha1.Layer, children []v1alpha1.Child, ready metav1.Condition) metav1.Condition {
	removal := layer.Status.Removal
	if removal == nil || layer.Spec.Suspend {
		return ready
	}
	removal.Blocked = 0
	going := map[types.UID]bool{}
	for _, g := range removal.Granted {
		going[g.UID] = true
	}
	var stuck []v1alpha1.Failure
	for i := range children {
		child := &children[i]
		if why, is := isStuck(layer, child); going[child.UID] && is {
			removal.Blocked++
			stuck = least(stuck, why)
		}
	}
	for _, f := range stuck {
		if !slices.ContainsFunc(layer.Status.Failing, func(k v1alpha1.Failure) bool { return k.Name == f.Name }) {
			layer.Status.Failing = least(layer.Status.Failing, f)
		}
	}
	left := int(removal.Waiting) + len(removal.Granted)
	gone, goes := "that it no longer selects", !layer.DeletionTimestamp.IsZero()
	if goes {
		gone = "because the Layer is being deleted"
	}
	switch {
	case removal.Held && ready.Reason != v1alpha1.ReasonInvalidSpec: // before the selector is corrected, nobody decides
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonRemovalHeld, short(plan.RemovalMessage(layer))
	case len(stuck) > 0 && ready.Status == metav1.ConditionFalse && !goes:
		ready.Message = short(fmt.Sprintf("%s; it cannot be removed from %d children %s, %s", ready.Message, removal.Blocked, gone, stuck[0].Name))
	case len(stuck) > 0:
		ready.Status, ready.Reason = metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady
		var names []string
		for _, f := range stuck {
			names = append(names, f.Name)
		}
		ready.Message = short(fmt.Sprintf("it cannot be removed from %d children %s: %s; %s: %s: %s; with spec.suspend: true or deletionPolicy: Orphan everything stays there",
			removal.Blocked, gone, strings.Join(names, ", "), stuck[0].Name, stuck[0].Reason, stuck[0].Message))
	case left > 0 && (goes || ready.Status == metav1.ConditionTrue):
		ready.Status, ready.Reason = metav1.ConditionUnknown, v1alpha1.ReasonProgressing
		ready.Message = fmt.Sprintf("it is being removed from %d children %s", left, gone)
	}
	return ready
}

// isStuck reports whether a child from which the layer may be removed does not get on,
// and why.
func isStuck(layer *v1alpha1.Layer, child *v1alpha1.Child) (v1alpha1.Failure, bool) {
	why := v1alpha1.Failure{Name: child.Name}
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c != nil && c.Status != metav1.ConditionTrue {
		why.Reason, why.Message = c.Reason, c.Message
		return why, true
	}
	entry := entryOf(child, layer.Name)
	if entry == nil || entry.Ready || entry.Reason == v1alpha1.ReasonProgressing || entry.Reason == v1alpha1.ReasonRemovalHeld {
		return why, false
	}
	why.Reason, why.Message = entry.Reason, entry.Message
	return why, true
}

// finalizes keeps the finalizer of a layer as its policy says, and takes it off one that
// is being deleted when nothing of it is left to remove, or nothing is to be removed. over:
// there is nothing more to do about the layer.
func (r *Layers) finalizes(ctx context.Context, layer *v1alpha1.Layer) (over bool, err error) {
	has := controllerutil.ContainsFinalizer(layer, v1alpha1.RemovalFinalizer)
	wanted := layer.Spec.DeletionPolicy == v1alpha1.DeletionDelete
	if !layer.DeletionTimestamp.IsZero() {
		if !has {
			return true, nil
		}
		if wanted, err = r.takesAlong(ctx, layer); err != nil {
			return false, err
		}
		over = !wanted
	}
	if has == wanted {
		return over, nil
	}
	after := layer.DeepCopy()
	if wanted {
		controllerutil.AddFinalizer(after, v1alpha1.RemovalFinalizer)
	} else {
		controllerutil.RemoveFinalizer(after, v1alpha1.RemovalFinalizer)
	}
	// Another policy, or another finalizer, may have been set since.
	patch := client.MergeFromWithOptions(layer, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, after, patch, client.FieldOwner(statusManager)); err != nil {
		return over, fmt.Errorf("cannot write the finalizer of Layer %s/%s: %w", layer.Namespace, layer.Name, err)
	}
	layer.ObjectMeta = after.ObjectMeta
	return over, nil
}

// takesAlong reports whether a Layer that is being deleted has something left to remove.
// The API server decides, because what nobody answers for any more stays for ever.
func (r *Layers) takesAlong(ctx context.Context, layer *v1alpha1.Layer) (bool, error) {
	if !deletes(layer) {
		return false, nil
	}
	if going, err := definitionGoes(ctx, r.Reader); err != nil || going {
		return false, err
	}
	live := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, live, client.InNamespace(layer.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("cannot list Children: %w", err)
	}
	if len(holdersOf(layer, live.Items)) > 0 {
		return true, nil
	}
	live = &v1alpha1.ChildList{}
	if err := r.Reader.List(ctx, live, client.InNamespace(layer.Namespace)); err != nil {
		return false, fmt.Errorf("cannot list Children: %w", err)
	}
	return slices.ContainsFunc(live.Items, func(c v1alpha1.Child) bool { return onRecord(entryOf(&c, layer.Name)) }), nil
}

// definitionGoes reports whether the kind Layer itself is being removed. That deletes all
// Layers, and nobody meant to delete what they applied.
func definitionGoes(ctx context.Context, from client.Reader) (bool, error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	err := from.Get(ctx, types.NamespacedName{Name: layerCRD}, crd)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether the kind Layer is being removed: %w", err)
	}
	return !crd.DeletionTimestamp.IsZero(), nil
}
