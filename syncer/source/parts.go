package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"

	gitconfig "github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// sparse leaves of a tree what is below the directories, if there are any.
func sparse(root node, dirs []string) (node, error) {
	if len(dirs) == 0 {
		return root, nil
	}
	prefixes := make([]string, 0, len(dirs))
	for _, d := range dirs {
		prefixes = append(prefixes, strings.TrimPrefix(d, "./"))
	}
	pruned, err := prune(root, "", func(at string) (all, some bool) {
		at += "/"
		for _, p := range prefixes {
			all = all || strings.HasPrefix(at, p)
			some = some || strings.HasPrefix(p, at)
		}
		return all, all || some
	}, func(at string, _ node) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(at, p) {
				return true
			}
		}
		return false
	})
	if err != nil {
		return node{}, err
	}
	s := &Snapshot{root: pruned}
	for _, d := range dirs {
		if _, _, err := s.resolve(d); errors.Is(err, fs.ErrNotExist) {
			return node{}, failf(ReasonGitOperationFailed, "cannot use spec.sparseCheckout: directory '%s' does not exist in repository", d)
		} else if err != nil {
			return node{}, err
		}
	}
	return pruned, nil
}

// into puts the included part in its place. What is included is what the other
// source would be packed as: no links, and nothing that its rules exclude.
func (i Include) into(root node) (node, error) {
	at, from, err := i.Snapshot.find("stat", i.From)
	if err != nil {
		return node{}, err
	}
	if from.dir() {
		if from, err = i.pack(from, at); err != nil {
			return node{}, err
		}
	}
	return graft(root, clean(i.To), from)
}

// pack returns a directory as it is in the source's archive. What cannot be read is an error: the snapshot would be kept
// without it.
func (i Include) pack(dir node, at string) (node, error) {
	entries, err := dir.list()
	if err != nil {
		return node{}, err
	}
	kept, changed := make(listing, 0, len(entries)), false
	for _, e := range entries {
		below := join(at, e.name)
		hidden := e.mode == filemode.Symlink
		if !hidden {
			if hidden, err = i.Snapshot.rules.hides(below, e.node); err != nil {
				return node{}, err
			}
		}
		if hidden {
			changed = true
			continue
		}
		n := e.node
		if n.dir() || n.mode == filemode.Submodule {
			if n, err = i.pack(e.node, below); err != nil {
				return node{}, err
			}
			changed = changed || n.id != e.id
		}
		kept = append(kept, entry{e.name, n})
	}
	if !changed && dir.dir() {
		return dir, nil
	}
	return compose(kept), nil
}

// maxSubmodules bounds how deep submodules nest, as go-git does, and how many
// there may be at one level.
const (
	maxSubmoduleDepth = 10
	maxSubmodules     = 200
)

// submodules puts the submodules that a commit pins into their places in the
// tree. They are read like the repository itself, but with its credential only
// at its own host: a repository names any URL in its .gitmodules.
func (m *Mirrors) submodules(ctx context.Context, parent Origin, commit, root node, depth int) (node, error) {
	entries, err := commit.list()
	if err != nil {
		return node{}, err
	}
	file, ok := entries.find(".gitmodules")
	if !ok || !file.mode.IsFile() || file.mode == filemode.Symlink {
		return root, nil
	}
	if depth == maxSubmoduleDepth {
		return node{}, failf(ReasonLimitExceeded, "cannot fetch submodules: they nest more than %d deep", maxSubmoduleDepth)
	}
	data, err := file.read(".gitmodules")
	if err != nil {
		return node{}, err
	}
	modules := gitconfig.NewModules()
	if err := modules.Unmarshal(data); err != nil {
		return node{}, failf(ReasonGitOperationFailed, "cannot read .gitmodules: %w", err)
	}
	if len(modules.Submodules) > maxSubmodules {
		return node{}, failf(ReasonLimitExceeded, "cannot fetch submodules: %d are more than the limit of %d", len(modules.Submodules), maxSubmodules)
	}
	whole := &Snapshot{root: commit}
	for name, module := range modules.Submodules {
		at := clean(module.Path)
		if _, pin, err := whole.resolve(at); errors.Is(err, fs.ErrNotExist) || (err == nil && pin.mode != filemode.Submodule) {
			continue // declared, but of no commit
		} else if err != nil {
			return node{}, err
		}
		// The tree may have less than the commit.
		_, pin, err := (&Snapshot{root: root}).resolve(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return node{}, err
		}
		content, err := m.submodule(ctx, parent, module.URL, hashOf(pin), depth)
		if err != nil {
			return node{}, fmt.Errorf("cannot fetch submodule %s at %s: %w", name, at, err)
		}
		if root, err = graft(root, at, content); err != nil {
			return node{}, failf(ReasonGitOperationFailed, "cannot place submodule %s at %s: %w", name, at, err)
		}
	}
	if _, err := count(root, m.limits.entriesMost, 0); err != nil {
		return node{}, err
	}
	return root, nil
}

func (m *Mirrors) submodule(ctx context.Context, parent Origin, written string, commit plumbing.Hash, depth int) (node, error) {
	origin, err := parent.submodule(written)
	if err != nil {
		return node{}, err
	}
	mir, dial, err := m.mirror(origin)
	if err != nil {
		return node{}, err
	}
	gen, err := mir.exactly(ctx, dial, commit)
	if err != nil {
		return node{}, err
	}
	git, err := gen.provenance(target{commit: commit})
	if err != nil {
		return node{}, err
	}
	root := gen.nodeOf(filemode.Dir, git.tree)
	if _, err := count(root, m.limits.entriesMost, 0); err != nil {
		return node{}, err
	}
	return m.submodules(ctx, origin, root, root, depth+1)
}

// submodule is the origin of a submodule, by the URL in .gitmodules: absolute,
// or relative to this origin's.
func (o Origin) submodule(written string) (Origin, error) {
	base, err := url.Parse(o.URL)
	if err != nil {
		return Origin{}, failf(ReasonURLInvalid, "cannot parse URL")
	}
	var u *url.URL
	if strings.HasPrefix(written, "./") || strings.HasPrefix(written, "../") {
		relative := *base
		relative.Path, relative.RawPath = path.Join(base.Path, written), ""
		u = &relative
	} else if u = shortForm(written); u == nil {
		if u, err = url.Parse(written); err != nil || u.Scheme == "" {
			return Origin{}, failf(ReasonGitOperationFailed, "cannot use its URL: write it as https:// or ssh://, or relative as ../name")
		}
	}
	if u.Scheme != "https" && u.Scheme != "ssh" && (u.Scheme != base.Scheme || u.Host != base.Host) {
		return Origin{}, failf(ReasonGitOperationFailed, "cannot use its URL: scheme %q is not one of https, ssh", u.Scheme)
	}
	sub := Origin{URL: u.String(), Proxy: o.Proxy, Timeout: o.Timeout}
	if u.Scheme == base.Scheme && u.Host == base.Host {
		sub.Secret, sub.Login = o.Secret, o.Login
		if u.User == nil {
			u.User = base.User
			sub.URL = u.String()
		}
	}
	if _, err := sub.dialer(); err != nil && ReasonOf(err) == ReasonURLInvalid {
		// A fault of the repository, which a commit mends; not of the object.
		return Origin{}, failf(ReasonGitOperationFailed, "%w", errors.Unwrap(err))
	}
	return sub, nil
}

// shortForm is what [user@]host:path stands for, as git writes it into .gitmodules; nil if a text is not of this form. The
// path is that from the root, as hosts of Git have it; that from somebody's home directory is not.
func shortForm(written string) *url.URL {
	at, below, ok := strings.Cut(written, ":")
	if !ok || at == "" || strings.Contains(at, "/") || below == "" || below[0] == ':' || strings.HasPrefix(below, "//") {
		return nil
	}
	u := &url.URL{Scheme: "ssh", Host: at, Path: "/" + strings.TrimPrefix(below, "/")}
	if i := strings.LastIndexByte(at, '@'); i >= 0 {
		u.User, u.Host = url.User(at[:i]), at[i+1:]
	}
	return u
}
