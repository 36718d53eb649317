package providers

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"k8s.io/utils/lru"

	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// Numbers of a Library.
const (
	// remembered bounds the sets and failures that are kept. A set takes a few
	// hundred kilobytes, and a tier has a few for each of its layers.
	remembered = 64
	// rememberedFiles bounds what is remembered about files.
	rememberedFiles = 256
)

// Files of a source at one revision.
type Files interface {
	ReadFile(name string) ([]byte, error)
}

// Set has the objects of one Wanted. It is immutable, and shared.
type Set struct {
	Wanted
	// Namespace in which the provider works.
	Namespace string
	Objects   *apply.Packed
	// Probes tell whether the webhooks respond.
	Probes []Probe
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
	mu sync.Mutex
	// uses of variables by file, checks of contracts by what was wanted, and sets,
	// each by all that it depends on.
	uses   *lru.Cache
	checks *lru.Cache
	sets   *lru.Cache
	// built counts sets that were built, for tests.
	built int
}

// NewLibrary returns an empty library.
func NewLibrary() *Library {
	return &Library{uses: lru.New(rememberedFiles), checks: lru.New(rememberedFiles), sets: lru.New(remembered)}
}

// work is something that is done once; others wait for it.
type work[T any] struct {
	once   sync.Once
	result T
	err    error
}

// lastingError is a permanent failure: the same input fails again.
type lastingError struct{ err error }

func (e *lastingError) Error() string { return e.err.Error() }
func (e *lastingError) Unwrap() error { return e.err }

func lasting(err error) error { return &lastingError{err} }

// once does the work of a key once. A failure that may pass is forgotten, so that the
// next call does the work again.
func once[T any](mu *sync.Mutex, cache *lru.Cache, key string, do func() (T, error)) (T, error) {
	mu.Lock()
	found, ok := cache.Get(key)
	if !ok {
		found = &work[T]{}
		cache.Add(key, found)
	}
	mu.Unlock()
	w := found.(*work[T])
	w.once.Do(func() { w.result, w.err = do() })
	var again *lastingError
	if w.err != nil && !errors.As(w.err, &again) {
		mu.Lock()
		if now, ok := cache.Get(key); ok && now == found {
			cache.Remove(key)
		}
		mu.Unlock()
	}
	return w.result, w.err
}

// Sets returns the sets of an order, in its order. It checks all contracts before it
// renders the first set.
func (l *Library) Sets(o Order) ([]*Set, error) {
	root := strings.TrimPrefix(path.Clean("/"+o.Root), "/")
	names := []string{"contract", o.Content, root}
	for _, w := range o.Wanted {
		names = append(names, w.String())
	}
	if _, err := once(&l.mu, l.checks, keyOf(names), func() (struct{}, error) {
		return struct{}{}, agree(o.Files, root, o.Wanted)
	}); err != nil {
		return nil, err
	}
	sets := make([]*Set, 0, len(o.Wanted))
	for _, w := range o.Wanted {
		set, err := l.set(o, root, w)
		if err != nil {
			return nil, render.Mask(fmt.Errorf("cannot render %s: %w", w, err), o.Sensitive)
		}
		sets = append(sets, set)
	}
	return sets, nil
}

func (l *Library) set(o Order, root string, w Wanted) (*Set, error) {
	file := path.Join(w.dir(root), w.file)
	// Only the names of the variables are remembered; the text is read again when a set
	// is built from it.
	uses, err := once(&l.mu, l.uses, keyOf([]string{o.Content, file}), func() ([]string, error) {
		c, err := load(o.Files, file)
		if err != nil {
			return nil, err
		}
		return c.Uses(), nil
	})
	if err != nil {
		return nil, err
	}
	depends := []string{o.Content, file, w.String(), w.Deletion}
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
	set, err := once(&l.mu, l.sets, keyOf(depends), func() (*Set, error) {
		c, err := load(o.Files, file)
		if err != nil {
			return nil, err
		}
		objects, err := c.Objects(o.Variables)
		if err != nil {
			return nil, lasting(fmt.Errorf("%s: %w", file, err))
		}
		l.mu.Lock()
		l.built++
		l.mu.Unlock()
		return assemble(w, objects, annotations)
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
