package agent

import (
	"fmt"
	"net/netip"
	"time"

	tokencache "github.com/fluxcd/pkg/cache"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// targets is how clusters are reached, and as whom.
type targets struct {
	kubeconfigs       capibridge.Allowed
	serviceAccount    string
	kubeconfigAccount string
	deny              []string
	addresses         answer.Addresses
}

func (t *targets) bind(f *pflag.FlagSet) {
	f.BoolVar(&t.kubeconfigs.ProxyURL, "allow-kubeconfig-proxy", false,
		"let kubeconfigs of children and of spec.kubeConfig send the traffic to their clusters by the proxy that they name")
	f.StringVar(&t.serviceAccount, "default-service-account", "",
		"service account that Kustomizations, HelmReleases and Layers without one impersonate")
	f.StringVar(&t.kubeconfigAccount, "default-kubeconfig-service-account", "",
		"service account for clusters of a ConfigMap that names none")
	f.StringSliceVar(&t.deny, "deny-kubeconfig-addresses", nil,
		"networks, such as 127.0.0.0/8,::1/128, that kubeconfigs of children and of spec.kubeConfig must not lead to; link-local ones and metadata services they never may")
}

func (t *targets) check() error {
	t.addresses.Deny = nil
	for _, text := range t.deny {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("cannot use --deny-kubeconfig-addresses: %q is not a network such as 127.0.0.0/8", text)
		}
		t.addresses.Deny = append(t.addresses.Deny, network.Masked())
	}
	return nil
}

// build makes what connects Kustomizations and HelmReleases to their clusters.
func (t *targets) build(
	local *apply.Cluster, kept *tokencache.TokenCache, scheme *runtime.Scheme, now func() time.Time,
) *target.Targets {
	return &target.Targets{
		Local: local, Kubeconfig: t.kubeconfigs.Kubeconfig, Addresses: t.addresses, ServiceAccount: t.serviceAccount,
		KubeConfigServiceAccount: t.kubeconfigAccount, Tokens: kept, Scheme: scheme, Now: now,
	}
}
