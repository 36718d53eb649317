package capibridge

import (
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestRolling(t *testing.T) {
	const head = "metadata: {namespace: fleet, name: prod}\n"
	for name, tc := range map[string]struct {
		reason string
		yaml   string
		facts  Facts
		want   string
		// whole: no machine is replaced, nor does it go.
		whole bool
	}{
		"Quiet": {
			"all machines are there, and up to date",
			head + "status: {conditions: [{type: RollingOut, status: \"False\"}, {type: ScalingUp, status: \"False\"}], controlPlane: {desiredReplicas: 3, replicas: 3, upToDateReplicas: 3}, workers: {desiredReplicas: 0, replicas: 0, upToDateReplicas: 0}}\n",
			Facts{}, "", true,
		},
		"New":      {"what nobody says is no roll", head, Facts{}, "", true},
		"Deleting": {"nothing is changed that goes", "metadata: {name: prod, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\n", Facts{}, v1alpha1.ReasonClusterDeleting, false},
		"Paused":   {"nobody acts on a change", head + "spec: {paused: true}\n", Facts{}, v1alpha1.ReasonPaused, true},
		"RollingOut": {
			"of v1beta2", head + "status: {conditions: [{type: RollingOut, status: \"True\", message: 1 machine}]}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"RollingOut1": {
			"a Cluster of v1beta1 has it below", head + "status: {conditions: [{type: Ready, status: \"True\", severity: \"\"}], v1beta2: {conditions: [{type: RollingOut, status: \"True\"}]}}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"Remediating": {"an unhealthy machine is replaced", head + "status: {conditions: [{type: Remediating, status: \"True\"}]}\n", Facts{}, v1alpha1.ReasonRollingOut, false},
		"ScalingUp":   {"machines come", head + "status: {conditions: [{type: ScalingUp, status: \"True\"}]}\n", Facts{}, v1alpha1.ReasonRollingOut, true},
		"ScalingDown": {"machines go", head + "status: {conditions: [{type: ScalingDown, status: \"True\"}]}\n", Facts{}, v1alpha1.ReasonRollingOut, true},
		"Unknown":     {"Unknown is not True: a controller that has just started says so", head + "status: {conditions: [{type: RollingOut, status: Unknown}]}\n", Facts{}, "", true},
		"Topology": {
			"an upgrade of workers waits for the control plane, while nothing moves", head + "status: {conditions: [{type: TopologyReconciled, status: \"False\", reason: ClusterUpgrading}]}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"TopologyFailed": {
			"a topology that cannot be reconciled does not roll: what is to mend it must come through", head + "status: {conditions: [{type: TopologyReconciled, status: \"False\", reason: ReconcileFailed}]}\n", Facts{}, "", true,
		},
		"Topology1": {
			"the same in contract v1beta1",
			head + "status: {conditions: [{type: TopologyReconciled, status: \"False\", severity: Info, reason: MachineDeploymentsUpgradePending}]}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"ControlPlane1": {
			"the Cluster repeats what its control plane says",
			head + "status: {conditions: [{type: ControlPlaneReady, status: \"False\", severity: Warning, reason: RollingUpdateInProgress}]}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"Provisioning1": {
			"a control plane that comes up for the first time", head + "status: {conditions: [{type: ControlPlaneReady, status: \"False\", severity: Info, reason: WaitingForKubeadmInit}]}\n", Facts{}, "", true,
		},
		"ControlPlaneOutdated": {"a machine of the former version", head + "status: {controlPlane: {desiredReplicas: 3, replicas: 3, upToDateReplicas: 2}}\n", Facts{}, v1alpha1.ReasonRollingOut, false},
		"WorkersMissing":       {"a machine is not there yet", head + "status: {workers: {desiredReplicas: 3, replicas: 2, upToDateReplicas: 2}}\n", Facts{}, v1alpha1.ReasonRollingOut, true},
		"WorkersSurge":         {"one too many", head + "status: {workers: {desiredReplicas: 3, replicas: 4, upToDateReplicas: 4}}\n", Facts{}, v1alpha1.ReasonRollingOut, true},
		"Workers1":             {"a Cluster of v1beta1 counts below", head + "status: {v1beta2: {workers: {desiredReplicas: 3, replicas: 3, upToDateReplicas: 1}}}\n", Facts{}, v1alpha1.ReasonRollingOut, false},
		"WorkersAlone": {
			"nobody says of machines without a MachineDeployment whether they are up to date; what rolls is in the condition",
			head + "status: {conditions: [{type: RollingOut, status: \"False\"}], workers: {desiredReplicas: 4, replicas: 4, upToDateReplicas: 3}}\n", Facts{}, "", true,
		},
		"WorkersAlone1": {
			"the same in contract v1beta1", head + "status: {v1beta2: {conditions: [{type: RollingOut, status: \"False\"}], workers: {desiredReplicas: 4, replicas: 4, upToDateReplicas: 0}}}\n", Facts{}, "", true,
		},
		"WorkersAloneMissing": {
			"they are counted all the same",
			head + "status: {conditions: [{type: RollingOut, status: \"False\"}], workers: {desiredReplicas: 4, replicas: 3, upToDateReplicas: 0}}\n", Facts{}, v1alpha1.ReasonRollingOut, true,
		},
		"Pool": {
			"a MachinePool has no condition RollingOut, so that the Cluster's is Unknown: the number tells",
			head + "status: {conditions: [{type: RollingOut, status: Unknown}], workers: {desiredReplicas: 3, replicas: 3, upToDateReplicas: 1}}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"ControlPlaneSilent": {
			"a control plane need not have the condition, and is not in that of the Cluster then",
			head + "status: {conditions: [{type: RollingOut, status: \"False\"}], controlPlane: {desiredReplicas: 3, replicas: 3, upToDateReplicas: 2}}\n", Facts{}, v1alpha1.ReasonRollingOut, false,
		},
		"Managed":         {"a control plane without machines says it in its own words", head, Facts{ControlPlane: yes(HealthUpdating, "it is being changed")}, v1alpha1.ReasonRollingOut, true},
		"ManagedDeleting": {"and that it goes", head, Facts{ControlPlane: no(HealthDeleting, "it is being deleted")}, v1alpha1.ReasonClusterDeleting, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := FromObject(object(t, tc.yaml))
			if c.Replaces() == tc.whole {
				t.Errorf("%s\nReplaces = %t", tc.reason, c.Replaces())
			}
			rolling, reason, why := c.Rolling(tc.facts)
			if reason != tc.want || rolling != (tc.want != "") || (why != "") != rolling {
				t.Errorf("%s\nRolling = %t, %q, %q; want %q", tc.reason, rolling, reason, why, tc.want)
			}
		})
	}
}
