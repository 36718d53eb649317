// Command providers serves the admission webhooks of Cluster API, of its kubeadm
// providers and of its provider for AWS, and the conversions of Cluster API's own
// kinds, as they are in the modules, and nothing else of them: there is no controller that would work on what is admitted. The
// provider for Azure, which is made for another version of the libraries, has a
// command of its own.
//
// The API server is that of KUBECONFIG.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	infrav1 "sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	eksbootstrapv1 "sigs.k8s.io/cluster-api-provider-aws/v2/bootstrap/eks/api/v1beta2"
	eksbootstrap "sigs.k8s.io/cluster-api-provider-aws/v2/bootstrap/eks/webhooks"
	ekscontrolplanev1 "sigs.k8s.io/cluster-api-provider-aws/v2/controlplane/eks/api/v1beta2"
	ekscontrolplane "sigs.k8s.io/cluster-api-provider-aws/v2/controlplane/eks/webhooks"
	expinfrav1 "sigs.k8s.io/cluster-api-provider-aws/v2/exp/api/v1beta2"
	exp "sigs.k8s.io/cluster-api-provider-aws/v2/exp/webhooks"
	aws "sigs.k8s.io/cluster-api-provider-aws/v2/webhooks"
	kubeadmbootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	kubeadmcontrolplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1beta1 "sigs.k8s.io/cluster-api/api/core/v1beta1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeadmbootstrap "sigs.k8s.io/cluster-api/bootstrap/kubeadm/webhooks"
	kubeadmcontrolplane "sigs.k8s.io/cluster-api/controlplane/kubeadm/webhooks"
	core "sigs.k8s.io/cluster-api/webhooks"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

func main() {
	port := flag.Int("port", 9443, "where the webhooks are served")
	certificates := flag.String("cert-dir", "", "directory with tls.crt and tls.key")
	flag.Parse()
	if err := run(*port, *certificates); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(port int, certificates string) error {
	ctrl.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, clusterv1beta1.AddToScheme, kubeadmbootstrapv1.AddToScheme, kubeadmcontrolplanev1.AddToScheme,
		infrav1.AddToScheme, expinfrav1.AddToScheme, ekscontrolplanev1.AddToScheme, eksbootstrapv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("cannot make scheme: %w", err)
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:        scheme,
		Metrics:       metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certificates}),
	})
	if err != nil {
		return fmt.Errorf("cannot make manager: %w", err)
	}
	// References of v1beta1 have a version, for which Cluster API's manager asks the
	// labels of definitions; here it is the one that is served.
	clusterv1beta1.SetAPIVersionGetter(func(kind schema.GroupKind) (string, error) {
		mapping, err := manager.GetRESTMapper().RESTMapping(kind)
		if err != nil {
			return "", fmt.Errorf("cannot tell which version of %s is served: %w", kind, err)
		}
		return mapping.GroupVersionKind.GroupVersion().String(), nil
	})
	for _, w := range []interface {
		SetupWebhookWithManager(ctrl.Manager) error
	}{
		&core.Cluster{Client: manager.GetClient()}, &core.MachineDeployment{}, &core.MachinePool{}, &core.MachineHealthCheck{},
		&kubeadmbootstrap.KubeadmConfigTemplate{}, &kubeadmcontrolplane.KubeadmControlPlane{},
		&aws.AWSCluster{}, &aws.AWSMachineTemplate{}, &aws.AWSClusterRoleIdentity{},
		&ekscontrolplane.AWSManagedControlPlane{}, &exp.AWSManagedMachinePool{}, &eksbootstrap.EKSConfigTemplate{},
	} {
		if err := w.SetupWebhookWithManager(manager); err != nil {
			return fmt.Errorf("cannot set up webhook: %w", err)
		}
	}
	if err := manager.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("cannot serve: %w", err)
	}
	return nil
}
