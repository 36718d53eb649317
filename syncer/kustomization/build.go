package kustomization

import (
	"context"
	"fmt"
	"maps"

	"github.com/fluxcd/pkg/apis/meta"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/kustomize"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kustypes "sigs.k8s.io/kustomize/api/types"

	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// build gathers the inputs of the rendering besides the files.
func (r *Reconciler) build(ctx context.Context, run *run) *end {
	var err error
	if run.inputs, err = r.inputs(ctx, run.Obj); err != nil {
		return r.failed(ctx, run, meta.BuildFailedReason, err)
	}
	run.key = fmt.Sprintf("%d %s %s", run.Obj.Generation, r.driftMode(run.Obj), run.inputs.Key())
	return nil
}

// inputs are those of the rendering by this process.
func (r *Reconciler) inputs(ctx context.Context, obj *kustomizev1.Kustomization) (render.Build, error) {
	b, err := Inputs(ctx, r.Targets.Local, obj, r.Rules.Decryption, r.Rules.LenientSubstitution)
	b.Workers = r.workers(obj)
	return b, err
}

// Inputs reads what a spec says of its rendering, and the variables and keys that
// it refers to. It sets no workers.
func Inputs(ctx context.Context, reader client.Reader, obj *kustomizev1.Kustomization, decryption decrypt.Options, lenient bool) (render.Build, error) {
	s := obj.Spec
	b := render.Build{
		Path:                    s.Path,
		TargetNamespace:         s.TargetNamespace,
		NamePrefix:              s.NamePrefix,
		NameSuffix:              s.NameSuffix,
		Components:              s.Components,
		IgnoreMissingComponents: s.IgnoreMissingComponents,
	}
	for _, m := range s.BuildMetadata {
		b.BuildMetadata = append(b.BuildMetadata, string(m))
	}
	for i, p := range s.Patches {
		if err := render.Check([]byte(p.Patch)); err != nil {
			return b, fmt.Errorf("cannot use spec.patches[%d]: %w", i, err)
		}
		b.Patches = append(b.Patches, kustypes.Patch{Patch: p.Patch, Target: selector(p.Target)})
	}
	for _, i := range s.Images {
		b.Images = append(b.Images, kustypes.Image{Name: i.Name, NewName: i.NewName, NewTag: i.NewTag, Digest: i.Digest})
	}
	if m := s.CommonMetadata; m != nil {
		b.CommonLabels, b.CommonAnnotations = m.Labels, m.Annotations
	}
	b.Lenient = lenient
	decryptor, err := decrypt.New(ctx, reader, obj, decryption)
	if err != nil {
		return b, err
	}
	if decryptor != nil {
		b.Decrypter, b.Keys = decryptor, decryptor.Key()
	}
	if s.PostBuild == nil {
		return b, nil
	}
	b.Always = obj.GetSubstituteStrategy() == kustomizev1.SubstituteStrategyAlways
	b.Variables = map[string]string{}
	for _, ref := range s.PostBuild.SubstituteFrom {
		vars, err := render.LoadVariables(ctx, reader, obj.Namespace, ref.Kind, ref.Name, ref.Optional)
		if err != nil {
			return b, err
		}
		maps.Copy(b.Variables, vars)
		b.Sensitive = append(b.Sensitive, render.Sensitive(ref.Kind, vars)...)
	}
	maps.Copy(b.Variables, s.PostBuild.Substitute)
	return b, nil
}

func selector(s *kustomize.Selector) *kustypes.Selector {
	if s == nil {
		return nil
	}
	out := &kustypes.Selector{LabelSelector: s.LabelSelector, AnnotationSelector: s.AnnotationSelector}
	out.Group, out.Version, out.Kind = s.Group, s.Version, s.Kind
	out.Name, out.Namespace = s.Name, s.Namespace
	return out
}
