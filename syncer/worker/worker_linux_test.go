package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/park"
)

// testLimits end a hostile job quickly, and leave a good one time.
func testLimits() Limits { return Limits{Workers: 2, Memory: 96 << 20, Time: 2 * time.Second} }

func newTestPool(t *testing.T, o Options) *Pool {
	t.Helper()
	if o.Limits.Workers == 0 {
		o.Limits = testLimits()
	}
	p := New(o)
	t.Cleanup(func() {
		p.Close()
		if left := children(t); len(left) > 0 {
			t.Errorf("processes are left over: %v", left)
		}
	})
	return p
}

// children are the processes that this one started and that are there, zombies
// included.
func children(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the thread ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func do(task string) Job { return Job{Owner: "a", Task: task} }

// TestConfined: what a worker can do is compute.
func TestConfined(t *testing.T) {
	t.Setenv("CASCADE_SECRET", "canary")
	p := newTestPool(t, Options{})
	for name, tt := range map[string]struct {
		reason  string
		refused bool
		want    string
	}{
		"environment": {reason: "credentials are in environments"},
		"open":        {reason: "files have tokens", refused: true},
		"create":      {reason: "nothing is left behind", refused: true},
		"dial":        {reason: "no network", refused: true},
		"unix":        {reason: "no sockets of the host either", refused: true},
		"exec":        {reason: "no other program", refused: true},
		"fork":        {reason: "no other process", refused: true},
		"signal":      {reason: "the agent is of the same user", refused: true},
		"executable":  {reason: "no code that is not the program's", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := p.Run(t.Context(), do(name))
			switch {
			case tt.refused && (err == nil || !strings.Contains(err.Error(), "operation not permitted")):
				t.Errorf("%s: %v, want it refused", tt.reason, err)
			case !tt.refused && (err != nil || string(got) != tt.want):
				t.Errorf("%s: %q, %v, want %q", tt.reason, got, err, tt.want)
			}
		})
	}
}

// TestDescriptors: a worker has its pipes, and what Go's runtime opens for itself.
func TestDescriptors(t *testing.T) {
	inherited, err := syscall.Open("/proc/self/status", syscall.O_RDONLY, 0) // without O_CLOEXEC
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(inherited) }()
	p := newTestPool(t, Options{})
	_, err = p.Run(t.Context(), Job{Task: "ask", Answer: func(context.Context, string, []byte) ([]byte, error) {
		for _, pid := range children(t) {
			links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
			if err != nil || len(links) < 3 {
				t.Errorf("%v, %v", links, err)
			}
			for _, link := range links {
				to, err := os.Readlink(link)
				pipe := strings.HasPrefix(to, "pipe:") && slices.Contains([]string{"0", "1", "2"}, filepath.Base(link))
				if err != nil || !pipe && !strings.HasPrefix(to, "anon_inode:") && !strings.Contains(to, "/cpu") {
					t.Errorf("descriptor %s is %q, %v", filepath.Base(link), to, err)
				}
			}
		}
		return nil, nil
	}})
	if err != nil {
		t.Error(err)
	}
}

// TestVerdict: what Go's runtime writes as it ends says whether the job is at fault.
func TestVerdict(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, words string
		exceeded      string
	}{
		"threads": {"the pod, or the machine, has no room for one more process for a moment",
			"runtime: failed to create new OS thread (have 12 already; errno=11)\nruntime: may need to increase max user processes (ulimit -u)\nfatal error: newosproc\n", ""},
		"thread": {"there is no memory for a thread", "runtime: failed to create new OS thread (have 12 already; errno=12)\nfatal error: newosproc\n", "MiB of memory"},
		"heap":   {"there is no memory", "fatal error: runtime: out of memory\n", "MiB of memory"},
		"broken": {"there is no memory for what the runtime notes of a piece", "SIGSEGV: segmentation violation\nPC=0x42f1dd m=3 sigcode=1 addr=0x0\n", "MiB of memory"},
		"stack":  {"it goes too deep", "runtime: goroutine stack exceeds 1000000000-byte limit\n", "deeper than a stack"},
		"time":   {"it used up its time", "SIGXCPU: cpu time limit exceeded\n", "of a processor"},
		"killed": {"nobody knows why", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := testLimits().verdict(tt.words)
			if (err != nil) != (tt.exceeded != "") || err != nil && !strings.Contains(err.Error(), tt.exceeded) {
				t.Errorf("%s: %v, want %q", tt.reason, err, tt.exceeded)
			}
		})
	}
}

// TestExceeded: a job that needs too much ends as an error of its own, and the next
// is done.
func TestExceeded(t *testing.T) {
	p := newTestPool(t, Options{})
	for name, tt := range map[string]struct{ reason, want string }{
		"hog":    {"memory in small pieces", "make it smaller"},
		"double": {"memory in one large piece", "more than 96 MiB of memory"},
		// On a busy machine the deadline comes before the processor time is used up.
		"loop":    {"it never ends", "make it smaller"},
		"recurse": {"a stack overflow cannot be recovered from", "contains itself"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.Run(t.Context(), do(name))
			var exceeded *Exceeded
			if !errors.As(err, &exceeded) || !strings.Contains(err.Error(), tt.want) || !Lasting(err) {
				t.Errorf("%s: %v, want a lasting error with %q", tt.reason, err, tt.want)
			}
			if got, err := p.Run(t.Context(), Job{Owner: "b", Task: "echo", Request: []byte("hello")}); err != nil || string(got) != "hello" {
				t.Errorf("a good job after it: %q, %v", got, err)
			}
		})
	}
}

// TestHugePiece: no worker gets hundreds of megabytes in one piece, which the kernel does not count in
// RLIMIT_DATA where an address range was reserved for them. It went well each second time.
func TestHugePiece(t *testing.T) {
	p := newTestPool(t, Options{})
	for i := range 8 {
		_, err := p.Run(t.Context(), Job{Owner: "a", Task: "huge", Request: []byte{byte(i)}})
		var exceeded *Exceeded
		if !errors.As(err, &exceeded) || !strings.Contains(err.Error(), "more than 96 MiB of memory") {
			t.Errorf("a piece of 500 MiB: %v", err)
		}
	}
}

// TestWaitsParked: who waits for a worker holds no place of the controller's.
func TestWaitsParked(t *testing.T) {
	p := newTestPool(t, Options{Limits: testLimits()})
	release := make(chan struct{})
	asked := make(chan struct{}, 2)
	backoff := workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()
	lot := park.New(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		_, err := p.Run(ctx, Job{Owner: r.Name, Task: "ask", Answer: func(context.Context, string, []byte) ([]byte, error) {
			asked <- struct{}{}
			<-release
			return nil, nil
		}})
		return reconcile.Result{}, err
	}), park.Options{Workers: 1, Parked: 10, Backoff: backoff})
	queue := workqueue.NewTypedRateLimitingQueue(backoff)
	defer queue.ShutDown()
	ctx, cancel := context.WithCancel(t.Context())
	if err := lot.Open(ctx, queue); err != nil {
		t.Fatal(err)
	}
	// One worker of the controller comes back from each of them, though none is done.
	for _, name := range []string{"a", "b", "c", "d"} {
		request := reconcile.Request{}
		request.Name = name
		if _, err := lot.Reconcile(ctx, request); err != nil {
			t.Error(err)
		}
	}
	<-asked
	<-asked
	if n := lot.Counts(); n != (park.Counts{Waiting: 4}) {
		t.Errorf("under way are %+v, want 4 that wait", n)
	}
	close(release)
	cancel()
	if err := lot.Start(ctx); err != nil {
		t.Error(err)
	}
}

// TestStandsBack: on a busy machine a worker lets everybody else go first.
func TestStandsBack(t *testing.T) {
	p := newTestPool(t, Options{Limits: testLimits()})
	if _, err := p.Run(t.Context(), do("echo")); err != nil {
		t.Fatal(err)
	}
	for _, pid := range children(t) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("process %d has no threads: %v", pid, err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(filepath.Base(thread))
			if err != nil {
				t.Fatal(err)
			}
			// The system call returns 20 less the priority.
			if got, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && 20-got != lowPriority {
				t.Errorf("thread %d has priority %d, want %d", id, 20-got, lowPriority)
			}
		}
	}
}

// TestRemembered: what exceeded a limit is not tried again.
func TestRemembered(t *testing.T) {
	p := newTestPool(t, Options{})
	for range 3 {
		if _, err := p.Run(t.Context(), do("recurse")); err == nil {
			t.Fatal("it ends")
		}
	}
	p.Close()
	if _, err := p.Run(t.Context(), do("recurse")); errors.Is(err, ErrUnavailable) || err == nil {
		t.Errorf("a job that was refused asks for a worker again: %v", err)
	}
}

// TestResident: no worker of this process, hostile ones included, took much more
// than its limit. The race detector has its own.
func TestResident(t *testing.T) {
	p := newTestPool(t, Options{})
	for _, task := range []string{"hog", "double"} {
		if _, err := p.Run(t.Context(), do(task)); err == nil {
			t.Errorf("%s ends", task)
		}
	}
	p.Close()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &used); err != nil {
		t.Fatal(err)
	}
	if most, got := testLimits().Memory*instrumented+64<<20, used.Maxrss<<10; got > most {
		t.Errorf("a worker had %d MiB, want at most %d", got>>20, most>>20)
	}
}

// TestGrows: a job that needs more than anybody gets at first is done with all of it, at
// one place less than there are.
func TestGrows(t *testing.T) {
	limits := Limits{Workers: 2, Memory: 3 * leastMemory, Time: 6 * time.Second}
	if got, want := limits.first(), (Limits{Workers: 2, Memory: limits.Memory / 2, Time: 1200 * time.Millisecond}); got != want {
		t.Fatalf("a job gets %+v at first, want %+v", got, want)
	}
	if alone := (Limits{Workers: 1, Memory: 3 * leastMemory, Time: time.Minute}); alone.first() != alone {
		t.Error("a single worker does not give all of it")
	}
	p := newTestPool(t, Options{Limits: limits})
	for _, want := range []outcome{grew, done} {
		if e := p.turn(t.Context(), Job{Owner: "large", Task: "burn"}); e.outcome != want {
			t.Errorf("outcome %d (%v), want %d", e.outcome, e.err, want)
		}
	}
	wide, leave, err := p.queue.take(t.Context(), "large", nil)
	if err != nil || !wide {
		t.Fatalf("who needs much gets all: %t, %v", wide, err)
	}
	defer leave(done)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.queue.owners["larger"] = record{heavy: true}
	if _, _, err := p.queue.take(ended, "larger", nil); err == nil {
		t.Error("all places are taken by who needs much")
	}
}

func TestFailures(t *testing.T) {
	p := newTestPool(t, Options{})
	for name, tt := range map[string]struct {
		reason string
		job    Job
		want   string
		check  func(error) bool
	}{
		"Error":     {reason: "the task's own", job: Job{Task: "fail", Request: []byte("no such field")}, want: "no such field", check: Lasting},
		"Panic":     {reason: "it is the job's", job: do("panic"), want: "panicked: runtime error: slice bounds out of range", check: Lasting},
		"NoTask":    {reason: "a mistake of ours", job: do("nothing"), want: `no task "nothing"`, check: Lasting},
		"Large":     {reason: "what comes back is bounded", job: do("large"), want: "too large", check: Lasting},
		"Exit":      {reason: "it died, and died again", job: do("exit"), want: "exit status 7", check: func(err error) bool { return errors.Is(err, ErrLost) }},
		"NoAnswers": {reason: "nobody to ask", job: do("ask"), want: "unexpected question", check: func(err error) bool { return !Lasting(err) }},
		"Refused": {reason: "what the program says", want: "asked: not yours", check: Lasting,
			job: Job{Task: "ask", Answer: func(context.Context, string, []byte) ([]byte, error) { return nil, errors.New("not yours") }}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.Run(t.Context(), tt.job)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !tt.check(err) {
				t.Errorf("%s: %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

// TestKilled: somebody else ends a worker in the middle of a job. Another does it.
func TestKilled(t *testing.T) {
	p := newTestPool(t, Options{})
	asked := 0
	got, err := p.Run(t.Context(), Job{Task: "ask", Request: []byte("q"), Answer: func(context.Context, string, []byte) ([]byte, error) {
		if asked++; asked == 1 {
			for _, pid := range children(t) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		}
		return fmt.Appendf(nil, "answer %d", asked), nil
	}})
	if err != nil || string(got) != "answer 2" {
		t.Errorf("%q, %v, want the answer of the second attempt", got, err)
	}
}

// TestLate: a job that waits is not late, one that works is. Either ends with its
// context.
func TestLate(t *testing.T) {
	p := newTestPool(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.Run(ctx, Job{Task: "ask", Answer: func(context.Context, string, []byte) ([]byte, error) {
		cancel()
		return nil, ctx.Err()
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want it to end with the context", err)
	}
	if l := (Limits{Time: time.Minute}); Lasting(exceedsPatience(l)) {
		t.Error("lateness is taken to be the job's fault")
	}
}

// TestIdle: a worker does many jobs, and goes when there is none.
func TestIdle(t *testing.T) {
	p := newTestPool(t, Options{Idle: 50 * time.Millisecond})
	if n := len(children(t)); n != 0 {
		t.Fatalf("%d workers before the first job", n)
	}
	spent := false
	for i := range 20 {
		spent = i == 10
		if _, err := p.Run(t.Context(), Job{Task: "echo", Spent: func() bool { return spent }}); err != nil {
			t.Fatal(err)
		}
		want := 1
		if spent {
			want = 0
		}
		p.mu.Lock()
		if n := len(p.idle); n != want {
			t.Errorf("%d idle workers after job %d, want %d", n, i, want)
		}
		p.mu.Unlock()
	}
	for len(children(t)) > 0 {
		if t.Context().Err() != nil {
			t.Fatal("the worker stays")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestHostileNeighbours: while hostile jobs exceed limits over and over, good ones are
// done.
func TestHostileNeighbours(t *testing.T) {
	p := newTestPool(t, Options{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 2 {
				// Each is another input, so that nothing is remembered.
				_, err := p.Run(t.Context(), Job{Owner: fmt.Sprint("bad", i), Task: "recurse", Request: fmt.Append(nil, i, n)})
				var exceeded *Exceeded
				if !errors.As(err, &exceeded) {
					t.Errorf("a hostile job: %v", err)
				}
			}
		})
	}
	for i := range 4 {
		all.Go(func() {
			for range 20 {
				if _, err := p.Run(t.Context(), Job{Owner: fmt.Sprint("good", i), Task: "echo"}); err != nil {
					t.Errorf("a good job: %v", err)
				}
			}
		})
	}
	all.Wait()
}

func TestFrames(t *testing.T) {
	for name, tt := range map[string]struct{ reason, data string }{
		"Zero":  {"a frame has a kind", "\x00\x00\x00\x00x"},
		"Large": {"nothing is allocated for what is too large", "\xff\xff\xff\xffx"},
		"Short": {"the other end is gone", "\x00\x00\x00\x09xyz"},
	} {
		if _, _, err := readFrame(strings.NewReader(tt.data)); err == nil {
			t.Errorf("%s: %s: it is read", name, tt.reason)
		}
	}
	if _, _, err := cutName([]byte("\x05abc")); err == nil {
		t.Error("a name that is longer than its message is read")
	}
}
