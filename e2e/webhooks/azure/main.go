// Command azure serves the admission webhooks of Cluster API's provider for Azure,
// as they are in its module, and nothing else of it.
//
// The API server is that of KUBECONFIG.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	infrav1 "sigs.k8s.io/cluster-api-provider-azure/api/v1beta1"
	"sigs.k8s.io/cluster-api-provider-azure/internal/webhooks"
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
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, infrav1.AddToScheme} {
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
	for _, w := range []interface {
		SetupWebhookWithManager(ctrl.Manager) error
	}{
		&webhooks.AzureClusterWebhook{}, &webhooks.AzureMachineTemplateWebhook{}, &webhooks.AzureClusterIdentityWebhook{},
		&webhooks.AzureASOManagedClusterWebhook{}, &webhooks.AzureASOManagedControlPlaneWebhook{}, &webhooks.AzureASOManagedMachinePoolWebhook{},
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
