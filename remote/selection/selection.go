// Package selection says which labels a Child has, and by which of them and of its Cluster's Layers and Rollouts
// select it. Whoever selects goes by it: what one takes for governed and another does not, moves without a wave,
// or never. It is pure.
package selection

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Manager is the field manager by which the agent gives Children the labels of their Clusters.
const Manager = "cascade"

// IsOwner reports whether a label names who applied an object. A Child has none of those of
// its Cluster: nobody applied it.
func IsOwner(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == v1alpha1.LayerLabelGroup || strings.HasSuffix(domain, ".toolkit.fluxcd.io")
}

// WithoutOwner are a Cluster's labels as its Child has them.
func WithoutOwner(of map[string]string) map[string]string {
	out := make(map[string]string, len(of))
	for k, v := range of {
		if !IsOwner(k) {
			out[k] = v
		}
	}
	return out
}

// DeclaredBy is who declares a Child, by its labels; empty for one that the tier made. Whether that
// is still there they do not tell: it may be of another cluster.
func DeclaredBy(of map[string]string) string {
	const layer = v1alpha1.LayerLabelGroup
	if of[layer+"/name"] != "" {
		return "Layer/" + of[layer+"/namespace"] + "/" + of[layer+"/name"] + " of the parent tier"
	}
	return apply.Marked(of, "")
}

// Labels are those that a Child has by those of its Cluster. One that somebody declares keeps
// what others than the agent gave it, as its owner would give it that again each time.
func Labels(child *v1alpha1.Child, cluster map[string]string) (map[string]string, error) {
	labels := WithoutOwner(cluster)
	if DeclaredBy(child.Labels) == "" {
		return labels, nil
	}
	ours, theirs := map[string]bool{}, map[string]bool{}
	for _, m := range child.ManagedFields {
		names, err := Owned(m)
		if err != nil {
			return nil, fmt.Errorf("cannot read the managed fields of Child %s: %w", client.ObjectKeyFromObject(child), err)
		}
		of := theirs
		if m.Manager == Manager && m.Operation == metav1.ManagedFieldsOperationUpdate {
			of = ours
		}
		for _, name := range names {
			of[name] = true
		}
	}
	for name, value := range child.Labels {
		if IsOwner(name) || theirs[name] || !ours[name] {
			labels[name] = value
		}
	}
	return labels, nil
}

// Owned are the names of the labels that an entry of managedFields has.
func Owned(m metav1.ManagedFieldsEntry) ([]string, error) {
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

// Of are the labels by which a Child is selected whose Cluster has the labels that are given. Its own may
// lag behind these: what the agent gives it next counts. A Child without a Cluster has its own alone.
func Of(child *v1alpha1.Child, cluster map[string]string) (map[string]string, error) {
	if child.Spec.ClusterRef == nil {
		return child.Labels, nil
	}
	labels, err := Labels(child, cluster)
	return By(labels, cluster), err
}

// By are the labels by which a Child of a Cluster is selected: its own, which may be more than
// the Cluster has, and who applied the Cluster.
func By(child, cluster map[string]string) map[string]string {
	labels := WithoutOwner(child)
	for k, v := range cluster {
		if IsOwner(k) {
			labels[k] = v
		}
	}
	return labels
}
