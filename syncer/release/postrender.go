package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// postRenderTask changes the manifests of a release.
const postRenderTask = "chart/postrender"

// Tasks are what a worker has to be able to do for releases.
func Tasks() worker.Tasks {
	tasks := worker.Tasks{postRenderTask: postRender}
	maps.Copy(tasks, sandbox.Tasks())
	return tasks
}

// postStep is one step of post rendering: patches and images, or labels and
// annotations of all objects.
type postStep struct {
	Kustomize           *v2.Kustomize     `json:",omitempty"`
	Labels, Annotations map[string]string `json:",omitempty"`
}

// postSteps are the declared ones, then the common metadata, and last what marks
// each object as one of this HelmRelease.
func postSteps(obj *v2.HelmRelease) []postStep {
	var steps []postStep
	for _, r := range obj.Spec.PostRenderers {
		if r.Kustomize != nil {
			steps = append(steps, postStep{Kustomize: r.Kustomize})
		}
	}
	if m := obj.Spec.CommonMetadata; m != nil && (m.Labels != nil || m.Annotations != nil) {
		steps = append(steps, postStep{Labels: m.Labels, Annotations: m.Annotations})
	}
	return append(steps, postStep{Labels: originLabels(obj)})
}

// postRenderers take the steps of a HelmRelease in a worker: patches can double what
// they patch.
func postRenderers(ctx context.Context, obj *v2.HelmRelease, workers worker.Runner) []sandbox.PostRenderer {
	return []sandbox.PostRenderer{func(manifests []byte) ([]byte, error) {
		if workers == nil {
			return nil, errors.New("there is no worker for post renderers")
		}
		steps, err := json.Marshal(postSteps(obj))
		if err != nil {
			return nil, err
		}
		// The steps are one line of JSON.
		request := slices.Concat(steps, []byte("\n"), manifests)
		out, err := workers.Run(ctx, worker.Job{Task: postRenderTask, Request: request})
		var failed *worker.TaskError
		if err != nil && !errors.As(err, &failed) {
			return nil, fmt.Errorf("cannot post-render: %w", err)
		}
		return out, err
	}}
}

// postRender runs in a worker.
func postRender(request []byte, _ worker.Ask) ([]byte, error) {
	head, data, ok := bytes.Cut(request, []byte("\n"))
	var steps []postStep
	if err := json.Unmarshal(head, &steps); err != nil {
		return nil, fmt.Errorf("cannot read the steps of post rendering: %w", err)
	}
	if !ok {
		return nil, errors.New("there is nothing to post-render")
	}
	for _, s := range steps {
		var err error
		if s.Kustomize != nil {
			data, err = edit(s.Kustomize, data)
		} else {
			data, err = mark(data, s.Labels, s.Annotations)
		}
		if err != nil {
			return nil, err
		}
		if err := render.Check(data); err != nil {
			return nil, fmt.Errorf("cannot read rendered manifests: %w", err)
		}
	}
	return data, nil
}

func originLabels(obj *v2.HelmRelease) map[string]string {
	return map[string]string{ownerName: obj.Name, ownerNamespace: obj.Namespace}
}

// edit applies patches and images.
func edit(k *v2.Kustomize, data []byte) ([]byte, error) {
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
