package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// MaxObjectBytes bounds one object of a repository: the library holds an object
// in memory while it applies deltas to it.
const MaxObjectBytes = 100 << 20

// MaxInflatedBytes bounds what all objects of one pack add up to.
const MaxInflatedBytes = 4 << 30

// inspect reads a pack through and fails if what it inflates to is beyond the
// limits, before anything is built of it. A pack of a megabyte may say that it
// has billions of objects, or be a terabyte of zeros.
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
	var total int64
	for range objects {
		header, err := scanner.NextObjectHeader()
		if err != nil {
			return fmt.Errorf("cannot read pack: %w", err)
		}
		object := &inflating{most: MaxObjectBytes, delta: header.Type == plumbing.OFSDeltaObject || header.Type == plumbing.REFDeltaObject}
		if header.Length > MaxObjectBytes {
			return tooLarge(header.Length)
		}
		if _, _, err := scanner.NextObject(object); err != nil {
			return fmt.Errorf("cannot read pack: %w", err)
		}
		size := object.size
		if object.delta {
			if size, err = object.target(); err != nil {
				return fmt.Errorf("cannot read pack: %w", err)
			}
			if size > MaxObjectBytes {
				return tooLarge(size)
			}
		}
		if total += size; total > inflatedMost {
			return failf(ReasonLimitExceeded, "cannot fetch: the repository inflates to more than %d bytes", inflatedMost)
		}
	}
	return nil
}

func tooLarge(size int64) error {
	return failf(ReasonLimitExceeded, "cannot fetch: an object of %d bytes is more than the limit of %d", size, MaxObjectBytes)
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
		return n, failf(ReasonLimitExceeded, "cannot fetch: %s more than %d bytes; %s", l.what, l.max, l.flag)
	}
	return n, err
}
