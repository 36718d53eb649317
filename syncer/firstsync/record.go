package firstsync

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Keys of the record besides those of Clusters.
const (
	stateKey = "state"
	whyKey   = "why"
)

// KeyOf is the key of a Cluster in the record. Names have no underscore.
func KeyOf(name types.NamespacedName) string { return name.Namespace + "_" + name.Name }

func nameOf(key string) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(key, "_")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != ""
}

// record is what the ConfigMap says. What it says of a Cluster and nobody
// understands is left out: then the Cluster is held if in doubt.
func recordOf(cm *corev1.ConfigMap) (settled bool, clusters map[types.NamespacedName]inventory.Standing) {
	clusters = map[types.NamespacedName]inventory.Standing{}
	for key, value := range cm.Data {
		name, ok := nameOf(key)
		if !ok {
			continue
		}
		switch standing := inventory.Standing(value); standing {
		case inventory.Approved, inventory.Adopted, inventory.LastPaused, inventory.LastMoving:
			clusters[name] = standing
		}
	}
	return cm.Data[stateKey] == v1alpha1.FirstSyncSettled, clusters
}

// NewRecord is that of a tier of which nothing is on record.
func NewRecord(namespace, why string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap, Labels: map[string]string{"app.kubernetes.io/name": "cascade"},
		},
		Data: map[string]string{stateKey: v1alpha1.FirstSyncAdopt, whyKey: why},
	}
}

// ApprovalPatch is a merge patch that says of Clusters that they may be created.
func ApprovalPatch(names []types.NamespacedName) ([]byte, error) {
	data := map[string]*string{}
	for _, name := range names {
		data[KeyOf(name)] = new(string(inventory.Approved))
	}
	return patchOf(data)
}

// SettlementPatch is a merge patch that ends the first sync of a tier whose record
// is as given. What was noted meanwhile is of no more use.
func SettlementPatch(cm *corev1.ConfigMap, why string) ([]byte, error) {
	data := map[string]*string{stateKey: new(v1alpha1.FirstSyncSettled), whyKey: &why}
	for key, value := range cm.Data {
		if _, ok := nameOf(key); ok && (value == string(inventory.Approved) || value == string(inventory.Adopted)) {
			data[key] = nil
		}
	}
	return patchOf(data)
}

func patchOf(data map[string]*string) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return nil, fmt.Errorf("cannot encode patch: %w", err)
	}
	return patch, nil
}

// markOf is the standing that a Cluster has once it is gone, by how it is now.
func markOf(u *unstructured.Unstructured) inventory.Standing {
	annotations := u.GetAnnotations()
	if _, ok := annotations["clusterctl.cluster.x-k8s.io/delete-for-move"]; ok {
		return inventory.LastMoving
	}
	if annotations[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed {
		return "" // when it goes, that is what a person wanted
	}
	paused, _, _ := unstructured.NestedBool(u.Object, "spec", "paused")
	if _, ok := annotations["cluster.x-k8s.io/paused"]; ok || paused {
		return inventory.LastPaused
	}
	return ""
}

// noted is what the record is to say of a Cluster that is there with a mark, or
// was when it was last seen, in a settled tier. change is false if it says so.
func noted(is, mark inventory.Standing, gone bool) (want inventory.Standing, change bool) {
	if gone && mark == "" && is == inventory.Approved {
		return is, false // it may come back; that is what was approved
	}
	return mark, is != mark
}
