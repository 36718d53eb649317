package render

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	fluxkustomize "github.com/fluxcd/pkg/kustomize"
	"github.com/fluxcd/pkg/ssa/normalize"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// ErrPathNotFound: the source has no such directory.
var ErrPathNotFound = errors.New("path not found")

// Build has the fields of a Kustomization that shape its rendering.
type Build struct {
	// Path of the directory in the source; empty is the root.
	Path                    string
	TargetNamespace         string
	NamePrefix              string
	NameSuffix              string
	Patches                 []kustypes.Patch
	Images                  []kustypes.Image
	Components              []string
	IgnoreMissingComponents bool
	BuildMetadata           []string
	CommonLabels            map[string]string
	CommonAnnotations       map[string]string
	// Variables are substituted after the build. With none, and Always unset,
	// nothing is.
	Variables map[string]string
	Always    bool
	// Sensitive values among the variables never stand in an error of Render.
	Sensitive []string
	// Lenient puts an empty string for a variable that is neither set nor has
	// a default, which is an error otherwise.
	Lenient bool
}

// Render builds the objects that files and b declare, in kustomize's order. The
// caller owns them.
func Render(ctx context.Context, files Files, b Build) ([]*unstructured.Unstructured, error) {
	objects, err := assemble(ctx, files, b)
	return objects, Mask(err, b.Sensitive)
}

func assemble(ctx context.Context, files Files, b Build) ([]*unstructured.Unstructured, error) {
	dir := rooted(b.Path)
	if isDir, _, err := files.Stat(dir); err != nil || !isDir {
		return nil, fmt.Errorf("%w: the source has no directory %q", ErrPathNotFound, strings.TrimPrefix(dir, "/"))
	}
	schema.Lock()
	defer schema.Unlock()
	fsys := &fileSystem{files: files, overlay: map[string][]byte{}}
	file, manifest, err := kustomization(fsys, dir, b)
	if fsys.failed != nil {
		err = fsys.failed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot generate kustomization: %w", err)
	}
	fsys.overlay[file] = manifest
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	resources, err := schema.run(fsys, dir)
	if fsys.failed != nil {
		err = fsys.failed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot build: %w", err)
	}
	return finish(ctx, resources, b)
}

// finish substitutes variables and turns kustomize's resources into objects.
func finish(ctx context.Context, resources resmap.ResMap, b Build) ([]*unstructured.Unstructured, error) {
	if err := substitute(ctx, resources, b); err != nil {
		return nil, err
	}
	data, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("cannot write the build: %w", err)
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("cannot read the build: %w", err)
	}
	for _, u := range objects {
		// Before they are normalised, which drops fields that the kind has not.
		if ssautil.IsSecret(u) && u.Object["sops"] != nil {
			return nil, fmt.Errorf("cannot apply Secret %s/%s: it is SOPS encrypted and decryption is not configured", u.GetNamespace(), u.GetName())
		}
	}
	if err := normalize.UnstructuredList(objects); err != nil {
		return nil, fmt.Errorf("cannot normalise the build: %w", err)
	}
	if len(b.CommonLabels) > 0 || len(b.CommonAnnotations) > 0 {
		ssautil.SetCommonMetadata(objects, b.CommonLabels, b.CommonAnnotations)
	}
	return objects, nil
}

func substitute(ctx context.Context, resources resmap.ResMap, b Build) error {
	if len(b.Variables) == 0 && !b.Always {
		return nil
	}
	vars := make(map[string]any, len(b.Variables))
	for k, v := range b.Variables {
		vars[k] = v
	}
	owner := unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"postBuild": map[string]any{"substitute": vars}},
	}}
	for _, r := range resources.Resources() {
		// Dry run: the variables are complete, nothing is read from a cluster.
		out, err := fluxkustomize.SubstituteVariables(ctx, nil, owner, r,
			fluxkustomize.SubstituteWithDryRun(true),
			fluxkustomize.SubstituteWithStrict(!b.Lenient),
			fluxkustomize.SubstituteWithAlways(b.Always))
		if err != nil {
			return fmt.Errorf("cannot substitute variables in %s %s: %w", r.GetKind(), r.GetName(), err)
		}
		if out == nil {
			continue
		}
		if _, err := resources.Replace(out); err != nil {
			return fmt.Errorf("cannot substitute variables in %s %s: %w", r.GetKind(), r.GetName(), err)
		}
	}
	return nil
}

// kustomization returns the name and content of the kustomization file that the
// build begins with: the one in dir, or one made of the manifests below it,
// with the fields of b put in as Flux does.
func kustomization(fsys *fileSystem, dir string, b Build) (string, []byte, error) {
	file, k, err := findKustomization(fsys, dir)
	if err != nil {
		return "", nil, err
	}
	if b.TargetNamespace != "" {
		k.Namespace = b.TargetNamespace
	}
	if b.NamePrefix != "" {
		k.NamePrefix = b.NamePrefix
	}
	if b.NameSuffix != "" {
		k.NameSuffix = b.NameSuffix
	}
	k.Patches = append(k.Patches, b.Patches...)
	for _, c := range b.Components {
		if isRemote(c) || filepath.IsAbs(c) {
			return "", nil, fmt.Errorf("component path %q must be local and relative", c)
		}
		if b.IgnoreMissingComponents && !fsys.Exists(path.Join(dir, c)) {
			continue
		}
		k.Components = append(k.Components, c)
	}
	k.Images = mergeImages(k.Images, b.Images)
	if len(b.BuildMetadata) > 0 {
		k.BuildMetadata = b.BuildMetadata
	}
	manifest, err := yaml.Marshal(k)
	return file, manifest, err
}

func findKustomization(fsys *fileSystem, dir string) (string, *kustypes.Kustomization, error) {
	k := &kustypes.Kustomization{
		TypeMeta: kustypes.TypeMeta{APIVersion: kustypes.KustomizationVersion, Kind: kustypes.KustomizationKind},
	}
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(dir, name)
		if !fsys.Exists(file) || fsys.IsDir(file) {
			continue
		}
		data, err := fsys.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		if err := yaml.Unmarshal(data, k); err != nil {
			return "", nil, fmt.Errorf("cannot parse %s: %w", file, err)
		}
		if len(k.Resources) == 0 {
			// kustomize refuses a kustomization file that says nothing at all.
			k.BuildMetadata = []string{"originAnnotations"}
		}
		return file, k, nil
	}
	found, err := manifests(fsys, dir)
	if err != nil {
		return "", nil, err
	}
	if len(found) == 0 {
		// The same, for a directory without manifests.
		k.Namespace = "_placeholder"
	}
	for _, f := range found {
		k.Resources = append(k.Resources, "./"+strings.TrimPrefix(strings.TrimPrefix(f, dir), "/"))
	}
	return path.Join(dir, konfig.DefaultKustomizationFileName()), k, nil
}

// manifests lists the YAML files below dir, and the directories with a
// kustomization file of their own, which are not descended into.
func manifests(fsys *fileSystem, dir string) ([]string, error) {
	factory := provider.NewDefaultDepProvider().GetResourceFactory()
	var found []string
	err := fsys.Walk(dir, func(at string, info fs.FileInfo, err error) error {
		if err != nil || at == dir {
			return err
		}
		if info.IsDir() {
			for _, name := range konfig.RecognizedKustomizationFileNames() {
				if file := path.Join(at, name); fsys.Exists(file) && !fsys.IsDir(file) {
					found = append(found, at)
					return filepath.SkipDir
				}
			}
			return nil
		}
		if ext := path.Ext(at); ext != ".yaml" && ext != ".yml" {
			return nil
		}
		data, err := fsys.ReadFile(at)
		if err != nil {
			return err
		}
		if err := guarded(func() error { _, err := factory.SliceFromBytes(data); return err }); err != nil {
			return fmt.Errorf("cannot decode Kubernetes YAML from %s: %w", strings.TrimPrefix(at, "/"), err)
		}
		found = append(found, at)
		return nil
	})
	return found, err
}

// mergeImages overrides images by name. A new name replaces the name; a new
// tag and digest replace both, because a stale digest would win over the tag.
func mergeImages(images, overrides []kustypes.Image) []kustypes.Image {
	for _, o := range overrides {
		i := 0
		for i < len(images) && images[i].Name != o.Name {
			i++
		}
		if i == len(images) {
			images = append(images, o)
			continue
		}
		if o.NewName != "" {
			images[i].NewName = o.NewName
		}
		if o.NewTag != "" || o.Digest != "" {
			images[i].NewTag, images[i].Digest = o.NewTag, o.Digest
		}
	}
	return images
}
