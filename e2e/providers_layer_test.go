package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// installed names what a tier has that concerns Cluster API: Deployments in all
// namespaces, definitions by the provider that they belong to, and clusterctl's
// inventory.
func installed(ctx context.Context, tier *stage.Tier) (map[string]string, error) {
	c, err := tier.Client()
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	deployments := &appsv1.DeploymentList{}
	if err := c.List(ctx, deployments); err != nil {
		return nil, err
	}
	for _, d := range deployments.Items {
		found["Deployment "+d.Namespace+"/"+d.Name] = fmt.Sprintf("%d available", d.Status.AvailableReplicas)
	}
	crds := &metav1.PartialObjectMetadataList{}
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	if err := c.List(ctx, crds); err != nil {
		return nil, err
	}
	definitions := map[string][]string{}
	for _, crd := range crds.Items {
		if strings.Contains(crd.Name, "cluster.x-k8s.io") || strings.Contains(crd.Name, "cert-manager") {
			of := crd.Labels["cluster.x-k8s.io/provider"]
			definitions[of] = append(definitions[of], crd.Name)
		}
	}
	for of, names := range definitions {
		slices.Sort(names)
		found["definitions of "+of] = strings.Join(names, "\n")
	}
	if len(definitions) == 0 {
		return found, nil
	}
	inventory := &unstructured.UnstructuredList{}
	inventory.SetAPIVersion("clusterctl.cluster.x-k8s.io/v1alpha3")
	inventory.SetKind("ProviderList")
	if err := c.List(ctx, inventory, client.HasLabels{"clusterctl.cluster.x-k8s.io"}); err != nil {
		return nil, err
	}
	for _, p := range inventory.Items {
		version, _, _ := unstructured.NestedString(p.Object, "version")
		kind, _, _ := unstructured.NestedString(p.Object, "type")
		found["Provider "+p.GetNamespace()+"/"+p.GetName()] = kind + " " + version
	}
	return found, nil
}

// providersOfMasters: a master has Cluster API and the provider of its environment,
// and of the programs nothing else.
func (f *fleet) providersOfMasters(t *testing.T) {
	for master := range declared {
		got, err := installed(t.Context(), f.tiers[master])
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
	got, err := installed(t.Context(), f.tiers["alpha"])
	if err != nil {
		t.Fatal(err)
	}
	for name := range got {
		if strings.HasPrefix(name, "definitions") || strings.HasPrefix(name, "Provider") {
			t.Errorf("alpha has %s", name)
		}
	}
}
