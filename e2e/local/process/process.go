// Package process starts, recognises and ends operating system processes for the local end-to-end environment.
//
// Invariants:
//   - A process is named by its ID: the number and the time at which the kernel started it. A number alone is never
//     signalled, because the kernel gives it to somebody else after the process ended.
//   - A process that ended but was not collected by its parent (a zombie) counts as gone.
//   - Everything that Launcher starts dies with the process that holds the Launcher; everything that Detach starts
//     outlives it, in a session of its own.
//
// Failure model: records of processes (see WriteRecord) are replaced atomically, so that a reader finds the old record, the
// new one or none, never a part of one. A record of a process that is gone is as good as none.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ID names one process for all time (of one boot).
type ID struct {
	PID int
	// Start is the time of the start in clock ticks since boot, as field 22 of /proc/PID/stat has it.
	Start uint64
}

// Lookup returns the ID of the living process with that number. The error is fs.ErrNotExist when there is none.
func Lookup(pid int) (ID, error) {
	state, start, err := readStat(pid)
	if err != nil {
		return ID{}, err
	}
	if state == 'Z' || state == 'X' {
		return ID{}, fmt.Errorf("cannot find process %d: it ended: %w", pid, fs.ErrNotExist)
	}
	return ID{PID: pid, Start: start}, nil
}

func readStat(pid int) (state byte, start uint64, err error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if errors.Is(err, syscall.ESRCH) {
		// The process ended between open and read.
		err = fs.ErrNotExist
	}
	if err != nil {
		return 0, 0, fmt.Errorf("cannot find process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may hold anything, so counting starts behind the last one.
	line := string(raw)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	const stateField, startField = 0, 19 // fields 3 and 22, counted behind field 2
	if len(fields) <= startField {
		return 0, 0, fmt.Errorf("cannot parse the state of process %d: %d fields", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot parse the start time of process %d: %w", pid, err)
	}
	return fields[stateField][0], start, nil
}

// Alive says whether this very process still runs.
func (id ID) Alive() bool {
	now, err := Lookup(id.PID)
	return err == nil && now == id
}

// Kill sends the signal to the process if it is still the same one. A process that is gone is no error.
func (id ID) Kill(signal syscall.Signal) error { return id.kill(id.PID, signal) }

// KillGroup sends the signal to the process group that the process leads.
func (id ID) KillGroup(signal syscall.Signal) error { return id.kill(-id.PID, signal) }

func (id ID) kill(target int, signal syscall.Signal) error {
	if id.PID <= 1 || !id.Alive() {
		return nil
	}
	if err := syscall.Kill(target, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot signal process %d: %w", id.PID, err)
	}
	return nil
}

// WaitGone returns when the process is gone or the context ends. It polls: only a parent can wait for a process.
func (id ID) WaitGone(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for id.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of process %d: %w", id.PID, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Terminate asks the process to end, gives it the grace period, and then kills its whole group.
func (id ID) Terminate(ctx context.Context, grace time.Duration) error {
	if err := id.Kill(syscall.SIGTERM); err != nil {
		return err
	}
	polite, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if id.WaitGone(polite, 20*time.Millisecond) == nil {
		return nil
	}
	if err := id.KillGroup(syscall.SIGKILL); err != nil {
		return err
	}
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return id.WaitGone(final, 20*time.Millisecond)
}

// WriteRecord writes the ID to the file.
func WriteRecord(path string, id ID) error {
	return WriteFile(path, fmt.Appendf(nil, "%d %d\n", id.PID, id.Start), 0o644)
}

// ReadRecord reads an ID that WriteRecord wrote. The error is fs.ErrNotExist when there is no record.
func ReadRecord(path string) (ID, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ID{}, err
	}
	var id ID
	if _, err := fmt.Sscanf(string(raw), "%d %d\n", &id.PID, &id.Start); err != nil {
		return ID{}, fmt.Errorf("cannot parse process record %s: %w", path, err)
	}
	return id, nil
}

// WriteFile replaces a file in one step, so that a reader never sees a part of it.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", path, err)
	}
	defer os.Remove(temp.Name()) // fails after the rename, which is what is wanted
	_, err = temp.Write(data)
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", path, err)
	}
	return nil
}

// Detach starts the command in a session of its own with its output appended to the log file. It outlives the caller.
func Detach(cmd *exec.Cmd, logFile string) (ID, error) {
	out, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return ID{}, fmt.Errorf("cannot open log %s: %w", logFile, err)
	}
	defer out.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return ID{}, fmt.Errorf("cannot start %s: %w", cmd.Path, err)
	}
	id, err := Lookup(cmd.Process.Pid)
	if err != nil {
		waitErr := cmd.Wait()
		return ID{}, fmt.Errorf("cannot start %s: it ended at once (%v), see %s", cmd.Path, waitErr, logFile)
	}
	return id, nil
}

// Launcher starts processes that the kernel kills when this process ends, however it ends.
//
// The kernel binds that promise to the operating system thread that started the child, not to the process, and the Go
// runtime ends threads as it likes. So one goroutine, locked to its thread, starts them all and lives until Close.
type Launcher struct {
	requests chan launch
	done     chan struct{}
}

type launch struct {
	cmd   *exec.Cmd
	reply chan error
}

// NewLauncher starts the launcher. The caller owns it and must Close it, after the last process that it started has ended:
// closing may kill those that still run, or leave them without the promise.
func NewLauncher() *Launcher {
	l := &Launcher{requests: make(chan launch), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		// Never unlocked, so that the thread is nobody else's and does not end before this goroutine.
		runtime.LockOSThread()
		for request := range l.requests {
			request.reply <- request.cmd.Start()
		}
	}()
	return l
}

// Start starts the command as the leader of a new process group that dies with this process.
func (l *Launcher) Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	request := launch{cmd: cmd, reply: make(chan error, 1)}
	l.requests <- request
	return <-request.reply
}

// Close ends the launcher.
func (l *Launcher) Close() {
	close(l.requests)
	<-l.done
}

// WatchOwner returns a context that ends when the owner process is gone or the parent context ends. The watch is a poll of
// about a second: an owner is seldom the parent, so nothing tells.
func WatchOwner(parent context.Context, owner ID) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		if owner.WaitGone(parent, time.Second) == nil {
			cancel(fmt.Errorf("the owner, process %d, is gone", owner.PID))
			return
		}
		cancel(parent.Err())
	}()
	return ctx
}
