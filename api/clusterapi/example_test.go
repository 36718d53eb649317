package clusterapi_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Which Cluster an object belongs to, before Cluster API has adopted it: its own field
// says so.
func ExampleClustersOf() {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterapi.Group + "/v1beta2", "kind": "MachineDeployment",
		"metadata": map[string]any{"namespace": "fleet", "name": "workers"},
		"spec":     map[string]any{"clusterName": "prod"},
	}}
	fmt.Println(clusterapi.ClustersOf(u))
	// Output: [prod]
}

// The Secret with a kubeconfig is found by its name, and tied to its Cluster by its
// label.
func ExampleClusterOfKubeconfig() {
	secret := &unstructured.Unstructured{Object: map[string]any{}}
	secret.SetName(clusterapi.KubeconfigSecret("prod"))
	secret.SetLabels(map[string]string{clusterapi.ClusterNameLabel: "prod"})
	fmt.Println(clusterapi.ClusterOfKubeconfig(secret))
	// Output: prod true
}
