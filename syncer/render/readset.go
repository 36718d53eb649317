package render

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cascade-gitops/cascade/syncer/digest"
)

// ReadSet is everything that a build read, listed or looked for in the source,
// absent paths included, each with a digest of what was found. While that is
// unchanged, the same Build renders the same objects. It is immutable, and
// small: tens of bytes for each path beyond its name.
type ReadSet struct {
	// root is the directory of the build, and tree its hash, if everything that
	// was read is inside of it; tree is empty otherwise.
	root, tree string
	// rules is the identity of the ignore rules that tree was seen with.
	rules string
	reads []read
}

type read struct {
	path string
	// listed: the names in a directory, rather than what is at a path.
	listed bool
	found  digest.Short
}

// Unchanged reports whether all that was read is the same in files. It fails if files
// cannot be read.
func (r *ReadSet) Unchanged(files Files) (bool, error) {
	if r.tree != "" && r.rules == files.Rules() {
		dir, hash, err := files.Stat(r.root)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if err == nil && dir && hash == r.tree {
			return true, nil
		}
	}
	for _, read := range r.reads {
		found, err := r.look(files, read)
		if err != nil || found != read.found {
			return false, err
		}
	}
	return true, nil
}

// Digest identifies what was read. It is the same in another process, and of another revision
// in which all that was read is the same.
func (r *ReadSet) Digest() digest.Short {
	parts := make([]string, 0, 3*len(r.reads))
	for _, read := range r.reads {
		parts = append(parts, read.path, strconv.FormatBool(read.listed), string(read.found[:]))
	}
	return digest.Of(parts...).Short()
}

func (r *ReadSet) look(files Files, read read) (digest.Short, error) {
	if read.listed {
		d, _, err := names(files, read.path)
		return d, err
	}
	return stat(files, read.path)
}

// Paths are what the build read, sorted, each once.
func (r *ReadSet) Paths() []string {
	var paths []string
	for _, read := range r.reads {
		if n := len(paths); n == 0 || paths[n-1] != read.path {
			paths = append(paths, read.path)
		}
	}
	return paths
}

// stat digests what is at a path: nothing, a directory, or a file's content.
func stat(files Files, at string) (digest.Short, error) {
	dir, hash, err := files.Stat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return digest.Of("absent").Short(), nil
	case err != nil:
		return digest.Short{}, err
	case dir:
		return digest.Of("directory").Short(), nil
	}
	return digest.Of("file", hash).Short(), nil
}

// names digests the names in a directory, and tells whether it holds a symbolic
// link.
func names(files Files, at string) (d digest.Short, links bool, err error) {
	entries, err := files.ReadDir(at)
	if errors.Is(err, fs.ErrNotExist) {
		return digest.Of("absent").Short(), false, nil
	}
	if err != nil {
		return digest.Short{}, false, err
	}
	parts := []string{"listing"}
	for _, e := range entries {
		kind := "file"
		switch {
		case e.Link:
			kind, links = "link", true
		case e.Dir:
			kind = "directory"
		}
		parts = append(parts, kind, e.Name)
	}
	return digest.Of(parts...).Short(), links, nil
}

// recorder collects the reads of one build.
type recorder struct {
	files Files
	seen  map[string]digest.Short
	lists map[string]listing
}

type listing struct {
	found digest.Short
	links bool
}

func newRecorder(files Files) *recorder {
	return &recorder{files: files, seen: map[string]digest.Short{}, lists: map[string]listing{}}
}

// stat records what is at a path, once.
func (r *recorder) stat(at string) error {
	if _, ok := r.seen[at]; ok {
		return nil
	}
	d, err := stat(r.files, at)
	if err != nil {
		return err
	}
	r.seen[at] = d
	return nil
}

// list records the names in a directory, once.
func (r *recorder) list(at string) error {
	if _, ok := r.lists[at]; ok {
		return nil
	}
	d, links, err := names(r.files, at)
	if err != nil {
		return err
	}
	r.lists[at] = listing{d, links}
	return nil
}

// set is what was recorded by a build of the directory root.
func (r *recorder) set(root string) *ReadSet {
	s := &ReadSet{reads: make([]read, 0, len(r.seen)+len(r.lists))}
	for at, d := range r.seen {
		s.reads = append(s.reads, read{path: at, found: d})
	}
	for at, l := range r.lists {
		s.reads = append(s.reads, read{path: at, listed: true, found: l.found})
	}
	slices.SortFunc(s.reads, func(a, b read) int {
		if c := strings.Compare(a.path, b.path); c != 0 {
			return c
		}
		if a.listed == b.listed {
			return 0
		}
		if a.listed {
			return 1
		}
		return -1
	})
	if r.within(root) {
		if dir, hash, err := r.files.Stat(root); err == nil && dir {
			s.root, s.tree, s.rules = root, hash, r.files.Rules()
		}
	}
	return s
}

// within tells whether all reads are below root, and none can have gone by a
// symbolic link, which may lead out of it: then the hash of root stands for all
// of them.
func (r *recorder) within(root string) bool {
	dirs := map[string]bool{root: true}
	for at := range r.seen {
		if !inside(at, root) {
			return false
		}
		for ; at != root; at = path.Dir(at) {
			dirs[path.Dir(at)] = true
		}
	}
	for at := range r.lists {
		if !inside(at, root) {
			return false
		}
		for ; at != root; at = path.Dir(at) {
			dirs[path.Dir(at)] = true
		}
	}
	for at := range dirs {
		l, ok := r.lists[at]
		if !ok {
			var err error
			if _, l.links, err = names(r.files, at); err != nil {
				return false
			}
		}
		if l.links {
			return false
		}
	}
	return true
}

// inside tells whether at is root or inside of it.
func inside(at, root string) bool {
	return at == root || root == "/" || strings.HasPrefix(at, root+"/")
}
