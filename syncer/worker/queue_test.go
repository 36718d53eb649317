package worker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestQueueOrder: who is served before whom, while one place is taken by somebody who
// takes much.
func TestQueueOrder(t *testing.T) {
	good, failing := record{last: 5, ended: done}, record{last: 1, ended: failed}
	for name, tc := range map[string]struct {
		reason string
		owners map[string]record
		come   []string
		want   []string
	}{
		"Turns":   {"who had a place longest ago", map[string]record{"a": good, "b": {last: 3, ended: done}}, []string{"a", "b"}, []string{"b", "a"}},
		"New":     {"of who is new nobody knows what comes", map[string]record{"a": good}, []string{"new", "a"}, []string{"a", "new"}},
		"Failing": {"what failed fails again, mostly", map[string]record{"a": good, "f": failing}, []string{"f", "new", "a"}, []string{"a", "new", "f"}},
		"Aside":   {"one place is for those who take little", map[string]record{"w": {ended: wasted}, "x": {ended: exceeded}, "h": {ended: done, heavy: true}, "f": failing}, []string{"w", "x", "h", "f"}, []string{"f"}},
		"AtLast": {
			"nobody waits for ever: who was passed over three times is served", map[string]record{"f": failing, "a": good, "b": good, "c": good, "d": good},
			[]string{"f", "a", "b", "c", "d"}, []string{"a", "b", "c", "f", "d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(2)
				q.owners["much"] = record{heavy: true}
				ctx, cancel := context.WithCancel(t.Context())
				_, leaveMuch, err := q.take(ctx, "much", nil)
				if err != nil {
					t.Fatal(err)
				}
				_, leave, err := q.take(ctx, "first", nil)
				if err != nil {
					t.Fatal(err)
				}
				for owner, r := range tc.owners {
					q.owners[owner] = r
				}
				var served []string
				turn := make(chan func(outcome))
				for _, owner := range tc.come {
					go func() {
						if _, leave, err := q.take(ctx, owner, nil); err == nil {
							served = append(served, owner)
							turn <- leave
						}
					}()
					synctest.Wait()
				}
				for range tc.want {
					leave(done)
					leave = <-turn
				}
				if !slices.Equal(served, tc.want) {
					t.Errorf("%s: served %v, want %v", tc.reason, served, tc.want)
				}
				leave(done)
				synctest.Wait()
				if q.taken != 1 {
					t.Errorf("%s: %d places are taken, want that of who takes much", tc.reason, q.taken)
				}
				cancel()
				synctest.Wait()
				leaveMuch(grew)
				if q.taken != 0 || q.aside != 0 || len(q.waiting) != 0 {
					t.Errorf("%d are taken, %d aside, %d wait", q.taken, q.aside, len(q.waiting))
				}
			})
		})
	}
}

// TestQueueAsideAtLast: who failed after a while is served though others who need much come
// again and again, and take the place that they share.
func TestQueueAsideAtLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q.owners["failed"] = record{ended: wasted}
		for i := range 2 {
			q.owners[fmt.Sprint("much", i)] = record{heavy: true}
		}
		_, leaveMuch, _ := q.take(ctx, "much0", nil)
		_, leave, _ := q.take(ctx, "quick", nil)
		served := false
		go func() {
			if _, leave, err := q.take(ctx, "failed", nil); err == nil {
				served = true
				leave(done)
			}
		}()
		synctest.Wait()
		turns := 0
		for ; !served && turns < 20; turns++ {
			// The next who needs much waits before the last one leaves, and so does the next
			// that takes little.
			much := make(chan func(outcome), 1)
			go func() {
				_, leave, _ := q.take(ctx, fmt.Sprint("much", (turns+1)%2), nil)
				much <- leave
			}()
			synctest.Wait()
			leaveMuch(done)
			leaveMuch = <-much
			quick := make(chan func(outcome), 1)
			go func() {
				_, leave, _ := q.take(ctx, "quick", nil)
				quick <- leave
			}()
			synctest.Wait()
			leave(done)
			leave = <-quick
			synctest.Wait()
		}
		if !served {
			t.Errorf("who failed after a while was not served in %d turns of those who need much", turns)
		}
		leaveMuch(done)
		leave(done)
	})
}

// TestQueueTells: who waits for long is told so, once.
func TestQueueTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1)
		_, leave, err := q.take(t.Context(), "a", func() { t.Error("who does not wait is told") })
		if err != nil {
			t.Fatal(err)
		}
		begin, told, served := time.Now(), []time.Duration{}, time.Duration(0)
		go func() {
			if _, leave, err := q.take(t.Context(), "b", func() { told = append(told, time.Since(begin)) }); err == nil {
				served = time.Since(begin)
				leave(done)
			}
		}()
		time.Sleep(time.Minute)
		leave(done)
		synctest.Wait()
		if !slices.Equal(told, []time.Duration{slowAfter}) || served != time.Minute {
			t.Errorf("it was told after %v, served after %s", told, served)
		}
	})
}

// TestQueueForgets: owners without number take no memory without bound.
func TestQueueForgets(t *testing.T) {
	q := newQueue(1)
	for i := range 2 * mostOwners {
		_, leave, err := q.take(t.Context(), fmt.Sprint(i), nil)
		if err != nil {
			t.Fatal(err)
		}
		leave(failed)
	}
	if len(q.owners) > mostOwners {
		t.Errorf("%d owners are remembered", len(q.owners))
	}
}
