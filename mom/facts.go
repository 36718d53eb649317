//go:build linux

package mom

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// readFacts reads what a tier says about itself.
func readFacts(ctx context.Context, c client.Reader, request string) (Facts, error) {
	f := Facts{Sync: syncKey(), Request: request}
	kustomizations, releases := &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}
	layers, children, rollouts := &v1alpha1.LayerList{}, &v1alpha1.ChildList{}, &v1alpha1.RolloutList{}
	clusters := &unstructured.UnstructuredList{}
	clusters.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion("v1beta2"))
	clusters.SetKind(clusters.GetKind() + "List")
	git, oci, buckets := &sourcev1.GitRepositoryList{}, &sourcev1.OCIRepositoryList{}, &sourcev1.BucketList{}
	repositories, charts := &sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{}
	served := []client.ObjectList{git, kustomizations, releases, layers, children, rollouts}
	maybe := []client.ObjectList{oci, buckets, repositories, charts, clusters}
	for i, list := range append(served, maybe...) {
		if err := c.List(ctx, list); err != nil && (i < len(served) || !meta.IsNoMatchError(err)) {
			return f, fmt.Errorf("cannot look at the tier: %w", err)
		}
	}
	for i := range git.Items {
		s := &git.Items[i]
		f.Sources = append(f.Sources, Source{sourcev1.GitRepositoryKind, s, s.Spec.Suspend, s.Status.LastHandledReconcileAt, s.Status.Artifact})
	}
	for i := range oci.Items {
		s := &oci.Items[i]
		f.Sources = append(f.Sources, Source{sourcev1.OCIRepositoryKind, s, s.Spec.Suspend, s.Status.LastHandledReconcileAt, s.Status.Artifact})
	}
	for i := range buckets.Items {
		s := &buckets.Items[i]
		f.Sources = append(f.Sources, Source{sourcev1.BucketKind, s, s.Spec.Suspend, s.Status.LastHandledReconcileAt, s.Status.Artifact})
	}
	for i := range repositories.Items {
		if s := &repositories.Items[i]; s.Spec.Type != sourcev1.HelmRepositoryTypeOCI {
			f.Sources = append(f.Sources, Source{sourcev1.HelmRepositoryKind, s, s.Spec.Suspend, s.Status.LastHandledReconcileAt, s.Status.Artifact})
		}
	}
	for i := range charts.Items {
		s := &charts.Items[i]
		f.Sources = append(f.Sources, Source{sourcev1.HelmChartKind, s, s.Spec.Suspend, s.Status.LastHandledReconcileAt, s.Status.Artifact})
	}
	f.Kustomizations, f.HelmReleases = kustomizations.Items, releases.Items
	f.Layers, f.Children, f.Rollouts = layers.Items, children.Items, rollouts.Items
	for i := range clusters.Items {
		f.Clusters = append(f.Clusters, capibridge.FromObject(&clusters.Items[i]))
	}
	return f, nil
}
