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
	// last is when an owner had a place, proven are those whose last job ended as jobs do,
	// strikes those whose last job exceeded a limit, and heavy those who needed more than
	// anybody gets at first.
	last    map[string]uint64
	proven  map[string]bool
	strikes map[string]bool
	heavy   map[string]bool
}

// outcome is how the job of who leaves a place ended.
type outcome int

const (
	// done: as jobs do, with a result or an error.
	done outcome = iota
	// exceeded: it needs more than it may have.
	exceeded
	// grew: it needs more than anybody gets at first.
	grew
)

type waiter struct {
	owner string
	// struck is whether the owner has a strike, or is heavy.
	struck bool
	// given is closed when the waiter has a place.
	given chan struct{}
}

func newQueue(places int) *queue {
	return &queue{places: places, last: map[string]uint64{}, proven: map[string]bool{}, strikes: map[string]bool{}, heavy: map[string]bool{}}
}

// take waits for a place. wide is whether it is one of those that may have all of the
// memory, of which there are all but one. leave gives it back, and says how the job
// ended.
func (q *queue) take(ctx context.Context, owner string) (wide bool, leave func(outcome), err error) {
	q.mu.Lock()
	w := &waiter{owner: owner, struck: q.strikes[owner] || q.heavy[owner], given: make(chan struct{})}
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
			return false, nil, ctx.Err()
		}
		// It was given at the same moment.
	}
	return w.struck || q.places == 1, func(o outcome) { q.leave(w, o) }, nil
}

func (q *queue) leave(w *waiter, o outcome) {
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
	remember := func(in map[string]bool) {
		if len(in) >= mostOwners {
			clear(in)
		}
		in[w.owner] = true
	}
	delete(q.proven, w.owner)
	switch o {
	case exceeded:
		remember(q.strikes)
	case grew:
		remember(q.heavy)
	default:
		delete(q.strikes, w.owner)
		remember(q.proven)
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

// next is who comes next: owners without a strike before others, those who are known
// before new ones, and of these who had a place the longest time ago. The others leave a place free.
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
	// Of who is new nobody knows what comes.
	if q.proven[a.owner] != q.proven[b.owner] {
		return q.proven[a.owner]
	}
	return q.last[a.owner] < q.last[b.owner]
}
