package worker

import (
	"context"
	"slices"
	"sync"
	"time"
)

// mostOwners bounds how many owners a queue remembers.
const mostOwners = 4096

// mostPassed is how often who waits longest is passed over until it is served: so all are
// served at last.
const mostPassed = 3

// queue hands out places to owners, in turn.
type queue struct {
	places int

	mu    sync.Mutex
	taken int
	aside int // places that owners have whose jobs take much
	turn  uint64
	// passed is how often who waits longest was passed over, one after the other;
	// passedAside is the same among the owners that leave a place free.
	passed, passedAside int
	// waiting in the order in which they came.
	waiting []*waiter
	owners  map[string]record
}

// record is what is known of an owner.
type record struct {
	// last is the turn in which the owner had a place.
	last uint64
	// ended is how the owner's last job did. heavy owners needed more than anybody gets at
	// first.
	ended outcome
	heavy bool
}

// outcome is how the job of who leaves a place ended. The better come first.
type outcome int

const (
	// unknown: there was none.
	unknown outcome = iota
	// done: with a result.
	done
	// failed: with an error of its own. It comes to the same when it is tried again, mostly.
	failed
	// wasted: with an error of its own, after a time in which others do their work.
	wasted
	// exceeded: it needs more than it may have.
	exceeded
	// grew: it needs more than anybody gets at first.
	grew
)

func (o outcome) String() string {
	return [...]string{"unknown", "done", "failed", "wasted", "exceeded", "grew"}[o]
}

// rank of an owner: the lower ones are served first. Of who is new nobody knows what
// comes.
func (r record) rank() int {
	switch {
	case r.ended == wasted, r.ended == exceeded:
		return 4
	case r.heavy:
		return 3
	case r.ended == failed:
		return 2
	case r.ended == unknown:
		return 1
	}
	return 0
}

// aside: the owner's jobs take much, and leave a place free.
func (r record) aside() bool { return r.rank() >= 3 }

// wide: the owner's jobs get all of the memory.
func (r record) wide() bool { return r.heavy || r.ended == exceeded }

type waiter struct {
	owner string
	// record of the owner, when the place was given.
	record
	// given is closed when the waiter has a place.
	given chan struct{}
}

func newQueue(places int) *queue {
	return &queue{places: places, owners: map[string]record{}}
}

// take waits for a place. wide is whether it is one of those that may have all of the
// memory, of which there are all but one. leave gives it back, and says how the job
// ended. slow, if there is one, is called when that takes a while.
func (q *queue) take(ctx context.Context, owner string, slow func()) (wide bool, leave func(outcome), err error) {
	q.mu.Lock()
	w := &waiter{owner: owner, given: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	q.give()
	q.mu.Unlock()
	if slow != nil {
		timer := time.NewTimer(slowAfter)
		defer timer.Stop()
		select {
		case <-w.given:
		case <-ctx.Done():
		case <-timer.C:
			slow()
		}
	}
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
	return w.wide() || q.places == 1, func(o outcome) { q.leave(w, o) }, nil
}

func (q *queue) leave(w *waiter, o outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	if w.aside() {
		q.aside--
	}
	if len(q.owners) >= mostOwners {
		clear(q.owners)
	}
	q.turn++
	q.owners[w.owner] = record{last: q.turn, ended: o, heavy: w.heavy || o == grew}
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
		w.record = q.owners[w.owner]
		if w.aside() {
			q.aside++
		}
		close(w.given)
	}
}

// next is who comes next: by rank, and of equals who had a place the longest time ago.
func (q *queue) next() int {
	first, best, aside := -1, -1, -1
	for i, w := range q.waiting {
		if q.owners[w.owner].aside() {
			if q.places > 1 && q.aside >= q.places-1 {
				continue
			}
			if aside < 0 {
				aside = i
			}
		}
		if first < 0 {
			first, best = i, i
		} else if q.before(w, q.waiting[best]) {
			best = i
		}
	}
	if first < 0 {
		return -1
	}
	next := best
	if best == first || q.passed >= mostPassed {
		q.passed = 0
		next = first
	} else {
		q.passed++
	}
	// Those who leave a place free are often not among those who could be served, and are
	// not passed over then. So they have a count of their own, for the place that they share.
	switch {
	case !q.owners[q.waiting[next].owner].aside():
	case next == aside || q.passedAside >= mostPassed:
		q.passedAside = 0
		next = aside
	default:
		q.passedAside++
	}
	return next
}

func (q *queue) before(a, b *waiter) bool {
	of, other := q.owners[a.owner], q.owners[b.owner]
	if of.rank() != other.rank() {
		return of.rank() < other.rank()
	}
	return of.last < other.last
}
