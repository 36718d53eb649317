package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/sourceignore/gitignore"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// maxPatterns bounds the ignore patterns of a snapshot: each of them is tried
// for each path.
const maxPatterns = 10_000

// matchedPaths bounds the paths of which the match is remembered: about a megabyte.
const matchedPaths = 16_000

// rules tell which files of a tree are no part of the source. As in Flux, a
// rule is asked about each file by its whole path, so that a later rule may
// take back a file of a directory that an earlier one excludes.
type rules struct {
	matcher gitignore.Matcher
	// own are the rules of the object, besides those in the tree.
	own *string
	// id is equal for equal rules.
	id string
	// takesBack: there are rules that include again.
	takesBack bool
	// matches remembers of paths whether they are excluded. The snapshots of
	// one source share it while the rules are the same: they are asked about
	// the same paths after each commit.
	matches *recent[string, bool]

	mu sync.Mutex
	// holds remembers of excluded directories whether a file in them is
	// included.
	holds map[string]bool
}

// newRules reads the rules of a tree: those that version control needs, then
// the files of rules in the tree, then those of the object. Without either, it
// is Flux's defaults.
func newRules(s *Snapshot, own *string, entriesMost int, last *Snapshot) (*rules, error) {
	c, err := count(s.root, entriesMost, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot walk commit %s: %w", s.Commit, err)
	}
	r := &rules{own: own, holds: map[string]bool{}}
	h := sha256.New()
	var patterns []gitignore.Pattern
	read := func(data []byte, domain []string) error {
		found := sourceignore.ReadPatterns(bytes.NewReader(data), domain)
		if patterns = append(patterns, found...); len(patterns) > maxPatterns {
			return failf(ReasonLimitExceeded, "it has more than %d ignore patterns", maxPatterns)
		}
		r.takesBack = r.takesBack || data != nil && (data[0] == '!' || bytes.Contains(data, []byte("\n!")))
		return nil
	}
	if c.rules > 0 {
		err := rulesBelow(s.root, "", func(at string, n node) error {
			_, file, err := s.resolve(join(at, sourceignore.IgnoreFile))
			if errors.Is(err, fs.ErrNotExist) || (err != nil && n.mode == filemode.Symlink) || (err == nil && !file.mode.IsFile()) {
				return nil
			}
			if err != nil {
				return err
			}
			data, err := file.read(join(at, sourceignore.IgnoreFile))
			if err != nil || len(data) == 0 {
				return err
			}
			fmt.Fprintf(h, "%q %s\n", at, file.id)
			var domain []string
			if at != "" {
				domain = strings.Split(at, "/")
			}
			return read(data, domain)
		})
		if err != nil {
			return nil, err
		}
	}
	if own != nil && *own != "" {
		fmt.Fprintf(h, "%q\n", *own)
		if err := read([]byte(*own), nil); err != nil {
			return nil, err
		}
	}
	if len(patterns) > 0 {
		patterns = append(sourceignore.VCSPatterns(nil), patterns...)
		r.id = hex.EncodeToString(h.Sum(nil)[:16])
	} else {
		patterns = append(sourceignore.VCSPatterns(nil), sourceignore.DefaultPatterns(nil)...)
		r.id = "default"
	}
	r.matcher = sourceignore.NewMatcher(patterns)
	if last != nil && last.rules.id == r.id && last.rules.matches != nil {
		r.matches = last.rules.matches
	} else {
		r.matches = newRecent[string, bool](2 * matchedPaths)
	}
	return r, nil
}

// rulesBelow calls visit for each directory that has a file of rules, a directory
// before those in it. What has none below it is not walked.
func rulesBelow(dir node, at string, visit func(at string, n node) error) error {
	entries, err := dir.list()
	if err != nil {
		return err
	}
	if n, ok := entries.find(sourceignore.IgnoreFile); ok && !n.dir() {
		if err := visit(at, n); err != nil {
			return err
		}
	}
	for _, e := range entries {
		if !e.dir() || e.name == ".git" {
			continue
		}
		c, err := count(e.node, MaxEntries, 0)
		if err != nil {
			return err
		}
		if c.rules == 0 {
			continue
		}
		if err := rulesBelow(e.node, join(at, e.name), visit); err != nil {
			return err
		}
	}
	return nil
}

// excludes reports whether the rules match the path itself. As in Flux, a
// directory may be excluded and still have files that are not.
func (r *rules) excludes(at string, dir bool) bool {
	if at == "" || r.matches == nil {
		return false
	}
	// A path may be a file in one commit and a directory in the next.
	key := at
	if dir {
		key += "/"
	}
	excluded, ok := r.matches.get(key)
	if !ok {
		excluded = r.matcher.Match(strings.Split(at, "/"), dir)
		r.matches.put(key, excluded, 1)
	}
	return excluded
}

// hides reports whether a file is excluded, or a directory is, with all that
// is in it.
func (r *rules) hides(at string, n node) (bool, error) {
	if !r.excludes(at, n.dir()) {
		return false, nil
	}
	// What is in an excluded directory is excluded too, unless something is
	// taken back.
	if !n.dir() || !r.takesBack {
		return true, nil
	}
	r.mu.Lock()
	holds, known := r.holds[at]
	r.mu.Unlock()
	if !known {
		var err error
		if holds, err = r.included(at, n); err != nil {
			return false, err
		}
		r.mu.Lock()
		r.holds[at] = holds
		r.mu.Unlock()
	}
	return !holds, nil
}

// included looks for something below a directory that is not excluded.
func (r *rules) included(at string, dir node) (bool, error) {
	entries, err := dir.list()
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		below := join(at, e.name)
		if !r.excludes(below, e.dir()) {
			return true, nil
		}
		if e.dir() {
			if found, err := r.included(below, e.node); found || err != nil {
				return found, err
			}
		}
	}
	return false, nil
}
