//go:build linux

package mom

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/state/store"
)

// ErrLockLost says that another mom may write from now on.
var ErrLockLost = errors.New("the lock of the state was lost, and nothing of this mom writes any more")

// errLapsed: the store did not answer, or this process did not run.
var errLapsed = errors.New("it was not renewed in time")

// askEvery is the pause between two tries to take a lock that lapses.
const askEvery = 3 * time.Second

// lookAtClock is the pause between two looks at whether the lock may lapse.
const lookAtClock = time.Second

// renewPatience bounds one try to renew the lock, so that there is another one in time.
const renewPatience = 2 * renewEvery

// storeTimeout bounds one call to the store.
const storeTimeout = 2 * time.Minute

// lease keeps the lock of a state as long as a run has it.
type lease struct {
	state *State
	board *board
	now   func() time.Time
	// onLost ends all writers. It is called once, before anything is said.
	onLost func(error)
	// before is the holder of the lock when this folder was in use last.
	before string
	say    func(format string, args ...any)

	mu   sync.Mutex
	lock store.Lock
	// saving: a save is under way.
	saving bool

	stop context.CancelFunc
	done sync.WaitGroup
}

// take takes the lock and keeps it until release.
func (l *lease) take(ctx context.Context) error {
	lock, err := l.ask(ctx)
	if err != nil {
		return err
	}
	l.set(lock)
	l.board.change(func(s *Status) { s.Verdict.Waiting = nil })
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.done.Go(func() { l.keep(keeping) })
	return nil
}

// ask asks for the lock. An earlier process of this folder has ended, as its folder is free:
// where that still has the lock, it lapses, and is waited for. A holder that renews it runs: that of a
// copy of this folder, or one that has the same name.
func (l *lease) ask(ctx context.Context) (store.Lock, error) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	var until time.Time
	for answers := 0; ; {
		asked, cancel := context.WithTimeout(ctx, storeTimeout)
		lock, err := l.state.Store.Lock(asked, l.state.Holder, lockFor)
		cancel()
		var locked *store.LockedError
		if err == nil || l.before == "" || !errors.As(err, &locked) || locked.Holder != l.before {
			return lock, err
		}
		if locked.Until.After(until) {
			until = locked.Until
			// One renewal may have been on its way when its process ended.
			if answers++; answers > 2 {
				return store.Lock{}, fmt.Errorf("%w, and renews it: it runs, in a copy of this folder or with the same --holder; stop it there first", err)
			}
			waiting := fmt.Sprintf("the lock of the state until %s: %s, who had it in this folder, has not given it back", until.Add(store.Skew).UTC().Format(time.RFC3339), locked.Holder)
			l.say("waiting for %s", waiting)
			l.board.change(func(s *Status) { s.Verdict.Waiting = []string{waiting} })
		}
		select {
		case <-ctx.Done():
			return store.Lock{}, err
		case <-ticker.C:
		}
	}
}

func (l *lease) set(lock store.Lock) {
	l.mu.Lock()
	l.lock = lock
	l.mu.Unlock()
	l.board.ofState(func(s *StateStatus) {
		s.Address, s.Epoch, s.Until = l.state.Address, lock.Epoch, lock.Until
	})
}

// current is the lock as it was renewed last.
func (l *lease) current() store.Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lock
}

// save saves under the lock.
func (l *lease) save(ctx context.Context, at store.Store, sealed []byte) (store.Version, error) {
	is := func(saving bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.saving = saving
	}
	is(true)
	defer is(false)
	return at.Save(ctx, l.current(), sealed)
}

// due reports whether the lock is to be renewed.
func (l *lease) due(next time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.now().Before(renewal(next, l.lock.Until, l.saving))
}

// keep renews the lock until its context ends or the lock is lost. It looks at the clock each
// second, as the writers are to be ended in time, whatever the store does meanwhile, and soon
// after a machine wakes up.
func (l *lease) keep(ctx context.Context) {
	ticker := time.NewTicker(lookAtClock)
	defer ticker.Stop()
	var renewed chan error // of the renewal that is under way
	next := l.now().Add(renewEvery)
	asked, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		if renewed != nil {
			<-renewed // it ends with its context
		}
	}()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case err = <-renewed:
			renewed = nil
		}
		if held := l.current(); errors.Is(err, store.ErrLockLost) || lost(held.Until, l.now()) {
			if err == nil {
				err = errLapsed
			}
			l.onLost(fmt.Errorf("%w: %w", ErrLockLost, err))
			return
		}
		if err != nil {
			l.board.ofState(func(s *StateStatus) { s.Error = err.Error() })
		}
		if renewed == nil && l.due(next) {
			next = l.now().Add(renewEvery)
			renewed = make(chan error, 1)
			go func(held store.Lock, done chan<- error) {
				ctx, cancel := context.WithTimeout(asked, renewPatience)
				defer cancel()
				lock, err := l.state.Store.Renew(ctx, held)
				if err == nil {
					l.set(lock)
				}
				done <- err
			}(l.current(), renewed)
		}
	}
}

// release gives the lock back, after everything that writes has ended.
func (l *lease) release(ctx context.Context) error {
	if l.stop == nil {
		return nil
	}
	l.stop()
	l.done.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	return l.state.Store.Unlock(ctx, l.current())
}
