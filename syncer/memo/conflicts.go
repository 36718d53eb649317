package memo

import (
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

// Conflicts lists the objects that another owner took twice from this one, which applied them in
// between. An object is listed until one of both drops it, or for some hours after the last time.
// A memo that is polled lists none.
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
	for o, t := range r.taken[from] {
		switch {
		case r.now().Sub(t.last) > conflictWithin:
			delete(r.taken[from], o)
		case t.times > 1:
			list = append(list, Conflict{entryOf(o), t.by})
		}
	}
	slices.SortFunc(list, func(a, b Conflict) int { return strings.Compare(a.Object.ID(), b.Object.ID()) })
	return list
}

// take notes that an owner applied an object that another one had applied. A polled memo has no
// clock: it forgets all of an owner when that is verified anew. The lock is held.
func (r *records) take(o Object, from, by types.NamespacedName) {
	if r.now == nil {
		return
	}
	now, t := r.now(), r.taken[from][o]
	if t.by != by || now.Sub(t.last) > conflictWithin {
		t = taken{by: by}
	}
	t.times, t.last = t.times+1, now
	if r.taken[from] == nil {
		r.taken[from] = map[Object]taken{}
	}
	r.taken[from][o] = t
}

// settle ends the conflicts about what an owner drops. The lock is held.
func (r *records) settle(by types.NamespacedName, drops func(Object) bool) {
	for from, objects := range r.taken {
		for o, t := range objects {
			if (from == by || t.by == by) && drops(o) {
				delete(objects, o)
			}
		}
		if len(objects) == 0 {
			delete(r.taken, from)
		}
	}
}
