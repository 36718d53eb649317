package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Bounds of what a generation keeps in memory: bytes of inflated objects,
// entries of directories, and directories whose usage is known.
const (
	objectCacheBytes = 1 << 20
	listedEntries    = 64 << 10
	countedDirs      = 64 << 10
)

// generation is one object store on disk. Its directory is removed when
// neither the mirror nor any snapshot refers to it any more.
//
// Directories are immutable and named by their content, so they are listed
// from memory, without the lock that reading from the disk needs: after each
// commit a thousand readers ask for the same ones.
type generation struct {
	dir string
	// owner keeps the mirror alive: the reader of a snapshot will fetch the next
	// one.
	owner    *mirror
	listings *recent[id, listing]
	usage    *recent[id, usage]
	// mu serialises reads: the storage is not safe for concurrent use.
	mu    sync.Mutex
	store *filesystem.Storage
	// partial: a fetch ended while its objects were written. A commit may be here, and not
	// all that it is made of.
	partial bool
}

func openGeneration(dir string) *generation {
	return generationIn(dir, filesystem.NewStorageWithOptions(osfs.New(dir), cache.NewObjectLRU(objectCacheBytes),
		filesystem.Options{KeepDescriptors: true}))
}

// generationIn reads what is stored in a directory.
func generationIn(dir string, store *filesystem.Storage) *generation {
	return &generation{dir: dir, listings: newRecent[id, listing](listedEntries), usage: newRecent[id, usage](countedDirs), store: store}
}

func (g *generation) counts() *recent[id, usage] { return g.usage }

func (g *generation) has(hash plumbing.Hash) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.store.HasEncodedObject(hash) == nil
}

// complete reports whether a commit is here with all that it is made of.
func (g *generation) complete(commit plumbing.Hash) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.partial {
		_, err := g.store.Reference(tipOf(commit))
		return err == nil
	}
	return g.store.HasEncodedObject(commit) == nil
}

// lost reports whether the objects are gone from the disk, which something that
// cleans temporary directories may have done.
func (g *generation) lost() bool {
	_, err := os.Stat(filepath.Join(g.dir, "objects"))
	return errors.Is(err, os.ErrNotExist)
}

// tipOf is the reference of a commit that was fetched as a whole.
func tipOf(commit plumbing.Hash) plumbing.ReferenceName {
	return plumbing.ReferenceName("refs/cascade/" + commit.String())
}

// remember keeps the commit, which is here as a whole, as a tip that later fetches build upon.
func (g *generation) remember(commit plumbing.Hash) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.store.SetReference(plumbing.NewHashReference(tipOf(commit), commit)); err != nil {
		return fmt.Errorf("cannot record commit %s: %w", commit, err)
	}
	return nil
}

func (g *generation) tips() []plumbing.Hash {
	g.mu.Lock()
	defer g.mu.Unlock()
	iter, err := g.store.IterReferences()
	if err != nil {
		return nil
	}
	var tips []plumbing.Hash
	_ = iter.ForEach(func(r *plumbing.Reference) error {
		if r.Type() == plumbing.HashReference {
			tips = append(tips, r.Hash())
		}
		return nil
	})
	return tips
}

// raw returns an object's exact bytes, which are checked against its name.
func (g *generation) raw(kind plumbing.ObjectType, hash plumbing.Hash) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, err := g.store.EncodedObject(kind, hash)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", kind, hash, err)
	}
	if o.Size() > MaxFileBytes {
		return nil, failf(ReasonLimitExceeded, "cannot read %s %s: %d bytes are more than the limit of %d", kind, hash, o.Size(), MaxFileBytes)
	}
	r, err := o.Reader()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", kind, hash, err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", kind, hash, err)
	}
	if got := plumbing.ComputeHash(kind, data); got != hash {
		return nil, fmt.Errorf("cannot read %s %s: its content has the name %s", kind, hash, got)
	}
	return data, nil
}

// list implements store.
func (g *generation) list(n node) (listing, error) {
	if l, ok := g.listings.get(n.id); ok {
		return l, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	size, err := g.store.EncodedObjectSize(hashOf(n))
	if err != nil {
		return nil, fmt.Errorf("cannot read tree %s: %w", n.id, err)
	}
	if size > maxTreeBytes {
		return nil, tooManyNames(size)
	}
	tree, err := object.GetTree(g.store, hashOf(n))
	if err != nil {
		return nil, fmt.Errorf("cannot read tree %s: %w", n.id, err)
	}
	l := make(listing, 0, len(tree.Entries))
	for _, e := range tree.Entries {
		switch {
		case e.Name == "", e.Name == ".", e.Name == "..", strings.EqualFold(e.Name, ".git"), strings.ContainsAny(e.Name, "/\x00"):
			return nil, fmt.Errorf("cannot read tree %s: the name %q is not allowed", n.id, e.Name)
		}
		child := node{mode: e.Mode, in: g}
		copy(child.id[:], e.Hash[:])
		l = append(l, entry{e.Name, child})
	}
	// Git sorts directories as if their names ended with a slash.
	slices.SortFunc(l, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for i := 1; i < len(l); i++ {
		if l[i].name == l[i-1].name {
			return nil, fmt.Errorf("cannot read tree %s: it has %q twice", n.id, l[i].name)
		}
	}
	g.listings.put(n.id, l, len(l)+1)
	return l, nil
}

// open implements store. What it returns does not need the disk any more.
func (g *generation) open(n node) (io.ReadCloser, int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	blob, err := object.GetBlob(g.store, hashOf(n))
	if err != nil {
		return nil, 0, err
	}
	if blob.Size > MaxObjectBytes {
		return nil, 0, failf(ReasonLimitExceeded, "%d bytes are more than the limit of %d", blob.Size, MaxObjectBytes)
	}
	r, err := blob.Reader()
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	if blob.Size <= MaxFileBytes {
		data := make([]byte, blob.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, 0, err
		}
		return io.NopCloser(bytes.NewReader(data)), blob.Size, nil
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(r, MaxObjectBytes)); err != nil {
		return nil, 0, err
	}
	return io.NopCloser(&data), int64(data.Len()), nil
}

func hashOf(n node) plumbing.Hash { return plumbing.Hash(n.id[:20]) }

// nodeOf names a Git object of this store.
func (g *generation) nodeOf(mode filemode.FileMode, hash plumbing.Hash) node {
	n := node{mode: mode, in: g}
	copy(n.id[:], hash[:])
	return n
}
