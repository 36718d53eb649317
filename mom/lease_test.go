//go:build linux

package mom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascade-gitops/cascade/state/store"
)

// lockable is a store that has nothing but a lock.
type lockable struct {
	store.Store

	mu     sync.Mutex
	holder string
	until  time.Time
	epoch  int64
	// broken is what a renewal ends with; hangs: it does not end before its context.
	broken error
	hangs  bool
	// renewed are the times of renewals, saves how long one takes.
	renewed []time.Time
	saves   time.Duration
}

func (l *lockable) Save(context.Context, store.Lock, []byte) (store.Version, error) {
	time.Sleep(l.saves)
	return store.Version{}, nil
}

func (l *lockable) Lock(_ context.Context, holder string, ttl time.Duration) (store.Lock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until.Add(store.Skew)) {
		return store.Lock{}, &store.LockedError{Holder: l.holder, Until: l.until, Place: "there"}
	}
	l.epoch++
	l.holder, l.until = holder, time.Now().Add(ttl)
	return store.Lock{Epoch: l.epoch, Holder: holder, Until: l.until, TTL: ttl}, nil
}

func (l *lockable) Renew(ctx context.Context, lock store.Lock) (store.Lock, error) {
	l.mu.Lock()
	hangs := l.hangs
	l.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return store.Lock{}, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return store.Lock{}, l.broken
	}
	l.until = time.Now().Add(lock.TTL)
	lock.Until = l.until
	l.renewed = append(l.renewed, time.Now())
	return lock, nil
}

func (l *lockable) Unlock(context.Context, store.Lock) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Time{}
	return nil
}

func (l *lockable) change(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func leaseOf(t *testing.T, s *lockable, before string) (*lease, chan error) {
	t.Helper()
	gone := make(chan error, 1)
	return &lease{
		state: &State{Address: "there", Store: s, Holder: "me"}, board: &board{folder: Folder(t.TempDir())}, now: time.Now, before: before,
		onLost: func(err error) { gone <- err }, say: t.Logf,
	}, gone
}

func TestLease(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*lockable)
		// lost is when the writers are ended at the latest, zero for never.
		lost time.Duration
	}{
		"Kept":    {"a store that answers", func(*lockable) {}, 0},
		"Taken":   {"somebody took it over: at once", func(s *lockable) { s.broken = fmt.Errorf("no: %w", store.ErrLockLost) }, renewEvery + lookAtClock},
		"Broken":  {"a store that fails: before it may lapse", func(s *lockable) { s.broken = errors.New("no") }, lockFor - lockMargin + lookAtClock},
		"Hanging": {"a store that does not answer: before it may lapse", func(s *lockable) { s.hangs = true }, lockFor - lockMargin + lookAtClock},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &lockable{}
				l, gone := leaseOf(t, s, "")
				if err := l.take(t.Context()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				s.change(func() { tc.change(s) })
				select {
				case err := <-gone:
					if after := time.Since(began); tc.lost == 0 || after > tc.lost || !errors.Is(err, ErrLockLost) {
						t.Errorf("%s: lost after %s: %v", tc.reason, after, err)
					}
				case <-time.After(10 * time.Minute):
					if tc.lost != 0 {
						t.Errorf("%s: it was not lost", tc.reason)
					}
				}
				if tc.lost == 0 && time.Now().After(l.current().Until) {
					t.Errorf("%s: it lapsed", tc.reason)
				}
				if err := l.release(t.Context()); err != nil {
					t.Error(err)
				}
				if !s.until.IsZero() {
					t.Errorf("%s: it was not given back", tc.reason)
				}
			})
		})
	}
}

func TestLeaseOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lockable{holder: "other", until: time.Now().Add(lockFor)}
		l, _ := leaseOf(t, s, "")
		if err := l.take(t.Context()); !errors.Is(err, store.ErrLocked) {
			t.Errorf("got %v", err)
		}
		if err := l.release(t.Context()); err != nil {
			t.Error(err)
		}
		// Another folder of the same machine is another one.
		l, _ = leaseOf(t, s, "me")
		if err := l.take(t.Context()); !errors.Is(err, store.ErrLocked) {
			t.Errorf("got %v", err)
		}
		// That of this folder has ended, and its lock lapses.
		l, _ = leaseOf(t, s, "other")
		began := time.Now()
		if err := l.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited < lockFor+store.Skew || waited > lockFor+store.Skew+2*askEvery {
			t.Errorf("it waited %s", waited)
		}
		if l.current().Epoch != 1 || l.current().Holder != "me" {
			t.Errorf("got %+v", l.current())
		}
		if err := l.release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestLeaseOfCopy: a holder that runs is told of, not waited for, though it has the name of who had the
// lock in this folder.
func TestLeaseOfCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// renewals of the lock that another one makes from now on.
		renewals int
		want     error
	}{
		"Dead":  {"it ended, and its lock lapses", 0, nil},
		"Dying": {"a renewal was on its way when it ended", 1, nil},
		"Alive": {"it runs on another machine", 100, store.ErrLocked},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &lockable{}
				other, err := s.Lock(t.Context(), "fleet", lockFor)
				if err != nil {
					t.Fatal(err)
				}
				renewing, stop := context.WithCancel(t.Context())
				var done sync.WaitGroup
				done.Go(func() {
					for range tc.renewals {
						select {
						case <-renewing.Done():
							return
						case <-time.After(renewEvery):
						}
						if _, err := s.Renew(renewing, other); err != nil {
							t.Error(err)
						}
					}
				})
				began := time.Now()
				l, _ := leaseOf(t, s, "fleet")
				if err := l.take(t.Context()); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
					t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
				}
				if waited := time.Since(began); tc.want != nil && waited > lockFor {
					t.Errorf("%s: it is said after %s", tc.reason, waited)
				}
				if s, _, err := l.board.folder.ReadStatus(); err != nil || (len(s.Verdict.Waiting) == 1) != (tc.want != nil) {
					t.Errorf("%s: the status says that it waits for %q, %v", tc.reason, s.Verdict.Waiting, err)
				}
				stop()
				done.Wait()
				if err := l.release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLeaseWhileSaving: a renewal would have the upload of a save begin again, and waits for it, but
// not until the lock lapses.
func TestLeaseWhileSaving(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		saves  time.Duration
		// first is when the lock is renewed first after the save began.
		first time.Duration
	}{
		"Quick":   {"as usual", time.Second, renewEvery},
		"Slow":    {"it waits until that is saved", 25 * time.Second, 25*time.Second + lookAtClock},
		"Forever": {"not so long that the lock is lost", 5 * time.Minute, lockFor - lockMargin - renewEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &lockable{saves: tc.saves}
				l, gone := leaseOf(t, s, "")
				if err := l.take(t.Context()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if _, err := l.save(t.Context(), s, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(renewEvery + 2*lookAtClock)
				var first time.Duration
				s.change(func() {
					if len(s.renewed) > 0 {
						first = s.renewed[0].Sub(began)
					}
				})
				if first < tc.first-lookAtClock || first > tc.first+lookAtClock {
					t.Errorf("%s: renewed after %s, want %s", tc.reason, first, tc.first)
				}
				select {
				case err := <-gone:
					t.Errorf("%s: %v", tc.reason, err)
				default:
				}
				if err := l.release(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
