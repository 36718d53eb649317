package memo

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
)

// conflictWithin is how long after an object was taken it is believed that its owners go on to
// take it from each other: intervals are mostly shorter.
const conflictWithin = 6 * time.Hour

// Conflict is an object that another owner declares as well. Each applies it at its interval, as
// it differs from what it declares then.
type Conflict struct {
	// Object has no version.
	Object inventory.Entry
	Other  types.NamespacedName
}

// taken is how often another owner applied an object in place of the one that had, and when last.
type taken struct {
	by    types.NamespacedName
	times int
	last  time.Time
}

// mostTakers are remembered of an object and the owner that lost it.
const mostTakers = 4

// Conflicts lists the objects that another owner took twice from this one, which applied them in
// between: once for each of the others. An object is listed until one of both drops it, or for some
// hours after the last time. A memo that is polled lists none.
func (m *Memo) Conflicts(owner types.NamespacedName) []Conflict {
	if m == nil {
		return nil
	}
	return m.records.conflicts(owner)
}

func (r *records) conflicts(from types.NamespacedName) []Conflict {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []Conflict
	for o, takers := range r.taken[from] {
		takers = r.recent(takers)
		if len(takers) == 0 {
			delete(r.taken[from], o)
			continue
		}
		r.taken[from][o] = takers
		for _, t := range takers {
			if t.times > 1 {
				list = append(list, Conflict{entryOf(o), t.by})
			}
		}
	}
	slices.SortFunc(list, func(a, b Conflict) int {
		return cmp.Or(strings.Compare(a.Object.ID(), b.Object.ID()), strings.Compare(a.Other.String(), b.Other.String()))
	})
	return list
}

// recent are the takers that took an object a short time ago. The lock is held.
func (r *records) recent(takers []taken) []taken {
	now := r.now()
	return slices.DeleteFunc(takers, func(t taken) bool { return now.Sub(t.last) > conflictWithin })
}

// take notes that an owner applied an object that another one had applied. Each taker counts by
// itself: of three that take turns none would ever follow itself. A polled memo has no clock: it
// forgets all of an owner when that is verified anew. The lock is held.
func (r *records) take(o Object, from, by types.NamespacedName) {
	if r.now == nil {
		return
	}
	takers := r.recent(r.taken[from][o])
	t := taken{by: by}
	if i := slices.IndexFunc(takers, func(t taken) bool { return t.by == by }); i >= 0 {
		t = takers[i]
		takers = slices.Delete(takers, i, i+1)
	}
	t.times, t.last = t.times+1, r.now()
	if takers = append(takers, t); len(takers) > mostTakers { // the first is who took it the longest ago
		takers = slices.Delete(takers, 0, 1)
	}
	if r.taken[from] == nil {
		r.taken[from] = map[Object][]taken{}
	}
	r.taken[from][o] = takers
}

// settle ends the conflicts about what an owner drops, and returns what those are to be told that
// were in one with it: their status names it. The lock is held.
func (r *records) settle(by types.NamespacedName, drops func(Object) bool) (told []touch) {
	for from, objects := range r.taken {
		for o, takers := range objects {
			if !drops(o) {
				continue
			}
			objects[o] = slices.DeleteFunc(takers, func(t taken) bool {
				if t.by == by && from != by && t.times > 1 {
					told = append(told, touch{from, entryOf(o), true})
				}
				return from == by || t.by == by
			})
			if len(objects[o]) == 0 {
				delete(objects, o)
			}
		}
		if len(objects) == 0 {
			delete(r.taken, from)
		}
	}
	return told
}
