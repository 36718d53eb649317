package kustomization

import (
	"cmp"
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/compose"
)

// Outstanding is why what was applied of a Cluster is not in effect yet, as a clause for
// people; empty if it is. refused: a release that makes the Cluster does not take the step of
// Kubernetes' version that it was given, and waiting does not mend that. It asks the API
// server: what this process has seen may be from before it applied. What cannot be read is
// not in effect. Only what is in the namespace of the Cluster, and of Cluster API or a
// release that makes the Cluster, is read.
func (c *Composition) Outstanding(ctx context.Context, cluster types.NamespacedName) (why string, refused bool) {
	now := c.reconciler.Now()
	c.progress.mu.Lock()
	known, ok := c.progress.outstanding[cluster]
	c.progress.mu.Unlock()
	if ok && now.Sub(known.at) < outstandingHolds {
		return known.why, known.refused
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	is, err := c.reconciler.outstanding(ctx, cluster, c.state.releases[cluster])
	if err != nil {
		is.why = err.Error()
	}
	if is.why == "" {
		return "", false
	}
	is.at = now
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	if c.progress.outstanding == nil {
		c.progress.outstanding = map[types.NamespacedName]outstanding{}
	}
	c.progress.outstanding[cluster] = is
	return is.why, is.refused
}

// releasesOf are the HelmReleases among objects.
func releasesOf(objects []*unstructured.Unstructured) []types.NamespacedName {
	var names []types.NamespacedName
	for _, u := range objects {
		if compose.IsRelease(u.GroupVersionKind().GroupKind()) {
			names = append(names, client.ObjectKeyFromObject(u))
		}
	}
	return names
}

// outstanding reads the releases that make a Cluster, and then what they made.
func (r *Reconciler) outstanding(ctx context.Context, name types.NamespacedName, releases []types.NamespacedName) (outstanding, error) {
	local := r.Targets.Local
	for _, release := range releases {
		h := &helmv2.HelmRelease{}
		if err := local.Get(ctx, release, h); err != nil {
			return outstanding{}, fmt.Errorf("cannot read HelmRelease %s of Cluster %s: %w", release, name, err)
		}
		if is := unreleased(h, release.Namespace == name.Namespace); is.why != "" {
			return is, nil
		}
	}
	cluster, err := clusters.Live(ctx, local, local.RESTMapper(), clusterapi.ClusterKind, name)
	if err != nil || cluster == nil {
		return outstanding{why: "there is no Cluster " + name.String() + " yet"}, err
	}
	controlPlane, err := clusters.ControlPlane(ctx, local, local.RESTMapper(), cluster)
	if err != nil {
		return outstanding{}, fmt.Errorf("cannot tell which version Cluster %s runs: %w", name, err)
	}
	workers, err := r.workersOf(ctx, name)
	if err != nil {
		return outstanding{}, err
	}
	return outstanding{why: rollout.Outstanding(cluster, controlPlane, workers)}, nil
}

// unreleased is why a HelmRelease is not released as it is declared; it is zero if it is. The
// release's own words are told to who may read it, which is known of the namespace of its
// Cluster alone.
func unreleased(h *helmv2.HelmRelease, tells bool) outstanding {
	name := "HelmRelease " + h.Namespace + "/" + h.Name
	ready := apimeta.FindStatusCondition(h.Status.Conditions, meta.ReadyCondition)
	refused := ready != nil && ready.Reason == v1alpha1.ReasonUnsupportedVersionStep && ready.ObservedGeneration == h.Generation
	switch {
	case h.Spec.Suspend:
		return outstanding{why: name + " is suspended"}
	case refused && tells:
		return outstanding{why: ready.Message, refused: true}
	case refused:
		return outstanding{why: name + " refuses the step of Kubernetes' version", refused: true}
	case h.Status.ObservedGeneration != h.Generation, ready == nil:
		return outstanding{why: name + " was not released since it was changed"}
	case ready.Status == metav1.ConditionTrue:
		return outstanding{}
	case tells:
		return outstanding{why: name + " is not ready: " + cmp.Or(ready.Message, ready.Reason)}
	}
	return outstanding{why: name + " is not ready"}
}

// workersOf are the sets of machines of a Cluster that have a roll of their own.
func (r *Reconciler) workersOf(ctx context.Context, cluster types.NamespacedName) ([]*unstructured.Unstructured, error) {
	var workers []*unstructured.Unstructured
	for _, kind := range []string{"MachineDeployment", "MachinePool"} {
		mapping, err := r.Targets.Local.RESTMapper().RESTMapping(schema.GroupKind{Group: clusterapi.Group, Kind: kind})
		if apimeta.IsNoMatchError(err) {
			continue
		}
		list := &unstructured.UnstructuredList{}
		if err == nil {
			list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(kind + "List"))
			err = r.Targets.Local.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterapi.ClusterNameLabel: cluster.Name})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("cannot list %ss of Cluster %s: %w", kind, cluster, err)
		}
		for i := range list.Items {
			workers = append(workers, &list.Items[i])
		}
	}
	return workers, nil
}
