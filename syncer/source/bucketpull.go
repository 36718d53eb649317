package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"sync/atomic"

	"github.com/fluxcd/pkg/sourceignore"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sync/errgroup"
)

// bucketPull fetches the objects of a bucket at one revision into one file. What
// the snapshot before has already is not fetched again.
type bucketPull struct {
	*Buckets
	from  bucket
	index map[string]blob
	file  *os.File
	here  *archive
	// end is where the next object goes in the file, left how much may yet come.
	end, left atomic.Int64
}

// pulled is one object that is there now.
type pulled struct {
	blob blob
	node node
	span span
	// gone: it was deleted since the list was made.
	gone bool
}

// pull fetches what is not in last.
func (b *Buckets) pull(ctx context.Context, from bucket, origin BucketOrigin, index map[string]blob, rulesFile []byte, last *Snapshot) (_ *contents, err error) {
	f, err := unnamed(b.dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	p := &bucketPull{Buckets: b, from: from, index: index, file: f, here: &archive{file: f, spans: map[id]span{}}}
	p.left.Store(b.limits.packBytes)
	got := &contents{place: origin.place(), objects: make(map[string]stored, len(index))}
	objects, err := p.fetch(ctx, got.place, last)
	if err != nil {
		return nil, err
	}
	root := &folder{}
	if err := p.add(objects, root, got); err != nil {
		return nil, err
	}
	// Flux keeps the file of rules too, though it is no part of the revision.
	if rulesFile != nil {
		if err := p.addRules(ctx, rulesFile, root); err != nil {
			return nil, err
		}
	}
	got.root, err = root.node(0)
	return got, err
}

// kept are the objects of the index that the snapshot before has.
func (p *bucketPull) kept(place string, last *Snapshot) map[string]stored {
	kept := map[string]stored{}
	if last == nil || last.bucket == nil || last.bucket.place != place {
		return kept
	}
	for key, now := range p.index {
		if s, ok := last.bucket.objects[key]; ok && s.etag == now.etag && s.etag != "" {
			kept[key] = s
		}
	}
	return kept
}

// fetch brings each object here, a few at a time, or leaves it where it is.
func (p *bucketPull) fetch(ctx context.Context, place string, last *Snapshot) (map[string]pulled, error) {
	keys := slices.Sorted(maps.Keys(p.index))
	kept := p.kept(place, last)
	crowded := len(storesOf(kept)) >= storesMost
	results := make([]pulled, len(keys))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelObjects)
	for i, key := range keys {
		s, ok := kept[key]
		if ok && !crowded {
			results[i] = pulled{blob: p.index[key], node: s.node}
			continue
		}
		before := &s
		if !ok {
			before = nil
		}
		group.Go(func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = fmt.Errorf("cannot fetch object %q: %v", key, r)
				}
			}()
			if groupCtx.Err() != nil {
				return groupCtx.Err()
			}
			if results[i], err = p.one(ctx, groupCtx, p.index[key], before); err != nil {
				return fmt.Errorf("cannot fetch object %q: %w", key, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	objects := make(map[string]pulled, len(keys))
	for i, key := range keys {
		objects[key] = results[i]
	}
	return objects, nil
}

// one copies one object, from the snapshot before if that has it. opening is the
// context of the request, ctx that of the copy.
func (p *bucketPull) one(ctx, opening context.Context, now blob, before *stored) (_ pulled, err error) {
	var body io.ReadCloser
	if before != nil {
		body, now.size, err = before.node.in.open(before.node)
	} else {
		body, now, err = p.from.open(opening, now)
	}
	if errors.Is(err, errNoObject) {
		return pulled{gone: true}, nil
	}
	if err != nil {
		return pulled{}, err
	}
	defer body.Close()
	n, s, err := p.write(ctx, body, now.size)
	if err != nil {
		return pulled{}, err
	}
	return pulled{blob: now, node: n, span: s}, nil
}

// write copies content into a place of its own.
func (p *bucketPull) write(ctx context.Context, r io.Reader, size int64) (node, span, error) {
	if size < 0 {
		// The server does not tell.
		most := p.left.Load()
		whole, err := newSpool(ctx, p.dir, &limited{r: r, left: most, max: most, what: "the objects have", flag: "use a prefix"})
		if err != nil {
			return node{}, span{}, err
		}
		defer whole.close()
		r, size = whole.reader(), whole.size
	}
	if p.left.Add(-size) < 0 {
		return node{}, span{}, failf(ReasonLimitExceeded, "the objects have more than %d bytes", p.limits.packBytes)
	}
	s := span{p.end.Add(size) - size, size}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(io.NewOffsetWriter(p.file, s.at), h), io.LimitReader(contextReader{ctx, r}, size))
	if err != nil {
		return node{}, span{}, err
	}
	if n != size {
		return node{}, span{}, fmt.Errorf("%d bytes were sent of %d", n, size)
	}
	to := node{mode: filemode.Regular, in: p.here}
	h.Sum(to.id[:0])
	return to, s, nil
}

// add puts the objects into the tree and into the contents.
func (p *bucketPull) add(objects map[string]pulled, root *folder, got *contents) error {
	final := make(map[string]blob, len(objects))
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		o := objects[key]
		if o.gone {
			continue
		}
		if o.node.in == p.here {
			p.here.spans[o.node.id] = o.span
		}
		final[key] = o.blob
		got.objects[key] = stored{o.blob.etag, o.node}
		if err := root.put(clean(key), &o.node); err != nil {
			return err
		}
	}
	got.revision = revisionOf(final)
	return nil
}

func (p *bucketPull) addRules(ctx context.Context, rulesFile []byte, root *folder) error {
	n, s, err := p.write(ctx, bytes.NewReader(rulesFile), int64(len(rulesFile)))
	if err != nil {
		return err
	}
	p.here.spans[n.id] = s
	return root.put(path.Base(sourceignore.IgnoreFile), &n)
}
