package render

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/provider"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

// start is what a build begins with: the kustomization file of its directory, or
// one made of the manifests below it.
type start struct {
	file     string
	k        *kustypes.Kustomization
	manifest []byte
	// generated: there is no kustomization file; found are the manifests, and
	// the directories with a kustomization file of their own.
	generated bool
	found     []found
}

type found struct {
	path string
	dir  bool
}

// kustomization returns what the build of dir begins with, with the fields of b
// put in as Flux does.
func kustomization(fsys *fileSystem, dir string, b Build) (*start, error) {
	begin, err := findKustomization(fsys, dir)
	if err != nil {
		return nil, err
	}
	k := begin.k
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
			return nil, fmt.Errorf("component path %q must be local and relative", c)
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
	begin.manifest, err = yaml.Marshal(k)
	return begin, err
}

func findKustomization(fsys *fileSystem, dir string) (*start, error) {
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
			return nil, err
		}
		if err := yaml.Unmarshal(data, k); err != nil {
			return nil, fmt.Errorf("cannot parse %s: %w", file, err)
		}
		if len(k.Resources) == 0 {
			// kustomize refuses a kustomization file that says nothing at all.
			k.BuildMetadata = []string{"originAnnotations"}
		}
		return &start{file: file, k: k}, nil
	}
	found, err := manifests(fsys, dir)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		// The same, for a directory without manifests.
		k.Namespace = "_placeholder"
	}
	for _, f := range found {
		k.Resources = append(k.Resources, "./"+strings.TrimPrefix(strings.TrimPrefix(f.path, dir), "/"))
	}
	return &start{file: path.Join(dir, konfig.DefaultKustomizationFileName()), k: k, generated: true, found: found}, nil
}

// manifests lists the YAML files below dir, and the directories with a
// kustomization file of their own, which are not descended into.
func manifests(fsys *fileSystem, dir string) ([]found, error) {
	var all []found
	err := fsys.Walk(dir, func(at string, info fs.FileInfo, err error) error {
		if err != nil || at == dir {
			return err
		}
		if info.IsDir() {
			for _, name := range konfig.RecognizedKustomizationFileNames() {
				if file := path.Join(at, name); fsys.Exists(file) && !fsys.IsDir(file) {
					all = append(all, found{at, true})
					return filepath.SkipDir
				}
			}
			return nil
		}
		if ext := path.Ext(at); ext == ".yaml" || ext == ".yml" {
			all = append(all, found{at, false})
		}
		return nil
	})
	return all, err
}

// blame names the manifest of a plain directory that cannot be read as
// Kubernetes YAML, for which a failed build is a better error than kustomize's.
func (s *start) blame(fsys *fileSystem) error {
	factory := provider.NewDefaultDepProvider().GetResourceFactory()
	for _, f := range s.found {
		if f.dir {
			continue
		}
		data, err := fsys.ReadFile(f.path)
		if err != nil {
			return nil
		}
		if err := guarded(func() error { _, err := factory.SliceFromBytes(data); return err }); err != nil {
			return fmt.Errorf("cannot decode Kubernetes YAML from %s: %w", strings.TrimPrefix(f.path, "/"), err)
		}
	}
	return nil
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
