package worker

import (
	"context"
	"slices"
	"sync"
)

// mostOwners bounds how many owners a queue remembers.
const mostOwners = 4096

// queue hands out places to owners, in turn.
type queue struct {
	places int

	mu      sync.Mutex
	taken   int
	suspect int // places that owners with a strike have
	turn    uint64
	waiting []*waiter
	// last is when an owner had a place, and strikes are those whose last job
	// exceeded a limit.
	last    map[string]uint64
	strikes map[string]bool
}

type waiter struct {
	owner  string
	struck bool
	// given is closed when the waiter has a place.
	given chan struct{}
}

func newQueue(places int) *queue {
	return &queue{places: places, last: map[string]uint64{}, strikes: map[string]bool{}}
}

// take waits for a place. leave gives it back, and says whether the owner
// exceeded a limit.
func (q *queue) take(ctx context.Context, owner string) (leave func(exceeded bool), err error) {
	q.mu.Lock()
	w := &waiter{owner: owner, struck: q.strikes[owner], given: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	q.give()
	q.mu.Unlock()
	select {
	case <-w.given:
	case <-ctx.Done():
		q.mu.Lock()
		defer q.mu.Unlock()
		if i := slices.Index(q.waiting, w); i >= 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
			return nil, ctx.Err()
		}
		// It was given at the same moment.
	}
	return func(exceeded bool) { q.leave(w, exceeded) }, nil
}

func (q *queue) leave(w *waiter, exceeded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	if w.struck {
		q.suspect--
	}
	if len(q.last) >= mostOwners {
		clear(q.last)
	}
	q.turn++
	q.last[w.owner] = q.turn
	if exceeded {
		if len(q.strikes) >= mostOwners {
			clear(q.strikes)
		}
		q.strikes[w.owner] = true
	} else {
		delete(q.strikes, w.owner)
	}
	q.give()
}

// give hands out what places there are. q is locked.
func (q *queue) give() {
	for q.taken < q.places {
		i := q.next()
		if i < 0 {
			return
		}
		w := q.waiting[i]
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.taken++
		if w.struck {
			q.suspect++
		}
		close(w.given)
	}
}

// next is who comes next: owners without a strike before others, and of these who
// had a place the longest time ago. The others leave a place free.
func (q *queue) next() int {
	best := -1
	for i, w := range q.waiting {
		if w.struck && q.places > 1 && q.suspect >= q.places-1 {
			continue
		}
		if best < 0 || q.before(w, q.waiting[best]) {
			best = i
		}
	}
	return best
}

func (q *queue) before(a, b *waiter) bool {
	if a.struck != b.struck {
		return b.struck
	}
	return q.last[a.owner] < q.last[b.owner]
}
