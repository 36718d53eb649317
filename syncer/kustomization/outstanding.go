package kustomization

import (
	"cmp"
	"context"
	"fmt"
	"time"

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

// Held is why a release that makes a Cluster does not take what it was given, by its reason and as a clause for people:
// it refuses the step of Kubernetes' version, which waiting does not mend, a person suspended it, or it cannot begin while
// the control plane cannot be read; empty if it is none of these. since is when the last one ended that this
// process saw. It asks the API server: what this process has seen may be from before it applied.
func (c *Composition) Held(ctx context.Context, cluster types.NamespacedName) (reason, why string, since time.Time) {
	is := c.releases(ctx, cluster)
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	since, was := c.progress.withheld[cluster]
	switch {
	case is.held == "":
		is.why = ""
		if was && since.IsZero() {
			since = c.reconciler.Now()
			c.progress.withheld[cluster] = since
		}
	case is.held == v1alpha1.ReasonControlPlaneUnreadable:
		if c.progress.withheld == nil {
			c.progress.withheld = map[types.NamespacedName]time.Time{}
		}
		since = time.Time{}
		c.progress.withheld[cluster] = since
	}
	return is.held, is.why, since
}

// Outstanding is why what was applied of a Cluster is not in effect yet, as a clause for
// people; empty if it is. It asks the API server, and what cannot be read is not in effect.
// Only what is in the namespace of the Cluster, and of Cluster API or a release that makes
// the Cluster, is read.
func (c *Composition) Outstanding(ctx context.Context, cluster types.NamespacedName) string {
	if is := c.releases(ctx, cluster); is.why != "" {
		return is.why
	}
	return c.looked(ctx, look{cluster, false}, func(ctx context.Context) (outstanding, error) {
		why, err := c.reconciler.outstanding(ctx, cluster)
		return outstanding{why: why}, err
	}).why
}

// releases looks at the releases that make a Cluster.
func (c *Composition) releases(ctx context.Context, cluster types.NamespacedName) outstanding {
	names := c.state.releases[cluster]
	if len(names) == 0 {
		return outstanding{}
	}
	return c.looked(ctx, look{cluster, true}, func(ctx context.Context) (outstanding, error) {
		return c.reconciler.unreleased(ctx, cluster, names)
	})
}

// looked looks, unless something was found outstanding a moment ago, and remembers that until
// something is applied: a refusal of before is none of what came since.
func (c *Composition) looked(ctx context.Context, at look, find func(context.Context) (outstanding, error)) outstanding {
	now := c.reconciler.Now()
	c.progress.mu.Lock()
	known, ok := c.progress.outstanding[at]
	ok = ok && c.progress.composition == c.state
	c.progress.mu.Unlock()
	if ok && now.Sub(known.at) < outstandingHolds {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	is, err := find(ctx)
	if err != nil {
		is.why = err.Error()
	}
	is.at = now
	c.progress.mu.Lock()
	defer c.progress.mu.Unlock()
	switch {
	case c.progress.composition != c.state:
		return is
	case is.why == "":
		delete(c.progress.outstanding, at)
		return is
	case c.progress.outstanding == nil:
		c.progress.outstanding = map[look]outstanding{}
	}
	c.progress.outstanding[at] = is
	return is
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

// outstanding reads a Cluster, its control plane and its workers.
func (r *Reconciler) outstanding(ctx context.Context, name types.NamespacedName) (string, error) {
	local := r.Targets.Local
	cluster, err := clusters.Live(ctx, local, clusterapi.ClusterKind, name)
	if err != nil || cluster == nil {
		return "there is no Cluster " + name.String() + " yet", err
	}
	controlPlane, err := clusters.ControlPlane(ctx, local, cluster)
	if err != nil {
		return "", fmt.Errorf("cannot tell which version Cluster %s runs: %w", name, err)
	}
	// The workers come last: a list costs the API server more than all before.
	if why := rollout.Outstanding(cluster, controlPlane, nil); why != "" {
		return why, nil
	}
	workers, err := r.workersOf(ctx, name)
	if err != nil {
		return "", err
	}
	return rollout.Outstanding(cluster, controlPlane, workers), nil
}

// unreleased reads the releases that make a Cluster, up to one that is not released as it is
// declared.
func (r *Reconciler) unreleased(ctx context.Context, cluster types.NamespacedName, releases []types.NamespacedName) (outstanding, error) {
	for _, name := range releases {
		h := &helmv2.HelmRelease{}
		if err := r.Targets.Local.Get(ctx, name, h); err != nil {
			return outstanding{}, fmt.Errorf("cannot read HelmRelease %s of Cluster %s: %w", name, cluster, err)
		}
		if is := ofRelease(h, name.Namespace == cluster.Namespace); is.why != "" {
			return is, nil
		}
	}
	return outstanding{}, nil
}

// ofRelease is why a HelmRelease is not released as it is declared; it is zero if it is. The
// release's own words are told to who may read it, which is known of the namespace of its
// Cluster alone.
func ofRelease(h *helmv2.HelmRelease, tells bool) outstanding {
	name := "HelmRelease " + h.Namespace + "/" + h.Name
	ready := apimeta.FindStatusCondition(h.Status.Conditions, meta.ReadyCondition)
	// Flux's own controller notes nothing: then its generation alone tells.
	noted, isNoted := h.Annotations[v1alpha1.ReleasedRevisionAnnotation]
	held := ""
	if ready != nil && ready.Status == metav1.ConditionFalse && ready.ObservedGeneration == h.Generation {
		held = ready.Reason
	}
	marked := h.Annotations[v1alpha1.RolloutRevisionAnnotation]
	// A release that failed was begun.
	begun := noted == marked || h.Status.InstallFailures+h.Status.UpgradeFailures > 0
	switch {
	case h.Spec.Suspend:
		return outstanding{why: name + " is suspended", held: v1alpha1.ReasonSuspended}
	case held == v1alpha1.ReasonUnsupportedVersionStep && tells, held == v1alpha1.ReasonControlPlaneUnreadable && tells && !begun:
		return outstanding{why: ready.Message, held: held}
	case held == v1alpha1.ReasonUnsupportedVersionStep:
		return outstanding{why: name + " refuses the step of Kubernetes' version", held: held}
	case held == v1alpha1.ReasonControlPlaneUnreadable && !begun:
		return outstanding{why: name + " waits until the control plane can be read", held: held}
	case h.Status.ObservedGeneration != h.Generation, ready == nil, isNoted && noted != marked:
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
		var list *unstructured.UnstructuredList
		err := r.Targets.Local.InServed(schema.GroupKind{Group: clusterapi.Group, Kind: kind}, func(served *apimeta.RESTMapping) error {
			list = &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(served.GroupVersionKind.GroupVersion().WithKind(kind + "List"))
			return r.Targets.Local.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterapi.ClusterNameLabel: cluster.Name})
		})
		switch {
		case apimeta.IsNoMatchError(err), apierrors.IsNotFound(err):
			continue // not of the tier, or of its version of Cluster API
		case err != nil:
			return nil, fmt.Errorf("cannot list %ss of Cluster %s: %w", kind, cluster, err)
		}
		for i := range list.Items {
			workers = append(workers, &list.Items[i])
		}
	}
	return workers, nil
}
