package kustomization

import (
	"context"
	"errors"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// find sets the snapshot of the source, or says how to go on without one.
func (r *Reconciler) find(ctx context.Context, run *run) *end {
	obj := run.Obj
	key := sourceKey(obj)
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		return r.misconfigured(run, "AccessDenied", fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name))
	}
	if key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return r.misconfigured(run, meta.FeatureGateDisabledReason, errors.New("to use ExternalArtifact sources enable the feature gate ExternalArtifact"))
	}
	o, err := r.Sources.Object(ctx, key)
	switch {
	case errors.Is(err, find.ErrSourceNotFound):
		return r.failed(ctx, run, meta.ArtifactFailedReason, fmt.Errorf("source '%s/%s/%s' not found: %w", key.Kind, key.Namespace, key.Name, err))
	case err != nil:
		return &end{err: err}
	}
	run.snapshot, err = r.Sources.Snapshot(ctx, key, o)
	wait := again(r.Jitter(r.Rules.RequeueDependency))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, find.ErrFetchedAgain):
		return wait
	case errors.Is(err, find.ErrNoArtifact):
		status.MarkFailing(obj, meta.ArtifactFailedReason, status.FluxMessage(fmt.Sprintf("Source artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait
	case errors.Is(err, source.ErrArtifactNotFound):
		status.MarkFailing(obj, meta.ArtifactFailedReason, status.FluxMessage(fmt.Sprintf("Source is not ready, artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait
	}
	return r.failed(ctx, run, meta.ArtifactFailedReason, err)
}

func sourceKey(k *kustomizev1.Kustomization) source.Key {
	namespace := k.Spec.SourceRef.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return source.Key{Kind: k.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: k.Spec.SourceRef.Name}}
}
