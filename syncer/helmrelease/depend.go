package helmrelease

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"

	"github.com/cascade-gitops/cascade/syncer/depend"
)

// dependencies of a HelmRelease.
func dependencies(obj *helmv2.HelmRelease) []depend.Dependency {
	list := make([]depend.Dependency, 0, len(obj.Spec.DependsOn))
	for _, d := range obj.Spec.DependsOn {
		list = append(list, depend.On(obj.Namespace, d.Namespace, d.Name, d.ReadyExpr))
	}
	return list
}

// depend refuses while a dependency is not ready, and names the first of them.
func (r *Reconciler) depend(ctx context.Context, run *run) *refusal {
	if err := r.unready(ctx, run.Obj); err != nil {
		return &refusal{reason: meta.DependencyNotReadyReason, err: err, event: true, kind: corev1.EventTypeNormal, wait: r.Jitter(r.Rules.RequeueDependency)}
	}
	return nil
}

func (r *Reconciler) unready(ctx context.Context, obj *helmv2.HelmRelease) error {
	for _, d := range dependencies(obj) {
		dep := &helmv2.HelmRelease{}
		if err := r.Client.Get(ctx, d.Name, dep); err != nil {
			return fmt.Errorf("unable to get '%s' dependency: %w", d.Name, err)
		}
		if _, err := r.Rules.Dependencies.Check(ctx, obj, d, dep, dep.Status.ObservedGeneration); err != nil {
			return err
		}
	}
	return nil
}
