// Package flight lets callers that want the same thing at the same time share
// the work of getting it.
//
// One caller gets the thing in its own goroutine and with its own context. The
// others wait for it, no longer than they have time. The package is written by
// hand, and not golang.org/x/sync/singleflight, for three properties that it does
// not have together:
//
//   - a caller stops waiting when its own context ends (Do of singleflight waits
//     for the first caller however long that takes);
//   - the work ends with the caller that does it, and no goroutine is left behind
//     (DoChan works in a goroutine that nobody waits for);
//   - a panic in the work is the panic of that one caller, who may recover from it
//     (DoChan ends the process). What is shared here parses charts and archives
//     that nobody trusts.
//
// A caller that gave up says nothing of the thing: another caller takes its place.
package flight

import (
	"context"
	"errors"
	"sync"
)

// errPanic is what callers get that waited for one that panicked.
var errPanic = errors.New("it did not come to an end")

// Group shares the work of getting things by their keys. The zero value is ready.
// It is safe for concurrent use.
type Group[T any] struct {
	mu   sync.Mutex // guards busy, and is held while known is called
	busy map[string]*call[T]
}

// call is work that is under way.
type call[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// Do returns what is known, or what another caller gets just now, or what get
// gets. An error of another caller is this one's as well, unless that caller gave
// up. known must be quick. get has to make what it returns known, if that is to
// outlast the call.
func (g *Group[T]) Do(ctx context.Context, key string, known func() (T, bool), get func() (T, error)) (T, error) {
	return g.do(ctx, key, known, get, gaveUp)
}

// Try is Do, but a caller whose predecessor failed tries for itself.
func (g *Group[T]) Try(ctx context.Context, key string, known func() (T, bool), get func() (T, error)) (T, error) {
	return g.do(ctx, key, known, get, func(err error) bool { return err != nil })
}

// do takes another turn after a predecessor's error that again holds for.
func (g *Group[T]) do(ctx context.Context, key string, known func() (T, bool), get func() (T, error), again func(error) bool) (T, error) {
	for {
		g.mu.Lock()
		if value, ok := known(); ok {
			g.mu.Unlock()
			return value, nil
		}
		running := g.busy[key]
		if running == nil {
			return g.lead(key, get)
		}
		g.mu.Unlock()
		select {
		case <-running.done:
			if ctx.Err() == nil && again(running.err) {
				continue
			}
			return running.value, running.err
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}

func gaveUp(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// lead does the work. It is called with the lock held.
func (g *Group[T]) lead(key string, get func() (T, error)) (T, error) {
	own := &call[T]{done: make(chan struct{}), err: errPanic}
	if g.busy == nil {
		g.busy = map[string]*call[T]{}
	}
	g.busy[key] = own
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.busy, key)
		g.mu.Unlock()
		close(own.done)
	}()
	own.value, own.err = get()
	return own.value, own.err
}
