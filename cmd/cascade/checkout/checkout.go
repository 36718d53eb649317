package checkout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// remoteName is how git calls where a clone came from.
const remoteName = "origin"

// Remote is a branch of a repository, and how to log in there.
type Remote struct {
	URL, Branch string
	// PushBranch is a new branch that a commit goes to, refused if it is there; empty: it goes to Branch.
	PushBranch string
	Auth       transport.AuthMethod
	// CA verifies the server, in PEM; nil: those of the machine do.
	CA []byte
}

// Author of commits.
type Author struct{ Name, Email string }

// Tree is a clone.
type Tree struct {
	remote Remote
	dir    string
	root   *os.Root
	git    *git.Repository
	// base is the commit of the branch in the repository; zero if it has none.
	base plumbing.Hash
	head plumbing.Hash
}

// Clone clones the branch. A repository that is empty is a tree without files. Close removes
// the clone.
func Clone(ctx context.Context, r Remote) (_ *Tree, err error) {
	t := &Tree{remote: r}
	if t.dir, err = os.MkdirTemp("", "cascade-"); err != nil {
		return nil, fmt.Errorf("cannot make a directory for a clone of %s: %w", r.URL, err)
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.root, err = os.OpenRoot(t.dir); err != nil {
		return nil, fmt.Errorf("cannot open the clone of %s: %w", r.URL, err)
	}
	// Azure DevOps asks for a capability that go-git can use for a whole clone only, which
	// is what this process does. An agent fetches in another way, which says the same.
	transport.UnsupportedCapabilities = []capability.Capability{capability.ThinPack} //nolint:reassign // go-git's way to say it
	branch := plumbing.NewBranchReferenceName(r.Branch)
	t.git, err = bounded(ctx, func() (*git.Repository, error) {
		return git.PlainCloneContext(ctx, t.dir, false, &git.CloneOptions{
			URL: r.URL, Auth: r.Auth, CABundle: r.CA, RemoteName: remoteName, ReferenceName: branch, SingleBranch: true, Tags: git.NoTags,
		})
	})
	switch {
	case errors.Is(err, transport.ErrEmptyRemoteRepository):
		return t, t.begin(branch)
	case errors.Is(err, plumbing.ErrReferenceNotFound) || errors.As(err, new(git.NoMatchingRefSpecError)):
		return nil, fmt.Errorf("cannot clone %s: it has no branch %s; make that branch, or say --branch", r.URL, r.Branch)
	case err != nil:
		return nil, fmt.Errorf("cannot clone %s, branch %s: %w", r.URL, r.Branch, err)
	}
	head, err := t.git.Head()
	if err != nil {
		return nil, fmt.Errorf("cannot read branch %s of %s: %w", r.Branch, r.URL, err)
	}
	t.base, t.head = head.Hash(), head.Hash()
	return t, nil
}

// ending is how long a call to the server may take to end by itself once its context has.
const ending = time.Second

// bounded makes a call to the server for as long as the context allows. Over SSH go-git connects without the context, and
// waits without an end for a server that takes the connection and says nothing: such a call is left to the process.
func bounded[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		value, err := call()
		got <- answer{value, err}
	}()
	select {
	case a := <-got:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-got:
		return a.value, a.err
	case <-time.After(ending):
		var none T
		return none, fmt.Errorf("the server says nothing: %w", context.Cause(ctx))
	}
}

// begin makes a repository whose first commit goes to a branch.
func (t *Tree) begin(branch plumbing.ReferenceName) error {
	var err error
	if t.git, err = git.PlainOpen(t.dir); errors.Is(err, git.ErrRepositoryNotExists) {
		t.git, err = git.PlainInit(t.dir, false)
	}
	if err != nil {
		return fmt.Errorf("cannot begin the repository %s: %w", t.remote.URL, err)
	}
	_, err = t.git.CreateRemote(&config.RemoteConfig{Name: remoteName, URLs: []string{t.remote.URL}})
	if err != nil && !errors.Is(err, git.ErrRemoteExists) {
		return fmt.Errorf("cannot begin the repository %s: %w", t.remote.URL, err)
	}
	if err := t.git.Storer.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, branch)); err != nil {
		return fmt.Errorf("cannot begin the repository %s: %w", t.remote.URL, err)
	}
	return nil
}

// Close removes the clone.
func (t *Tree) Close() {
	if t.root != nil {
		_ = t.root.Close()
	}
	_ = os.RemoveAll(t.dir) // a directory for temporary files is cleaned by others as well
}

// Files of the tree.
func (t *Tree) Files() fs.FS { return t.root.FS() }

// Head is the commit of the tree, empty if there is none.
func (t *Tree) Head() string {
	if t.head.IsZero() {
		return ""
	}
	return t.head.String()
}

// Precedes reports whether a commit is one that the head of the tree came after. One that is not in
// the clone came later.
func (t *Tree) Precedes(commit string) bool {
	if commit == t.Head() {
		return false
	}
	_, err := t.git.CommitObject(plumbing.NewHash(commit))
	return err == nil
}

// Write writes files, and removes those without content.
func (t *Tree) Write(changes map[string][]byte) error {
	for name, content := range changes {
		if content == nil {
			if err := t.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("cannot remove %s: %w", name, err)
			}
			continue
		}
		if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return fmt.Errorf("cannot make a directory for %s: %w", name, err)
		}
		if err := t.root.WriteFile(name, content, 0o644); err != nil {
			return fmt.Errorf("cannot write %s: %w", name, err)
		}
	}
	return nil
}

// commit records what was written.
func (t *Tree) commit(changes map[string][]byte, message string, by Author, now time.Time) error {
	work, err := t.git.Worktree()
	if err != nil {
		return fmt.Errorf("cannot commit: %w", err)
	}
	for name, content := range changes {
		if content == nil {
			_, err = work.Remove(name)
		} else {
			err = work.AddWithOptions(&git.AddOptions{Path: name, SkipStatus: true})
		}
		if err != nil {
			return fmt.Errorf("cannot add %s to a commit: %w", name, err)
		}
	}
	t.head, err = work.Commit(message, &git.CommitOptions{Author: &object.Signature{Name: by.Name, Email: by.Email, When: now}})
	if err != nil {
		return fmt.Errorf("cannot commit: %w", err)
	}
	return nil
}

// errRaced: somebody else pushed meanwhile.
var errRaced = errors.New("the branch moved meanwhile")

func (t *Tree) push(ctx context.Context) error {
	branch := cmp.Or(t.remote.PushBranch, t.remote.Branch)
	from, name := plumbing.NewBranchReferenceName(t.remote.Branch), plumbing.NewBranchReferenceName(branch)
	if branch != t.remote.Branch {
		// A push would move one that is behind, as a branch to which commits are promoted, over all that it lacks.
		switch is, err := t.remoteHead(ctx, name); {
		case err != nil:
			return fmt.Errorf("cannot list the branches of %s: %w", t.remote.URL, err)
		case !is.IsZero():
			return t.branchTaken()
		}
	}
	err := t.pushRef(ctx, &git.PushOptions{RefSpecs: []config.RefSpec{config.RefSpec(from + ":" + name)}})
	if err == nil {
		return nil
	}
	// How servers tell of a race differs, where the branch is does not.
	now, listed := t.remoteHead(ctx, name)
	switch {
	case listed != nil:
		return fmt.Errorf("cannot push to %s, branch %s: %w; whether the commit arrived is not known: %w", t.remote.URL, branch, err, listed)
	case now == t.head:
		return nil
	case branch != t.remote.Branch && !now.IsZero():
		return t.branchTaken()
	case branch == t.remote.Branch && now != t.base:
		return fmt.Errorf("cannot push to %s: %w: %w", t.remote.URL, errRaced, err)
	}
	return fmt.Errorf("cannot push to %s, branch %s: %w; the login must be allowed to write there", t.remote.URL, branch, err)
}

// pushRef pushes with the login of the tree.
func (t *Tree) pushRef(ctx context.Context, o *git.PushOptions) error {
	o.RemoteName, o.Auth, o.CABundle = remoteName, t.remote.Auth, t.remote.CA
	_, err := bounded(ctx, func() (struct{}, error) { return struct{}{}, t.git.PushContext(ctx, o) })
	return err
}

func (t *Tree) branchTaken() error {
	return fmt.Errorf("cannot push to %s: it has a branch %s already; merge or delete it, or name another one", t.remote.URL, t.remote.PushBranch)
}

func (t *Tree) remoteHead(ctx context.Context, name plumbing.ReferenceName) (plumbing.Hash, error) {
	remote, err := t.git.Remote(remoteName)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	refs, err := bounded(ctx, func() ([]*plumbing.Reference, error) {
		return remote.ListContext(ctx, &git.ListOptions{Auth: t.remote.Auth, CABundle: t.remote.CA})
	})
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if i := slices.IndexFunc(refs, func(ref *plumbing.Reference) bool { return ref.Name() == name }); i >= 0 {
		return refs[i].Hash(), nil
	}
	return plumbing.ZeroHash, nil
}

// pushTries is how often a change is decided and pushed while others push as well.
const pushTries = 3

// Decision is what is to change, and why.
type Decision struct {
	Changes map[string][]byte
	Message string
}

// Change decides about the files of a branch and pushes the commit, if there is one. The tree
// that it returns is as the branch is now.
func Change(ctx context.Context, r Remote, by Author, now func() time.Time, decide func(fs.FS) (Decision, error)) (t *Tree, pushed bool, err error) {
	for try := 1; ; try++ {
		t, pushed, err = change(ctx, r, by, now, decide)
		if !errors.Is(err, errRaced) || try == pushTries {
			return t, pushed, err
		}
	}
}

func change(ctx context.Context, r Remote, by Author, now func() time.Time, decide func(fs.FS) (Decision, error)) (_ *Tree, pushed bool, err error) {
	t, err := Clone(ctx, r)
	if err != nil {
		return nil, false, err
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	decision, err := decide(t.Files())
	if err != nil || len(decision.Changes) == 0 {
		return t, false, err
	}
	if err := t.Write(decision.Changes); err != nil {
		return nil, false, err
	}
	if err := t.commit(decision.Changes, decision.Message, by, now()); err != nil {
		return nil, false, err
	}
	return t, true, t.push(ctx)
}

// MayPush is an error if the login may not write to the branch. Nothing is pushed but where the
// branch is; a rule about the branch may still refuse a commit.
func (t *Tree) MayPush(ctx context.Context) error {
	if t.base.IsZero() {
		return nil // there is no branch yet
	}
	name := plumbing.NewBranchReferenceName(t.remote.Branch)
	err := t.pushRef(ctx, &git.PushOptions{
		RefSpecs: []config.RefSpec{config.RefSpec(name + ":" + name)}, RequireRemoteRefs: []config.RefSpec{config.RefSpec(t.base.String() + ":" + name.String())},
	})
	if err == nil || errors.Is(err, git.NoErrAlreadyUpToDate) {
		return nil
	}
	// Somebody pushed since it was cloned, which this was refused for.
	if now, listed := t.remoteHead(ctx, name); listed == nil && now != t.base {
		return nil
	}
	return fmt.Errorf("cannot push to %s, branch %s: %w; the login must be allowed to write there", t.remote.URL, t.remote.Branch, err)
}
