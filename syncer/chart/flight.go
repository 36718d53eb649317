package chart

import (
	"context"
	"errors"
	"sync"
)

// flights lets one of those that want the same at the same time make it, while the
// others wait for what it made.
type flights[T any] struct {
	mu   sync.Mutex
	busy map[string]*flight[T]
}

type flight[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// do returns what is known, what another one makes just now, or what get gets.
func (f *flights[T]) do(ctx context.Context, key string, known func() (T, bool), get func() (T, error)) (T, error) {
	for {
		f.mu.Lock()
		if value, ok := known(); ok {
			f.mu.Unlock()
			return value, nil
		}
		running := f.busy[key]
		if running == nil {
			return f.lead(key, get)
		}
		f.mu.Unlock()
		select {
		case <-running.done:
			// That another one gave up says nothing of what was wanted.
			gaveUp := errors.Is(running.err, context.Canceled) || errors.Is(running.err, context.DeadlineExceeded)
			if gaveUp && ctx.Err() == nil {
				continue
			}
			return running.value, running.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

// lead is called with the lock held.
func (f *flights[T]) lead(key string, get func() (T, error)) (T, error) {
	own := &flight[T]{done: make(chan struct{}), err: errors.New("it did not come to an end")}
	if f.busy == nil {
		f.busy = map[string]*flight[T]{}
	}
	f.busy[key] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.busy, key)
		f.mu.Unlock()
		close(own.done)
	}()
	own.value, own.err = get()
	return own.value, own.err
}
