package testbed

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Seen is what a watch said last of objects, by their names: a state of each, as far as
// a benchmark waits for it.
type Seen[S any] struct {
	mu     sync.Mutex
	states map[string]S
	news   chan struct{}
	// ended is closed when the watch ended, by failure if it is not nil.
	ended   chan struct{}
	failure error
}

// Follow remembers what a watch says, until its events end. read makes a state of an
// event, given the one that was there; with an error the event is no state.
func Follow[S any](events <-chan watch.Event, read func(event watch.Event, was func(name string) S) (name string, now S, err error)) *Seen[S] {
	s := &Seen[S]{states: map[string]S{}, news: make(chan struct{}, 1), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for event := range events {
			s.mu.Lock()
			name, now, err := read(event, func(name string) S { return s.states[name] })
			if err == nil {
				s.states[name] = now
			} else {
				s.failure = err
			}
			s.mu.Unlock()
			select {
			case s.news <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

// Await looks at the states until enough, which keeps none of them, says that they are
// as wanted. It looks when there is news, at most every pause: to look costs time that
// others could use.
func (s *Seen[S]) Await(ctx context.Context, limit, pause time.Duration, enough func(states map[string]S) bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooLate)
	defer cancel()
	for {
		s.mu.Lock()
		done := enough(s.states)
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-s.news:
		case <-s.ended:
			return errors.Join(errors.New("the watch ended"), s.failure)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if pause > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return context.Cause(ctx)
			}
		}
	}
}

var errTooLate = errors.New("it is not within the limit")
