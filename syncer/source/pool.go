package source

import (
	"context"
	"sync"
	"weak"

	"github.com/cascade-gitops/cascade/syncer/flight"
)

// pool shares things that are costly to get, as long as they are held. Of
// callers that ask for the same thing at the same time one gets it, and the
// others wait. Each of them tries for itself if that fails. The zero value is
// ready.
type pool[T any] struct {
	getting flight.Group[*T]

	mu   sync.Mutex // guards kept
	kept map[string]weak.Pointer[T]
}

func (p *pool[T]) obtain(ctx context.Context, key string, get func() (*T, error)) (*T, error) {
	return p.getting.Try(ctx, key, func() (*T, bool) { return p.known(key) }, func() (*T, error) {
		got, err := get()
		p.keep(key, got)
		return got, err
	})
}

func (p *pool[T]) known(key string) (*T, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.kept[key].Value()
	return known, known != nil
}

// keep remembers a thing, unless it is nil, and drops those that are not held
// any more.
func (p *pool[T]) keep(key string, got *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, kept := range p.kept {
		if kept.Value() == nil {
			delete(p.kept, key)
		}
	}
	if got == nil {
		return
	}
	if p.kept == nil {
		p.kept = map[string]weak.Pointer[T]{}
	}
	p.kept[key] = weak.Make(got)
}

// forget lets the next caller get a thing anew.
func (p *pool[T]) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, key)
}
