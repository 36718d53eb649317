package source

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// maxLinks bounds a chain of symbolic links.
const maxLinks = 10

// Entry of a directory in a snapshot.
type Entry struct {
	Name string
	Dir  bool
	// Link: a symbolic link, whatever it leads to.
	Link bool
}

// Snapshot is the content of a source at one revision, without what the ignore
// rules exclude: a commit's tree, or a fetched archive. It is immutable and
// safe for concurrent use.
type Snapshot struct {
	// Revision in Flux's form, e.g. main@sha1:<commit>.
	Revision string
	// OriginRevision is the revision of what the source was built from, if its
	// artifact tells (org.opencontainers.image.revision); empty otherwise.
	OriginRevision string
	// Commit is the full SHA-1 in Git, empty for what is no commit.
	Commit string
	// Digest identifies the content: two commits with the same tree and ignore
	// rules share it. Of what came as one file it is the digest of that file.
	Digest string
	// File is the name that Storage gives to the snapshot's archive.
	File string
	// Metadata goes into the artifact of the source, e.g. the annotations of an
	// image's manifest. It is never changed.
	Metadata map[string]string
	// Subject is the first line of the commit's message.
	Subject string
	// Time of the commit.
	Time time.Time

	root  node
	rules *rules
	// packed is the file that the snapshot came as, nil if Storage has to pack
	// it.
	packed *spool
	// asked identifies what was asked for besides the revision.
	asked string
	// packMost bounds the files where it is packed; 0 is no bound of its own.
	packMost int64
	// bucket is what the objects were, which spares the next snapshot those that
	// stayed.
	bucket *contents
	// image is kept for those that ask for the same one.
	image *pull
	// git is where the commit itself is, for its signature.
	git *provenance
}

// Named returns the same content under another revision.
func (s *Snapshot) Named(revision string) *Snapshot {
	as := *s
	as.Revision = revision
	return &as
}

// Rules identifies the ignore rules in force. Where two snapshots have the same
// Rules, directories with the same hash at the same path have the same listing.
func (s *Snapshot) Rules() string { return s.rules.id }

// Packed returns the file that the snapshot came as, a packaged chart for
// instance: each call another reader of the same bytes, which may be read as long
// as anybody likes and is not closed. It is false for what did not come as a
// file.
func (s *Snapshot) Packed() (*io.SectionReader, bool) {
	if s.packed == nil {
		return nil, false
	}
	return s.packed.reader(), true
}

// As returns the same content under another name, for what is made of a source
// without changing it, a chart from an image for instance.
func (s *Snapshot) As(about About) (*Snapshot, error) {
	if err := allowed(about.File); err != nil {
		return nil, err
	}
	as := *s
	as.Revision, as.OriginRevision, as.File, as.Metadata, as.Time = about.Revision, about.OriginRevision, about.File, about.Metadata, about.Time
	return &as, nil
}

// treeDigest is the digest of a tree and of the ignore rules that are not in it.
func treeDigest(root node, ignore *string) string {
	kind := "sha1"
	if len(root.id.String()) != 40 {
		kind = "sha256"
	}
	if ignore == nil {
		return kind + ":" + root.id.String()
	}
	sum := sha256.Sum256([]byte(root.id.String() + "\n" + *ignore))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// clean makes a path relative to the root, which "" and "." stand for.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// resolve follows symbolic links, which must stay inside the tree, and
// returns the path without links and what is there.
func (s *Snapshot) resolve(name string) (string, node, error) {
	rest := clean(name)
	done, here, links := "", s.root, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if !here.dir() {
			return "", node{}, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		entries, err := here.list()
		if err != nil {
			// Not known to be absent: the objects may have been lost.
			return "", node{}, fmt.Errorf("cannot read directory %q of revision %s: %w", done, s.Revision, err)
		}
		n, ok := entries.find(part)
		if !ok {
			return "", node{}, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		at := join(done, part)
		if n.mode != filemode.Symlink {
			done, here = at, n
			continue
		}
		if links++; links > maxLinks {
			return "", node{}, fmt.Errorf("cannot follow %s: more than %d symbolic links", name, maxLinks)
		}
		target, err := n.read(at)
		if err != nil {
			return "", node{}, err
		}
		to := path.Join(done, string(target))
		if path.IsAbs(string(target)) || to == ".." || strings.HasPrefix(to, "../") {
			return "", node{}, fmt.Errorf("cannot follow %s: the symbolic link %s leaves the repository", name, at)
		}
		rest = clean(path.Join(to, rest))
		done, here = "", s.root
	}
	return done, here, nil
}

// find is resolve for what the ignore rules leave. A submodule that is not
// fetched is as if it were not there.
func (s *Snapshot) find(op, name string) (string, node, error) {
	at, n, err := s.resolve(name)
	if err != nil {
		return "", node{}, err
	}
	hidden, err := s.rules.hides(at, n)
	if err != nil {
		return "", node{}, err
	}
	if hidden || n.mode == filemode.Submodule {
		return "", node{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return at, n, nil
}

// Stat tells what is at a path: the kind and a hash of the content, equal for
// equal content in whatever commit. The root is a directory. The hash of a
// directory covers all that is below it, ignored or not. The error is
// fs.ErrNotExist for what is absent or ignored.
func (s *Snapshot) Stat(name string) (dir bool, hash string, err error) {
	_, n, err := s.find("stat", name)
	if err != nil {
		return false, "", err
	}
	return n.dir(), n.id.String(), nil
}

// ReadDir lists a directory, sorted by name, without what is ignored.
func (s *Snapshot) ReadDir(name string) ([]Entry, error) {
	at, n, err := s.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if !n.dir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	all, err := n.list()
	if err != nil {
		return nil, fmt.Errorf("cannot read directory %s: %w", name, err)
	}
	entries := make([]Entry, 0, len(all))
	for _, e := range all {
		if e.mode == filemode.Submodule {
			continue
		}
		hidden, err := s.rules.hides(join(at, e.name), e.node)
		if err != nil {
			return nil, err
		}
		if !hidden {
			entries = append(entries, Entry{Name: e.name, Dir: e.dir(), Link: e.mode == filemode.Symlink})
		}
	}
	return entries, nil
}

// ReadFile returns the content of a file. The caller owns the bytes.
func (s *Snapshot) ReadFile(name string) ([]byte, error) {
	at, n, err := s.find("open", name)
	if err != nil {
		return nil, err
	}
	if !n.mode.IsFile() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return n.read(at)
}

// Files counts the files that the ignore rules leave.
func (s *Snapshot) Files() (int, error) { return s.files("") }

func (s *Snapshot) files(dir string) (int, error) {
	entries, err := s.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		below := 1
		if e.Dir {
			if below, err = s.files(join(dir, e.Name)); err != nil {
				return 0, err
			}
		}
		n += below
	}
	return n, nil
}
