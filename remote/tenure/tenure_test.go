package tenure

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/shard"
)

var child = types.NamespacedName{Namespace: "fleet", Name: "a"}

// tenures of two shards. The returned function begins with a shard, and returns its election.
func tenures(t *testing.T, lost func(has func(types.NamespacedName) bool)) (*Tenures, func(i int, held func() error) context.Context) {
	t.Helper()
	all := New(Options{
		Shards: 2, Replica: "me", Now: time.Now, Registry: prometheus.NewRegistry(),
		Epoch: func(context.Context) (epoch.Mark, error) { return epoch.Mark{Epoch: 7, Holder: "me"}, nil },
	})
	all.OnChange(func(context.Context, func(types.NamespacedName) bool) error { return nil }, lost)
	return all, func(i int, held func() error) context.Context {
		election, stop := context.WithCancel(t.Context())
		all.begin(t.Context(), election, stop, i, held)
		return election
	}
}

// TestWork: work on a child goes on only while its shard is this process's, and what is
// known of the child goes when all work has ended.
func TestWork(t *testing.T) {
	forgotten, told := false, -1.0
	var all *Tenures
	var begin func(int, func() error) context.Context
	all, begin = tenures(t, func(has func(types.NamespacedName) bool) {
		forgotten, told = has(child), testutil.ToFloat64(all.held.WithLabelValues(strconv.Itoa(shard.Of(child, 2))))
	})
	if _, _, _, ok := all.Enter(t.Context(), child); ok {
		t.Fatal("a process without a shard works on a child")
	}
	if err := all.MayWrite(child); !errors.Is(err, errNotHeld) {
		t.Errorf("a process without a shard may write: %v", err)
	}
	begin(shard.Of(child, 2), func() error { return nil })
	held, ctx, leave, ok := all.Enter(t.Context(), child)
	if !ok || all.MayWrite(child) != nil || held.Mark().Epoch != 7 {
		t.Fatalf("a process with the shard works: %t, %v", ok, all.MayWrite(child))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := all.end(gone, shard.Of(child, 2)); err == nil || forgotten {
		t.Errorf("the shard is given back while there is work: %v", err)
	}
	<-ctx.Done()
	if !held.Over() || all.MayWrite(child) == nil {
		t.Error("work goes on although the shard is about to be given back")
	}
	if _, _, _, ok := all.Enter(t.Context(), child); ok {
		t.Error("work begins although the shard is about to be given back")
	}
	leave()
	if err := all.end(t.Context(), shard.Of(child, 2)); err != nil || !forgotten {
		t.Errorf("the shard is not given back, the child is forgotten: %t, %v", forgotten, err)
	}
	// It follows the tenure itself, or the end of one overtakes its begin.
	if told != 0 {
		t.Errorf("the metric is %v once there is no tenure", told)
	}
}

// TestFence: who does not know whether the Lease is still its own may not write.
func TestFence(t *testing.T) {
	lost := errors.New("not renewed")
	var held error
	all, begin := tenures(t, func(func(types.NamespacedName) bool) {})
	begin(shard.Of(child, 2), func() error { return held })
	if err := all.MayWrite(child); err != nil {
		t.Errorf("MayWrite() = %v", err)
	}
	if held = lost; !errors.Is(all.MayWrite(child), lost) {
		t.Errorf("MayWrite() = %v", all.MayWrite(child))
	}
	election := begin(1-shard.Of(child, 2), func() error { return held })
	if election.Err() == nil {
		t.Error("the Lease may be renewed, and nobody drives the shard")
	}
	if all.may(1 - shard.Of(child, 2)) {
		t.Error("a tenure began after the Lease was lost")
	}
}

// written is a Lease that counts its writes.
type written struct {
	Lock
	writes int
}

func (w *written) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	w.writes++
	return nil
}

func (w *written) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	w.writes++
	return nil
}

// TestLock: a shard is acquired only by who is to have it.
func TestLock(t *testing.T) {
	all, _ := tenures(t, func(func(types.NamespacedName) bool) {})
	inner := &written{}
	lock := &shardLock{Lock: inner, tenures: all}
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	if err := errors.Join(lock.Create(t.Context(), mine), lock.Update(t.Context(), mine)); !errors.Is(err, errNotWanted) || inner.writes > 0 {
		t.Errorf("the shard of another is acquired: %v", err)
	}
	all.want([]string{"me", "other"})
	if err := errors.Join(lock.Create(t.Context(), mine), lock.Update(t.Context(), mine)); err != nil || inner.writes != 2 {
		t.Errorf("the shard is not acquired: %v", err)
	}
}

// shared is the Lease of another replica, until that is gone.
type shared struct {
	mu     sync.Mutex
	record resourcelock.LeaderElectionRecord
	// gets and renewals are of this process.
	gets, renewals int
}

func (l *shared) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gets++
	record := l.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (l *shared) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return errors.New("there is one")
}

func (l *shared) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = r
	l.renewals++
	return nil
}

func (l *shared) RecordEvent(string) {}
func (l *shared) Identity() string   { return "me" }
func (l *shared) Describe() string   { return "a shard" }
func (l *shared) Held() error        { return nil }

// renew is what the other replica does.
func (l *shared) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = resourcelock.LeaderElectionRecord{HolderIdentity: "other", LeaseDurationSeconds: 15, RenewTime: metav1.Now()}
}

// TestTakenOnTime: the shards of a replica that is gone have another soon after their Leases are over,
// and their Leases are neither asked for nor renewed more often for that.
func TestTakenOnTime(t *testing.T) {
	const shards, minute, renewal = 64, time.Minute, 2 * time.Second
	synctest.Test(t, func(t *testing.T) {
		leases := make([]*shared, shards)
		for i := range leases {
			leases[i] = &shared{}
			leases[i].renew()
		}
		var mu sync.Mutex
		var late []time.Duration
		var gone time.Time
		all := New(Options{
			Shards: shards, Replica: "me", Now: time.Now, Registry: prometheus.NewRegistry(), Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: renewal,
			Lock: func(name string) Lock {
				i, _ := ShardOf(name)
				return leases[i]
			},
			Epoch: func(context.Context) (epoch.Mark, error) {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, time.Since(gone))
				return epoch.Mark{Epoch: 7, Holder: "me"}, nil
			},
		})
		all.OnChange(func(context.Context, func(types.NamespacedName) bool) error { return nil }, func(func(types.NamespacedName) bool) {})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var elections sync.WaitGroup
		for i := range shards {
			elections.Go(func() {
				if err := all.elect(ctx, i); err != nil {
					t.Error(err)
				}
			})
		}
		for range minute / renewal {
			time.Sleep(renewal)
			for _, l := range leases {
				l.renew()
			}
		}
		gone = time.Now()
		asked := 0
		for _, l := range leases {
			l.mu.Lock()
			asked += l.gets
			l.mu.Unlock()
		}
		if most := shards * int(minute/renewal+1); asked > most {
			t.Errorf("%d Leases of others were asked for %d times in a minute, more than %d times", shards, asked, most)
		}
		time.Sleep(11 * time.Second) // by then the plan has it
		plan := make([]string, shards)
		for i := range plan {
			plan[i] = "me"
		}
		all.want(plan)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		mu.Lock()
		if len(late) != shards || slices.Max(late) > 19500*time.Millisecond || slices.Min(late) < 15*time.Second {
			t.Errorf("%d of %d shards were taken over, after %v to %v", len(late), shards, slices.Min(append(late, time.Hour)), slices.Max(append(late, 0)))
		}
		mu.Unlock()
		before := 0
		for _, l := range leases {
			l.mu.Lock()
			before += l.renewals
			l.mu.Unlock()
		}
		time.Sleep(minute)
		renewed := -before
		for _, l := range leases {
			l.mu.Lock()
			renewed += l.renewals
			l.mu.Unlock()
		}
		if most := shards * int(minute/renewal+1); renewed > most || renewed < most*3/4 {
			t.Errorf("%d Leases were renewed %d times in a minute, about %d times are meant", shards, renewed, most)
		}
		cancel()
		elections.Wait()
		for _, l := range leases {
			if l.record.HolderIdentity != "" {
				t.Fatalf("a Lease is not given back at the end: %+v", l.record)
			}
		}
	})
}

// TestNoEpoch: who cannot begin with a shard does not keep its Lease, so that all others see that nobody drives the
// children, and has it as soon as he can.
func TestNoEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &shared{}
		var broken atomic.Bool
		var asked atomic.Int32
		broken.Store(true)
		all := New(Options{
			Shards: 1, Replica: "me", Now: time.Now, Registry: prometheus.NewRegistry(), Lease: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second,
			Lock: func(string) Lock { return l },
			Epoch: func(context.Context) (epoch.Mark, error) {
				if asked.Add(1); broken.Load() {
					return epoch.Mark{}, errors.New("cannot parse the epoch of this tier")
				}
				return epoch.Mark{Epoch: 7, Holder: "me"}, nil
			},
		})
		all.OnChange(func(context.Context, func(types.NamespacedName) bool) error { return nil }, func(func(types.NamespacedName) bool) {})
		all.want([]string{"me"})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var elections sync.WaitGroup
		elections.Go(func() { all.compete(ctx, 0) })
		holder := func() string {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.record.HolderIdentity
		}
		time.Sleep(30 * time.Second)
		for range 60 {
			if time.Sleep(time.Second); holder() != "" {
				t.Fatalf("%s holds a Lease without driving the children", holder())
			}
		}
		before := asked.Load()
		time.Sleep(time.Minute)
		if tries := asked.Load() - before; tries > 31 || tries < 10 {
			t.Errorf("it was tried %d times in a minute whether it could begin", tries)
		}
		broken.Store(false)
		time.Sleep(10 * time.Second)
		if holder() != "me" || !all.Has(child) {
			t.Errorf("the Lease is held by %q once it could begin, it drives the child: %t", holder(), all.Has(child))
		}
		cancel()
		elections.Wait()
	})
}

// TestUnserved: it is known since when no replica has a shard.
func TestUnserved(t *testing.T) {
	now := start
	all := New(Options{Shards: 1, Replica: "me", Now: func() time.Time { return now }, Registry: prometheus.NewRegistry(), Lease: 15 * time.Second, Retry: 2 * time.Second})
	for _, step := range []struct {
		reason string
		after  time.Duration
		held   *coordinationv1.Lease
		since  time.Time
	}{
		{"there is no Lease yet", 0, nil, start},
		{"still", time.Minute, nil, start},
		{"a replica has it", time.Minute, new(lease(LeaseName(0), "a", 1)), time.Time{}},
		{"it is not renewed any more", time.Minute, new(lease(LeaseName(0), "a", 1)), start.Add(3 * time.Minute)},
		{"nobody has it", time.Minute, new(lease(LeaseName(0), "", 1)), start.Add(3 * time.Minute)},
	} {
		now = now.Add(step.after)
		var leases []coordinationv1.Lease
		if step.held != nil {
			leases = append(leases, *step.held)
		}
		all.note(all.picked.served(leases, 1))
		if since := all.Unserved(child); !since.Equal(step.since) {
			t.Errorf("%s: nobody has the shard since %s, want %s", step.reason, since, step.since)
		}
	}
}

// TestRaise: an epoch never falls.
func TestRaise(t *testing.T) {
	held := newTenure(t.Context(), epoch.Mark{Epoch: 3, Holder: "me"}, nil)
	held.Raise(epoch.Mark{Epoch: 2, Holder: "me"})
	if held.Mark().Epoch != 3 {
		t.Errorf("the epoch fell to %d", held.Mark().Epoch)
	}
	if held.Raise(epoch.Mark{Epoch: 5, Holder: "me"}); held.Mark().Epoch != 5 {
		t.Errorf("the epoch is %d", held.Mark().Epoch)
	}
}
