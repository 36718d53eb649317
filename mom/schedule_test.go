package mom

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestChanges(t *testing.T) {
	start := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	for name, tc := range map[string]struct {
		reason string
		do     func(*changes)
		want   float64 // negative: nothing is due
	}{
		"None":   {"nothing changed", func(*changes) {}, -1},
		"One":    {"one change, and then it is quiet", func(c *changes) { c.note(at(0)) }, 2},
		"Two":    {"the quiet begins anew", func(c *changes) { c.note(at(0)); c.note(at(1.5)) }, 3.5},
		"Always": {"where it is never quiet, the first waits ten seconds", func(c *changes) { c.note(at(0)); c.note(at(9.5)) }, 10},
		"Taken":  {"what is saved is no change any more", func(c *changes) { c.note(at(0)); c.taken() }, -1},
		"While":  {"what came while it was saved is", func(c *changes) { c.note(at(0)); c.taken(); c.note(at(3)) }, 5},
		"Failed": {"what could not be saved is tried again, after a pause", func(c *changes) { c.note(at(0)); c.taken(); c.failed(at(3)) }, 8},
		"Busy":   {"changes meanwhile do not shorten the pause", func(c *changes) { c.note(at(0)); c.taken(); c.failed(at(3)); c.note(at(3.1)) }, 8},
	} {
		t.Run(name, func(t *testing.T) {
			var c changes
			tc.do(&c)
			due, ok := c.due()
			if ok != (tc.want >= 0) || ok && !due.Equal(at(tc.want)) {
				t.Errorf("%s: due at %s (%t), want %v s", tc.reason, due.Sub(start), ok, tc.want)
			}
		})
	}
}

// TestChangesBound: whatever comes, no change is unsaved for longer than the bound, where
// saving works.
func TestChangesBound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var c changes
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var oldest time.Time
	for range 10000 {
		next := now.Add(time.Duration(random.Int64N(int64(4 * time.Second))))
		if due, ok := c.due(); ok && !due.After(next) {
			if waited := due.Sub(oldest); waited > saveWithin {
				t.Fatalf("a change waited %s", waited)
			}
			c.taken()
			oldest = time.Time{}
		}
		now = next
		c.note(now)
		if oldest.IsZero() {
			oldest = now
		}
	}
}

func TestLost(t *testing.T) {
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		reason string
		before time.Duration
		want   bool
	}{
		"Held":   {"it was renewed", lockFor, false},
		"Margin": {"another clock may be ahead", lockMargin, true},
		"Lapsed": {"a process that slept", -time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := lost(until, until.Add(-tc.before)); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
		})
	}
	if lockFor-lockMargin < 3*renewEvery {
		t.Error("a lock is lost with fewer than three tries")
	}
}
