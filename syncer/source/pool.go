package source

import (
	"context"
	"sync"
	"weak"
)

// pool shares what is costly to get: of those that ask for the same thing at
// the same time one gets it and the others wait, no longer than they have time.
// It is kept as long as somebody holds it. The zero value is ready.
type pool[T any] struct {
	mu   sync.Mutex
	kept map[string]weak.Pointer[T]
	// busy has a channel for each thing that somebody is getting, closed at the
	// end.
	busy map[string]chan struct{}
}

func (p *pool[T]) obtain(ctx context.Context, key string, get func() (*T, error)) (*T, error) {
	for {
		p.mu.Lock()
		if known := p.kept[key].Value(); known != nil {
			p.mu.Unlock()
			return known, nil
		}
		running, ok := p.busy[key]
		if !ok {
			break
		}
		p.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.kept == nil {
		p.kept, p.busy = map[string]weak.Pointer[T]{}, map[string]chan struct{}{}
	}
	done := make(chan struct{})
	p.busy[key] = done
	p.mu.Unlock()
	var got *T
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.busy, key)
		close(done)
		for key, kept := range p.kept {
			if kept.Value() == nil {
				delete(p.kept, key)
			}
		}
		if got != nil {
			p.kept[key] = weak.Make(got)
		}
	}()
	var err error
	got, err = get()
	return got, err
}

// forget makes the next one who asks get it anew.
func (p *pool[T]) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, key)
}
