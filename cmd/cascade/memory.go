package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// gcPercent keeps the heap closer to what is in use than Go's default of 100:
// the agent shares small machines, and has little garbage to collect. GOGC in
// the environment overrides it.
const gcPercent = 50

// Times after which memory that was needed only for a while is given back.
const (
	firstRelease = 15 * time.Second
	nextRelease  = 30 * time.Minute
)

// frugal keeps the process's memory small. Start returns when the context ends.
type frugal struct{}

// Start implements controller-runtime's Runnable.
func (frugal) Start(ctx context.Context) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	timer := time.NewTimer(firstRelease)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			// What setting up left behind is garbage now, between what is in use.
			debug.FreeOSMemory()
			releaseProgramPages()
			timer.Reset(nextRelease)
		}
	}
}

// NeedLeaderElection implements controller-runtime's LeaderElectionRunnable.
func (frugal) NeedLeaderElection() bool { return false }
