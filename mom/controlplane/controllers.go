package main

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// controllers are those that give the objects a GitOps engine applies their
// ordinary life. The rest needs a cloud, volumes, certificates for kubelets or
// metrics, and would only cost memory.
func controllers() []string {
	return []string{
		names.GarbageCollectorController,
		names.NamespaceController,
		names.ServiceAccountController,
		names.ServiceAccountTokenController,
		names.RootCACertificatePublisherController,
		names.ClusterRoleAggregationController,
		names.ValidatingAdmissionPolicyStatusController,
		names.DeploymentController,
		names.ReplicaSetController,
		names.DaemonSetController,
		names.StatefulSetController,
		names.JobController,
		names.CronJobController,
		names.TTLAfterFinishedController,
		names.DisruptionController,
		names.ResourceQuotaController,
		names.EndpointsController,
		names.EndpointSliceController,
		// It makes the range of the Service addresses Ready.
		names.ServiceCIDRController,
		names.PodGarbageCollectorController,
		names.NodeLifecycleController,
		names.TaintEvictionController,
		// Admission puts finalizers on volumes and claims. Without the two that
		// take them off, no namespace with a claim could be deleted.
		names.PersistentVolumeClaimProtectionController,
		names.PersistentVolumeProtectionController,
	}
}

// runControllers runs kube-controller-manager until ctx ends.
func runControllers(ctx context.Context, s settings) error {
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("cannot configure kube-controller-manager: %w", err)
	}
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	err = parseFlags("kube-controller-manager", opts.Flags(known, disabled, aliases), []string{
		"--kubeconfig=" + s.dir.controllerKubeconfig(),
		"--cluster-name=" + s.name,
		"--controllers=" + strings.Join(controllers(), ","),
		"--leader-elect=false",
		"--secure-port=0",
		"--profiling=false",
		"--root-ca-file=" + s.dir.pki("ca.crt"),
		"--service-account-private-key-file=" + s.dir.pki("service-account.key"),
		// As everywhere: each controller is somebody, whom admission can tell apart.
		"--use-service-account-credentials=true",
		"--service-cluster-ip-range=" + s.serviceCIDR,
		// The defaults (20 and 30) are for a shared server; here they would
		// only make the deletion of a namespace slow.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	})
	if err != nil {
		return err
	}
	config, err := opts.Config(ctx, known, disabled, aliases)
	if err != nil {
		return fmt.Errorf("cannot configure kube-controller-manager: %w", err)
	}
	return app.Run(ctx, config.Complete())
}
