package agent

import (
	"context"
	"errors"
	"testing"
	"time"
	"unsafe"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// fakeLock answers to writes of a lease.
type fakeLock struct {
	resourcelock.Interface
	err error
}

func (fakeLock) Identity() string { return "me" }
func (f fakeLock) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	return f.err
}
func (f fakeLock) Update(context.Context, resourcelock.LeaderElectionRecord) error {
	return f.err
}

func TestHeldLease(t *testing.T) {
	mine, nobody := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}, resourcelock.LeaderElectionRecord{}
	begin := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	type write struct {
		at     time.Duration
		record resourcelock.LeaderElectionRecord
		err    error
	}
	for name, tc := range map[string]struct {
		reason string
		writes []write
		at     time.Duration
		may    bool
	}{
		"Never":    {"who never had the lease may delete nothing", nil, 0, false},
		"Acquired": {"the ordinary case", []write{{0, mine, nil}}, time.Second, true},
		"Renewed":  {"as long as it is renewed", []write{{0, mine, nil}, {10 * time.Second, mine, nil}}, 20 * time.Second, true},
		"Paused":   {"a process that wakes up after a minute goes on where it was, and another is at work", []write{{0, mine, nil}}, time.Minute, false},
		"Late":     {"a request takes time; near the end of the lease nothing is begun any more", []write{{0, mine, nil}}, leaseDuration - time.Second, false},
		"Failed":   {"an attempt is not a renewal", []write{{0, mine, nil}, {14 * time.Second, mine, errors.New("timeout")}}, 15 * time.Second, false},
		"Released": {"what was given back is another's", []write{{0, mine, nil}, {time.Second, nobody, nil}}, 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := begin
			lock := &fakeLock{}
			held := newHeldLease(lock, leaseDuration, func() time.Time { return now })
			for i, w := range tc.writes {
				now, lock.err = begin.Add(w.at), w.err
				send := held.Update
				if i == 0 {
					send = held.Create
				}
				if err := send(t.Context(), w.record); !errors.Is(err, w.err) {
					t.Fatalf("the answer of the API server is lost: %v", err)
				}
			}
			now = begin.Add(tc.at)
			if err := held.Held(); (err == nil) != tc.may {
				t.Errorf("%s\nHeld() = %v, want it to be allowed: %t", tc.reason, err, tc.may)
			}
		})
	}
	if (&election{}).fence(nil) != nil {
		t.Error("without leader election there is no lease to lose")
	}
}

// TestHeldLeaseSuspended: while a machine is suspended its monotonic clock stands still,
// and only the other one tells that the lease is over.
func TestHeldLeaseSuspended(t *testing.T) {
	now := time.Now()
	held := newHeldLease(&fakeLock{}, leaseDuration, func() time.Time { return now })
	if err := held.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	before := now
	now = suspended(now, time.Minute)
	if by := now.Sub(before); by != 0 || now.Round(0).Sub(before.Round(0)) != time.Minute {
		t.Fatalf("the clocks went on by %s and %s", by, now.Round(0).Sub(before.Round(0)))
	}
	if held.Held() == nil {
		t.Error("after a minute of suspension the lease counts as held")
	}
	// A clock that is set back does not give it back either.
	now = suspended(before.Add(time.Minute), -time.Hour)
	if held.Held() == nil {
		t.Error("after a minute the lease counts as held, because somebody set the clock")
	}
}

// suspended is the time after the machine was suspended for a while: the package time has
// no way to say so. The layout of a Time has been this one since Go 1.9; TestHeldLeaseSuspended
// checks what comes out.
func suspended(now time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&now))
	*wall = uint64(int64(*wall) + int64(by/time.Second)<<30)
	return now
}
