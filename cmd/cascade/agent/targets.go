package agent

import (
	"time"

	tokencache "github.com/fluxcd/pkg/cache"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// targets is how clusters are reached, and as whom.
type targets struct {
	kubeconfigs       capibridge.Allowed
	serviceAccount    string
	kubeconfigAccount string
}

func (t *targets) bind(f *pflag.FlagSet) {
	f.BoolVar(&t.kubeconfigs.ProxyURL, "allow-kubeconfig-proxy", false,
		"let kubeconfigs of children and of spec.kubeConfig send the traffic to their clusters by the proxy that they name")
	f.StringVar(&t.serviceAccount, "default-service-account", "",
		"service account that Kustomizations and HelmReleases without one impersonate")
	f.StringVar(&t.kubeconfigAccount, "default-kubeconfig-service-account", "",
		"service account for clusters of a ConfigMap that names none")
}

func (*targets) check() error { return nil }

// build makes what connects Kustomizations and HelmReleases to their clusters.
func (t *targets) build(
	local *apply.Cluster, kept *tokencache.TokenCache, scheme *runtime.Scheme, now func() time.Time,
) *target.Targets {
	return &target.Targets{
		Local: local, Kubeconfig: t.kubeconfigs.Kubeconfig, ServiceAccount: t.serviceAccount,
		KubeConfigServiceAccount: t.kubeconfigAccount, Tokens: kept, Scheme: scheme, Now: now,
	}
}
