package remote

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/selection"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// asClusters has Children be selected as their Clusters are, if a selector goes by who applied the
// Cluster: a layer that is pushed by that must be counted and guarded by it as well. ok is false
// while the Clusters are not listed yet, and nothing must be decided. The Children are the caller's
// own, their labels may be the cache's. A nil selector goes by nothing.
func asClusters(children []v1alpha1.Child, watch *clusters.Watch, selectors ...*metav1.LabelSelector) (ok bool) {
	if watch == nil || !slices.ContainsFunc(selectors, byOwner) {
		return true
	}
	select {
	case <-watch.Known():
	default:
		return false
	}
	for i := range children {
		child := &children[i]
		if child.Spec.ClusterRef == nil {
			continue
		}
		if u, ok := watch.Get(types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name}); ok {
			child.Labels = selection.By(child.Labels, u.GetLabels())
		}
	}
	return true
}

// LabelsOf are those by which a Child is selected where these selectors are used; ok is false while they are not known yet.
func LabelsOf(child *v1alpha1.Child, watch *clusters.Watch, selectors ...*metav1.LabelSelector) (labels map[string]string, ok bool) {
	one := []v1alpha1.Child{{ObjectMeta: child.ObjectMeta, Spec: child.Spec}}
	ok = asClusters(one, watch, selectors...)
	return one[0].Labels, ok
}

func byOwner(s *metav1.LabelSelector) bool {
	if s == nil {
		return false
	}
	for key := range s.MatchLabels {
		if selection.IsOwner(key) {
			return true
		}
	}
	return slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return selection.IsOwner(r.Key) })
}

// stays reports whether a layer that selects Clusters by who applied them counts as if it selected a child
// whose Cluster is not here, as another tier manages it: nobody can tell who applied that one. What the
// child has of the layer stands until the Cluster is back, as far as the labels go that the child has itself.
func stays(layer *v1alpha1.Layer, child *v1alpha1.Child) bool {
	all := &layer.Spec.ClusterSelector
	if managedElsewhere(child) == nil || !byOwner(all) || !onRecord(entryOf(child, layer.Name)) {
		return false
	}
	rest := &metav1.LabelSelector{
		MatchLabels: selection.WithoutOwner(all.MatchLabels),
		MatchExpressions: slices.DeleteFunc(slices.Clone(all.MatchExpressions), func(r metav1.LabelSelectorRequirement) bool {
			return selection.IsOwner(r.Key)
		}),
	}
	selector, err := metav1.LabelSelectorAsSelector(rest)
	return err == nil && selector.Matches(labels.Set(child.Labels))
}

// selectorsOf are those of Rollouts, with those of their waves.
func selectorsOf(rollouts []v1alpha1.Rollout) []*metav1.LabelSelector {
	var all []*metav1.LabelSelector
	for i := range rollouts {
		all = append(all, rollouts[i].Spec.ClusterSelector)
		for j := range rollouts[i].Spec.Waves {
			all = append(all, rollouts[i].Spec.Waves[j].Selector)
		}
	}
	return all
}
