package remote

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// isOwnerLabel reports whether a label names who applied an object. A Child has none of those of
// its Cluster: nobody applied it.
func isOwnerLabel(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == v1alpha1.LayerLabelGroup || strings.HasSuffix(domain, ".toolkit.fluxcd.io")
}

// childLabels are a Cluster's labels as its Child has them.
func childLabels(of map[string]string) map[string]string {
	out := make(map[string]string, len(of))
	for k, v := range of {
		if !isOwnerLabel(k) {
			out[k] = v
		}
	}
	return out
}

// declaredBy is who declares a Child, by its labels; empty for one that the tier made. Whether that
// is still there they do not tell: it may be of another cluster.
func declaredBy(of map[string]string) string {
	const layer = v1alpha1.LayerLabelGroup
	if of[layer+"/name"] != "" {
		return "Layer/" + of[layer+"/namespace"] + "/" + of[layer+"/name"] + " of the parent tier"
	}
	return apply.Marked(of, "")
}

// ownerLabels are those of whoever applies a Child, as childLabels takes them from a Cluster's.
func ownerLabels(of map[string]string) map[string]string {
	out := maps.Clone(of)
	maps.DeleteFunc(out, func(k, _ string) bool { return !isOwnerLabel(k) })
	return out
}

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
			child.Labels = u.GetLabels()
		}
	}
	return true
}

func byOwner(s *metav1.LabelSelector) bool {
	if s == nil {
		return false
	}
	for key := range s.MatchLabels {
		if isOwnerLabel(key) {
			return true
		}
	}
	return slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return isOwnerLabel(r.Key) })
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
