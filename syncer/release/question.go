package release

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/syncer/flight"
)

// versionHolds is how long the version of an API server is taken to stay, and what it
// serves.
const versionHolds = 10 * time.Minute

// question is one that many releases put to an API server. One asks, with its own
// context, and the others wait, no longer than they have time: a server that hangs costs
// each of them one timeout and not those of all before it. The zero value is ready.
type question[T any] struct {
	asking flight.Group[said[T]]

	mu sync.Mutex
	// begun and ended count how often it was put.
	begun, ended int
	last         said[T]
}

// said is the answer to the question when it was put for the nth time, or why there is none.
type said[T any] struct {
	n     int
	at    time.Time
	value T
	err   error
}

// answer returns what was said within versionHolds, or what ask returns. anew: what was asked
// before does not count. A failure counts for all who waited for it.
func (q *question[T]) answer(ctx context.Context, now time.Time, anew bool, ask func() (T, error)) (T, error) {
	q.mu.Lock()
	begun, ended := q.begun, q.ended
	q.mu.Unlock()
	counts := func(s said[T]) bool {
		switch {
		case s.err != nil:
			return s.n > ended
		case anew:
			return s.n > begun
		}
		return s.n > ended || s.n > 0 && now.Sub(s.at) <= versionHolds
	}
	for {
		got, err := q.asking.Do(ctx, "", func() (said[T], bool) {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.last, counts(q.last)
		}, func() (said[T], error) { return q.put(ctx, now, ask) })
		if err != nil || counts(got) {
			return got.value, cmp.Or(err, got.err)
		}
	}
}

// put asks, for all who wait.
func (q *question[T]) put(ctx context.Context, now time.Time, ask func() (T, error)) (said[T], error) {
	q.mu.Lock()
	q.begun++
	s := said[T]{n: q.begun, at: now}
	q.mu.Unlock()
	s.value, s.err = ask()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = s.n
	if s.err != nil && ctx.Err() != nil {
		// The caller gave up, which says nothing of the API server. Another asks.
		return s, ctx.Err()
	}
	if s.err == nil {
		q.last = s
	}
	return s, nil
}
