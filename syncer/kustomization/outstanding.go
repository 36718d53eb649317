package kustomization

import (
	"cmp"
	"context"
	"errors"
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
// people; empty if it is. It asks the API server: what this process has seen may be from before it
// applied. What cannot be read is not in effect. Only what is in the namespace of the
// Cluster, and of Cluster API or a release that makes the Cluster, is read.
func (c *Composition) Outstanding(cluster types.NamespacedName) string {
	now := c.reconciler.Now()
	c.progress.mu.Lock()
	known, ok := c.progress.outstanding[cluster]
	c.progress.mu.Unlock()
	if ok && now.Sub(known.at) < outstandingHolds {
		return known.why
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	why, err := c.reconciler.outstanding(ctx, cluster, c.state.releases[cluster])
	if err != nil {
		why = err.Error()
	}
	if why == "" {
		return ""
	}
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	if c.progress.outstanding == nil {
		c.progress.outstanding = map[types.NamespacedName]outstanding{}
	}
	c.progress.outstanding[cluster] = outstanding{why: why, at: now}
	return why
}

// RefusedBy is the error of a release that does not take the revision that its Cluster was
// given, which no time mends; nil if none refuses it.
func (c *Composition) RefusedBy(cluster types.NamespacedName) error {
	for _, name := range c.state.releases[cluster] {
		h := &helmv2.HelmRelease{}
		if err := c.reconciler.Client.Get(context.Background(), name, h); err != nil {
			continue // who asks what is outstanding learns why
		}
		ready := apimeta.FindStatusCondition(h.Status.Conditions, meta.ReadyCondition)
		if ready == nil || ready.Reason != v1alpha1.ReasonUnsupportedVersionStep || ready.ObservedGeneration != h.Generation {
			continue
		}
		if name.Namespace != cluster.Namespace {
			return fmt.Errorf("HelmRelease %s refuses the step of Kubernetes' version", name)
		}
		return errors.New(ready.Message)
	}
	return nil
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
func (r *Reconciler) outstanding(ctx context.Context, name types.NamespacedName, releases []types.NamespacedName) (string, error) {
	for _, release := range releases {
		h := &helmv2.HelmRelease{}
		if err := r.Targets.Local.Get(ctx, release, h); err != nil {
			return "", fmt.Errorf("cannot read HelmRelease %s of Cluster %s: %w", release, name, err)
		}
		if why := unreleased(h, release.Namespace == name.Namespace); why != "" {
			return why, nil
		}
	}
	local := r.Targets.Local
	cluster, err := clusters.Live(ctx, local, local.RESTMapper(), clusterapi.ClusterKind, name)
	if err != nil || cluster == nil {
		return "there is no Cluster " + name.String() + " yet", err
	}
	controlPlane, err := clusters.ControlPlane(ctx, local, local.RESTMapper(), cluster)
	if err != nil {
		return "", fmt.Errorf("cannot tell which version Cluster %s runs: %w", name, err)
	}
	workers, err := r.workersOf(ctx, name)
	if err != nil {
		return "", err
	}
	return rollout.Outstanding(cluster, controlPlane, workers), nil
}

// unreleased is why a HelmRelease is not released as it is declared; empty if it is. Its own
// words are told to who may read it, which is known of the namespace of its Cluster alone.
func unreleased(h *helmv2.HelmRelease, tells bool) string {
	ready := apimeta.FindStatusCondition(h.Status.Conditions, meta.ReadyCondition)
	switch {
	case h.Spec.Suspend:
		return "HelmRelease " + h.Name + " is suspended"
	case h.Status.ObservedGeneration != h.Generation, ready == nil:
		return "HelmRelease " + h.Name + " was not released since it was changed"
	case ready.Status != metav1.ConditionTrue && !tells:
		return "HelmRelease " + h.Namespace + "/" + h.Name + " is not ready"
	case ready.Status != metav1.ConditionTrue:
		return "HelmRelease " + h.Name + " is not ready: " + cmp.Or(ready.Message, ready.Reason)
	}
	return ""
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
