package source

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// ErrNoObject: a bucket has no object of a name.
var ErrNoObject = errNoObject

// Objects are those of a bucket, read and written one by one. A write is held to what
// the object was when it was read, by the server: of two that read the same, one writes.
// It is safe for concurrent use.
//
// Which servers do that, and how, is documented: S3 by If-None-Match and If-Match of
// PutObject (Amazon since November 2024, and others that follow it), Azure by the same
// headers of Put Blob, Google by ifGenerationMatch of objects.insert. A server of S3 that
// does not know the headers writes all the same; see [Objects.Conditional].
type Objects struct {
	in   writable
	most int64
}

// Object is one of a bucket.
type Object struct {
	Name string
	Size int64
}

// writable is a bucket that is written to.
type writable interface {
	bucket
	// put writes an object if it is still at tag, or if there is none and tag is empty.
	// It fails with ErrMoved if that is not so. It returns the new tag.
	put(ctx context.Context, name string, content []byte, tag string) (string, error)
	// tag of an object that was opened, by which put knows it.
	tag(blob) string
	// remove deletes an object, whatever it is. One that is not there is gone.
	remove(ctx context.Context, name string) error
}

// Objects opens the bucket to write to it. An object of more than most bytes is neither
// read nor written. Credentials that lapse are got anew for as long as it is open, also
// after the end of this context: what is open may be needed at the end of a program.
func (o BucketOrigin) Objects(ctx context.Context, most int64) (*Objects, error) {
	o.write = true
	opened, err := o.open(AllowNetwork(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	in, ok := opened.(writable)
	if !ok {
		opened.close()
		return nil, failf(ReasonInvalidProvider, "cannot write to a bucket of provider %q", o.Provider)
	}
	return &Objects{in: in, most: most}, nil
}

// Close ends connections.
func (o *Objects) Close() { o.in.close() }

// Get reads an object, and the tag that a write is held to. The error wraps ErrNoObject if
// there is none.
func (o *Objects) Get(ctx context.Context, name string) (content []byte, tag string, err error) {
	defer recovered(&err)
	body, now, err := o.in.open(ctx, blob{key: name})
	if err != nil {
		return nil, "", fmt.Errorf("cannot read object %s: %w", name, err)
	}
	defer body.Close()
	content, err = io.ReadAll(&limited{r: body, left: o.most, max: o.most, what: "the object has", flag: "it is not one that this program wrote"})
	if err != nil {
		return nil, "", fmt.Errorf("cannot read object %s: %w", name, said(err))
	}
	return content, o.in.tag(now), nil
}

// Put writes an object if it is still at the tag; if the tag is empty, there must be none.
// Otherwise the error wraps ErrMoved. Any other error leaves it open whether it was written.
func (o *Objects) Put(ctx context.Context, name string, content []byte, tag string) (_ string, err error) {
	defer recovered(&err)
	if int64(len(content)) > o.most {
		return "", failf(ReasonLimitExceeded, "cannot write object %s: it has %d bytes, of which %d are allowed", name, len(content), o.most)
	}
	now, err := o.in.put(ctx, name, content, tag)
	if err != nil {
		return "", fmt.Errorf("cannot write object %s: %w", name, err)
	}
	return now, nil
}

// Remove deletes an object. One that is not there is gone.
func (o *Objects) Remove(ctx context.Context, name string) (err error) {
	defer recovered(&err)
	if err := o.in.remove(ctx, name); err != nil && !errors.Is(err, errNoObject) {
		return fmt.Errorf("cannot delete object %s: %w", name, err)
	}
	return nil
}

// List returns the objects whose names begin with a prefix, at most so many.
func (o *Objects) List(ctx context.Context, prefix string, most int) (found []Object, err error) {
	defer recovered(&err)
	err = o.in.list(ctx, prefix, func(b blob) error {
		if len(found) == most {
			return failf(ReasonLimitExceeded, "it has more than %d objects; use a prefix of its own", most)
		}
		found = append(found, Object{Name: b.key, Size: b.size})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list objects: %w", err)
	}
	return found, nil
}

// Conditional fails unless the server holds writes to what it was told, as it is found out
// with an object that has no content of use. What servers do that ignore the conditions
// cannot be told from success otherwise.
func (o *Objects) Conditional(ctx context.Context, name string) error {
	const unknown = "cannot use the bucket: its server writes an object although the condition of the write does not hold; use one that knows If-None-Match and If-Match"
	content := []byte("conditions of writes are tried with this object\n")
	_, err := o.Put(ctx, name, content, "")
	if err == nil {
		_, err = o.Put(ctx, name, content, "")
	}
	switch {
	case err == nil:
		return failf(ReasonBucketFailed, unknown)
	case !errors.Is(err, ErrMoved):
		return err
	}
	// No object was ever at this one.
	switch _, err := o.Put(ctx, name, content, "1"); {
	case err == nil:
		return failf(ReasonBucketFailed, unknown)
	case !errors.Is(err, ErrMoved):
		return err
	}
	return nil
}
