package kustomization

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// Bounds of looking for what ignored files declare. A directory that is ignored may hold
// anything, a whole node_modules. No build has looked at it, and it is parsed in the agent's own
// process, where a node takes a hundred times its text: a document of too many is no manifest.
const (
	ignoredFiles  = 1000
	ignoredBytes  = 16 << 20
	ignoredNodes  = 1_500_000
	documentNodes = 250_000
)

// hidden has the files that the source ignores: a source.Snapshot.
type hidden interface {
	Ignored(dir string, f func(name string, read func() ([]byte, error)) (more bool)) error
}

// ignored is what the ignored files of a run declare, of entries that are no longer declared. Files
// are read for one run at a time, as what is parsed takes memory.
func (r *Reconciler) ignored(ctx context.Context, run *run, gone []inventory.Entry) (map[inventory.Entry]string, error) {
	select {
	case r.looking <- struct{}{}:
		defer func() { <-r.looking }()
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot look for what ignored files declare: those of others are read: %w", ctx.Err())
	}
	return ignored(run.snapshot, run.Obj.Spec.Path, gone)
}

// ignored finds, for entries that are no longer declared, the files below a path that still
// declare them and that the source ignores: a line in .sourceignore then removes what
// nobody meant to remove. Names may get a prefix or suffix, or be variables, when they are
// built. What is not YAML declares nothing.
func ignored(snapshot hidden, dir string, gone []inventory.Entry) (map[inventory.Entry]string, error) {
	found := map[inventory.Entry]string{}
	files, size, nodes := 0, 0, 0
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
		for document := range bytes.SplitSeq(data, []byte("\n---")) {
			if !bytes.Contains(document, []byte("kind")) || render.CheckWithin(document, documentNodes) != nil {
				continue
			}
			if nodes += render.Nodes(document); nodes > ignoredNodes {
				return false
			}
			objects, err := ssautil.ReadObjects(bytes.NewReader(document))
			if err != nil {
				continue
			}
			for _, u := range objects {
				of := inventory.Of(u)
				for _, e := range gone {
					if _, known := found[e]; !known && e.GroupKind() == of.GroupKind() && (strings.Contains(e.Name, of.Name) || strings.Contains(of.Name, "${")) {
						found[e] = name
					}
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
