package release

import (
	"encoding/json"
	"fmt"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"sigs.k8s.io/kustomize/api/filters/annotations"
	"sigs.k8s.io/kustomize/api/filters/labels"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/resid"

	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// postRenderers are the declared ones, then the common metadata, and last what
// marks each object as one of this HelmRelease.
func postRenderers(obj *v2.HelmRelease) []sandbox.PostRenderer {
	var steps []sandbox.PostRenderer
	for _, r := range obj.Spec.PostRenderers {
		if r.Kustomize != nil {
			steps = append(steps, edit(r.Kustomize))
		}
	}
	if m := obj.Spec.CommonMetadata; m != nil && (m.Labels != nil || m.Annotations != nil) {
		steps = append(steps, func(data []byte) ([]byte, error) { return mark(data, m.Labels, m.Annotations) })
	}
	return append(steps, func(data []byte) ([]byte, error) { return mark(data, originLabels(obj), nil) })
}

func originLabels(obj *v2.HelmRelease) map[string]string {
	return map[string]string{ownerName: obj.Name, ownerNamespace: obj.Namespace}
}

// edit applies patches and images.
func edit(k *v2.Kustomize) sandbox.PostRenderer {
	return func(data []byte) ([]byte, error) {
		const input = "helm-output.yaml"
		build := kustypes.Kustomization{
			TypeMeta:  kustypes.TypeMeta{APIVersion: kustypes.KustomizationVersion, Kind: kustypes.KustomizationKind},
			Resources: []string{input},
		}
		for _, i := range k.Images {
			build.Images = append(build.Images, kustypes.Image{Name: i.Name, NewName: i.NewName, NewTag: i.NewTag, Digest: i.Digest})
		}
		for _, p := range k.Patches {
			if err := render.Check([]byte(p.Patch)); err != nil {
				return nil, fmt.Errorf("cannot read patch of post renderer: %w", err)
			}
			patch := kustypes.Patch{Patch: p.Patch}
			if t := p.Target; t != nil {
				patch.Target = &kustypes.Selector{
					ResId: resid.ResId{
						Gvk:  resid.Gvk{Group: t.Group, Version: t.Version, Kind: t.Kind},
						Name: t.Name, Namespace: t.Namespace,
					},
					LabelSelector: t.LabelSelector, AnnotationSelector: t.AnnotationSelector,
				}
			}
			build.Patches = append(build.Patches, patch)
		}
		file, err := json.Marshal(build)
		if err != nil {
			return nil, err
		}
		fs := filesys.MakeFsInMemory()
		for name, content := range map[string][]byte{input: data, "kustomization.yaml": file} {
			if err := fs.WriteFile(name, content); err != nil {
				return nil, err
			}
		}
		built, err := krusty.MakeKustomizer(&krusty.Options{
			LoadRestrictions: kustypes.LoadRestrictionsNone, // there is nothing else in the file system
			PluginConfig:     kustypes.DisabledPluginConfig(),
		}).Run(fs, ".")
		if err != nil {
			return nil, err
		}
		return built.AsYaml()
	}
}

// mark sets labels and annotations on every object.
func mark(data []byte, set, annotate map[string]string) ([]byte, error) {
	objects, err := resmap.NewFactory(provider.NewDefaultDepProvider().GetResourceFactory()).NewResMapFromBytes(data)
	if err != nil {
		return nil, err
	}
	if set != nil {
		at := kustypes.FsSlice{{Path: "metadata/labels", CreateIfNotPresent: true}}
		if err := objects.ApplyFilter(labels.Filter{Labels: set, FsSlice: at}); err != nil {
			return nil, err
		}
	}
	if annotate != nil {
		at := kustypes.FsSlice{{Path: "metadata/annotations", CreateIfNotPresent: true}}
		if err := objects.ApplyFilter(annotations.Filter{Annotations: annotate, FsSlice: at}); err != nil {
			return nil, err
		}
	}
	return objects.AsYaml()
}
