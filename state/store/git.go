package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/syncer/source"
)

const (
	// recordFile is the record on a branch.
	recordFile = "record.json"
	// committer of what is saved.
	committer, committerAddress = "cascade", "cascade@noreply.invalid"
	// mostPackBytes bounds what is fetched of a branch at once.
	mostPackBytes = 2 << 30
)

// git is a place on a branch of its own. Each change is one commit on top of what was read,
// and the server refuses one that is not. Nothing is forced, so what Prune deletes is in
// the history still.
type git struct {
	mirrors *source.Mirrors
	origin  source.Origin
	branch  string
	name    string
	// scratch is deleted in the end, if it has a name.
	scratch string
	now     func() time.Time

	mu sync.Mutex // guards last; never held over a call
	// last is what was read last, which spares reading it again.
	last *source.Snapshot
}

func (g *git) String() string { return g.name }

func (g *git) close() error {
	if g.scratch == "" {
		return nil
	}
	return os.RemoveAll(g.scratch)
}

// tip is what the branch has; nil if there is none.
func (g *git) tip(ctx context.Context) (*source.Snapshot, error) {
	g.mu.Lock()
	last := g.last
	g.mu.Unlock()
	s, err := g.mirrors.Fetch(ctx, g.origin, source.Reference{Branch: g.branch}, source.Options{}, last)
	if errors.Is(err, source.ErrReferenceMissing) || err != nil && source.ReasonOf(err) == source.ReasonEmptyRepository {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	g.last = s
	g.mu.Unlock()
	return s, nil
}

// at is what the branch had at a tag.
func (g *git) at(ctx context.Context, tag string) (*source.Snapshot, error) {
	g.mu.Lock()
	last := g.last
	g.mu.Unlock()
	if last != nil && last.Commit == tag {
		return last, nil
	}
	s, err := g.tip(ctx)
	if err != nil {
		return nil, err
	}
	if s == nil || s.Commit != tag {
		return nil, errMoved
	}
	return s, nil
}

func (g *git) record(ctx context.Context) ([]byte, string, error) {
	s, err := g.tip(ctx)
	if err != nil || s == nil {
		return nil, "", err
	}
	content, err := s.ReadFile(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("branch %s has something else than a saved state; name a branch of its own", g.branch)
	}
	return content, s.Commit, err
}

// files of a commit with their hashes. A branch with anything else is not ours to write.
func (g *git) files(s *source.Snapshot) (map[string]string, error) {
	files := map[string]string{}
	if s == nil {
		return files, nil
	}
	entries, err := s.ReadDir(".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if _, ok := parseFile(e.Name); !ok && e.Name != recordFile || e.Dir || e.Link {
			return nil, fmt.Errorf("branch %s has %q, which is no saved state; name a branch of its own", g.branch, e.Name)
		}
		_, hash, err := s.Stat(e.Name)
		if err != nil {
			return nil, err
		}
		files[e.Name] = hash
	}
	return files, nil
}

// push replaces the files of the branch that is at a tag.
func (g *git) push(ctx context.Context, tag string, kept map[string]string, wrote map[string][]byte, message string) error {
	for name := range wrote {
		delete(kept, name)
	}
	_, err := g.mirrors.Replace(ctx, g.origin, source.Replacement{
		Branch: g.branch, Before: tag, Kept: kept, Files: wrote, Name: committer, Address: committerAddress, At: g.now(), Message: message,
	})
	if errors.Is(err, source.ErrMoved) {
		return errMoved
	}
	return err
}

// put has nothing to do: a commit has the file and the record.
func (g *git) put(context.Context, string, []byte) (apart bool, err error) { return false, nil }

func (g *git) swap(ctx context.Context, tag string, record []byte, name string, content []byte) error {
	var before *source.Snapshot
	if tag != "" {
		var err error
		if before, err = g.at(ctx, tag); err != nil {
			return err
		}
	}
	kept, err := g.files(before)
	if err != nil {
		return err
	}
	wrote, message := map[string][]byte{recordFile: record}, "Lock"
	if name != "" {
		wrote[name] = content
		message = "Save " + strings.TrimSuffix(name, ".age")
	}
	return g.push(ctx, tag, kept, wrote, message+"\n")
}

func (g *git) read(ctx context.Context, name string) ([]byte, error) {
	s, err := g.tip(ctx)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, errAbsent
	}
	content, err := s.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errAbsent
	}
	return content, err
}

func (g *git) list(ctx context.Context) (map[string]int64, error) {
	s, err := g.tip(ctx)
	if err != nil {
		return nil, err
	}
	files, err := g.files(s)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for name := range files {
		if name != recordFile {
			out[name] = 0
		}
	}
	return out, nil
}

func (g *git) remove(ctx context.Context, names []string) error {
	for try := 1; ; try++ {
		s, err := g.tip(ctx)
		if err != nil || s == nil {
			return err
		}
		kept, err := g.files(s)
		if err != nil {
			return err
		}
		before := len(kept)
		for _, name := range names {
			delete(kept, name)
		}
		if len(kept) == before {
			return nil
		}
		err = g.push(ctx, s.Commit, kept, nil, "Delete old versions\n")
		if !errors.Is(err, errMoved) || try == tries || ctx.Err() != nil {
			return err
		}
	}
}

// try has nothing to find out: a push names what it replaces, in any version of Git.
func (g *git) try(context.Context) error { return nil }

func openGit(origin source.Origin, branch, name, dir string, now func() time.Time) (place, error) {
	g := &git{origin: origin, branch: branch, name: name, now: now}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "cascade-state-"); err != nil {
			return nil, fmt.Errorf("cannot make a directory: %w", err)
		}
		g.scratch = dir
	}
	g.mirrors = source.NewMirrors(dir, mostPackBytes)
	return g, nil
}
