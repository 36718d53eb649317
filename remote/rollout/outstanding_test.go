package rollout

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// TestOutstanding: that a cluster is well counts for a change once all who carry it out have
// seen it and are done.
func TestOutstanding(t *testing.T) {
	object := func(text string) *unstructured.Unstructured {
		// As an API server sends it: its numbers are integers.
		sent, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(sent); err != nil {
			t.Fatal(err)
		}
		return u
	}
	const (
		cluster  = "{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: a, generation: 3}, status: {observedGeneration: 3}}"
		kubeadm  = "{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {name: a, generation: 2}, spec: {version: v1.37.0}, status: {observedGeneration: 2, version: v1.37.0, replicas: 3, upToDateReplicas: 3}}"
		managed  = "{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: AWSManagedControlPlane, metadata: {name: a, generation: 2}, spec: {version: v1.37}, status: {version: VERSION}}"
		machines = "{apiVersion: cluster.x-k8s.io/v1beta2, kind: MachineDeployment, metadata: {name: md, generation: 5}, status: {observedGeneration: 5, replicas: 4, upToDateReplicas: 4}}"
		topology = "{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: a, generation: 3}, spec: {topology: {version: v1.37.0}}, status: {observedGeneration: 3, conditions: [{type: TopologyReconciled, status: STATUS, observedGeneration: SEEN, message: it waits}]}}"
	)
	topologyAt := func(status, seen string) string {
		return strings.NewReplacer("STATUS", `"`+status+`"`, "SEEN", seen).Replace(topology)
	}
	for name, tc := range map[string]struct {
		reason, cluster, controlPlane, workers string
		want                                   string
	}{
		"InEffect":          {"all have seen all, and are done", cluster, kubeadm, machines, ""},
		"Alone":             {"no control plane is known of", cluster, "", "", ""},
		"ClusterUnseen":     {"Cluster API did not look at the Cluster yet", strings.ReplaceAll(cluster, "observedGeneration: 3", "observedGeneration: 2"), kubeadm, machines, "Cluster a was not looked at"},
		"ClusterNew":        {"it never did", strings.ReplaceAll(cluster, "observedGeneration: 3", ""), kubeadm, machines, "Cluster a was not looked at"},
		"PlaneUnseen":       {"its provider did not look at the control plane yet", cluster, strings.ReplaceAll(kubeadm, "observedGeneration: 2", "observedGeneration: 1"), machines, "KubeadmControlPlane a was not looked at"},
		"PlaneEarlier":      {"the control plane runs the version of before", cluster, strings.ReplaceAll(kubeadm, "version: v1.37.0, replicas", "version: v1.36.4, replicas"), machines, "KubeadmControlPlane a runs v1.36.4, and not v1.37.0 yet"},
		"PlaneRolls":        {"a machine of it is of before", cluster, strings.ReplaceAll(kubeadm, "upToDateReplicas: 3", "upToDateReplicas: 2"), machines, "2 of 3 machines of KubeadmControlPlane a"},
		"PlaneRollsV1beta1": {"which had another name before", cluster, strings.ReplaceAll(kubeadm, "upToDateReplicas: 3", "updatedReplicas: 1"), machines, "1 of 3 machines of KubeadmControlPlane a"},
		"WorkersUnseen":     {"the workers were not looked at yet", cluster, kubeadm, strings.ReplaceAll(machines, "observedGeneration: 5", "observedGeneration: 4"), "MachineDeployment md was not looked at"},
		"WorkersRoll":       {"workers are being replaced", cluster, kubeadm, strings.ReplaceAll(machines, "upToDateReplicas: 4", "upToDateReplicas: 0"), "0 of 4 machines of MachineDeployment md"},
		"Cloud":             {"it tells no generation, and a patch of the version that it was told", cluster, strings.ReplaceAll(managed, "VERSION", "v1.37.2-eks-1"), "", ""},
		"CloudEarlier":      {"it upgrades", cluster, strings.ReplaceAll(managed, "VERSION", "v1.36.9-eks-1"), "", "AWSManagedControlPlane a runs v1.36.9-eks-1"},
		"CloudLater":        {"a cloud upgraded it by itself", cluster, strings.ReplaceAll(managed, "VERSION", "v1.38.0"), "", ""},
		"CloudSilent":       {"it reports no version", cluster, strings.ReplaceAll(managed, "VERSION", `""`), "", ""},
		"Topology":          {"the topology is reconciled", topologyAt("True", "3"), kubeadm, machines, ""},
		"TopologyUnseen":    {"it was at the generation of before", topologyAt("True", "2"), kubeadm, machines, "the topology of Cluster a was not looked at"},
		"TopologyFails":     {"it cannot be reconciled, or waits", topologyAt("False", "3"), kubeadm, machines, "is not reconciled: it waits"},
		"TopologyV1beta1":   {"its condition has no generation", strings.ReplaceAll(topologyAt("True", "0"), "observedGeneration: 0, ", ""), kubeadm, machines, ""},
		"TopologyEarlier":   {"the control plane was not told the version yet", topologyAt("True", "3"), strings.ReplaceAll(kubeadm, "v1.37.0", "v1.36.0"), machines, "KubeadmControlPlane a runs v1.36.0, and not v1.37.0 yet"},
	} {
		t.Run(name, func(t *testing.T) {
			var plane *unstructured.Unstructured
			if tc.controlPlane != "" {
				plane = object(tc.controlPlane)
			}
			var workers []*unstructured.Unstructured
			if tc.workers != "" {
				workers = append(workers, object(tc.workers))
			}
			got := Outstanding(object(tc.cluster), plane, workers)
			if !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("%s: Outstanding() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
