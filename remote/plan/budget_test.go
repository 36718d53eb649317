package plan

import (
	"testing"
	"time"
)

// TestBudget: what children take that answer as they like.
func TestBudget(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// call takes so long, and the next push is asked for pause later.
		call, pause time.Duration
		// most is the largest part of ten minutes that calls may take.
		most float64
		// held: it has to wait at some time.
		held bool
	}{
		"Healthy":  {"a child that answers in milliseconds never waits", 5 * time.Millisecond, 10 * time.Millisecond, 0.4, false},
		"Far":      {"one at the other end of the world that is pushed to all the time gets its share", 300 * time.Millisecond, 0, 0.58, true},
		"Hangs":    {"each call takes until its time-out", 10 * time.Second, 0, 0.6, true},
		"HangsNow": {"each call hangs and comes once in a minute", 10 * time.Second, time.Minute, 0.2, false},
	} {
		t.Run(name, func(t *testing.T) {
			var b Budget
			at, used, held := now, time.Duration(0), false
			for at.Before(now.Add(10 * time.Minute)) {
				if wait := b.Wait(at); wait > 0 {
					held = true
					at = at.Add(wait)
					if rest := b.Wait(at); rest > time.Millisecond {
						t.Fatalf("%s: after its wait it waits for another %s", tc.reason, rest)
					}
					at = at.Add(time.Millisecond)
					continue
				}
				at = at.Add(tc.call)
				used += tc.call
				b.Spend(tc.call, at)
				at = at.Add(tc.pause)
			}
			if part := used.Minutes() / 10; part > tc.most || held != tc.held {
				t.Errorf("%s: its calls took %.2f of ten minutes, want at most %.2f; it waited: %t", tc.reason, part, tc.most, held)
			}
		})
	}
}

// TestBudgetTells: what is used up shows in the status within a minute, and is pushed to
// again after a while that a person waits.
func TestBudgetTells(t *testing.T) {
	var b Budget
	at := now
	for b.Wait(at) == 0 {
		at = at.Add(10 * time.Second)
		b.Spend(10*time.Second, at)
	}
	if took := at.Sub(now); took > time.Minute {
		t.Errorf("a child that hangs keeps its push for %s before that is told", took)
	}
	if wait := b.Wait(at); wait < 10*time.Second || wait > time.Minute {
		t.Errorf("it waits for %s", wait)
	}
	b.Spend(time.Hour, at)
	if wait := b.Wait(at); wait > time.Minute {
		t.Errorf("after a call in whose midst the machine was asleep it waits for %s", wait)
	}
	b.Spend(time.Second, at.Add(-time.Hour))
	if wait := b.Wait(at); wait > time.Minute {
		t.Errorf("with a clock that was set back for a while it waits for %s", wait)
	}
}
