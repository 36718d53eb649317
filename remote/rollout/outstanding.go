package rollout

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Outstanding is why what was declared of a Cluster last is not in effect yet, as a clause for
// people; empty if it is. The Cluster, its control plane and its workers are as the API server
// had them after that was written; controlPlane is nil if there is none.
//
// A status of before the change says nothing of the change. So each controller has to have
// seen the generation that is there, as the contract of Cluster API has it told in
// status.observedGeneration, the managed topology has to be reconciled at it, the control
// plane has to report the version of Kubernetes that it was told, and all machines have to be
// up to date. What a provider does not tell is not waited for.
func Outstanding(cluster, controlPlane *unstructured.Unstructured, workers []*unstructured.Unstructured) string {
	if why := unseen(cluster); why != "" {
		return why
	}
	if why := topologyPending(cluster); why != "" {
		return why
	}
	if controlPlane != nil {
		if why := cmp.Or(unseen(controlPlane), versionPending(cluster, controlPlane), machinesPending(controlPlane)); why != "" {
			return why
		}
	}
	for _, w := range workers {
		if why := cmp.Or(unseen(w), machinesPending(w)); why != "" {
			return why
		}
	}
	return ""
}

// unseen says that the controller of an object did not see its last change. Providers need
// not tell the generation that they saw; those kinds that have it in their contract do.
func unseen(u *unstructured.Unstructured) string {
	seen, tells := numberAt(u, "status", "observedGeneration")
	if !tells && u.GroupVersionKind().Group != clusterapi.Group || seen >= u.GetGeneration() {
		return ""
	}
	return named(u) + " was not looked at by its controller since it was changed"
}

// topologyPending says that what the topology of a Cluster declares is not in its objects.
func topologyPending(cluster *unstructured.Unstructured) string {
	for _, at := range [][]string{{"status", "v1beta2", "conditions"}, {"status", "conditions"}} {
		list, _, _ := unstructured.NestedSlice(cluster.Object, at...)
		for _, entry := range list {
			c, _ := entry.(map[string]any)
			if c["type"] != "TopologyReconciled" {
				continue
			}
			of := &unstructured.Unstructured{Object: c}
			// Conditions of the contract v1beta1 have no generation.
			if seen, tells := numberAt(of, "observedGeneration"); tells && seen < cluster.GetGeneration() {
				return "the topology of " + named(cluster) + " was not looked at since it was changed"
			}
			if c["status"] != "True" {
				return "the topology of " + named(cluster) + " is not reconciled: " + cmp.Or(textAt(of, "message"), textAt(of, "reason"))
			}
			return ""
		}
	}
	return ""
}

// versionPending says that a control plane runs an earlier version of Kubernetes than it was
// told. One that does not report what it runs, or runs a later one, is not waited for.
func versionPending(cluster, controlPlane *unstructured.Unstructured) string {
	wanted := cmp.Or(textAt(cluster, "spec", "topology", "version"), textAt(controlPlane, "spec", "version"))
	runs := textAt(controlPlane, "status", "version")
	if !runsBefore(runs, wanted) {
		return ""
	}
	return named(controlPlane) + " runs " + runs + ", and not " + wanted + " yet"
}

// runsBefore compares versions as far as the one that is wanted goes: clouds are told a minor
// version, and report a patch of it.
func runsBefore(runs, wanted string) bool {
	a, err := version.ParseGeneric(runs)
	if err != nil {
		return false
	}
	b, err := version.ParseGeneric(wanted)
	if err != nil {
		return false
	}
	for i, part := range b.Components() {
		of := uint(0)
		if i < len(a.Components()) {
			of = a.Components()[i]
		}
		if of != part {
			return of < part
		}
	}
	return false
}

// machinesPending compares what a control plane, or a set of workers, counts of its machines.
func machinesPending(u *unstructured.Unstructured) string {
	there, counted := numberAt(u, "status", "replicas")
	if !counted {
		return ""
	}
	for _, at := range [][]string{{"status", "v1beta2", "upToDateReplicas"}, {"status", "upToDateReplicas"}, {"status", "updatedReplicas"}} {
		current, tells := numberAt(u, at...)
		if !tells {
			continue
		}
		if current < there {
			return fmt.Sprintf("%d of %d machines of %s are up to date", current, there, named(u))
		}
		return ""
	}
	return ""
}

func named(u *unstructured.Unstructured) string { return u.GetKind() + " " + u.GetName() }

func numberAt(u *unstructured.Unstructured, fields ...string) (int64, bool) {
	n, ok, err := unstructured.NestedInt64(u.Object, fields...)
	return n, ok && err == nil
}
