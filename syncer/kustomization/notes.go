package kustomization

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How soon a Kustomization takes note of a revision that changes nothing of what it reads. A
// status is written for each, which costs an API server as much as to apply an object: a
// thousand for each of many commits take all that a small one has, and what a commit changes
// has to come within a second.
const (
	// notesAtOnce are those of a source that do not wait.
	notesAtOnce = 16
	// noteCalm is when the others begin: what changed is mostly applied by then.
	noteCalm = 500 * time.Millisecond
	// noteBurst of them come one after the other with notePause between two, and so a thousand
	// have the revision of one commit within four seconds.
	noteBurst = 1000
	notePause = 3 * time.Millisecond
	// noteEach is the pause between two beyond that, where commit follows commit, or shorter
	// where there are so many that the last would come after noteSpread.
	noteEach   = 10 * time.Millisecond
	noteSpread = 40 * time.Second
)

// notes says when Kustomizations take note of a revision. The zero value is ready; it is safe
// for concurrent use.
type notes struct {
	mu sync.Mutex // guards the rest
	// last is when the last of all has its turn, and owed when it would have it if there had
	// never been a burst.
	last, owed time.Time
	// turns are those that are still to come.
	turns map[types.NamespacedName]time.Time
}

// after is in how long a Kustomization has its turn, one of so many of a source. One that is
// still to come stays: it takes note of the newest revision then. It is told again for each
// revision, as who enqueues it must do so again: what woke the Kustomization meanwhile took its
// place in the queue.
func (n *notes) after(name types.NamespacedName, many int, now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if turn := n.turns[name]; turn.After(now) {
		return turn.Sub(now)
	}
	each := max(min(noteEach, noteSpread/time.Duration(max(many, 1))), notePause)
	turn := now.Add(noteCalm)
	for _, earliest := range []time.Time{n.last.Add(notePause), n.owed.Add(-noteBurst * each)} {
		if earliest.After(turn) {
			turn = earliest
		}
	}
	if n.last = turn; turn.After(n.owed) {
		n.owed = turn
	}
	n.owed = n.owed.Add(each)
	if n.turns == nil {
		n.turns = map[types.NamespacedName]time.Time{}
	}
	n.turns[name] = turn
	return turn.Sub(now)
}

// forget drops the turns that were had.
func (n *notes) forget(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.turns, func(_ types.NamespacedName, turn time.Time) bool { return !turn.After(now) })
}
