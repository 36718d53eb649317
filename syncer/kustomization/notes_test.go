package kustomization

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestTurns: the last of those that take note of a commit, and how many of them take note in a
// minute in which there is a commit each half second.
func TestTurns(t *testing.T) {
	for _, tc := range []struct {
		reason string
		many   int
		// last is when the last of one commit has its turn, busy how many turns there are in a
		// minute of commits.
		last time.Duration
		busy int
	}{
		{"the first waits until what changed is applied", 1, noteCalm, 120},
		{"a thousand are not much later with one commit, and leave room with many", 1000, noteCalm + 3*time.Second, 1000 + 6000},
		{"ten thousand have a faster pace", 10_000, noteCalm + 36*time.Second, 1000 + 15_000},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			name := func(n int) types.NamespacedName { return types.NamespacedName{Name: fmt.Sprint(n)} }
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var one notes
			var last time.Duration
			for n := range tc.many {
				wait := one.after(name(n), tc.many, start)
				if wait < last {
					t.Fatalf("%d has its turn after %s", n, wait)
				}
				last = wait
			}
			if last < tc.last-50*time.Millisecond || last > tc.last+50*time.Millisecond {
				t.Errorf("the last has its turn after %s, want %s", last, tc.last)
			}
			// It has to be enqueued again: an event may have taken its place in the queue.
			if got, want := one.after(name(tc.many-1), tc.many, start.Add(noteCalm-1)), last-noteCalm+1; got != want {
				t.Errorf("who has a turn to come has it after %s, want %s", got, want)
			}
			var busy notes
			turns := map[string]bool{}
			for at := time.Duration(0); at < time.Minute; at += 500 * time.Millisecond {
				busy.forget(start.Add(at))
				for n := range tc.many {
					if turn := at + busy.after(name(n), tc.many, start.Add(at)); turn < time.Minute {
						turns[fmt.Sprint(n, turn)] = true
					}
				}
			}
			if n := len(turns); n > tc.busy+tc.busy/20 || n < tc.busy-tc.busy/5 {
				t.Errorf("%d take note in a minute, want %d", n, tc.busy)
			}
			busy.forget(start.Add(time.Hour))
			if len(busy.turns) > 0 {
				t.Errorf("%d turns are kept that were had", len(busy.turns))
			}
		})
	}
}
