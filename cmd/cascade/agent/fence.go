package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Numbers of the lease. After its duration others may take a lease over that was not
// renewed. A while before, nothing is deleted any more: a request takes time.
const (
	leaseDuration = 15 * time.Second // controller-runtime's
	leastLease    = 10 * time.Second
	leaseMargin   = 3 * time.Second
)

// heldLease is the lease of the working agent, which knows when it was renewed
// last. A process that was paused goes on where it was, before the leader election
// notices that the lease is gone; deletes, and writes to children, must not. It is safe for concurrent use.
type heldLease struct {
	resourcelock.Interface
	// trust is how long after a renewal it may be relied upon.
	trust time.Duration
	now   func() time.Time

	mu      sync.Mutex
	renewed time.Time
}

// newHeldLease is for a lease that others may take over after a duration.
func newHeldLease(lock resourcelock.Interface, duration time.Duration, now func() time.Time) *heldLease {
	return &heldLease{Interface: lock, trust: duration - leaseMargin, now: now}
}

// Create implements resourcelock.Interface.
func (l *heldLease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(r, func() error { return l.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (l *heldLease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(r, func() error { return l.Interface.Update(ctx, r) })
}

// write notes when a write that makes us the holder was begun: others count from
// when it arrived, which is later.
func (l *heldLease) write(r resourcelock.LeaderElectionRecord, send func() error) error {
	begun := l.now()
	if err := send(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed = begun; r.HolderIdentity != l.Identity() {
		l.renewed = time.Time{} // given back
	}
	return nil
}

// errLeaseLost is an error of deletes and of writes to children of a process that does not know whether it
// still is the one that works.
var errLeaseLost = errors.New("this agent's lease was not renewed in time, another may be at work")

// Held is an error if the lease may be another's by now.
func (l *heldLease) Held() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The monotonic clock stands still while a machine is suspended, and the other one may
	// be set back.
	now := l.now()
	if l.renewed.IsZero() || max(now.Sub(l.renewed), now.Round(0).Sub(l.renewed.Round(0))) > l.trust {
		return errLeaseLost
	}
	return nil
}
