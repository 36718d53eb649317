package remote

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// publish writes a condition on the Cluster that says whether the child is seeded.
// A Cluster can name that condition as one of its availability gates. Without it nothing else of
// the child is worse, so that a failure is told in the log; published reports whether there was none.
func (r *run) publish(ctx context.Context) (published bool) {
	seeded := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.SeededCondition)
	if r.object == nil || seeded == nil {
		return true
	}
	path := []string{"status", "conditions"}
	if gvk := r.object.GroupVersionKind(); gvk.Version == "v1beta1" {
		path = []string{"status", "v1beta2", "conditions"}
		if _, ok, _ := unstructured.NestedFieldNoCopy(r.object.Object, path[:2]...); !ok {
			return true // before Cluster API 1.9 there is no place for it, and to write there is refused
		}
	}
	list, _, _ := unstructured.NestedSlice(r.object.Object, path...)
	since := seeded.LastTransitionTime.UTC().Format(time.RFC3339)
	for _, item := range list {
		c, _ := item.(map[string]any)
		if c["type"] != v1alpha1.ClusterSeededCondition {
			continue
		}
		if c["status"] == string(seeded.Status) {
			if c["reason"] == seeded.Reason && c["message"] == seeded.Message {
				return true
			}
			since, _ = c["lastTransitionTime"].(string)
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(r.object.GroupVersionKind())
	u.SetNamespace(r.object.GetNamespace())
	u.SetName(r.object.GetName())
	u.SetUID(r.object.GetUID())
	condition := map[string]any{
		"type": v1alpha1.ClusterSeededCondition, "status": string(seeded.Status), "reason": seeded.Reason, "message": seeded.Message, "lastTransitionTime": since,
	}
	err := unstructured.SetNestedSlice(u.Object, []any{condition}, path...)
	if err == nil {
		err = r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(statusManager))
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		log.FromContext(ctx).Error(err, "cannot publish condition "+v1alpha1.ClusterSeededCondition+" on Cluster", "child", r.key())
		return false
	}
	return true
}

// summarizeLayers sets Seeded from what stands about each layer: those that select the
// child, and those that no longer do and are not gone from it yet.
func (r *run) summarizeLayers(selected []*v1alpha1.Layer) {
	boundMessages(r.child.Status.Layers)
	for _, layer := range selected {
		if layer.Spec.Suspend {
			if why := r.suspend(layer); why != "" {
				r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, v1alpha1.ReasonSuspended, "layer %s is suspended and %s", layer.Name, why)
				return
			}
			continue
		}
		entry := r.entry(layer.Name)
		if !entry.Ready {
			r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, entry.Reason, "layer %s: %s", entry.Name, entry.Message)
			return
		}
	}
	for _, entry := range r.child.Status.Layers {
		if !slices.ContainsFunc(selected, func(l *v1alpha1.Layer) bool { return l.Name == entry.Name }) {
			r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, entry.Reason, "layer %s, which no longer selects this cluster: %s", entry.Name, entry.Message)
			return
		}
	}
	switch {
	case len(selected) == 0:
		r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", r.child.Namespace)
	default:
		r.condition(v1alpha1.SeededCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "all %d layers are in place", len(selected))
	}
}

// observe sets Ready from the layers and from the report of the child's agent.
func (r *run) observe(ctx context.Context, session *link.Session, found *link.Result, selected []*v1alpha1.Layer) {
	seeded := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.SeededCondition)
	connected := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.ConnectedCondition)
	withAgent := slices.ContainsFunc(selected, hasAgent)
	r.child.Status.Report = nil
	if withAgent {
		r.child.Status.Report = found.Agent.Report
	}
	r.warn()
	switch said := r.child.Status.Report; {
	case connected.Status != metav1.ConditionTrue: // the push found another cluster
	case seeded.Status != metav1.ConditionTrue:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, seeded.Reason, "%s", seeded.Message)
	case withAgent && r.agentError(found.Agent) != nil:
		err := r.agentError(found.Agent)
		if reason.Of(err) == v1alpha1.ReasonAgentNotReady {
			err = r.hindered(ctx, session, err)
		}
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reason.Of(err), "%s", err)
	case withAgent && said == nil:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "the agent has not been asked yet")
	case withAgent && !said.Ready:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, said.Reason, "%s", said.Message)
	default:
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "connected, seeded and in sync")
	}
}
