package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/sourceignore/gitignore"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// MaxFileBytes bounds one file of a snapshot.
const MaxFileBytes = 10 << 20

// MaxEntries bounds the files and directories of a snapshot. A tree that names
// another many times is small in Git and endless when it is walked.
const MaxEntries = 500_000

// maxLinks bounds a chain of symbolic links.
const maxLinks = 10

// Entry of a directory in a snapshot.
type Entry struct {
	Name string
	Dir  bool
	// Link: a symbolic link, whatever it leads to.
	Link bool
}

// Snapshot is the content of a source at one revision: a commit's tree without
// what the ignore rules exclude. It is immutable and safe for concurrent use.
type Snapshot struct {
	// Revision in Flux's form, e.g. main@sha1:<commit>.
	Revision string
	// Commit is the full SHA-1.
	Commit string
	// Digest identifies the content: two commits with the same tree and ignore
	// rules share it.
	Digest string
	// Subject is the first line of the commit's message.
	Subject string
	// Time of the commit.
	Time time.Time

	gen     *generation
	tree    *object.Tree
	ignore  *string
	matcher gitignore.Matcher
	// rules digests the text of what matcher was made of.
	rules string
}

func newSnapshot(gen *generation, commit plumbing.Hash, revision string, ignore *string, entriesMost int) (*Snapshot, error) {
	c, tree, err := gen.tree(commit)
	if err != nil {
		return nil, err
	}
	subject, _, _ := strings.Cut(strings.TrimSpace(c.Message), "\n")
	s := &Snapshot{
		Revision: revision,
		Commit:   commit.String(),
		Digest:   digest(tree.Hash, ignore),
		Subject:  subject,
		Time:     c.Committer.When,
		gen:      gen,
		tree:     tree,
		ignore:   ignore,
	}
	patterns, err := s.patterns(entriesMost)
	if err != nil {
		return nil, err
	}
	s.matcher = sourceignore.NewMatcher(patterns)
	return s, nil
}

// digest of a tree and the ignore rules that are not in it.
func digest(tree plumbing.Hash, ignore *string) string {
	if ignore == nil {
		return "sha1:" + tree.String()
	}
	sum := sha256.Sum256([]byte(tree.String() + "\n" + *ignore))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// patterns are those of spec.ignore and the .sourceignore files, and Flux's
// defaults where there are neither; version control files always.
func (s *Snapshot) patterns(entriesMost int) ([]gitignore.Pattern, error) {
	patterns := sourceignore.VCSPatterns(nil)
	text := sha256.New()
	own, err := s.ignoreFiles(entriesMost, text)
	if err != nil {
		return nil, err
	}
	if s.ignore != nil {
		fmt.Fprintf(text, "spec.ignore %d:%s", len(*s.ignore), *s.ignore)
	}
	s.rules = hex.EncodeToString(text.Sum(nil))
	if s.ignore != nil {
		return append(append(patterns, own...), sourceignore.ReadPatterns(strings.NewReader(*s.ignore), nil)...), nil
	}
	if len(own) > 0 {
		return append(patterns, own...), nil
	}
	return append(patterns, sourceignore.DefaultPatterns(nil)...), nil
}

func (s *Snapshot) ignoreFiles(entriesMost int, text io.Writer) ([]gitignore.Pattern, error) {
	s.gen.mu.Lock()
	var found []string
	walker := object.NewTreeWalker(s.tree, true, nil)
	for n := 0; ; n++ {
		name, entry, err := walker.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n == entriesMost {
			err = failf(ReasonLimitExceeded, "it has more than %d files and directories", entriesMost)
		}
		if err != nil {
			walker.Close()
			s.gen.mu.Unlock()
			return nil, fmt.Errorf("cannot walk commit %s: %w", s.Commit, err)
		}
		if entry.Mode.IsFile() && path.Base(name) == sourceignore.IgnoreFile {
			found = append(found, name)
		}
	}
	walker.Close()
	s.gen.mu.Unlock()

	slices.Sort(found)
	var patterns []gitignore.Pattern
	for _, name := range found {
		data, err := s.ReadFile(name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(text, "%d:%s %d:%s", len(name), name, len(data), data)
		var domain []string
		if dir := path.Dir(name); dir != "." {
			domain = strings.Split(dir, "/")
		}
		patterns = append(patterns, sourceignore.ReadPatterns(bytes.NewReader(data), domain)...)
	}
	return patterns, nil
}

// Rules identifies the ignore rules in force: with equal rules, a directory of
// the same path and hash lists the same.
func (s *Snapshot) Rules() string { return s.rules }

// clean makes a path relative to the root, which "" and "." stand for.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

func (s *Snapshot) ignored(name string, dir bool) bool {
	if s.matcher == nil || name == "" {
		return false
	}
	parts := strings.Split(name, "/")
	for i := 1; i < len(parts); i++ {
		if s.matcher.Match(parts[:i], true) {
			return true
		}
	}
	return s.matcher.Match(parts, dir)
}

// resolve follows symbolic links, which must stay inside the tree, and
// returns the path without links and its entry.
func (s *Snapshot) resolve(name string) (string, *object.TreeEntry, error) {
	rest := clean(name)
	done := ""
	links := 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		at := path.Join(done, part)
		entry, err := s.tree.FindEntry(at)
		if errors.Is(err, object.ErrEntryNotFound) || errors.Is(err, object.ErrDirectoryNotFound) {
			return "", nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		if err != nil {
			// Not known to be absent: the objects may have been lost.
			return "", nil, fmt.Errorf("cannot read %s of commit %s: %w", at, s.Commit, err)
		}
		if entry.Mode == filemode.Symlink {
			if links++; links > maxLinks {
				return "", nil, fmt.Errorf("cannot follow %s: more than %d symbolic links", name, maxLinks)
			}
			blob, err := s.blob(at, entry)
			if err != nil {
				return "", nil, err
			}
			to := path.Join(done, string(blob))
			if path.IsAbs(string(blob)) || to == ".." || strings.HasPrefix(to, "../") {
				return "", nil, fmt.Errorf("cannot follow %s: the symbolic link %s leaves the repository", name, at)
			}
			rest = clean(path.Join(to, rest))
			done = ""
			continue
		}
		if rest == "" {
			return at, entry, nil
		}
		if entry.Mode != filemode.Dir {
			return "", nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		done = at
	}
	return "", &object.TreeEntry{Mode: filemode.Dir, Hash: s.tree.Hash}, nil
}

// Stat tells what is at a path: the entry's kind and content hash. The root is
// a directory. The error is fs.ErrNotExist for what is absent or ignored.
func (s *Snapshot) Stat(name string) (dir bool, hash string, err error) {
	s.gen.mu.Lock()
	defer s.gen.mu.Unlock()
	at, entry, err := s.resolve(name)
	if err != nil {
		return false, "", err
	}
	dir = entry.Mode == filemode.Dir
	if s.ignored(at, dir) || entry.Mode == filemode.Submodule {
		return false, "", &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return dir, entry.Hash.String(), nil
}

// ReadDir lists a directory, sorted by name, without what is ignored.
func (s *Snapshot) ReadDir(name string) ([]Entry, error) {
	s.gen.mu.Lock()
	defer s.gen.mu.Unlock()
	at, entry, err := s.resolve(name)
	if err != nil {
		return nil, err
	}
	if entry.Mode != filemode.Dir || s.ignored(at, true) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	tree := s.tree
	if at != "" {
		if tree, err = s.tree.Tree(at); err != nil {
			return nil, fmt.Errorf("cannot read directory %s: %w", name, err)
		}
	}
	entries := make([]Entry, 0, len(tree.Entries))
	for _, e := range tree.Entries {
		dir := e.Mode == filemode.Dir
		if e.Mode == filemode.Submodule || s.ignored(path.Join(at, e.Name), dir) {
			continue
		}
		entries = append(entries, Entry{Name: e.Name, Dir: dir, Link: e.Mode == filemode.Symlink})
	}
	slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// ReadFile returns the content of a file. The caller owns the bytes.
func (s *Snapshot) ReadFile(name string) ([]byte, error) {
	s.gen.mu.Lock()
	defer s.gen.mu.Unlock()
	at, entry, err := s.resolve(name)
	if err != nil {
		return nil, err
	}
	if !entry.Mode.IsFile() || s.ignored(at, false) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return s.blob(at, entry)
}

func (s *Snapshot) blob(name string, entry *object.TreeEntry) ([]byte, error) {
	blob, err := object.GetBlob(s.gen.store, entry.Hash)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if blob.Size > MaxFileBytes {
		return nil, failf(ReasonLimitExceeded, "cannot read %s: %d bytes are more than the limit of %d", name, blob.Size, MaxFileBytes)
	}
	r, err := blob.Reader()
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer r.Close()
	data := make([]byte, 0, blob.Size)
	buf := bytes.NewBuffer(data)
	if _, err := io.Copy(buf, io.LimitReader(r, MaxFileBytes)); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return buf.Bytes(), nil
}

func sameIgnore(a, b *string) bool {
	return (a == nil) == (b == nil) && (a == nil || *a == *b)
}
