package fleet

import (
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/google/go-cmp/cmp"
)

// providersOfMasters: a master has Cluster API and the provider of its environment,
// and of the programs nothing else.
func (f *fleet) providersOfMasters(t *testing.T) {
	for master := range declared {
		got, err := scenario.Installed(t.Context(), f.tiers[master])
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(got["definitions of cluster-api"], "\n") + 1; n != 13 {
			t.Errorf("%s has %d definitions of Cluster API, want 13:\n%s", master, n, got["definitions of cluster-api"])
		}
		delete(got, "definitions of cluster-api")
		want := map[string]string{
			"Deployment capi-system/capi":                        "1 available",
			"Deployment cascade-local-system/provider":           "1 available",
			"Deployment cascade-system/cascade":                  "1 available",
			"Deployment services/aggregator":                     "1 available",
			"Provider capi-system/cluster-api":                   "CoreProvider v1.13.4",
			"Provider cascade-local-system/infrastructure-local": "InfrastructureProvider v0.1.0",
			"definitions of ":                                    "providers.clusterctl.cluster.x-k8s.io",
			"definitions of infrastructure-local":                "localclusters.infrastructure.cluster.x-k8s.io\nlocalcontrolplanes.controlplane.cluster.x-k8s.io",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", master, diff)
		}
	}
	// A tenant has none at all.
	got, err := scenario.Installed(t.Context(), f.tiers["alpha"])
	if err != nil {
		t.Fatal(err)
	}
	for name := range got {
		if strings.HasPrefix(name, "definitions") || strings.HasPrefix(name, "Provider") {
			t.Errorf("alpha has %s", name)
		}
	}
}
