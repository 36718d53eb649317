package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// ErrNoClone: a directory is in no clone of a Git repository.
var ErrNoClone = errors.New("no clone of a Git repository")

// Clone is a repository of this machine that somebody cloned. It is only read, and nothing
// of it is run. It is safe for concurrent use.
type Clone struct {
	git  *git.Repository
	gen  *generation
	name string
}

// OpenClone opens the clone that a directory is in.
func OpenClone(dir string) (*Clone, error) {
	repository, err := git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{DetectDotGit: true, EnableDotGitCommonDir: true})
	switch {
	case errors.Is(err, git.ErrRepositoryNotExists):
		return nil, fmt.Errorf("cannot open %s: %w", dir, ErrNoClone)
	case err != nil:
		return nil, fmt.Errorf("cannot open the clone that %s is in: %w", dir, err)
	}
	store, ok := repository.Storer.(*filesystem.Storage)
	if !ok {
		return nil, fmt.Errorf("cannot open the clone that %s is in: its objects are not on a disk", dir)
	}
	return &Clone{git: repository, gen: generationIn(dir, store), name: dir}, nil
}

// Commit is the commit that words name as git understands them: a commit or the beginning
// of one, a branch, a tag, HEAD, HEAD~1.
func (c *Clone) Commit(words string) (string, error) {
	c.gen.mu.Lock()
	defer c.gen.mu.Unlock()
	hash, err := c.git.ResolveRevision(plumbing.Revision(words))
	if err != nil {
		return "", fmt.Errorf("cannot find %s in the clone %s: %w", words, c.name, err)
	}
	return hash.String(), nil
}

// Has reports whether the clone has a commit. A shallow clone lacks earlier ones.
func (c *Clone) Has(commit string) bool {
	if !plumbing.IsHash(commit) {
		return false
	}
	c.gen.mu.Lock()
	defer c.gen.mu.Unlock()
	_, err := object.GetCommit(c.gen.store, plumbing.NewHash(commit))
	return err == nil
}

// FromClone is what Fetch makes of one commit, from a clone of the origin. Only for
// submodules the origin is asked. The revision of the snapshot is that of the bare commit.
func (m *Mirrors) FromClone(ctx context.Context, c *Clone, commit string, origin Origin, options Options) (*Snapshot, error) {
	if !c.Has(commit) {
		return nil, failf(ReasonGitOperationFailed, "cannot find commit %s in the clone %s", commit, c.name)
	}
	return m.snapshot(ctx, origin, c.gen, target{commit: plumbing.NewHash(commit), revision: "sha1:" + commit}, options, nil)
}
