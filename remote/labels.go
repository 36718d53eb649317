package remote

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// ownerLabels are those of whoever applies an object, as childLabels takes them from a Cluster's.
func ownerLabels(of map[string]string) map[string]string {
	out := maps.Clone(of)
	maps.DeleteFunc(out, func(k, _ string) bool { return !isOwnerLabel(k) })
	return out
}

// labelsFor are the labels that a Child has by those of its Cluster. One that somebody declares keeps
// what others than the agent gave it, as its owner would give it that again each time.
func labelsFor(child *v1alpha1.Child, cluster map[string]string) (map[string]string, error) {
	labels := childLabels(cluster)
	if declaredBy(child.Labels) == "" {
		return labels, nil
	}
	ours, theirs := map[string]bool{}, map[string]bool{}
	for _, m := range child.ManagedFields {
		names, err := LabelsOwned(m)
		if err != nil {
			return nil, fmt.Errorf("cannot read the managed fields of Child %s: %w", client.ObjectKeyFromObject(child), err)
		}
		of := theirs
		if m.Manager == statusManager && m.Operation == metav1.ManagedFieldsOperationUpdate {
			of = ours
		}
		for _, name := range names {
			of[name] = true
		}
	}
	for name, value := range child.Labels {
		if isOwnerLabel(name) || theirs[name] || !ours[name] {
			labels[name] = value
		}
	}
	return labels, nil
}

// LabelsOwned are the names of the labels that an entry of managedFields has.
func LabelsOwned(m metav1.ManagedFieldsEntry) ([]string, error) {
	if m.FieldsV1 == nil {
		return nil, nil
	}
	var fields struct {
		Metadata struct {
			Labels map[string]json.RawMessage `json:"f:labels"`
		} `json:"f:metadata"`
	}
	if err := json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields); err != nil {
		return nil, err
	}
	var names []string
	for field := range fields.Metadata.Labels {
		if name, ok := strings.CutPrefix(field, "f:"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// LabelsOf are the labels by which layers and Rollouts select a Child whose Cluster has the labels
// that are given. It may lag behind these: what the agent gives it next counts.
func LabelsOf(child *v1alpha1.Child, cluster map[string]string) (map[string]string, error) {
	labels, err := labelsFor(child, cluster)
	return selectedBy(labels, cluster), err
}

// selectedBy are the labels by which a Child of a Cluster is selected: its own, which may be more than
// the Cluster has, and who applied the Cluster.
func selectedBy(child, cluster map[string]string) map[string]string {
	labels := childLabels(child)
	maps.Copy(labels, ownerLabels(cluster))
	return labels
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
			child.Labels = selectedBy(child.Labels, u.GetLabels())
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
