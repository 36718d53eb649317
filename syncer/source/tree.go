package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/fluxcd/pkg/sourceignore"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// MaxFileBytes bounds one file that is read from a snapshot.
const MaxFileBytes = 10 << 20

// MaxEntries bounds the files and directories of a snapshot. A tree that names
// another many times is small in Git and endless when it is walked.
const MaxEntries = 500_000

// maxDepth bounds how deep directories nest.
const maxDepth = 1000

// id names content: a Git hash in the first 20 bytes, or a SHA-256 for what
// does not come from Git as it is.
type id [sha256.Size]byte

func (i id) String() string {
	if bytes.Equal(i[20:], make([]byte, len(i)-20)) {
		return hex.EncodeToString(i[:20])
	}
	return hex.EncodeToString(i[:])
}

// node is a file, a link, a directory or a submodule, and where its content
// is.
type node struct {
	mode filemode.FileMode
	id   id
	in   store
}

func (n node) dir() bool { return n.mode == filemode.Dir }

// entry is a node by its name in a directory.
type entry struct {
	name string
	node
}

// listing is a directory's entries, sorted by name. It is shared and never
// changed.
type listing []entry

func (l listing) find(name string) (node, bool) {
	i, ok := slices.BinarySearchFunc(l, name, func(e entry, name string) int { return strings.Compare(e.name, name) })
	if !ok {
		return node{}, false
	}
	return l[i].node, true
}

// store has the content of nodes. It is safe for concurrent use.
type store interface {
	list(n node) (listing, error)
	// open returns the content of a file or the target of a link, and how many
	// bytes it has.
	open(n node) (io.ReadCloser, int64, error)
}

// list returns a directory's entries; a submodule that was not fetched has
// none, as it is when it is checked out.
func (n node) list() (listing, error) {
	if n.mode == filemode.Submodule {
		return nil, nil
	}
	return n.in.list(n)
}

// read returns the whole content. The caller owns the bytes.
func (n node) read(name string) ([]byte, error) {
	r, size, err := n.in.open(n)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer r.Close()
	if size > MaxFileBytes {
		return nil, failf(ReasonLimitExceeded, "cannot read %s: %d bytes are more than the limit of %d", name, size, MaxFileBytes)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return data, nil
}

// composed is a directory that is put together from others.
type composed listing

func (c composed) list(node) (listing, error) { return listing(c), nil }

func (c composed) open(node) (io.ReadCloser, int64, error) {
	return nil, 0, fmt.Errorf("it is a directory")
}

// compose makes a directory of entries, which it sorts. Its id follows from
// them alone.
func compose(entries listing) node {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	h := sha256.New()
	for _, e := range entries {
		var head [8]byte
		binary.BigEndian.PutUint32(head[:4], uint32(e.mode))
		binary.BigEndian.PutUint32(head[4:], uint32(len(e.name)))
		h.Write(head[:])
		io.WriteString(h, e.name)
		h.Write(e.id[:])
	}
	n := node{mode: filemode.Dir, in: composed(entries)}
	h.Sum(n.id[:0])
	return n
}

// graft returns the directory with another node at a clean path below it.
// Directories that are missing on the way are created. Like a rename, it
// replaces a file by a file and an empty directory by a directory, and refuses
// anything else that is there.
func graft(root node, at string, n node) (node, error) {
	name, rest, below := strings.Cut(at, "/")
	if name == "" {
		return node{}, fmt.Errorf("the root of the repository is there already")
	}
	entries, err := root.list()
	if err != nil {
		return node{}, err
	}
	there, found := entries.find(name)
	switch {
	case below && found && !there.dir():
		return node{}, fmt.Errorf("%s is there already and is no directory", name)
	case below:
		if !found {
			there = compose(nil)
		}
		if n, err = graft(there, rest, n); err != nil {
			return node{}, fmt.Errorf("%s: %w", name, err)
		}
	case found && (there.dir() || there.mode == filemode.Submodule):
		old, err := there.list()
		if err != nil {
			return node{}, err
		}
		if len(old) > 0 || !n.dir() {
			return node{}, fmt.Errorf("the directory %s is there already", name)
		}
	case found && n.dir():
		return node{}, fmt.Errorf("the file %s is there already", name)
	}
	changed := make(listing, 0, len(entries)+1)
	for _, e := range entries {
		if e.name != name {
			changed = append(changed, e)
		}
	}
	return compose(append(changed, entry{name, n})), nil
}

// prune returns a directory without the files and links that keep refuses.
// Directories for which within is certain are kept as they are, those for
// which it is impossible are left out.
func prune(dir node, at string, within func(at string) (all, some bool), keep func(at string, n node) bool) (node, error) {
	entries, err := dir.list()
	if err != nil {
		return node{}, err
	}
	kept, changed := make(listing, 0, len(entries)), false
	for _, e := range entries {
		below := join(at, e.name)
		if !e.dir() {
			if keep(below, e.node) {
				kept = append(kept, e)
			} else {
				changed = true
			}
			continue
		}
		all, some := within(below)
		if all {
			kept = append(kept, e)
			continue
		}
		changed = true
		if !some {
			continue
		}
		n, err := prune(e.node, below, within, keep)
		if err != nil {
			return node{}, err
		}
		entries, err := n.list()
		if err != nil {
			return node{}, err
		}
		if len(entries) == 0 {
			continue
		}
		kept = append(kept, entry{e.name, n})
	}
	if !changed {
		return dir, nil
	}
	return compose(kept), nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// usage is what there is below a directory: all entries, and the files with
// ignore rules.
type usage struct{ entries, rules int }

// surveyed is a store that remembers the usage of its directories.
type surveyed interface{ counts() *recent[id, usage] }

// count finds the usage of a directory. It fails above most entries, at the
// first of them, however often a tree names another.
func count(dir node, most, depth int) (usage, error) {
	if depth > maxDepth {
		return usage{}, failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	var known *recent[id, usage]
	if c, ok := dir.in.(surveyed); ok {
		known = c.counts()
		if c, ok := known.get(dir.id); ok {
			if c.entries > most {
				return c, tooMany(most)
			}
			return c, nil
		}
	}
	entries, err := dir.list()
	if err != nil {
		return usage{}, err
	}
	c := usage{entries: len(entries)}
	for _, e := range entries {
		if e.dir() {
			below, err := count(e.node, most, depth+1)
			if err != nil {
				return c, err
			}
			c.entries += below.entries
			c.rules += below.rules
		} else if e.name == sourceignore.IgnoreFile {
			c.rules++
		}
		if c.entries > most {
			return c, tooMany(most)
		}
	}
	if known != nil {
		known.put(dir.id, c, 1)
	}
	return c, nil
}

func tooMany(most int) error {
	return failf(ReasonLimitExceeded, "it has more than %d files and directories", most)
}

// recent remembers what was last used, up to a total weight. What is asked for
// stays; the rest goes when there is no room, a half at a time.
type recent[K comparable, V any] struct {
	most int

	mu         sync.Mutex
	young, old map[K]weighed[V]
	weight     int
}

type weighed[V any] struct {
	value  V
	weight int
}

func newRecent[K comparable, V any](most int) *recent[K, V] {
	return &recent[K, V]{most: most, young: map[K]weighed[V]{}}
}

func (m *recent[K, V]) get(key K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w, ok := m.young[key]; ok {
		return w.value, true
	}
	w, ok := m.old[key]
	if ok {
		m.add(key, w)
	}
	return w.value, ok
}

func (m *recent[K, V]) put(key K, value V, weight int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(key, weighed[V]{value, weight})
}

func (m *recent[K, V]) add(key K, w weighed[V]) {
	if m.weight += w.weight; m.weight > m.most/2 {
		m.young, m.old, m.weight = map[K]weighed[V]{}, m.young, w.weight
	}
	m.young[key] = w
}
