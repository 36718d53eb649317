package source

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/storage/memory"
)

// Replacement is the next commit of a branch that has the files of one program and no
// others. They have no directories.
type Replacement struct {
	Branch string
	// Before is the commit that the branch ends with; empty if there must be no branch.
	Before string
	// Kept are files of Before that stay: names and hashes, as Snapshot.Stat tells these.
	Kept map[string]string
	// Files are written.
	Files map[string][]byte
	// Name, Address and At are those of author and committer.
	Name, Address string
	At            time.Time
	Message       string
}

// Replace pushes the next commit of a branch. Only what is written is sent. Nothing is forced: if the branch does not end with
// Before by now, the error wraps ErrMoved.
func (m *Mirrors) Replace(ctx context.Context, origin Origin, r Replacement) (commit string, err error) {
	defer recovered(&err)
	draft := &Draft{Branch: r.Branch, Name: r.Name, Address: r.Address, At: r.At}
	if err := draft.check(); err != nil {
		return "", err
	}
	var old plumbing.Hash
	var parents []plumbing.Hash
	if r.Before != "" {
		if !plumbing.IsHash(r.Before) {
			return "", failf(ReasonInvalidDraft, "cannot write on top of commit %q: not a full SHA-1", short(r.Before, 100))
		}
		old = plumbing.NewHash(r.Before)
		parents = []plumbing.Hash{old}
	}
	dial, err := origin.dialer()
	if err == nil {
		err = dial.restrict(m.KeyExchanges, m.HostKeys)
	}
	if err != nil {
		return "", err
	}
	objects := &drafted{store: memory.NewStorage()}
	tree, err := r.tree(objects)
	if err != nil {
		return "", fmt.Errorf("cannot make a commit of branch %s: %w", r.Branch, err)
	}
	hash, err := objects.commit(draft, tree, parents, r.Message)
	if err != nil {
		return "", err
	}
	if err := m.send(ctx, dial, plumbing.NewBranchReferenceName(r.Branch), old, hash, objects, nil); err != nil {
		return "", err
	}
	return hash.String(), nil
}

// tree makes the directory.
func (r *Replacement) tree(objects *drafted) (plumbing.Hash, error) {
	hashes := map[string]plumbing.Hash{}
	for name, hash := range r.Kept {
		if !plumbing.IsHash(hash) {
			return plumbing.ZeroHash, fmt.Errorf("%q has no hash of Git", short(name, 100))
		}
		hashes[name] = plumbing.NewHash(hash)
	}
	for name, content := range r.Files {
		hash, err := objects.add(plumbing.BlobObject, content)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		hashes[name] = hash
	}
	var raw bytes.Buffer
	// All are files, so the order of Git is that of the names.
	for _, name := range slices.Sorted(maps.Keys(hashes)) {
		if name == "" || name == "." || name == ".." || strings.EqualFold(name, ".git") || strings.ContainsAny(name, "/\\\x00\n") {
			return plumbing.ZeroHash, fmt.Errorf("%q is no name of a file", short(name, 100))
		}
		hash := hashes[name]
		fmt.Fprintf(&raw, "%o %s\x00", uint32(filemode.Regular), name)
		raw.Write(hash[:])
	}
	return objects.add(plumbing.TreeObject, raw.Bytes())
}
