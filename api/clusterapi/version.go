package clusterapi

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/version"
)

// versions of the contract in which this package reads objects, the best one first.
func versions() []string { return []string{"v1beta2", "v1beta1"} }

// VersionOf is the version in which the objects of a CustomResourceDefinition are best
// read: of those that are served one that this package knows, or else the one that
// Kubernetes prefers. It is empty if none is served.
func VersionOf(definition *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedFieldNoCopy(definition.Object, "spec", "versions")
	all, _ := list.([]any)
	var served []string
	for _, item := range all {
		v, _ := item.(map[string]any)
		name, _ := v["name"].(string)
		if is, _ := v["served"].(bool); is && name != "" {
			served = append(served, name)
		}
	}
	for _, known := range versions() {
		if slices.Contains(served, known) {
			return known
		}
	}
	if len(served) == 0 {
		return ""
	}
	return slices.MaxFunc(served, version.CompareKubeAwareVersionStrings)
}
