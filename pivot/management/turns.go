package management

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// comesWithin is how soon a Child that wants a turn comes again at the latest, as it does each
	// runPause. One that does not, such as one that was deleted, lets others go first.
	comesWithin = 10 * time.Second
	// turnsCount is for how long it counts what a Child has had, by far longer than it rests after an
	// error.
	turnsCount = 10 * time.Minute
)

// turns says who goes next where one at a time can: of those who want to, the one that has had the least
// time. Whoever takes long, or is made to, waits for the others then, and has as much time as each of
// them. The zero value is ready for use, and it is safe for concurrent use.
type turns struct {
	mu sync.Mutex // guards what follows
	// by is who goes now, empty if nobody does, since began.
	by    types.NamespacedName
	began time.Time
	of    map[types.NamespacedName]*turn
}

// turn is what is known of one who goes, wants to, or did.
type turn struct {
	had time.Duration
	// wants: it wants a turn since then, and came last at a time.
	wants       bool
	since, came time.Time
}

// waits reports whether somebody wants a turn already, and others come first still. Whoever waits need not
// find out again whether he could use one.
func (t *turns) waits(who types.NamespacedName, now time.Time) (waits bool, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := t.of[who]
	if is == nil || !is.wanted(now) {
		return false, time.Time{}
	}
	is.came = now
	return !t.next(who, now), is.since
}

// begin reports whether it is somebody's turn, who calls end then. Otherwise it says since when they
// wait, and they ask again in a moment.
func (t *turns) begin(who types.NamespacedName, now time.Time) (ok bool, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := t.come(who, now)
	if !t.next(who, now) {
		return false, is.since
	}
	t.by, t.began = who, now
	return true, time.Time{}
}

// next reports whether it is somebody's turn, who wants one.
func (t *turns) next(who types.NamespacedName, now time.Time) bool {
	if t.by != (types.NamespacedName{}) {
		return false
	}
	for other, o := range t.of {
		if other != who && o.wanted(now) && o.had < t.of[who].had {
			return false
		}
	}
	return true
}

func (t *turn) wanted(now time.Time) bool { return t.wants && now.Sub(t.came) < comesWithin }

// come notes that somebody wants a turn. Who is new has had as much as the one who had the least.
func (t *turns) come(who types.NamespacedName, now time.Time) *turn {
	is, least := t.of[who], time.Duration(-1)
	for other, o := range t.of {
		switch {
		case other == who:
		case other != t.by && now.Sub(o.came) > turnsCount:
			delete(t.of, other)
		case least < 0 || o.had < least:
			least = o.had
		}
	}
	if is == nil {
		if t.of == nil {
			t.of = map[types.NamespacedName]*turn{}
		}
		is = &turn{had: max(least, 0)}
		t.of[who] = is
	}
	if !is.wanted(now) {
		is.since = now
	}
	is.wants, is.came = true, now
	return is
}

// end ends the turn of whoever has it. again: they come for another one in a moment.
func (t *turns) end(now time.Time, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := t.of[t.by]
	is.had += now.Sub(t.began)
	is.wants, is.since, is.came = again, now, now
	t.by = types.NamespacedName{}
}
