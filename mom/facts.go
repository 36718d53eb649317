//go:build linux

package mom

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// readFacts reads what a tier says about itself.
func readFacts(ctx context.Context, c client.Reader, request string) (Facts, error) {
	f := Facts{Sync: syncKey(), Request: request}
	repositories, kustomizations, releases := &sourcev1.GitRepositoryList{}, &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}
	layers, children, rollouts := &v1alpha1.LayerList{}, &v1alpha1.ChildList{}, &v1alpha1.RolloutList{}
	clusters := &metav1.PartialObjectMetadataList{}
	clusters.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion("v1beta2"))
	clusters.Kind += "List"
	for _, list := range []client.ObjectList{repositories, kustomizations, releases, layers, children, rollouts, clusters} {
		if err := c.List(ctx, list); err != nil && (list != client.ObjectList(clusters) || !meta.IsNoMatchError(err)) {
			return f, fmt.Errorf("cannot look at the tier: %w", err)
		}
	}
	f.GitRepositories, f.Kustomizations, f.HelmReleases = repositories.Items, kustomizations.Items, releases.Items
	f.Layers, f.Children, f.Rollouts, f.Clusters = layers.Items, children.Items, rollouts.Items, clusters.Items
	return f, nil
}
