package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

const (
	// MaxComposedBytes bounds the files of a composed snapshot where it is packed. One file
	// of a source may be in it many times.
	MaxComposedBytes = 1 << 30
	// maxExtractedBytes bounds what the archives of one composition inflate to.
	maxExtractedBytes = 256 << 20
	// maxWrittenBytes bounds the files that are written anew for one composition.
	maxWrittenBytes = 32 << 20
	// composedDirs bounds the directories of which a Composer remembers what is in them.
	composedDirs = 32 << 10
)

// Composer makes snapshots out of files and directories of others. What it takes of a source
// is what the source would be packed as: no symbolic links, nothing that its rules exclude,
// and no directory without files. A directory is taken by its hash; no file is copied. It is
// safe for concurrent use.
type Composer struct {
	dir    string
	limits limits
	// archives are those that were extracted, by the content of the file.
	archives pool[archive]
	// whole has the directories, each with the rules and the path that they were seen with,
	// of which everything is taken.
	whole *recent[string, bool]
	// digests are those of directories, by their hash.
	digests *recent[id, id]
}

// NewComposer extracts archives into files in dir, which have no names there. An archive of
// more than maxBytes is refused.
func NewComposer(dir string, maxBytes int64) *Composer {
	return &Composer{
		dir: dir, limits: limits{packBytes: maxBytes, inflatedBytes: maxExtractedBytes, entriesMost: MaxEntries},
		whole: newRecent[string, bool](composedDirs), digests: newRecent[id, id](composedDirs),
	}
}

// Effort is what compositions may still cost, in steps of about a microsecond. It is not safe
// for concurrent use.
type Effort struct {
	ctx  context.Context
	left int
}

// NewEffort returns one of so many steps, until the context ends.
func NewEffort(ctx context.Context, steps int) *Effort { return &Effort{ctx: ctx, left: steps} }

// Spend takes steps. It is an error of reason LimitExceeded when there are no more.
func (e *Effort) Spend(steps int) error {
	before := e.left
	if e.left -= steps; e.left < 0 {
		return failf(ReasonLimitExceeded, "there are too many files to look at for so many patterns; name directories without a pattern, or split it")
	}
	if before>>10 != e.left>>10 {
		return e.ctx.Err()
	}
	return nil
}

// Piece is a file or a directory of a snapshot.
type Piece struct {
	of *Snapshot
	at string
	n  node
}

// Dir reports whether it is a directory.
func (p Piece) Dir() bool { return p.n.dir() }

// Name is the last part of its path; empty for the root.
func (p Piece) Name() string {
	if p.at == "" {
		return ""
	}
	return path.Base(p.at)
}

// Read returns the content of a file. The caller owns the bytes.
func (p Piece) Read() ([]byte, error) { return p.n.read(p.at) }

// Piece finds what is at a path. The error is fs.ErrNotExist for what is absent or excluded,
// and for what is, or is below, a symbolic link.
func (s *Snapshot) Piece(name string) (Piece, error) {
	rest := clean(name)
	p := Piece{of: s, n: s.root}
	absent := &fs.PathError{Op: "open", Path: rest, Err: fs.ErrNotExist}
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		if !p.n.dir() {
			return Piece{}, absent
		}
		entries, err := p.n.list()
		if err != nil {
			return Piece{}, fmt.Errorf("cannot read directory %q of revision %s: %w", p.at, s.Revision, err)
		}
		n, ok := entries.find(part)
		if !ok {
			return Piece{}, absent
		}
		p.at, p.n = join(p.at, part), n
	}
	if !p.n.dir() && !plain(p.n) {
		return Piece{}, absent
	}
	hidden, err := s.rules.hides(p.at, p.n)
	if err != nil {
		return Piece{}, err
	}
	if hidden {
		return Piece{}, absent
	}
	return p, nil
}

// plain reports whether a node is a file that is packed.
func plain(n node) bool { return n.mode.IsFile() && n.mode != filemode.Symlink }

// Each calls visit with each file and directory in a directory, sorted by name, and by its
// path relative to it. What is in a directory follows if visit wants to enter it.
func (e *Effort) Each(dir Piece, visit func(name string, p Piece) (enter bool, err error)) error {
	return e.each(dir, "", 0, visit)
}

func (e *Effort) each(dir Piece, at string, depth int, visit func(string, Piece) (bool, error)) error {
	if depth > maxDepth {
		return failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	entries, err := dir.n.list()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := e.Spend(1); err != nil {
			return err
		}
		p := Piece{of: dir.of, at: join(dir.at, entry.name), n: entry.node}
		if !p.n.dir() && !plain(p.n) {
			continue
		}
		hidden, err := p.of.rules.hides(p.at, p.n)
		if err != nil {
			return err
		}
		if hidden {
			continue
		}
		name := join(at, entry.name)
		enter, err := visit(name, p)
		if err != nil {
			return err
		}
		if enter && p.n.dir() {
			if err := e.each(p, name, depth+1, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// Composition is a snapshot that is being made. It is not safe for concurrent use.
type Composition struct {
	of     *Composer
	effort *Effort
	root   *branch
	// written has the files that no source has.
	written *written
	// inflated is what archives may still be extracted to.
	inflated int64
}

// Begin begins a composition with no files in it.
func (c *Composer) Begin(effort *Effort) *Composition {
	return &Composition{of: c, effort: effort, root: &branch{}, written: &written{files: map[id][]byte{}}, inflated: c.limits.inflatedBytes}
}

// branch is a directory or a file of a composition. A directory that was taken as it is has
// no branches until something is put into it.
type branch struct {
	// n is a file, or a directory that was taken; without a store it is neither.
	n     node
	below map[string]*branch
}

func (b *branch) isFile() bool { return b.n.in != nil && !b.n.dir() }

// open makes branches of what is in a directory.
func (c *Composition) open(b *branch) error {
	if b.below != nil {
		return nil
	}
	b.below = map[string]*branch{}
	if b.n.in == nil {
		return nil
	}
	entries, err := b.n.list()
	if err != nil {
		return err
	}
	if err := c.effort.Spend(1 + len(entries)); err != nil {
		return err
	}
	for _, e := range entries {
		b.below[e.name] = &branch{n: e.node}
	}
	b.n = node{}
	return nil
}

// put puts a node at a path. A file replaces a file, a directory is put over one.
func (c *Composition) put(b *branch, at, rest string, n node) error {
	if err := c.effort.Spend(1); err != nil {
		return err
	}
	if rest != "" {
		if b.isFile() {
			return failf(ReasonCopyFailure, "cannot put files below %q: it is a file", at)
		}
		if err := c.open(b); err != nil {
			return err
		}
		part, rest, _ := strings.Cut(rest, "/")
		next := b.below[part]
		if next == nil {
			next = &branch{}
			b.below[part] = next
		}
		return c.put(next, join(at, part), rest, n)
	}
	isDir := n.dir()
	switch {
	case b.isFile() && isDir:
		return failf(ReasonCopyFailure, "cannot put a directory at %q: it is a file", at)
	case !isDir && (b.below != nil || b.n.in != nil && b.n.dir()):
		return failf(ReasonCopyFailure, "cannot put a file at %q: it is a directory", at)
	case !isDir, b.n.in == nil && b.below == nil, b.n.in != nil && b.n.id == n.id:
		b.n = n
		return nil
	}
	entries, err := n.list()
	if err != nil {
		return err
	}
	if err := c.open(b); err != nil {
		return err
	}
	for _, e := range entries {
		next := b.below[e.name]
		if next == nil {
			next = &branch{}
			b.below[e.name] = next
		}
		if err := c.put(next, join(at, e.name), "", e.node); err != nil {
			return err
		}
	}
	return nil
}

// Put puts a file, or a directory with what is in it, at a path, over what is there. It is
// false for a directory without files, of which nothing is put. An error of reason
// CopyFailure says that a file and a directory would have the same path.
func (c *Composition) Put(to string, p Piece) (bool, error) {
	n := p.n
	if n.dir() {
		var err error
		if n, err = c.packed(p, 0); err != nil {
			return false, err
		}
		if entries, err := n.list(); err != nil || len(entries) == 0 {
			return false, err
		}
	}
	return true, c.put(c.root, "", clean(to), n)
}

// packed returns a directory without what its source would not pack. One of which everything
// is packed is returned as it is.
func (c *Composition) packed(p Piece, depth int) (node, error) {
	if depth > maxDepth {
		return node{}, failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	// Rules of a source are about paths.
	key := p.of.rules.id + "\n" + p.at + "\n" + string(p.n.id[:])
	if p.of.rules.matches == nil {
		key = string(p.n.id[:])
	}
	if whole, _ := c.of.whole.get(key); whole {
		return p.n, nil
	}
	entries, err := p.n.list()
	if err != nil {
		return node{}, err
	}
	if err := c.effort.Spend(1 + len(entries)); err != nil {
		return node{}, err
	}
	kept, changed := make(listing, 0, len(entries)), false
	for _, e := range entries {
		below := Piece{of: p.of, at: join(p.at, e.name), n: e.node}
		keep := e.dir() || plain(e.node)
		if keep {
			hidden, err := p.of.rules.hides(below.at, e.node)
			if err != nil {
				return node{}, err
			}
			keep = !hidden
		}
		n := e.node
		if keep && e.dir() {
			if n, err = c.packed(below, depth+1); err != nil {
				return node{}, err
			}
			inside, err := n.list()
			if err != nil {
				return node{}, err
			}
			keep = len(inside) > 0
		}
		if !keep {
			changed = true
			continue
		}
		changed = changed || n.id != e.id
		kept = append(kept, entry{e.name, n})
	}
	if changed {
		return compose(kept), nil
	}
	c.of.whole.put(key, true, 1)
	return p.n, nil
}

// find returns the branch that is at a path by now; nil if there is none.
func (c *Composition) find(at string) (*branch, error) {
	b, rest := c.root, clean(at)
	for rest != "" && b != nil {
		if b.isFile() {
			return nil, nil
		}
		if err := c.open(b); err != nil {
			return nil, err
		}
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		b = b.below[part]
	}
	return b, nil
}

// Dir reports whether a directory is at a path by now.
func (c *Composition) Dir(at string) (bool, error) {
	b, err := c.find(at)
	return b != nil && !b.isFile(), err
}

// Read returns the file that is at a path by now; false if there is none. The caller owns the
// bytes.
func (c *Composition) Read(at string) ([]byte, bool, error) {
	b, err := c.find(at)
	if err != nil || b == nil || !b.isFile() {
		return nil, false, err
	}
	data, err := b.n.read(at)
	return data, err == nil, err
}

// Write puts a file with a content of the caller's at a path. The bytes must not change
// afterwards.
func (c *Composition) Write(to string, data []byte) error {
	n, err := c.written.add(data)
	if err != nil {
		return err
	}
	return c.put(c.root, "", clean(to), n)
}

// Extract puts what is in a gzipped tarball into a directory, without links.
func (c *Composition) Extract(to string, p Piece) error {
	content, err := c.of.archives.obtain(c.effort.ctx, p.n.id.String(), func() (*archive, error) {
		r, _, err := p.n.in.open(p.n)
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", p.at, err)
		}
		defer r.Close()
		most := c.of.limits.packBytes
		packed := &limited{r: r, left: most, max: most, what: "the archive has", flag: "shrink it"}
		return unpack(c.effort.ctx, packed, c.of.dir, c.of.limits.inflatedBytes, c.of.limits.entriesMost)
	})
	if err != nil {
		if c.effort.ctx.Err() != nil {
			return c.effort.ctx.Err()
		}
		return wrapArtifact(p.at, err)
	}
	for _, s := range content.spans {
		c.inflated -= s.size
	}
	if c.inflated < 0 {
		return tooLong("the archives inflate to", c.of.limits.inflatedBytes, "shrink them")
	}
	if err := c.effort.Spend(1 + len(content.spans)); err != nil {
		return err
	}
	_, err = c.Put(to, Piece{of: &Snapshot{root: content.root, rules: &rules{id: "none"}}, n: content.root})
	return err
}

// End returns what was composed. Its digest follows from the paths, contents and modes of its
// files alone, whatever they come from. name gives it the rest that it says of itself.
func (c *Composition) End(name func(digest string) About) (*Snapshot, error) {
	root, err := c.grow(c.root, "", 0)
	if err != nil {
		return nil, err
	}
	if _, err := count(root, c.of.limits.entriesMost, 0); err != nil {
		return nil, err
	}
	sum, err := c.digest(root, 0)
	if err != nil {
		return nil, err
	}
	digest := "sha256:" + hex.EncodeToString(sum[:])
	about := name(digest)
	if err := allowed(about.File); err != nil {
		return nil, err
	}
	return &Snapshot{
		Revision: about.Revision, OriginRevision: about.OriginRevision, Digest: digest, Time: about.Time, File: about.File, Metadata: about.Metadata,
		root: root, rules: &rules{id: "none"}, packMost: MaxComposedBytes,
	}, nil
}

// grow makes a tree of a branch.
func (c *Composition) grow(b *branch, at string, depth int) (node, error) {
	if depth > maxDepth {
		return node{}, failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	if b.below == nil {
		if b.n.in == nil {
			return compose(nil), nil
		}
		return b.n, nil
	}
	if err := c.effort.Spend(1 + len(b.below)); err != nil {
		return node{}, err
	}
	entries := make(listing, 0, len(b.below))
	for name, next := range b.below {
		n, err := c.grow(next, join(at, name), depth+1)
		if err != nil {
			return node{}, err
		}
		entries = append(entries, entry{name, n})
	}
	return compose(entries), nil
}

// digest identifies what a directory is packed as.
func (c *Composition) digest(dir node, depth int) (id, error) {
	if depth > maxDepth {
		return id{}, failf(ReasonLimitExceeded, "directories nest more than %d deep", maxDepth)
	}
	if known, ok := c.of.digests.get(dir.id); ok {
		return known, nil
	}
	entries, err := dir.list()
	if err != nil {
		return id{}, err
	}
	if err := c.effort.Spend(1 + len(entries)); err != nil {
		return id{}, err
	}
	h := sha256.New()
	for _, e := range entries {
		kind, of := byte('f'), c.sum
		switch {
		case e.dir():
			kind, of = 'd', func(n node) (id, error) { return c.digest(n, depth+1) }
		case e.mode == filemode.Executable:
			kind = 'x'
		}
		content, err := of(e.node)
		if err != nil {
			return id{}, err
		}
		var head [5]byte
		head[0] = kind
		binary.BigEndian.PutUint32(head[1:], uint32(len(e.name)))
		h.Write(head[:])
		io.WriteString(h, e.name)
		h.Write(content[:])
	}
	var sum id
	h.Sum(sum[:0])
	c.of.digests.put(dir.id, sum, 1)
	return sum, nil
}

// sum is the SHA-256 of a file. What does not come by Git has it as its name.
func (c *Composition) sum(n node) (id, error) {
	if _, git := n.in.(*generation); !git {
		return n.id, nil
	}
	r, size, err := n.in.open(n)
	if err != nil {
		return id{}, fmt.Errorf("cannot read %s: %w", n.id, err)
	}
	defer r.Close()
	if err := c.effort.Spend(1 + int(size>>10)); err != nil {
		return id{}, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return id{}, fmt.Errorf("cannot read %s: %w", n.id, err)
	}
	var sum id
	h.Sum(sum[:0])
	return sum, nil
}

// written is a store of files that were made in memory.
type written struct {
	files map[id][]byte
	bytes int
}

func (w *written) add(data []byte) (node, error) {
	n := node{mode: filemode.Regular, id: sha256.Sum256(data), in: w}
	if _, known := w.files[n.id]; known {
		return n, nil
	}
	if w.bytes += len(data); w.bytes > maxWrittenBytes || len(data) > MaxFileBytes {
		return node{}, failf(ReasonLimitExceeded, "the merged files have more than %d bytes", maxWrittenBytes)
	}
	w.files[n.id] = data
	return n, nil
}

func (w *written) list(node) (listing, error) { return nil, errors.New("it is no directory") }

func (w *written) open(n node) (io.ReadCloser, int64, error) {
	data, ok := w.files[n.id]
	if !ok {
		return nil, 0, fmt.Errorf("no content %s was written", n.id)
	}
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}
