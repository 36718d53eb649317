package release

import (
	"context"
	"errors"
	"fmt"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
)

// movedByRollout reports whether a Rollout moves what a HelmRelease makes of Clusters, which
// then take steps of one minor version of Kubernetes. Without one the release is as Flux has
// it, and admission by Cluster API alone refuses a step.
func movedByRollout(obj *v2.HelmRelease) bool {
	return obj.Annotations[v1alpha1.RolloutRevisionAnnotation] != "" && obj.Spec.KubeConfig == nil
}

// holdVersions ends the call if an action would have a Cluster skip a minor version of
// Kubernetes, or go back by one, or if nobody can tell which version one runs. A release is applied
// as a whole or not at all.
func (n *run) holdVersions(ctx context.Context, next Action, diff jsondiff.DiffSet) (*Outcome, error) {
	if !next.creates() || !movedByRollout(n.obj) {
		return nil, nil
	}
	objects, err := n.objectsAfter(ctx, next, diff)
	if unanswered(err) {
		// As with a chart that looks up what its provider has. To try it would count as a failure of the release.
		err = n.redacted(fmt.Errorf("cannot tell which versions of Kubernetes it declares: %w", err))
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v1alpha1.ReasonControlPlaneUnreadable, "%s", err)
		return nil, err
	}
	if err != nil {
		// The action will fail for the same reason, and reports it; the client that writes
		// objects checks once more in any case.
		n.log.V(1).Info("cannot tell what an action would apply", "action", next, "reason", n.text(err))
		return nil, nil
	}
	err = stepsOf(ctx, n.guard.cluster, objects)
	var refused *rollout.VersionError
	switch {
	case errors.As(err, &refused):
		n.markVersionRefused(refused)
		return &Outcome{Refused: true}, nil
	case err != nil:
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v1alpha1.ReasonControlPlaneUnreadable, "%s", err)
		return nil, err
	}
	return nil, nil
}

// unanswered reports whether an API server, or a webhook that it asks, did not answer. What ends without a word of the
// API server is a lookup: a chart that is cut short ends so, too.
func unanswered(err error) bool {
	var lookup *sandbox.LookupError
	if errors.As(err, &lookup) && apply.Unanswered(lookup) {
		return true
	}
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err)
}

// markVersionRefused records that the release is not applied. It is as it was.
func (n *run) markVersionRefused(refused *rollout.VersionError) {
	isNew := conditions.GetMessage(n.obj, meta.ReadyCondition) != refused.Error()
	conditions.Delete(n.obj, meta.ReconcilingCondition)
	conditions.MarkFalse(n.obj, meta.ReadyCondition, refused.Reason(), "%s", refused)
	if isNew {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, refused.Reason(), "%s", refused)
	}
}

// stepsOf is a *rollout.VersionError if one of the Clusters among objects would take a step
// that is refused from what it runs.
func stepsOf(ctx context.Context, from clusters.Reader, objects []*unstructured.Unstructured) error {
	for _, u := range objects {
		if !clusterapi.IsCluster(u.GroupVersionKind().GroupKind()) {
			continue
		}
		name := client.ObjectKeyFromObject(u)
		declared := rollout.DeclaredVersions(name, objects)
		if declared.ControlPlane == "" {
			continue
		}
		runs, err := running(ctx, from, name)
		if err != nil {
			return fmt.Errorf("cannot tell which version Cluster %s runs: %w", name, err)
		}
		err = runs.Step(declared)
		var refused *rollout.VersionError
		if errors.As(err, &refused) {
			refused.Cluster = name
			return refused
		}
	}
	return nil
}

// running is what a cluster has of Kubernetes; zero if that is not known, as of one that is not
// there yet.
func running(ctx context.Context, from clusters.Reader, name types.NamespacedName) (rollout.Running, error) {
	cluster, err := clusters.Live(ctx, from, clusterapi.ClusterKind, name)
	if err != nil || cluster == nil {
		return rollout.Running{}, err
	}
	controlPlane, err := clusters.ControlPlane(ctx, from, cluster)
	return rollout.RunningOf(cluster, controlPlane), err
}

// mayStep is an error if one of the objects has a Cluster take a step that is refused. It is
// called right before objects are written: the chart may render otherwise than a moment ago.
func (k *kubeClient) mayStep(list kube.ResourceList) error {
	if !movedByRollout(k.guard.obj) {
		return nil
	}
	return stepsOf(k.ctx, k.guard.cluster, unstructuredOf(list))
}
