package flight

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestFlight: who gives up does not make the others fail.
func TestFlight(t *testing.T) {
	var f Group[int]
	none := func() (int, bool) { return 0, false }
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{})
	first := make(chan error)
	go func() {
		_, err := f.Do(ctx, "k", none, func() (int, error) { close(started); <-ctx.Done(); return 0, ctx.Err() })
		first <- err
	}()
	<-started
	second := make(chan int)
	go func() {
		n, _ := f.Do(t.Context(), "k", none, func() (int, error) { return 2, nil })
		second <- n
	}()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	if n := <-second; n != 2 {
		t.Errorf("the second got %d, want 2", n)
	}
}

// TestFollowers: what those get that waited for another.
func TestFollowers(t *testing.T) {
	failed := errors.New("no such thing")
	for name, tc := range map[string]struct {
		reason string
		retry  bool
		lead   func() (int, error)
		want   int
		err    error
		tries  int
	}{
		"Shared":   {"the work is done once", false, func() (int, error) { return 1, nil }, 1, nil, 0},
		"Failed":   {"so is work that fails", false, func() (int, error) { return 0, failed }, 0, failed, 0},
		"Retried":  {"unless each is to try for itself", true, func() (int, error) { return 0, failed }, 2, nil, 1},
		"GaveUp":   {"who had no time says nothing of the thing", false, func() (int, error) { return 0, context.DeadlineExceeded }, 2, nil, 1},
		"Panicked": {"a panic is that of the one who worked", false, func() (int, error) { panic("hostile") }, 0, errPanic, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var g Group[int]
				do := g.Do
				if tc.retry {
					do = g.Try
				}
				none := func() (int, bool) { return 0, false }
				hold, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = do(t.Context(), "k", none, func() (int, error) { <-hold; return tc.lead() })
				}()
				synctest.Wait()
				tries, got, err := 0, 0, error(nil)
				followed := make(chan struct{})
				go func() {
					defer close(followed)
					got, err = do(t.Context(), "k", none, func() (int, error) { tries++; return 2, nil })
				}()
				synctest.Wait()
				close(hold)
				<-ended
				<-followed
				if got != tc.want || !errors.Is(err, tc.err) || tries != tc.tries {
					t.Errorf("%s: got %d, %v after %d tries; want %d, %v, %d", tc.reason, got, err, tries, tc.want, tc.err, tc.tries)
				}
			})
		})
	}
}

// TestFollowerLeaves: nobody waits longer than there is time.
func TestFollowerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		none := func() (int, bool) { return 0, false }
		hold, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = g.Do(t.Context(), "k", none, func() (int, error) { <-hold; return 1, nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Do(ctx, "k", none, func() (int, error) { return 2, nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Do() = %v with a context that ended", err)
		}
		if n, err := g.Do(ctx, "k", func() (int, bool) { return 3, true }, nil); n != 3 || err != nil {
			t.Errorf("what is known is %d, %v", n, err)
		}
		close(hold)
		<-ended
	})
}
