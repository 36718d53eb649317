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
				wait, ok := one.after(name(n), tc.many, start)
				if !ok || wait < last {
					t.Fatalf("%d has its turn after %s: %t", n, wait, ok)
				}
				last = wait
			}
			if last < tc.last-50*time.Millisecond || last > tc.last+50*time.Millisecond {
				t.Errorf("the last has its turn after %s, want %s", last, tc.last)
			}
			if _, ok := one.after(name(tc.many-1), tc.many, start.Add(noteCalm-1)); ok {
				t.Error("who has a turn to come has another one")
			}
			var busy notes
			turns := 0
			for at := time.Duration(0); at < time.Minute; at += 500 * time.Millisecond {
				busy.forget(start.Add(at))
				for n := range tc.many {
					if wait, ok := busy.after(name(n), tc.many, start.Add(at)); ok && at+wait < time.Minute {
						turns++
					}
				}
			}
			if turns > tc.busy+tc.busy/20 || turns < tc.busy-tc.busy/5 {
				t.Errorf("%d take note in a minute, want %d", turns, tc.busy)
			}
			busy.forget(start.Add(time.Hour))
			if len(busy.turns) > 0 {
				t.Errorf("%d turns are kept that were had", len(busy.turns))
			}
		})
	}
}
