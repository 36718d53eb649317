//go:build linux && (amd64 || arm64)

package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/metrics"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostFiles is how many descriptors a worker may have: its pipes, and what Go's
// poller needs.
const mostFiles = 16

// confine gives up, for all threads and for good, what a task does not need.
func confine(memory int64) error {
	if err := limitMemory(memory); err != nil {
		return err
	}
	for _, l := range []struct {
		resource int
		most     uint64
	}{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_FSIZE, 0}, {unix.RLIMIT_NOFILE, mostFiles}} {
		if err := unix.Setrlimit(l.resource, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return fmt.Errorf("cannot set limit %d: %w", l.resource, err)
		}
	}
	return filterCalls()
}

// limitMemory bounds what the process can write to. What it has reserved already
// and not used does not count: Go and the race detector reserve much. Of that, what the
// heap can use again does count.
func limitMemory(memory int64) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("cannot read how much memory is in use: %w", err)
	}
	reserved, used := statusBytes(status, "VmData:"), statusBytes(status, "RssAnon:")
	if used > memory {
		return fmt.Errorf("a worker begins with %d MiB, the limit is %d MiB", used>>20, memory>>20)
	}
	more := max(memory-used-spare(), 0) * instrumented
	// The kernel does not count in RLIMIT_DATA what takes the place of an address range that was reserved, as Go's heap
	// grows: a single large allocation passes it, however large (mm/vma.c: the pages that a fixed mapping replaces are
	// subtracted). It has to reserve the range before, and the size of the address space bounds that. Go reserves
	// arenas that it does not fill.
	size := statusBytes(status, "VmSize:")
	for resource, most := range map[int]int64{unix.RLIMIT_DATA: reserved + more, unix.RLIMIT_AS: size + more + arenas*instrumented} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: uint64(most), Max: uint64(most)}); err != nil { //nolint:gosec // it is not negative
			return fmt.Errorf("cannot limit memory: %w", err)
		}
	}
	return nil
}

// arenas are what Go may reserve beyond what it uses: the heap grows by ranges of 64 MB, and keeps notes of each.
const arenas = 96 << 20

// spare is what the heap has from the kernel and does not use.
func spare() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	sum := int64(0)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += int64(s.Value.Uint64()) //nolint:gosec // no machine has that much
		}
	}
	return sum
}

// statusBytes reads a size from /proc/self/status.
func statusBytes(status []byte, field string) int64 {
	_, rest, _ := bytes.Cut(status, []byte("\n"+field))
	words := bytes.Fields(rest)
	if len(words) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(string(words[0]), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

// allowTime ends the process after so much more time of a processor.
func allowTime(more time.Duration) error {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return err
	}
	spent := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	limit := unix.Rlimit{Cur: uint64((spent+more+time.Second-1)/time.Second) + 1, Max: unix.RLIM_INFINITY} //nolint:gosec // it is positive
	return unix.Setrlimit(unix.RLIMIT_CPU, &limit)
}

// endInTime makes the process heed the signal of allowTime, which Go ignores. The
// kernel repeats it every second.
func endInTime() {
	late := make(chan os.Signal, 1)
	signal.Notify(late, unix.SIGXCPU)
	go func() {
		<-late
		fmt.Fprintln(os.Stderr, lateWords)
		os.Exit(1)
	}()
}

// calls that a running Go program makes, whatever it computes.
var calls = append([]uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_FUTEX, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_MREMAP,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRUSAGE, unix.SYS_GETRANDOM,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2, unix.SYS_PIPE2, unix.SYS_FCNTL,
	unix.SYS_RSEQ, unix.SYS_SET_ROBUST_LIST, unix.SYS_MEMBARRIER,
}, callsOfMachine...)

// Words of the data that a filter sees.
const (
	wordCall = 0
	wordArch = 4
	wordArgs = 16 // the low half of the first argument; each has eight bytes
)

// filterCalls refuses every system call but those of the list, and of some those
// that would make more than memory and threads.
func filterCalls() error {
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	const equal, anyOf = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	refuse := func(errno unix.Errno) unix.SockFilter {
		return ret(unix.SECCOMP_RET_ERRNO | uint32(errno))
	}
	allow := ret(unix.SECCOMP_RET_ALLOW)
	program := []unix.SockFilter{
		load(wordArch), {Code: equal, K: archOfMachine, Jt: 1}, ret(unix.SECCOMP_RET_KILL_PROCESS),
		load(wordCall),
	}
	for _, c := range calls {
		program = append(program, unix.SockFilter{Code: equal, K: c, Jf: 1}, allow)
	}
	// if: a call whose argument passes a test is allowed, and refused otherwise.
	conditional := func(call, arg uint32, test unix.SockFilter) {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 4}, load(wordArgs+8*arg), test, refuse(unix.EPERM), allow)
	}
	conditional(unix.SYS_CLONE, 0, unix.SockFilter{Code: anyOf, K: unix.CLONE_THREAD, Jt: 1})
	conditional(unix.SYS_MMAP, 2, unix.SockFilter{Code: anyOf, K: unix.PROT_EXEC, Jf: 1})
	conditional(unix.SYS_MPROTECT, 2, unix.SockFilter{Code: anyOf, K: unix.PROT_EXEC, Jf: 1})
	conditional(unix.SYS_TGKILL, 0, unix.SockFilter{Code: equal, K: uint32(os.Getpid()), Jt: 1}) //nolint:gosec // it is positive
	conditional(unix.SYS_PRLIMIT64, 0, unix.SockFilter{Code: equal, K: 0, Jt: 1})
	program = append(program,
		// A C library that cannot clone3 makes its threads by clone.
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE3, Jf: 1}, refuse(unix.ENOSYS),
		refuse(unix.EPERM),
	)
	// Both calls have to come from one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot give up privileges: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // it is about a hundred
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(program)
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return fmt.Errorf("the kernel has no seccomp filters (CONFIG_SECCOMP_FILTER): %w", errno)
	case errno != 0:
		return fmt.Errorf("cannot filter system calls: %w", errno)
	case thread != 0:
		return errors.New("cannot filter system calls: a thread could not be changed")
	}
	return nil
}
