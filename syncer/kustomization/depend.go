package kustomization

import (
	"context"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// dependencies of a Kustomization.
func dependencies(obj *kustomizev1.Kustomization) []depend.Dependency {
	list := make([]depend.Dependency, 0, len(obj.Spec.DependsOn))
	for _, d := range obj.Spec.DependsOn {
		list = append(list, depend.On(obj.Namespace, d.Namespace, d.Name, d.ReadyExpr))
	}
	return list
}

// depend ends the reconcile while a dependency is not ready.
func (r *Reconciler) depend(ctx context.Context, run *run) *end {
	obj := run.Obj
	err := r.unready(ctx, obj, run.snapshot.Revision)
	if err == nil {
		return nil
	}
	wasWaiting := depend.Waits(obj)
	status.MarkFailing(obj, meta.DependencyNotReadyReason, err)
	if !wasWaiting {
		// Of the revision that waits: the one that was tried last may have failed.
		r.event(run, corev1.EventTypeNormal, map[string]string{annotation(eventv1.MetaRevisionKey): run.snapshot.Revision}, "Dependencies do not meet ready condition, retrying in %s", r.Rules.RequeueDependency)
	}
	return again(r.Jitter(r.Rules.RequeueDependency))
}

// unready is an error that names the first dependency that is not ready.
func (r *Reconciler) unready(ctx context.Context, obj *kustomizev1.Kustomization, revision string) error {
	for _, d := range dependencies(obj) {
		dep := &kustomizev1.Kustomization{}
		if err := r.Client.Get(ctx, d.Name, dep); err != nil {
			return fmt.Errorf("dependency '%s' not found: %w", d.Name, err)
		}
		if err := r.Rules.dependency(ctx, obj, d, dep, revision); err != nil {
			return err
		}
	}
	return nil
}

// dependency is an error that tells why a dependency is not ready. revision is
// that of the snapshot that self is about to use: a dependency on the same source
// must have applied it.
func (r Rules) dependency(ctx context.Context, self *kustomizev1.Kustomization, d depend.Dependency, dep *kustomizev1.Kustomization, revision string) error {
	decided, err := r.Dependencies.Check(ctx, self, d, dep, dep.Status.ObservedGeneration)
	if decided || err != nil {
		return err
	}
	if sourceKey(dep) == sourceKey(self) && dep.Status.LastAppliedRevision != revision {
		return fmt.Errorf("dependency '%s' revision is not up to date", d.Name)
	}
	return nil
}
