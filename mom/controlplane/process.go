package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

const (
	// stopGrace is how long stop waits before it kills: run takes about one
	// second, more only when it hangs.
	stopGrace = 3 * time.Second
	// killGrace is how long a killed process may take to be gone on a busy
	// machine.
	killGrace = 10 * time.Second
	// tailBytes of the log show why a start failed.
	tailBytes = 8 << 10
)

// acquire makes this process the one that serves dir. The lock is a record lock:
// the kernel names its holder, and releases it at the end of the process however
// that comes, so neither a stale file nor a reused process id can mislead.
func acquire(dir layout) (*os.File, error) {
	file, err := os.OpenFile(dir.pid(), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot lock folder %s: %w", dir, err)
	}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			return nil, fmt.Errorf("cannot lock folder %s: another control plane serves it", dir)
		}
		return nil, fmt.Errorf("cannot lock folder %s: %w", dir, err)
	}
	if err := os.Remove(dir.ready()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot lock folder %s: %w", dir, err)
	}
	// Written in place: a rename would put the name on a file without the lock.
	if err := file.Truncate(0); err != nil {
		return nil, fmt.Errorf("cannot lock folder %s: %w", dir, err)
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, fmt.Errorf("cannot lock folder %s: %w", dir, err)
	}
	return file, nil
}

// holder is the process that serves dir, 0 if none does.
func holder(dir layout) (int, error) {
	file, err := os.OpenFile(dir.pid(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot look at folder %s: %w", dir, err)
	}
	defer func() { _ = file.Close() }()
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("cannot look at folder %s: %w", dir, err)
	}
	if lock.Type == syscall.F_UNLCK {
		return 0, nil
	}
	return int(lock.Pid), nil
}

// start makes sure that dir is served by a detached process and usable.
func start(ctx context.Context, s settings, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("it was not usable within %s", timeout))
	defer cancel()
	if err := os.MkdirAll(string(s.dir), 0o700); err != nil {
		return fmt.Errorf("cannot create folder %s: %w", s.dir, err)
	}
	pid, err := holder(s.dir)
	if err != nil {
		return err
	}
	if pid != 0 {
		if err := waitReady(ctx, s.dir, nil); err != nil {
			return fmt.Errorf("cannot wait for control plane %s, process %d: %w", s.dir, pid, err)
		}
		return nil
	}
	log, err := os.OpenFile(s.dir.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot open log %s: %w", s.dir.log(), err)
	}
	defer func() { _ = log.Close() }()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("cannot open log %s: %w", s.dir.log(), err)
	}
	process, err := detach(s, log)
	if err != nil {
		return err
	}
	exited := make(chan error, 1)
	go func() {
		defer close(exited)
		exited <- process.Wait()
	}()
	if err := waitReady(ctx, s.dir, exited); err != nil {
		// Ours either never became usable or has ended: leave nothing behind.
		_ = process.Process.Kill()
		for range exited {
		}
		printTail(os.Stderr, s.dir.log(), from)
		return fmt.Errorf("cannot start control plane %s: %w", s.dir, err)
	}
	return nil
}

// detach starts run in a session of its own, so that it outlives this process
// and no terminal's signal reaches it.
func detach(s settings, log *os.File) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find own program: %w", err)
	}
	process := exec.Command(self, s.arguments()...)
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("cannot start control plane %s: %w", s.dir, err)
	}
	return process, nil
}

// waitReady returns when the process that serves dir is usable. exited reports
// the end of the process that was started for it, if one was.
func waitReady(ctx context.Context, dir layout, exited <-chan error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		pid, err := holder(dir)
		if err != nil {
			return err
		}
		if pid != 0 {
			if ready, err := readNumber(dir.ready()); err == nil && ready == pid {
				return nil
			}
		} else if exited == nil {
			return errors.New("the process ended")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-exited:
			// Of two simultaneous starts one loses the lock; it then waits
			// for the other's process.
			if pid, held := holder(dir); held == nil && pid != 0 {
				exited = nil
				continue
			}
			if err == nil {
				err = errors.New("it ended at once")
			}
			return err
		case <-ticker.C:
		}
	}
}

// stopProcess ends the process that serves dir and returns when it is gone.
func stopProcess(ctx context.Context, dir layout) error {
	pid, err := holder(dir)
	if err != nil || pid == 0 {
		return err
	}
	// From here on the handle stands for that process, not for its number; and
	// if it still holds the lock, it was the right one.
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("cannot stop process %d: %w", pid, err)
	}
	defer func() { _ = process.Release() }()
	if again, err := holder(dir); err != nil || again != pid {
		return err
	}
	for _, step := range []struct {
		signal os.Signal
		grace  time.Duration
	}{{syscall.SIGTERM, stopGrace}, {syscall.SIGKILL, killGrace}} {
		if err := process.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("cannot stop process %d: %w", pid, err)
		}
		gone, err := waitGone(ctx, dir, pid, step.grace)
		if err != nil {
			return err
		}
		if gone {
			return nil
		}
	}
	return fmt.Errorf("cannot stop process %d: it did not end within %s of SIGKILL", pid, killGrace)
}

// waitGone reports whether the process ended and left the lock within grace.
func waitGone(ctx context.Context, dir layout, pid int, grace time.Duration) (bool, error) {
	deadline := time.After(grace)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		now, err := holder(dir)
		if err != nil {
			return false, err
		}
		if _, err := startOf(pid); now != pid && errors.Is(err, errGone) {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("cannot wait for process %d to end: %w", pid, context.Cause(ctx))
		case <-deadline:
			return false, nil
		case <-ticker.C:
		}
	}
}

// printTail copies the end of what the log gained since from.
func printTail(w io.Writer, name string, from int64) {
	data, err := os.ReadFile(name)
	if err != nil || int64(len(data)) < from {
		return
	}
	data = data[from:]
	if len(data) > tailBytes {
		data = data[len(data)-tailBytes:]
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			data = data[i+1:]
		}
	}
	_, _ = w.Write(data)
}
