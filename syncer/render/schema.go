package render

import (
	"fmt"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// schema serialises everything that touches kyaml: its OpenAPI schema is a
// variable of the process, which reading a resource reads and a build with an
// `openapi:` field replaces, without a lock of its own
// (kubernetes-sigs/kustomize#3659). Nothing is waited for while it is held.
var schema kyamlSchema

type kyamlSchema struct {
	sync.Mutex
	// builtin: what is loaded is the schema of the built-in kinds alone.
	builtin bool
}

// run builds dir. The lock is held by the caller. The schema of the built-in
// kinds is loaded once and again only after a build that brought its own, so
// that no build sees another's.
func (s *kyamlSchema) run(fsys *fileSystem, dir string) (resources resmap.ResMap, err error) {
	if !s.builtin {
		openapi.ResetOpenAPI()
		_ = openapi.Schema()
		s.builtin = true
	}
	defer func() {
		if fsys.bringsSchema {
			s.builtin = false
		}
	}()
	options := &krusty.Options{
		LoadRestrictions: kustypes.LoadRestrictionsNone, // the file system is the restriction
		PluginConfig:     kustypes.DisabledPluginConfig(),
	}
	err = guarded(func() error {
		resources, err = krusty.MakeKustomizer(options).Run(fsys, dir)
		return err
	})
	return resources, err
}

// guarded turns a panic of kustomize, which invalid objects provoke, into an
// error.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kustomize panicked: %v", r)
		}
	}()
	return f()
}
