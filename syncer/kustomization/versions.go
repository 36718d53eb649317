package kustomization

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/compose"
)

// judgeVersions holds Clusters whose pins would skip a minor version of Kubernetes, or go back, and
// workers whose control plane does not run their version yet. What was judged once is not
// read again while the same versions are declared. A Cluster whose control plane cannot be read,
// as while its provider is down, is held alone: that says nothing of the others.
func (r *Reconciler) judgeVersions(ctx context.Context, run *run, f *compose.Facts) error {
	judged, silent := map[types.NamespacedName]string{}, map[schema.GroupKind]error{}
	for _, name := range slices.SortedFunc(maps.Keys(f.Pins), byName) {
		from, _ := f.At(name)
		if _, held := run.composed.held[name]; held || from == nil {
			continue
		}
		declared := rollout.DeclaredVersions(name, from.Of(name))
		if declared.ControlPlane == "" && len(declared.Workers) == 0 {
			continue
		}
		version := fmt.Sprint(declared)
		if run.known.judgedVersion(name) == version {
			judged[name] = version
			continue
		}
		there, controlPlane, err := r.controlPlaneOf(ctx, name, silent)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("cannot judge versions of Kubernetes: %w", ctx.Err())
		case err != nil:
			run.composed.held[name] = hold{v1alpha1.ReasonControlPlaneUnreadable, err.Error()}
			continue
		}
		var refused *rollout.VersionError
		if errors.As(ofCluster(rollout.RunningOf(there, controlPlane).Step(declared), name), &refused) {
			run.composed.held[name] = hold{refused.Reason(), refused.Error()}
			continue
		}
		reported := ""
		if controlPlane != nil {
			reported, _, _ = unstructured.NestedString(controlPlane.Object, "status", "version")
		}
		early := declared.Early(reported)
		for _, w := range early {
			e := inventory.Entry{Namespace: w.Object.Namespace, Name: w.Object.Name, Group: w.Object.Group, Kind: w.Object.Kind}
			f.Waiting[e.ID()], run.composed.late[name] = true, true
			run.composed.waiting = append(run.composed.waiting, fmt.Sprintf("%s of Cluster %s waits for its control plane, which runs %s, to run %s",
				w.Object, name.Name, reported, w.Version))
		}
		if len(early) == 0 {
			judged[name] = version
		}
	}
	run.known.judgedVersions(judged)
	return nil
}

// ofCluster says which Cluster a step of Kubernetes' version is refused for.
func ofCluster(err error, name types.NamespacedName) error {
	var refused *rollout.VersionError
	if errors.As(err, &refused) {
		refused.Cluster = name
	}
	return err
}

// controlPlaneOf reads a Cluster and its control plane; nil for what is not there. silent are kinds of
// which one did not answer in time, as where the webhook that converts them hangs: the others are not
// asked, each of which would take as long.
func (r *Reconciler) controlPlaneOf(
	ctx context.Context, name types.NamespacedName, silent map[schema.GroupKind]error,
) (cluster, controlPlane *unstructured.Unstructured, err error) {
	if r.Clusters == nil {
		return nil, nil, nil
	}
	cluster, ok := r.Clusters.Get(name)
	if !ok {
		return nil, nil, nil
	}
	kind := clusterapi.ControlPlaneOf(cluster).GroupKind()
	if err = silent[kind]; err == nil {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		controlPlane, err = clusters.ControlPlane(ctx, r.Targets.Local, cluster)
		cancel()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		silent[kind] = err
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot tell which version Cluster %s runs: %w", name, err)
	}
	return cluster, controlPlane, nil
}
