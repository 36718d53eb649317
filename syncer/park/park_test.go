package park

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "x", Name: name}}
}

func limiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute)
}

// patience of the lots here.
const patience = 10 * time.Second

// controller works off a queue with some workers, as a controller does.
type controller struct {
	lot   *Lot
	queue Queue
}

func start(t *testing.T, workers, most int, inner reconcile.Func) (c *controller, stop func()) {
	t.Helper()
	return startWith(t, Options{Workers: workers, Parked: most, Patience: patience, Aside: 3, Backoff: limiter()}, inner)
}

func startWith(t *testing.T, o Options, inner reconcile.Func) (c *controller, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c = &controller{
		lot:   New(inner, o),
		queue: workqueue.NewTypedRateLimitingQueue(limiter()),
	}
	if err := c.lot.Open(ctx, c.queue); err != nil {
		t.Fatal(err)
	}
	for range o.Workers {
		go func() {
			for {
				req, shutdown := c.queue.Get()
				if shutdown {
					return
				}
				res, err := c.lot.Reconcile(ctx, req)
				c.queue.Done(req)
				switch {
				case err != nil:
					c.queue.AddRateLimited(req)
				case res.RequeueAfter > 0:
					c.queue.AddAfter(req, res.RequeueAfter)
				}
			}
		}()
	}
	return c, func() {
		cancel()
		c.queue.ShutDown()
		if err := c.lot.Start(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestParkedHoldsNoWorker: however many wait, another one is served at once.
func TestParkedHoldsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var served atomic.Bool
		c, stop := start(t, 2, 100, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			if req.Name == "good" {
				served.Store(true)
				return reconcile.Result{}, nil
			}
			return reconcile.Result{}, Wait(ctx, func() error {
				select {
				case <-time.After(5 * time.Minute):
				case <-ctx.Done():
				}
				return nil
			})
		})
		defer stop()
		for i := range 40 {
			c.queue.Add(request(fmt.Sprint("hung", i)))
		}
		synctest.Wait()
		if n := c.lot.Counts(); n != (Counts{Waiting: 40}) {
			t.Errorf("under way are %+v, want 40 that wait", n)
		}
		c.queue.Add(request("good"))
		synctest.Wait()
		if !served.Load() {
			t.Error("the good one was not served")
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if n := c.lot.Counts(); n != (Counts{}) {
			t.Errorf("under way are %+v after their wait", n)
		}
	})
}

// TestBounds: no more than there are places go on after a wait, and no more wait than
// are allowed.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var active, most, began atomic.Int64
		c, stop := start(t, 2, 5, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			began.Add(1)
			Wait(ctx, func() error { time.Sleep(time.Minute); return nil })
			now := active.Add(1)
			for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
			}
			time.Sleep(time.Second)
			active.Add(-1)
			return reconcile.Result{}, nil
		})
		defer stop()
		for i := range 20 {
			c.queue.Add(request(fmt.Sprint(i)))
		}
		synctest.Wait()
		if n := began.Load(); n != 7 {
			t.Errorf("%d have begun, want the 5 that are parked and one for each worker", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if began.Load() != 20 || active.Load() != 0 {
			t.Errorf("%d have begun, %d are active", began.Load(), active.Load())
		}
		if most.Load() > 4 {
			t.Errorf("%d were active at the same time, want the 2 workers and 2 places", most.Load())
		}
	})
}

// TestFollowUps: what follows from a reconcile that parked is what would have followed
// had it not.
func TestFollowUps(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		result reconcile.Result
		err    error
		asked  bool
		within time.Duration
	}{
		"Later":  {reason: "it said when", result: reconcile.Result{RequeueAfter: time.Hour}, within: time.Hour},
		"Failed": {reason: "failures are tried again, soon at first", err: errors.New("no"), within: 10 * time.Second},
		"Asked":  {reason: "what was asked meanwhile is done next", result: reconcile.Result{RequeueAfter: time.Hour}, asked: true, within: 0},
		"Urgent": {reason: "a person who asks does not wait for a pause", err: errors.New("no"), asked: true, within: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var times []time.Time
				var running atomic.Int64
				c, stop := start(t, 2, 5, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
					if running.Add(1) > 1 {
						t.Error("it is reconciled twice at the same time")
					}
					defer running.Add(-1)
					times = append(times, time.Now())
					if len(times) > 1 {
						return reconcile.Result{}, nil
					}
					Wait(ctx, func() error { time.Sleep(time.Minute); return nil })
					return tc.result, tc.err
				})
				defer stop()
				c.queue.Add(request("a"))
				synctest.Wait()
				if tc.asked {
					c.queue.Add(request("a"))
				}
				time.Sleep(3 * time.Hour)
				synctest.Wait()
				if len(times) != 2 {
					t.Fatalf("%s: it was reconciled %d times", tc.reason, len(times))
				}
				if after := times[1].Sub(times[0]) - time.Minute; after < 0 || after > tc.within {
					t.Errorf("%s: again after %s, want at most %s", tc.reason, after, tc.within)
				}
			})
		})
	}
}

// TestPausesGrow: what waits and asks to be tried again each time is tried more and more seldom, as what
// fails is, until it asks for that no more.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const settled, last = 5, 7
		var begun []time.Time
		c, stop := start(t, 2, 5, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			if begun = append(begun, time.Now()); len(begun) != settled { // which does not wait, and has a worker to the end
				Wait(ctx, func() error { time.Sleep(time.Minute); return nil })
			}
			//lint:ignore SA1019 a reconciler may ask for it
			return reconcile.Result{Requeue: len(begun) != settled && len(begun) != last}, nil
		})
		defer stop()
		for range 2 {
			c.queue.Add(request("a"))
			time.Sleep(time.Hour)
			synctest.Wait()
		}
		if len(begun) != last {
			t.Fatalf("it was reconciled %d times, want %d", len(begun), last)
		}
		for i, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 8 * time.Second, 6: time.Second} {
			if pause := begun[i].Sub(begun[i-1]) - time.Minute; pause != want {
				t.Errorf("reconcile %d came after a pause of %s, want %s", i+1, pause, want)
			}
		}
	})
}

// TestStop: the controller's end ends the waits, and nothing is left behind: the bubble
// of the test would tell.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		c, stop := start(t, 1, 5, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			err := Wait(ctx, func() error { <-ctx.Done(); return ctx.Err() })
			ended = true
			return reconcile.Result{}, err
		})
		c.queue.Add(request("a"))
		synctest.Wait()
		stop()
		if !ended {
			t.Error("it is still waiting")
		}
	})
}

// TestNothingBeginsAfterTheEnd: a worker that still takes an object from the queue while
// the lot waits for its reconciles begins none, which nobody would wait for.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		lot := New(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			begun.Add(1)
			return reconcile.Result{}, nil
		}), Options{Workers: 2, Backoff: limiter()})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := lot.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := lot.Reconcile(ctx, request("late")); err != nil || begun.Load() != 0 {
			t.Errorf("%d began, %v", begun.Load(), err)
		}
	})
}

// TestOutlivesCall: the controller bounds a call, and with it what keeps a worker. How
// long a wait may take, the object says.
func TestOutlivesCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		lot := New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			Wait(ctx, func() error { time.Sleep(15 * time.Minute); return nil })
			ended <- ctx.Err()
			return reconcile.Result{}, nil
		}), Options{Workers: 1, Parked: 5, Backoff: limiter()})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if _, err := lot.Reconcile(ctx, request("a")); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("the reconcile was ended after 10 minutes: %v", err)
		}
	})
}

// TestWithoutLot: a reconcile that no lot runs waits in place.
func TestWithoutLot(t *testing.T) {
	if got := Wait(t.Context(), func() int { return 7 }); got != 7 {
		t.Errorf("Wait() = %d", got)
	}
}

// TestTakesLong: reconciles that do not end, and do not say that they wait, keep no
// worker for longer than the patience, as long as there is room aside; those that took
// long before keep none at all, also not those for whom there is no room.
func TestTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var served time.Time
		var running, most atomic.Int64
		hangs := atomic.Bool{}
		hangs.Store(true)
		c, stop := start(t, 2, 100, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			if req.Name == "good" {
				served = time.Now()
				return reconcile.Result{}, nil
			}
			now := running.Add(1)
			defer running.Add(-1)
			for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
			}
			if hangs.Load() {
				time.Sleep(time.Minute)
			}
			return reconcile.Result{}, errors.New("no answer")
		})
		defer stop()
		ask := func(n int) {
			for i := range n {
				c.queue.Add(request(fmt.Sprint("hung", i)))
			}
		}
		good := func() time.Duration {
			synctest.Wait()
			begin := time.Now()
			c.queue.Add(request("good"))
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			return served.Sub(begin)
		}
		ask(2)
		if took := good(); took != patience {
			t.Errorf("beside two that hang for the first time it took %s, want %s", took, patience)
		}
		if most.Load() > 5 {
			t.Errorf("%d ran at the same time, want 2 workers and 3 aside at most", most.Load())
		}
		ask(2)
		if took := good(); took != 0 {
			t.Errorf("beside two that are known to hang it took %s", took)
		}
		ask(12)
		good()
		most.Store(0)
		ask(12)
		if took := good(); took != 0 {
			t.Errorf("beside more that hang than there is room for it took %s", took)
		}
		if most.Load() > 3 {
			t.Errorf("%d ran at the same time, want 3 aside at most", most.Load())
		}
		time.Sleep(time.Hour)
		hangs.Store(false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(c.lot.slow); n != 0 || c.lot.parked != 0 || len(c.lot.aside) != 0 || len(c.lot.places) != 0 {
			t.Errorf("%d are still slow, %d parked, %d aside, %d in places", n, c.lot.parked, len(c.lot.aside), len(c.lot.places))
		}
	})
}

// TestLate: a reconcile whose call is not answered soon keeps a worker no longer than that,
// and goes on by itself. One whose call is answered in time keeps it.
func TestLate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		takes  time.Duration
		most   time.Duration
	}{
		"Unanswered": {"a call takes a minute", time.Minute, time.Second},
		"Answered":   {"a call takes half of the time", time.Second / 2, time.Second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var served time.Time
				var called atomic.Int64
				c, stop := start(t, 2, 100, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
					if req.Name == "good" {
						served = time.Now()
						return reconcile.Result{}, nil
					}
					for range 3 {
						answered := Late(ctx, time.Second)
						time.Sleep(tc.takes)
						answered()
						called.Add(1)
						if tc.takes < time.Second {
							break
						}
					}
					return reconcile.Result{}, nil
				})
				defer stop()
				for i := range 2 {
					c.queue.Add(request(fmt.Sprint("hung", i)))
				}
				synctest.Wait()
				begin := time.Now()
				c.queue.Add(request("good"))
				time.Sleep(time.Hour)
				synctest.Wait()
				if took := served.Sub(begin); took != tc.most {
					t.Errorf("%s: beside two of them it took %s, want %s", tc.reason, took, tc.most)
				}
				if want := int64(6); tc.takes > time.Second && called.Load() != want {
					t.Errorf("%s: %d calls were made, want %d", tc.reason, called.Load(), want)
				}
				if c.lot.parked != 0 || len(c.lot.aside) != 0 || len(c.lot.places) != 0 {
					t.Errorf("%s: %d are parked, %d aside, %d in places", tc.reason, c.lot.parked, len(c.lot.aside), len(c.lot.places))
				}
			})
		})
	}
	Late(t.Context(), time.Second)()
}

// TestAside: who says that it takes long holds no worker from the beginning, and waits for
// room aside if there is none.
func TestAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var served time.Time
		var running, most atomic.Int64
		c, stop := start(t, 2, 100, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			if req.Name == "good" {
				served = time.Now()
				return reconcile.Result{}, nil
			}
			Aside(ctx)
			now := running.Add(1)
			defer running.Add(-1)
			for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
			}
			time.Sleep(time.Minute)
			return reconcile.Result{}, nil
		})
		defer stop()
		for i := range 12 {
			c.queue.Add(request(fmt.Sprint("slow", i)))
		}
		synctest.Wait()
		begin := time.Now()
		c.queue.Add(request("good"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if took := served.Sub(begin); took != 0 {
			t.Errorf("beside those that take long for the first time it took %s", took)
		}
		if most.Load() != 3 {
			t.Errorf("%d ran at the same time, want the 3 for which there is room", most.Load())
		}
		if c.lot.parked != 0 || len(c.lot.aside) != 0 || len(c.lot.places) != 0 {
			t.Errorf("%d are parked, %d aside, %d in places", c.lot.parked, len(c.lot.aside), len(c.lot.places))
		}
		Aside(t.Context())
	})
}

// TestShare: those of one namespace that take long each time leave room aside to one of another that takes long.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var others atomic.Int64
		o := Options{Workers: 2, Parked: 100, Patience: patience, Aside: 3, Share: 2, Backoff: limiter()}
		c, stop := startWith(t, o, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			took := time.Minute
			if req.Namespace == "evil" {
				took = time.Hour
			} else {
				others.Add(1)
			}
			select {
			case <-time.After(took):
			case <-ctx.Done():
			}
			return reconcile.Result{}, nil
		})
		defer stop()
		good := request("good")
		c.queue.Add(good)
		time.Sleep(2 * time.Minute)
		evil := func() {
			for i := range 3 {
				c.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}})
			}
		}
		evil()
		time.Sleep(4 * time.Hour)
		evil() // it is known of them
		time.Sleep(time.Minute)
		c.queue.Add(good)
		time.Sleep(2 * time.Minute)
		if n := others.Load(); n != 2 {
			t.Errorf("the one of another namespace began %d times, want twice", n)
		}
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		if c.lot.parked != 0 || len(c.lot.aside) != 0 || len(c.lot.shares) != 0 {
			t.Errorf("%d are parked, %d aside, of %d namespaces", c.lot.parked, len(c.lot.aside), len(c.lot.shares))
		}
	})
}

// TestShareOfUnknown: those of one namespace of which nobody knew that they take long leave workers and room aside to
// others, too. They all go on in the share of their namespace, and who is beyond it for a moment only is not disturbed.
func TestShareOfUnknown(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		evil   int
		takes  time.Duration
		// runs is how often an evil one begins at most; within is when the other one has its worker.
		runs   int64
		within time.Duration
	}{
		"Hours":  {"six take hours", 6, 10 * time.Hour, 12, time.Minute},
		"Seldom": {"three take half a minute, of which one is beyond the share", 3, mostBeyond / 2, 3, 2 * patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs, ended, slow atomic.Int64
				var served time.Time
				o := Options{Workers: 2, Parked: 100, Patience: patience, Aside: 3, Share: 2, Backoff: limiter()}
				c, stop := startWith(t, o, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
					took := tc.takes
					switch {
					case req.Namespace == "evil":
						runs.Add(1)
					case req.Name == "good":
						served = time.Now()
						return reconcile.Result{}, nil
					default:
						took = time.Minute
					}
					select {
					case <-time.After(took):
					case <-ctx.Done():
						return reconcile.Result{}, errors.New("cannot fetch")
					}
					if req.Namespace == "evil" {
						ended.Add(1)
					} else {
						slow.Add(1)
					}
					return reconcile.Result{}, nil
				})
				defer stop()
				for i := range tc.evil {
					c.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}})
				}
				synctest.Wait()
				begin := time.Now()
				c.queue.Add(request("good"))
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if took := served.Sub(begin); served.IsZero() || took > tc.within {
					t.Errorf("%s: another has its worker after %s, want %s at most", tc.reason, took, tc.within)
				}
				for range 2 { // the second time it is known
					c.queue.Add(request("slow"))
					time.Sleep(2 * time.Minute)
				}
				if slow.Load() != 2 {
					t.Errorf("%s: another that takes long ended %d times, want twice", tc.reason, slow.Load())
				}
				time.Sleep(100 * time.Hour)
				synctest.Wait()
				if ended.Load() != int64(tc.evil) || runs.Load() > tc.runs {
					t.Errorf("%s: %d have ended and %d were begun, want all %d, and %d begun at most", tc.reason, ended.Load(), runs.Load(), tc.evil, tc.runs)
				}
				if c.lot.parked != 0 || len(c.lot.aside) != 0 || len(c.lot.places) != 0 || len(c.lot.shares) != 0 {
					t.Errorf("%s: %d are parked, %d aside, %d in places, of %d namespaces", tc.reason, c.lot.parked, len(c.lot.aside), len(c.lot.places), len(c.lot.shares))
				}
			})
		})
	}
}

// TestShareOfParked: those of one namespace that wait for each other leave room to wait to those of others.
func TestShareOfParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Int64
		o := Options{Workers: 1, Parked: 4, Patience: patience, Aside: 2, Share: 1, Backoff: limiter()}
		c, stop := startWith(t, o, func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			took := time.Minute
			if req.Namespace == "evil" {
				took = 10 * time.Hour
			}
			select {
			case <-time.After(took):
			case <-ctx.Done():
				return reconcile.Result{}, ctx.Err()
			}
			if req.Namespace != "evil" {
				slow.Add(1)
			}
			return reconcile.Result{}, nil
		})
		defer stop()
		for i := range 6 {
			c.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "evil", Name: fmt.Sprint(i)}})
		}
		time.Sleep(10 * time.Minute)
		for range 2 {
			c.queue.Add(request("slow"))
			time.Sleep(55 * time.Second)
			c.lot.mu.Lock()
			if c.lot.of["evil"] != 2 || c.lot.of["x"] != 1 {
				t.Errorf("parked are %v, want two of the one namespace, and that of the other", c.lot.of)
			}
			c.lot.mu.Unlock()
			time.Sleep(5 * time.Minute)
		}
		if slow.Load() != 2 {
			t.Errorf("another that takes long ended %d times, want twice", slow.Load())
		}
		time.Sleep(200 * time.Hour)
		synctest.Wait()
		if c.lot.parked != 0 || len(c.lot.of) != 0 || len(c.lot.shares) != 0 {
			t.Errorf("%d are parked, %v, of %d namespaces", c.lot.parked, c.lot.of, len(c.lot.shares))
		}
	})
}

// TestEndedByShare: what a reconcile that was ended makes of it is not told as an error of its object.
func TestEndedByShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lot := New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, ErrShare) {
				t.Errorf("it ended by %v", cause)
			}
			return reconcile.Result{}, errors.New("cannot fetch")
		}), Options{Workers: 1, Parked: 5, Patience: patience, Aside: 0, Share: 1, Deadline: time.Hour, Backoff: limiter()})
		lot.shares["x"] = &share{taken: make(chan struct{}, 1), users: 1}
		lot.shares["x"].taken <- struct{}{}
		if _, err := lot.Reconcile(t.Context(), request("a")); !errors.Is(err, ErrShare) {
			t.Errorf("Reconcile() = %v, want that it is ended", err)
		}
		lot.jobs.Wait()
	})
}

// TestWatch: what runs is watched, and what waits is not.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &counted{}
		begun := make(chan int, 1)
		lot := New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			begun <- w.running
			Wait(ctx, func() error { begun <- w.running; return nil })
			begun <- w.running
			return reconcile.Result{}, nil
		}), Options{Workers: 1, Parked: 5, Backoff: limiter(), Watch: func(ctx context.Context, _ reconcile.Request) (context.Context, Watch) { return ctx, w }})
		go func() {
			_, _ = lot.Reconcile(t.Context(), request("a")) // it returns nothing
		}()
		for i, want := range []int{1, 0, 1} {
			if got := <-begun; got != want {
				t.Errorf("step %d: %d are watched, want %d", i, got, want)
			}
		}
		lot.jobs.Wait()
		if w.running != 0 {
			t.Error("it is watched after its end")
		}
	})
}

// counted counts what runs.
type counted struct{ running int }

func (c *counted) Begin() { c.running++ }
func (c *counted) End()   { c.running-- }

// TestDeadline: a reconcile that runs for too long has its deadline, which what it waits
// does not use up, and goes on with what follows.
func TestDeadline(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		run, wait time.Duration
		ended     error
	}{
		"Waits": {"an hour of waiting is none of running", 4 * time.Minute, time.Hour, nil},
		"Runs":  {"what it ran before its wait counts as well", 6 * time.Minute, time.Hour, context.DeadlineExceeded},
		"Hangs": {"it never waited", 11 * time.Minute, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				again := 0
				queue := workqueue.NewTypedRateLimitingQueue(limiter())
				defer queue.ShutDown()
				lot := New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
					if again++; again > 1 {
						return reconcile.Result{}, nil
					}
					child, cancel := context.WithTimeout(ctx, 24*time.Hour)
					defer cancel()
					sleep := func(d time.Duration) {
						select {
						case <-child.Done():
						case <-time.After(d):
						}
					}
					sleep(tc.run)
					Wait(ctx, func() error { sleep(tc.wait); return nil })
					sleep(tc.run)
					for _, c := range []context.Context{ctx, child} {
						if err := c.Err(); !errors.Is(err, tc.ended) {
							t.Errorf("%s: it ended with %v, want %v", tc.reason, err, tc.ended)
						}
					}
					return reconcile.Result{}, child.Err()
				}), Options{Workers: 1, Parked: 5, Deadline: 10 * time.Minute, Backoff: limiter()})
				if err := lot.Open(t.Context(), queue); err != nil {
					t.Fatal(err)
				}
				_, _ = lot.Reconcile(t.Context(), request("a")) // the queue has what follows
				lot.jobs.Wait()
				time.Sleep(time.Minute)
				if want := map[bool]int{true: 1, false: 0}[tc.ended != nil]; queue.Len() != want {
					t.Errorf("%s: %d are asked for again, want %d", tc.reason, queue.Len(), want)
				}
			})
		})
	}
}

// TestWaitsWithin: what waits asks in goroutines of its own for what waits as well, as a
// poller does that has workers evaluate what it read. The reconcile holds nothing for that,
// and its clock does not run.
func TestWaitsWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lot *Lot
		w := &counted{}
		look := func(ctx context.Context) {
			if n := lot.Counts(); n != (Counts{Waiting: 1}) || w.running != 0 {
				t.Errorf("under way are %+v and %d are watched, want one that waits", n, w.running)
			}
			if err := ctx.Err(); err != nil {
				t.Errorf("the reconcile ended while it waited: %v", err)
			}
		}
		lot = New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			Wait(ctx, func() error {
				polled := make(chan struct{})
				go func() {
					defer close(polled)
					for range 90 {
						Wait(ctx, func() error { look(ctx); return nil })
						time.Sleep(10 * time.Second)
						look(ctx)
					}
				}()
				<-polled
				return nil
			})
			if n := lot.Counts(); n != (Counts{Running: 1}) || w.running != 1 {
				t.Errorf("after the wait %+v are under way and %d are watched, want one that runs", n, w.running)
			}
			return reconcile.Result{}, ctx.Err()
		}), Options{
			Workers: 1, Parked: 5, Patience: patience, Aside: 3, Deadline: 10 * time.Minute, Backoff: limiter(),
			Watch: func(ctx context.Context, _ reconcile.Request) (context.Context, Watch) { return ctx, w },
		})
		_, _ = lot.Reconcile(t.Context(), request("a")) // it returns nothing
		lot.jobs.Wait()
	})
}

// TestPanic: a panic harms the one object, wherever its reconcile is, and gives back what
// the reconcile holds.
func TestPanic(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		run    func(context.Context)
	}{
		"AtOnce": {"it has a worker", func(context.Context) {}},
		"After":  {"it has a place", func(ctx context.Context) { Wait(ctx, func() error { time.Sleep(time.Second); return nil }) }},
		"During": {"it has nothing", func(ctx context.Context) { Wait(ctx, func() error { panic("in a wait") }) }},
		"Aside":  {"it took long", func(context.Context) { time.Sleep(time.Minute) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				c, stop := start(t, 1, 5, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
					if tries++; tries > 1 {
						return reconcile.Result{}, nil
					}
					tc.run(ctx)
					panic("a defect")
				})
				defer stop()
				c.queue.Add(request("a"))
				time.Sleep(time.Hour)
				synctest.Wait()
				if tries != 2 || len(c.lot.places) != 0 || len(c.lot.aside) != 0 || c.lot.parked != 0 {
					t.Errorf("%s: tried %d times, want 2; %d places, %d aside, %d parked", tc.reason, tries, len(c.lot.places), len(c.lot.aside), c.lot.parked)
				}
			})
		})
	}
}
