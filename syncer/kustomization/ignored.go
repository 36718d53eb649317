package kustomization

import (
	"fmt"
	"path"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Bounds of looking for what ignored files declare. A directory that is ignored may hold
// anything, a whole node_modules.
const (
	ignoredFiles = 1000
	ignoredBytes = 16 << 20
)

// ignored finds, for entries that are no longer declared, the files below a path that still
// declare them and that the source ignores: a line in .sourceignore then removes what
// nobody meant to remove. Names may get a prefix or suffix, or be variables, when they are
// built. What is not YAML declares nothing.
func ignored(snapshot *source.Snapshot, dir string, gone []inventory.Entry) (map[inventory.Entry]string, error) {
	found := map[inventory.Entry]string{}
	files, size := 0, 0
	err := snapshot.Ignored(dir, func(name string, read func() ([]byte, error)) bool {
		if ext := path.Ext(name); ext != ".yaml" && ext != ".yml" && ext != ".json" {
			return true
		}
		if files++; files > ignoredFiles {
			return false
		}
		data, err := read()
		if err != nil {
			return true // it is too large to be a manifest
		}
		if size += len(data); size > ignoredBytes {
			return false
		}
		if render.Check(data) != nil {
			return true
		}
		objects, err := ssautil.ReadObjects(strings.NewReader(string(data)))
		if err != nil {
			return true
		}
		for _, u := range objects {
			of := inventory.Of(u)
			for _, e := range gone {
				if _, known := found[e]; !known && e.GroupKind() == of.GroupKind() && (strings.Contains(e.Name, of.Name) || strings.Contains(of.Name, "${")) {
					found[e] = name
				}
			}
		}
		return len(found) < len(gone)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look for what ignored files declare: %w", err)
	}
	return found, nil
}
