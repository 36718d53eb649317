package providers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/keep"
	"github.com/cascade-gitops/cascade/syncer/mask"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// Numbers of a Library, in bytes.
const (
	// remembered bounds the sets and failures that are kept. A set takes a few hundred
	// kilobytes, and a tier has a few for each of its layers. If components mention what
	// is of one child alone, each child has sets of its own.
	remembered = 32 << 20
	// rememberedNames bounds what is remembered about files and contracts.
	rememberedNames = 1 << 20
)

// Files of a source at one revision.
type Files interface {
	ReadFile(name string) ([]byte, error)
	// Stat tells what is at a path. The hash of a file stands for its content.
	Stat(name string) (dir bool, hash string, err error)
}

// Set has the objects of one Wanted. It is immutable, and shared.
type Set struct {
	Wanted
	// Namespace in which the provider works.
	Namespace string
	Objects   *apply.Packed
	// Probes tell whether the webhooks respond.
	Probes []Probe
	// Definitions among the objects.
	Definitions []Definition
	// Deployments of the namespace, by name.
	Deployments []string
}

// Order is a request to a Library.
type Order struct {
	Files Files
	// Content identifies what is in Files.
	Content string
	// Root is the directory that is laid out like a local repository.
	Root   string
	Wanted []Wanted
	// Variables that may be used, and those of their values that must not stand
	// in an error.
	Variables map[string]string
	Sensitive []string
}

// Library makes sets and remembers them. Use NewLibrary.
type Library struct {
	// uses of variables by file, checks of contracts by what was wanted, and sets,
	// each by all that it depends on.
	uses   keep.Once[[]string]
	checks keep.Once[struct{}]
	sets   keep.Once[*Set]
	// built counts sets that were built, for tests.
	built atomic.Int64
}

// NewLibrary returns an empty library.
func NewLibrary() *Library { return &Library{} }

// lastingError is a permanent failure: the same input fails again.
type lastingError struct{ err error }

func (e *lastingError) Error() string { return e.err.Error() }
func (e *lastingError) Unwrap() error { return e.err }

func lasting(err error) error { return &lastingError{err} }

func lasts(err error) bool {
	var again *lastingError
	return errors.As(err, &again)
}

// Sets returns the sets of an order, in its order. It checks all contracts before it
// renders the first set.
func (l *Library) Sets(ctx context.Context, o Order) ([]*Set, error) {
	root := strings.TrimPrefix(path.Clean("/"+o.Root), "/")
	names := []string{"contract", o.Content, root}
	for _, w := range o.Wanted {
		names = append(names, w.String())
	}
	if _, err := l.checks.Do(ctx, keyOf(names), rememberedNames, lasts, func() (struct{}, int, error) {
		return struct{}{}, 0, agree(o.Files, root, o.Wanted)
	}); err != nil {
		return nil, err
	}
	sets := make([]*Set, 0, len(o.Wanted))
	for _, w := range o.Wanted {
		set, err := l.set(ctx, o, root, w)
		if err != nil {
			return nil, mask.Error(fmt.Errorf("cannot render %s: %w", w, err), o.Sensitive)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

func (l *Library) set(ctx context.Context, o Order, root string, w Wanted) (*Set, error) {
	file := path.Join(w.dir(root), w.file)
	content, err := contentOf(o, file)
	if err != nil {
		return nil, err
	}
	// Only the names of the variables are remembered; the text is read again when a set
	// is built from it.
	uses, err := l.uses.Do(ctx, keyOf([]string{content, file}), rememberedNames, lasts, func() ([]string, int, error) {
		c, err := load(o.Files, file)
		if err != nil {
			return nil, 0, err
		}
		return c.Uses(), len(strings.Join(c.Uses(), "")), nil
	})
	if err != nil {
		return nil, err
	}
	depends := []string{content, file, w.String(), w.Deletion}
	for _, name := range uses {
		if value, ok := o.Variables[name]; ok {
			depends = append(depends, name+"="+value)
		}
	}
	annotations, err := expanded(w.Annotations, o.Variables)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		depends = append(depends, name+": "+annotations[name])
	}
	set, err := l.sets.Do(ctx, keyOf(depends), remembered, lasts, func() (*Set, int, error) {
		return l.build(o, file, w, annotations)
	})
	if err != nil {
		return nil, err
	}
	if len(w.Credentials) == 0 {
		return set, nil
	}
	// Credentials are no part of what is shared.
	with := *set
	with.Credentials = w.Credentials
	return &with, nil
}

// contentOf identifies what is in a file, of which revision it may be. What is absent is
// looked for again in the next revision.
func contentOf(o Order, file string) (string, error) {
	_, hash, err := o.Files.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "none in " + o.Content, nil
	case err != nil:
		return "", fmt.Errorf("cannot find %s: %w", file, err)
	}
	return hash, nil
}

func (l *Library) build(o Order, file string, w Wanted, annotations map[string]string) (*Set, int, error) {
	c, err := load(o.Files, file)
	if err != nil {
		return nil, 0, err
	}
	objects, err := c.Objects(o.Variables)
	if err != nil {
		return nil, 0, lasting(fmt.Errorf("%s: %w", file, err))
	}
	l.built.Add(1)
	set, err := assemble(w, objects, annotations)
	if err != nil {
		return nil, 0, err
	}
	return set, set.Objects.Size(), nil
}

func load(files Files, file string) (*render.Components, error) {
	c, err := render.LoadComponents(files, file)
	var again *render.Error
	if errors.As(err, &again) {
		return nil, lasting(err)
	}
	return c, err
}

func expanded(annotations, variables map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(annotations))
	for name, value := range annotations {
		text, err := render.Expand(value, variables)
		if err != nil {
			return nil, fmt.Errorf("annotation %s of the ServiceAccounts: %w", name, err)
		}
		out[name] = text
	}
	return out, nil
}

// keyOf hides the values of variables, which may be secret.
func keyOf(parts []string) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(parts)
	return hex.EncodeToString(h.Sum(nil))
}
