package store

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"github.com/cascade-gitops/cascade/state/archive"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Names in a bucket, below the prefix.
const (
	recordObject = "record.json"
	tryObject    = "conditions.txt"
)

// mostObjects bounds what is listed of a bucket: versions of years, one each five minutes. A list of more is
// refused, as who takes a part of it for all restores an old version as the newest.
const mostObjects = 300_000

// objects are a place in a bucket. The record is one object, which is replaced on the
// condition that it is the one that was read; each version is another one.
type objects struct {
	in     *source.Objects
	prefix string
	// name for people.
	name string
}

func (o *objects) String() string { return o.name }

func (o *objects) close() error {
	o.in.Close()
	return nil
}

func (o *objects) record(ctx context.Context) ([]byte, string, error) {
	content, tag, err := o.in.Get(ctx, o.prefix+recordObject)
	if errors.Is(err, source.ErrNoObject) {
		return nil, "", nil
	}
	return content, tag, err
}

func (o *objects) swap(ctx context.Context, tag string, record []byte, _ string, _ []byte) error {
	_, err := o.in.Put(ctx, o.prefix+recordObject, record, tag)
	if errors.Is(err, source.ErrMoved) {
		return errMoved
	}
	return err
}

// put writes a version. One of the name was left by a save that did not come to its end.
func (o *objects) put(ctx context.Context, name string, content []byte) (apart bool, err error) {
	name = o.prefix + name
	_, err = o.in.Put(ctx, name, content, "")
	if !errors.Is(err, source.ErrMoved) {
		return true, err
	}
	there, tag, err := o.in.Get(ctx, name)
	switch {
	case errors.Is(err, source.ErrNoObject):
		return true, errMoved // it is being deleted; begin again
	case err != nil:
		return true, err
	case bytes.Equal(there, content):
		return true, nil
	}
	_, err = o.in.Put(ctx, name, content, tag)
	if errors.Is(err, source.ErrMoved) {
		return true, errMoved
	}
	return true, err
}

func (o *objects) read(ctx context.Context, name string) ([]byte, error) {
	content, _, err := o.in.Get(ctx, o.prefix+name)
	if errors.Is(err, source.ErrNoObject) {
		return nil, errAbsent
	}
	return content, err
}

func (o *objects) list(ctx context.Context) (map[string]int64, error) {
	// The record and the object of try are beside the versions, and so may be others.
	found, err := o.in.List(ctx, o.prefix, mostObjects)
	if err != nil {
		return nil, err
	}
	files := map[string]int64{}
	for _, f := range found {
		if name := strings.TrimPrefix(f.Name, o.prefix); name != recordObject && name != tryObject {
			files[name] = f.Size
		}
	}
	return files, nil
}

func (o *objects) remove(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := o.in.Remove(ctx, o.prefix+name); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) try(ctx context.Context) error { return o.in.Conditional(ctx, o.prefix+tryObject) }

// openObjects opens a bucket. What people keep in it beside is not touched.
func openObjects(ctx context.Context, origin source.BucketOrigin, prefix, name string) (place, error) {
	in, err := origin.Objects(ctx, archive.MaxBytes)
	if err != nil {
		return nil, err
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	return &objects{in: in, prefix: prefix, name: name}, nil
}
