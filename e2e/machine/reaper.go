package machine

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
)

// reaper collects the processes that end in a namespace whose first process this is, those
// that it started and those that lost their parent. It is safe for concurrent use. No other
// code of the process may wait for children.
type reaper struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan syscall.WaitStatus{}}
	ended := make(chan os.Signal, 16)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			r.collect()
		}
	}()
	return r
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if waiting := r.waiting[pid]; waiting != nil {
			delete(r.waiting, pid)
			waiting <- status
		}
	}
}

// start starts a program, whose end the channel tells.
func (r *reaper) start(output *os.File, env []string, name string, args ...string) (<-chan syscall.WaitStatus, error) {
	file, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("cannot find program %s: %w", name, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	defer null.Close()
	// A process that ends before it is known here would be collected as nobody's.
	r.mu.Lock()
	defer r.mu.Unlock()
	standard := output
	if output == os.Stderr {
		standard = os.Stdout
	}
	process, err := os.StartProcess(file, append([]string{file}, args...), &os.ProcAttr{
		Env: environment(os.Environ(), env...), Files: []*os.File{null, standard, output},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	r.waiting[process.Pid] = ended
	_ = process.Release()
	return ended, nil
}

// run runs a program to its end, and returns its exit code.
func (r *reaper) run(output *os.File, env []string, name string, args ...string) (int, error) {
	ended, err := r.start(output, env, name, args...)
	if err != nil {
		return 1, err
	}
	status := <-ended
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}

// must is run for what has to succeed.
func (r *reaper) must(output *os.File, name string, args ...string) error {
	code, err := r.run(output, nil, name, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("cannot run %s %q: it ended with %d", name, args, code)
		_, _ = io.WriteString(output, err.Error()+"\n")
	}
	return err
}
