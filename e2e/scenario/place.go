package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/e2e/scenario/plan"
)

// together is how many tests have control planes at the same time, on this machine and
// whatever suites they are of: most of the time of each is waiting, and more of them
// would wait for each other.
const together = 4

// crowded is the load average of a minute, for each processor, above which no further test
// begins beside others: there is nothing left to wait for then, and what each waits for comes
// too late. A machine may be several times as fast as it was an hour ago.
const crowded = 4

// Alongside lets a test with control planes run beside others. It waits for one of the
// places of the machine; those that take longest, as scenarios.txt says, go first,
// because what is begun last decides when all is done. A place is a file lock, so
// that it ends with the process that has it. While it waits the test has one of the slots of
// testing's -parallel: parts of tests that have a place may not need one, see Parts.
func Alongside(t *testing.T) {
	t.Helper()
	t.Parallel()
	tests, err := plan.Read(Path(t, "e2e", plan.File))
	if err != nil {
		t.Fatal(err)
	}
	q := queue{dir: filepath.Join(os.TempDir(), fmt.Sprintf("cascade-e2e-places-%d", os.Getuid())), places: together, crowd: crowd}
	name, _, _ := strings.Cut(t.Name(), "/")
	q.wait(t, tests[name].Seconds, name)
}

// wait returns when the test has a place, which it leaves when it ends.
func (q queue) wait(t *testing.T, seconds int, name string) {
	t.Helper()
	begin, tick := time.Now(), time.NewTicker(500*time.Millisecond)
	defer tick.Stop()
	waiting, err := q.enter(seconds, name)
	if err != nil {
		t.Fatal(err)
	}
	for {
		place, err := q.take(waiting)
		if err != nil {
			t.Fatal(err)
		}
		if place != nil {
			t.Cleanup(func() { _ = place.Close() })
			t.Attr(plan.Waited, fmt.Sprintf("%.1f", time.Since(begin).Seconds()))
			return
		}
		select {
		case <-t.Context().Done():
			t.Fatal("the test ended before it had a place")
		case <-tick.C:
		}
	}
}

// queue gives out places between processes. Below dir, place-N is locked by who has
// place N, and waiting/ has a locked file for each who waits, whose names sort by who
// goes first. Only who holds the lock of dir/order looks at them.
type queue struct {
	dir    string
	places int
	// crowd reports whether the machine has more to do than it can.
	crowd func() bool
}

// crowd looks at the load of this machine. Where that is not known, it is none.
func crowd() bool {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return false
	}
	minute, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(minute, 64)
	return err == nil && load > float64(crowded*runtime.NumCPU())
}

// enter lines up a test of which it is known how long it takes; 0 is not known.
func (q queue) enter(seconds int, name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(q.dir, "waiting"), 0o700); err != nil {
		return nil, fmt.Errorf("cannot wait for a place: %w", err)
	}
	order, err := lock(filepath.Join(q.dir, "order"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer order.Close()
	return lock(filepath.Join(q.dir, "waiting", fmt.Sprintf("%06d-%s-%d", 999_999-seconds, name, os.Getpid())), syscall.LOCK_EX|syscall.LOCK_NB)
}

// take returns a place, or nil if there is none, it is another's turn, or the machine has more
// than enough to do with those who have places.
func (q queue) take(waiting *os.File) (*os.File, error) {
	order, err := lock(filepath.Join(q.dir, "order"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer order.Close()
	entries, err := os.ReadDir(filepath.Join(q.dir, "waiting"))
	if err != nil {
		return nil, fmt.Errorf("cannot see who waits for a place: %w", err)
	}
	for _, e := range entries { // sorted by name
		file := filepath.Join(q.dir, "waiting", e.Name())
		if file == waiting.Name() {
			break
		}
		left, err := lock(file, syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil // it is alive, and goes first
		}
		if err != nil {
			return nil, err
		}
		// Its process was killed.
		if err := errors.Join(os.Remove(file), left.Close()); err != nil {
			return nil, fmt.Errorf("cannot remove who does not wait any more: %w", err)
		}
	}
	var place *os.File
	taken := false
	for n := range q.places {
		free, err := lock(filepath.Join(q.dir, fmt.Sprintf("place-%d", n)), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			taken = true
		case err != nil && place == nil:
			return nil, err
		case err != nil:
			return nil, errors.Join(err, place.Close())
		case place == nil:
			place = free
		default:
			if err := free.Close(); err != nil {
				return nil, fmt.Errorf("cannot leave a place: %w", errors.Join(err, place.Close()))
			}
		}
	}
	switch {
	case place == nil:
		return nil, nil
	case taken && q.crowd():
		if err := place.Close(); err != nil {
			return nil, fmt.Errorf("cannot leave a place: %w", err)
		}
		return nil, nil
	}
	if err := errors.Join(os.Remove(waiting.Name()), waiting.Close()); err != nil {
		return nil, fmt.Errorf("cannot take a place: %w", errors.Join(err, place.Close()))
	}
	return place, nil
}

// lock opens a file and locks it until it is closed.
func lock(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open a lock: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", name, errors.Join(err, f.Close()))
	}
	return f, nil
}
