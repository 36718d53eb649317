package layout

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// mountPoint is where a directory of a repository is for kustomize.
const mountPoint = "/tier"

// Build are the objects that the agent's directory of a tier makes, with its patches.
func Build(tree fs.FS, tier string) ([]*unstructured.Unstructured, error) {
	return build(tree, path.Join(tier, Dir))
}

// Build are the objects that Flux's directory makes.
func (f *Flux) Build(tree fs.FS) ([]*unstructured.Unstructured, error) { return build(tree, f.Dir) }

// build runs kustomize over a directory, which must not name anything outside of it.
func build(tree fs.FS, dir string) ([]*unstructured.Unstructured, error) {
	memory := filesys.MakeFsInMemory()
	err := fs.WalkDir(tree, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		return memory.WriteFile(path.Join(mountPoint, name), text)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read %s of the repository: %w", dir, err)
	}
	built, err := krusty.MakeKustomizer(&krusty.Options{
		LoadRestrictions: kustypes.LoadRestrictionsRootOnly, PluginConfig: kustypes.DisabledPluginConfig(),
	}).Run(memory, path.Join(mountPoint, dir))
	if err != nil {
		return nil, fmt.Errorf("cannot build %s of the repository: %w; it must not name files outside of it", dir, err)
	}
	text, err := built.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("cannot build %s of the repository: %w", dir, err)
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read what %s of the repository makes: %w", dir, err)
	}
	return objects, nil
}
