package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Layers keeps the status of Layer objects: it counts what the visits to the
// children found. The pushing itself is done child by child.
type Layers struct {
	Client    client.Client
	Snapshots *source.Snapshots
	Now       func() time.Time
}

func layerSource(layer *v1alpha1.Layer) source.Key {
	return source.Key{Kind: layer.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: layer.Namespace, Name: layer.Spec.SourceRef.Name}}
}

// Reconcile sums up one Layer.
func (r *Layers) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	layer := &v1alpha1.Layer{}
	if err := r.Client.Get(ctx, req.NamespacedName, layer); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	children := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, children, client.InNamespace(layer.Namespace)); err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot list Children: %w", err)
	}
	before := layer.DeepCopy()
	if layer.Spec.SourceRef != nil {
		if s := r.Snapshots.Get(layerSource(layer)); s != nil {
			layer.Status.Revision = s.Revision
		}
	}
	summarize(layer, children.Items)
	layer.Status.ObservedGeneration = layer.Generation
	layer.Status.LastHandledReconcileAt = layer.Annotations[fluxmeta.ReconcileRequestAnnotation]
	if equality.Semantic.DeepEqual(before.Status, layer.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Status().Patch(ctx, layer, client.MergeFrom(before), client.FieldOwner(statusManager)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("cannot write status of Layer %s: %w", req.NamespacedName, err))
	}
	return ctrl.Result{}, nil
}

// summarize counts the children that a layer selects and names at most ten of
// those on which it is not ready.
func summarize(layer *v1alpha1.Layer, children []v1alpha1.Child) {
	status := &layer.Status
	status.Children = v1alpha1.ChildCounts{}
	status.Failing = nil
	slices.SortFunc(children, func(a, b v1alpha1.Child) int { return strings.Compare(a.Name, b.Name) })
	for i := range children {
		child := &children[i]
		if !Selects(layer, child.Labels) {
			continue
		}
		status.Children.Total++
		failure := v1alpha1.Failure{Name: child.Name, Reason: v1alpha1.ReasonProgressing}
		connected := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
		at := slices.IndexFunc(child.Status.Layers, func(e v1alpha1.ChildLayer) bool { return e.Name == layer.Name })
		switch {
		case connected != nil && connected.Status == metav1.ConditionFalse:
			status.Children.Unreachable++
			failure.Reason, failure.Message = connected.Reason, connected.Message
		case at >= 0 && child.Status.Layers[at].Ready:
			status.Children.Seeded++
			continue
		case at >= 0:
			status.Children.Failing++
			failure.Reason, failure.Message = child.Status.Layers[at].Reason, child.Status.Layers[at].Message
		}
		if len(status.Failing) < maxFailing {
			status.Failing = append(status.Failing, failure)
		}
	}
	c := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, ObservedGeneration: layer.Generation}
	switch counts := status.Children; {
	case layer.Spec.Suspend:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonSuspended, "suspended"
	case counts.Total == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoChildren, "no cluster is selected"
	case counts.Seeded == counts.Total:
		c.Message = fmt.Sprintf("in place on all %d children", counts.Total)
	default:
		f := status.Failing[0]
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady
		c.Message = short(fmt.Sprintf("in place on %d of %d children; %s: %s: %s", counts.Seeded, counts.Total, f.Name, f.Reason, f.Message))
	}
	meta.SetStatusCondition(&status.Conditions, c)
}
