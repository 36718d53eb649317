package capibridge

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Rolling reports whether a cluster changes by itself, so that nothing new is to be given
// to it: its machines are being replaced, added or removed, it waits for that, it is
// paused, or it is being deleted. reason is v1alpha1.ReasonRollingOut, ReasonPaused or
// ReasonClusterDeleting, and why is a sentence for people. f has the facts of the
// providers; its zero value has none.
//
// What a Cluster does not say is not taken for a roll: a Cluster of contract v1beta1 from
// before Cluster API 1.9 tells of its control plane only.
func (c Cluster) Rolling(f Facts) (rolling bool, reason, why string) {
	switch {
	case c.Deleting:
		return true, v1alpha1.ReasonClusterDeleting, "the Cluster is being deleted"
	case c.Paused:
		return true, v1alpha1.ReasonPaused, "the Cluster is paused"
	case f.ControlPlane.Reason == HealthUpdating:
		return true, v1alpha1.ReasonRollingOut, f.ControlPlane.Message
	case f.ControlPlane.Reason == HealthDeleting:
		return true, v1alpha1.ReasonClusterDeleting, f.ControlPlane.Message
	}
	if why = c.machinesChange(true); why != "" {
		return true, v1alpha1.ReasonRollingOut, why
	}
	return false, "", ""
}

// Replaces reports whether machines of a cluster are being replaced, it waits for that, or is being deleted: it may be ill
// for that, as it is neither for a pause nor while it comes to another number of machines.
func (c Cluster) Replaces() bool { return c.Deleting || c.machinesChange(false) != "" }

// machinesChange is why machines of a Cluster are being replaced, or it waits for that, as a sentence for people; empty if
// neither is so. numbers: nor is any added or removed.
func (c Cluster) machinesChange(numbers bool) string {
	u := &unstructured.Unstructured{Object: c.Object}
	current, deprecated := conditionsOf(u)
	kinds := []string{"RollingOut", "Remediating"}
	if numbers {
		kinds = append(kinds, "ScalingUp", "ScalingDown")
	}
	for _, kind := range kinds {
		if cond, _ := current.find(kind); current.is(kind) {
			return saysRolling(cond)
		}
	}
	for _, of := range []struct {
		conditions
		kind string
	}{{current, "TopologyReconciled"}, {deprecated, "TopologyReconciled"}, {deprecated, "ControlPlaneReady"}, {deprecated, "Ready"}} {
		if cond, _ := of.find(of.kind); !of.is(of.kind) && rolls(cond.reason, numbers) {
			return saysRolling(cond)
		}
	}
	// Machines of no MachineDeployment, as those of a MachineSet alone, are never counted as up to
	// date. RollingOut is False where all MachineDeployments and MachinePools say so: who does not
	// say it makes it Unknown. A control plane need not be in it.
	settled := current.status("RollingOut") == metav1.ConditionFalse
	return cmp.Or(machinesRoll(u, "controlPlane", "control plane", true, numbers), machinesRoll(u, "workers", "worker", !settled, numbers))
}

// rolls reports whether a condition that is not met has a reason by which machines are
// being replaced, or wait for it: those of TopologyReconciled in both contracts, and those
// that the control plane of kubeadm has in contract v1beta1, which its Cluster repeats. numbers: or
// by which some are added or removed.
func rolls(reason string, numbers bool) bool {
	switch reason {
	case "ClusterUpgrading", "ControlPlaneUpgradePending", "LifecycleHookBlocking",
		"MachineDeploymentsCreatePending", "MachineDeploymentsUpgradePending", "MachineDeploymentsUpgradeDeferred",
		"MachinePoolsCreatePending", "MachinePoolsUpgradePending", "MachinePoolsUpgradeDeferred",
		"RollingUpdateInProgress":
		return true
	case "ScalingUp", "ScalingDown":
		return numbers
	}
	return false
}

func saysRolling(c condition) string {
	if message := plainly(c.message); message != "" {
		return c.kind + ": " + message
	}
	if c.reason != "" && c.reason != c.kind {
		return c.kind + ": " + c.reason
	}
	return "the Cluster has the condition " + c.kind
}

// machinesRoll compares what a Cluster counts of its machines: whether they are there and up to date,
// each if that is asked for. of names them for people.
func machinesRoll(u *unstructured.Unstructured, field, of string, upToDate, numbers bool) string {
	at := [][]string{{"status", field}, {"status", "v1beta2", field}} // the latter in objects of v1beta1
	for _, path := range at {
		count := func(name string) (int64, bool) {
			field, _, _ := unstructured.NestedFieldNoCopy(u.Object, append(append([]string{}, path...), name)...)
			switch n := field.(type) {
			case int64:
				return n, true
			case float64: // of an object that no API server sent
				return int64(n), true
			}
			return 0, false
		}
		there, counted := count("replicas")
		if !counted {
			continue
		}
		if wanted, ok := count("desiredReplicas"); ok && numbers && wanted != there {
			return fmt.Sprintf("there are %d of %d %s machines", there, wanted, of)
		}
		if current, ok := count("upToDateReplicas"); ok && upToDate && current < there {
			return fmt.Sprintf("%d of %d %s machines are up to date", current, there, of)
		}
	}
	return ""
}
