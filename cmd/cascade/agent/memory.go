package agent

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/cascade-gitops/cascade/syncer/footprint"
)

// gcPercent keeps the heap closer to what is in use than Go's default of 100:
// the agent shares small machines, and has little garbage to collect. GOGC in
// the environment overrides it.
const gcPercent = 50

// Times after which memory that was needed only for a while is given back.
const (
	firstRelease = 2 * time.Second
	nextRelease  = 30 * time.Minute
	// A burst of work leaves memory that is free but not given back. It is looked
	// for again and again, and given back when it is worth it. Pages of the program that
	// only the burst used are given back in any case.
	spareLook  = 15 * time.Second
	spareBytes = 16 << 20
)

// spare is memory of the heap that is free and not given back.
func spare() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}

// frugal keeps the process's memory small. Start returns when the context ends.
type frugal struct{ now func() time.Time }

// Start implements controller-runtime's Runnable.
func (f frugal) Start(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	timer := time.NewTimer(firstRelease)
	defer timer.Stop()
	due := f.now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			timer.Reset(spareLook)
			if now := f.now(); !now.Before(due) || spare() >= spareBytes {
				due = now.Add(nextRelease)
				// What setting up left behind is garbage now, between what is in use.
				debug.FreeOSMemory()
			}
			footprint.Release()
		}
	}
}

// NeedLeaderElection implements controller-runtime's LeaderElectionRunnable.
func (frugal) NeedLeaderElection() bool { return false }
