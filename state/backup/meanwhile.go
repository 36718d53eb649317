package backup

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// leastTold is how long a try runs before it is told that the last success is too old: most end in seconds, also the
// first one after nobody led the tier for days.
const leastTold = time.Minute

// tellTimeout bounds a write of the status while a try runs.
const tellTimeout = 10 * time.Second

// telling says that the last success is too old once it is, while a try runs, which may take longer than that by its
// spec. What it returns ends that, and returns the object as the next patch is to take it to be.
func (r *Reconciler) telling(ctx context.Context, before *v1alpha1.StateBackup, t timing) func() *v1alpha1.StateBackup {
	ctx, cancel := context.WithCancel(ctx)
	began, written, done := r.Now(), before, make(chan struct{})
	wait := leastTold
	if !t.isStale(before, began) {
		wait = max(wait, since(before).Add(t.stale+time.Second).Sub(began))
	}
	go func() {
		defer close(done)
		for ; ; wait = leastTold {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if !t.isStale(before, r.Now()) {
				continue // the clock was put back
			}
			stale := before.DeepCopy()
			status.MarkFailing(stale, v1alpha1.ReasonBackupStale, fmt.Errorf("the last success was at %s, and the try that began at %s has not ended: it may take %s by its spec",
				since(before).UTC().Format(time.RFC3339), began.UTC().Format(time.RFC3339), t.timeout))
			if written == before {
				r.tell(before, stale)
			}
			// A write whose answer is lost may be there: what the try ends with goes over it in any case.
			written = stale
			if r.write(ctx, before, stale.DeepCopy()) {
				return
			}
		}
	}()
	return func() *v1alpha1.StateBackup {
		cancel()
		<-done
		return written
	}
}

// write writes a status while a try runs. It ends with its own time: of a write that is broken off nobody knows whether
// it comes after the one at the end of the try.
func (r *Reconciler) write(ctx context.Context, before, after *v1alpha1.StateBackup) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tellTimeout)
	defer cancel()
	err := status.Patch(ctx, r.Client, before, after, manager)
	if err != nil {
		log.FromContext(ctx).Error(err, "It is not told that the last backup is too old")
	}
	return err == nil
}

// memory is what the tries take in turn that have the state of the whole tier in memory.
const memory = ""

// turn waits until no other try of this process has what is named: a place, or the memory. What it returns gives
// it back.
func (r *Reconciler) turn(ctx context.Context, name string) (func(), error) {
	made, _ := r.turns.LoadOrStore(name, make(chan struct{}, 1))
	one := made.(chan struct{})
	select {
	case one <- struct{}{}:
		return func() { <-one }, nil
	case <-ctx.Done():
		return nil, &failure{reason: v1alpha1.ReasonStateLocked, err: fmt.Errorf("cannot save the state: another StateBackup of this agent does, and has not ended: %w", ctx.Err())}
	}
}
