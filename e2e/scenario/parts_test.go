package scenario

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// queuedIn has the directory of a queue, for the tests that TestPartsBesideQueue starts.
const queuedIn = "CASCADE_TEST_QUEUE"

// TestPartsBesideQueue: the parts of a test that has a place end, while tests that wait for it
// have every slot of their process.
func TestPartsBesideQueue(t *testing.T) {
	if dir := os.Getenv(queuedIn); dir != "" {
		q := queue{dir: dir, places: 1, crowd: func() bool { return false }}
		for _, name := range []string{"One", "Other"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				q.wait(t, 0, name)
				parts := PartsOf(t)
				defer parts.Wait()
				for _, part := range []string{"a", "b"} {
					parts.Run(part, func(*testing.T) {})
				}
			})
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	queued := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestPartsBesideQueue$", "-test.parallel=1", "-test.v")
	queued.Env = append(os.Environ(), queuedIn+"="+t.TempDir())
	if out, err := queued.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestParts: there are so many at a time and not more, and Wait is for all of them.
func TestParts(t *testing.T) {
	var running, ended atomic.Int32
	var together sync.WaitGroup
	together.Add(partsTogether)
	t.Run("All", func(t *testing.T) {
		parts := PartsOf(t)
		defer parts.Wait()
		for n := range 3 * partsTogether {
			parts.Run("part", func(t *testing.T) {
				defer ended.Add(1)
				defer running.Add(-1)
				if now := running.Add(1); now > partsTogether {
					t.Errorf("%d parts run at the same time, want at most %d", now, partsTogether)
				}
				if n < partsTogether {
					together.Done()
					together.Wait()
				}
			})
		}
	})
	if n := ended.Load(); n != 3*partsTogether {
		t.Errorf("Wait returned after %d of %d parts", n, 3*partsTogether)
	}
}
