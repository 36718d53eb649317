package render

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// schema guards kyaml's OpenAPI schema, a variable of the process that every
// build reads and that a build with an `openapi:` field replaces, without a lock
// that would keep the two apart (kubernetes-sigs/kustomize#3659). Builds read
// it in parallel; to load or replace it takes the write lock. Nothing is waited
// for while either is held.
var schema kyamlSchema

type kyamlSchema struct {
	sync.RWMutex
	// loaded: the schema of the built-in kinds, and nothing else, is in memory.
	// To load it takes a tenth of a second and 46 MB, of which 4 MB stay; plain
	// directories do without.
	loaded bool
}

// errBringsSchema ends a build in parallel that has to be done alone.
var errBringsSchema = errors.New("the build brings a schema of its own")

// load returns with the read lock held and the built-in schema loaded.
func (s *kyamlSchema) load() {
	s.RLock()
	for !s.loaded {
		s.RUnlock()
		s.Lock()
		if !s.loaded {
			openapi.ResetOpenAPI()
			_ = openapi.Schema()
			s.loaded = true
		}
		s.Unlock()
		s.RLock()
	}
}

// WithSchema runs kustomize outside a rendering, in a post renderer say, with the
// schema of the built-in kinds and in parallel with builds. What f runs must not
// replace the schema. A panic becomes an error.
func WithSchema(f func() error) error {
	schema.load()
	defer schema.RUnlock()
	return guarded(f)
}

// kustomize builds dir, and begins again when it came to something that has to
// be done first.
func kustomize(fsys *fileSystem, dir string, begin *start) ([]*item, error) {
	fsys.overlay[begin.file] = begin.manifest
	for {
		fsys.running = true
		built, err := attempt(fsys, dir)
		switch {
		case fsys.failed != nil:
			return nil, fsys.failed
		case fsys.bringsSchema && !fsys.alone:
			fsys.alone = true
		case fsys.wants:
			if err := fsys.unseal(); err != nil {
				return nil, err
			}
		default:
			return built, err
		}
	}
}

// attempt builds dir in parallel with others, or alone if it brings a schema.
func attempt(fsys *fileSystem, dir string) ([]*item, error) {
	if !fsys.alone {
		schema.load()
		defer schema.RUnlock()
		return run(fsys, dir)
	}
	schema.Lock()
	defer schema.Unlock()
	openapi.ResetOpenAPI()
	_ = openapi.Schema()
	schema.loaded = false
	// The next build must not see the schema of this one.
	defer openapi.ResetOpenAPI()
	return run(fsys, dir)
}

func run(fsys *fileSystem, dir string) ([]*item, error) {
	options := &krusty.Options{
		LoadRestrictions: kustypes.LoadRestrictionsNone, // the file system is the restriction
		PluginConfig:     kustypes.DisabledPluginConfig(),
	}
	var resources resmap.ResMap
	err := guarded(func() (err error) {
		resources, err = krusty.MakeKustomizer(options).Run(mounted{fsys}, path.Join(mountPoint, dir))
		return err
	})
	if err != nil {
		return nil, err
	}
	built := make([]*item, 0, resources.Size())
	for _, r := range resources.Resources() {
		built = append(built, &item{resource: r})
	}
	return built, nil
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
