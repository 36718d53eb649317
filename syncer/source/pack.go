package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// MaxObjectBytes bounds one object of a repository: the library holds an object
// in memory while it applies deltas to it.
const MaxObjectBytes = 100 << 20

// MaxInflatedBytes bounds what all objects of one pack add up to.
const MaxInflatedBytes = 4 << 30

// Bounds of deltas. To read an object, all that it is made of are made, one after the
// other, each time that it is read.
const (
	// maxChain bounds how many deltas are applied for one object. Git makes 50, and at
	// most 250 where somebody asks for small packs.
	maxChain = 250
	// maxChainBytes bounds what all objects on the way to one add up to.
	maxChainBytes = 1 << 30
	// largeBytes is the size from which the library's cache has room for few objects.
	// What is on the way to all of them together is bounded by maxWorkBytes.
	largeBytes   = 1 << 20
	maxWorkBytes = 32 << 30
)

// maxTreeBytes bounds one directory: it has room for some hundred thousand names.
const maxTreeBytes = 16 << 20

// inspect reads a pack through and fails if what it inflates to is beyond the
// limits, before anything is built of it. A pack of a megabyte may say that it
// has billions of objects, be a terabyte of zeros, or take days to put together.
func inspect(ctx context.Context, pack io.Reader, objectsMost int, inflatedMost int64) error {
	scanner := packfile.NewScanner(io.NopCloser(contextReader{ctx, pack}))
	_, objects, err := scanner.Header()
	if errors.Is(err, packfile.ErrEmptyPackfile) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read pack: %w", err)
	}
	if int64(objects) > int64(objectsMost) {
		return failf(ReasonLimitExceeded, "cannot fetch: the repository has %d objects, more than the limit of %d", objects, objectsMost)
	}
	seen := &chains{at: map[int64]link{}, named: map[plumbing.Hash]link{}}
	var total int64
	for range objects {
		size, err := seen.next(scanner)
		if err != nil {
			return err
		}
		if total += size; total > inflatedMost {
			return failf(ReasonLimitExceeded, "cannot fetch: the repository inflates to more than %d bytes", inflatedMost)
		}
	}
	return nil
}

// chains are the objects of a pack that were read, as far as others may be made of
// them.
type chains struct {
	at    map[int64]link
	named map[plumbing.Hash]link
	// elsewhere is what deltas add up to whose base is not known: it may be in another
	// pack, or be a delta of this one, so that all of them may be one chain.
	elsewhere int64
	work      int64
}

// link is an object at the end of its chain.
type link struct {
	kind  plumbing.ObjectType // AnyObject if it is not known
	depth int
	bytes int64
}

// next reads the next object and returns its size.
func (c *chains) next(scanner *packfile.Scanner) (int64, error) {
	header, err := scanner.NextObjectHeader()
	if err != nil {
		return 0, fmt.Errorf("cannot read pack: %w", err)
	}
	if header.Length > MaxObjectBytes {
		return 0, tooLarge(header.Length)
	}
	object := &inflating{most: MaxObjectBytes, delta: header.Type == plumbing.OFSDeltaObject || header.Type == plumbing.REFDeltaObject}
	if object.delta {
		if _, _, err := scanner.NextObject(object); err != nil {
			return 0, fmt.Errorf("cannot read pack: %w", err)
		}
		size, err := object.target()
		if err != nil {
			return 0, fmt.Errorf("cannot read pack: %w", err)
		}
		l, err := c.onto(header, size)
		if err != nil {
			return 0, err
		}
		c.at[header.Offset] = l
		return size, nil
	}
	if header.Type == plumbing.TreeObject && header.Length > maxTreeBytes {
		return 0, tooManyNames(header.Length)
	}
	hasher := plumbing.NewHasher(header.Type, header.Length)
	if _, _, err := scanner.NextObject(io.MultiWriter(object, hasher)); err != nil {
		return 0, fmt.Errorf("cannot read pack: %w", err)
	}
	l := link{kind: header.Type, bytes: object.size}
	c.at[header.Offset], c.named[hasher.Sum()] = l, l
	return object.size, nil
}

// onto is a delta on the object that its header names.
func (c *chains) onto(header *packfile.ObjectHeader, size int64) (link, error) {
	if size > MaxObjectBytes {
		return link{}, tooLarge(size)
	}
	base, known := c.named[header.Reference]
	if header.Type == plumbing.OFSDeltaObject {
		base, known = c.at[header.OffsetReference]
	}
	if !known {
		base = link{kind: plumbing.AnyObject}
		if size > largeBytes {
			c.elsewhere += size
		}
	}
	l := link{kind: base.kind, depth: base.depth + 1, bytes: base.bytes + size}
	if size > largeBytes {
		c.work += l.bytes
	}
	switch {
	case l.kind == plumbing.TreeObject && size > maxTreeBytes:
		return link{}, tooManyNames(size)
	case l.depth > maxChain:
		return link{}, failf(ReasonLimitExceeded, "cannot fetch: an object is made of more than %d deltas; pack the repository again, with git gc", maxChain)
	case l.bytes > maxChainBytes || c.elsewhere > maxChainBytes:
		return link{}, failf(ReasonLimitExceeded, "cannot fetch: the deltas of an object make more than %d bytes; keep large files elsewhere", maxChainBytes)
	case c.work > maxWorkBytes:
		return link{}, failf(ReasonLimitExceeded, "cannot fetch: the deltas of large files make more than %d bytes; keep large files elsewhere", int64(maxWorkBytes))
	}
	return l, nil
}

func tooLarge(size int64) error {
	return failf(ReasonLimitExceeded, "cannot fetch: an object of %d bytes is more than the limit of %d", size, MaxObjectBytes)
}

func tooManyNames(size int64) error {
	return failf(ReasonLimitExceeded, "cannot read a directory: its names take %d bytes, more than the limit of %d", size, maxTreeBytes)
}

// inflating measures an object that is inflated into it. Of a delta it keeps
// the beginning, which says how large the result is.
type inflating struct {
	size, most int64
	delta      bool
	head       []byte
}

// deltaHead is enough for the two numbers that a delta begins with.
const deltaHead = 2 * binary.MaxVarintLen64

func (i *inflating) Write(p []byte) (int, error) {
	if i.delta && len(i.head) < deltaHead {
		i.head = append(i.head, p[:min(len(p), deltaHead-len(i.head))]...)
	}
	if i.size += int64(len(p)); i.size > i.most {
		return 0, tooLarge(i.size)
	}
	return len(p), nil
}

func (i *inflating) target() (int64, error) {
	_, n := binary.Uvarint(i.head)
	if n <= 0 {
		return 0, errors.New("a delta is cut off")
	}
	size, m := binary.Uvarint(i.head[n:])
	if m <= 0 || size > 1<<62 {
		return 0, errors.New("a delta is cut off")
	}
	return int64(size), nil
}

// contextReader fails when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// contextFile is a file that cannot be read after its context ended.
type contextFile struct {
	ctx context.Context
	*os.File
}

func (f contextFile) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

// WriteTo hides that of the file, which would copy it without a look at the context.
func (f contextFile) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, contextReader{f.ctx, f.File})
}

// limited fails when more is read than a limit allows.
type limited struct {
	r         io.Reader
	left, max int64
	// what and flag name the limit for people.
	what, flag string
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return n, tooLong(l.what, l.max, l.flag)
	}
	return n, err
}

func tooLong(what string, most int64, flag string) error {
	return failf(ReasonLimitExceeded, "cannot fetch: %s more than %d bytes; %s", what, most, flag)
}
