package scenario

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// InstallClusterAPI installs the kinds of Cluster API and of the local provider, without
// their controllers.
func InstallClusterAPI(t *testing.T, c client.Client) {
	t.Helper()
	for _, file := range []string{
		Path(t, "bin", "capi", "crd", "bases", "cluster.x-k8s.io_clusters.yaml"),
		Path(t, "e2e", "local", "config", "crd", "localclusters.yaml"), Path(t, "e2e", "local", "config", "crd", "localcontrolplanes.yaml"),
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := ssautil.ReadObjects(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range objects {
			if err := c.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
		}
	}
	Eventually(t, Converge, "the kinds of Cluster API are served", func(ctx context.Context) error {
		for _, kind := range ClusterKinds() {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(kind[0])
			list.SetKind(kind[1] + "List")
			if err := c.List(ctx, list); err != nil {
				return err
			}
		}
		return nil
	})
}

// ClusterKinds are the API versions and kinds that LocalCluster declares a cluster with.
func ClusterKinds() [][2]string {
	return [][2]string{
		{"cluster.x-k8s.io/v1beta2", "Cluster"}, {"infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
	}
}

// LocalCluster declares a cluster of the local provider in namespace default.
func LocalCluster(name string) string {
	return strings.ReplaceAll(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: NAME, namespace: default}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: NAME}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: NAME, namespace: default}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata: {name: NAME, namespace: default}
`, "NAME", name)
}

// ClusterParts returns the UIDs of the objects of LocalCluster that are there, by kind.
func ClusterParts(ctx context.Context, c client.Client, name string) (map[string]string, error) {
	there := map[string]string{}
	for _, kind := range ClusterKinds() {
		u := stage.Object(kind[0], kind[1])
		err := c.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, u)
		if err == nil {
			there[kind[1]] = string(u.GetUID())
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return there, nil
}

// ClusterCreated waits until all objects of LocalCluster are there.
func ClusterCreated(t *testing.T, c client.Client, name string) {
	t.Helper()
	Eventually(t, Converge, "cluster "+name+" is created", func(ctx context.Context) error {
		there, err := ClusterParts(ctx, c, name)
		if err != nil {
			return err
		}
		if len(there) != len(ClusterKinds()) {
			return fmt.Errorf("of it there are %v", there)
		}
		return nil
	})
}

// Installed names what a tier has that concerns Cluster API: Deployments in all
// namespaces, definitions by the provider that they belong to, and clusterctl's
// inventory.
func Installed(ctx context.Context, tier *stage.Tier) (map[string]string, error) {
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
