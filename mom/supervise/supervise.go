//go:build linux

package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ErrAtOnce is the cause of a context that ends programs without any grace: what they would
// still do is what must not happen.
var ErrAtOnce = errors.New("end at once")

const (
	// shortRun is a run after which the next pause is longer.
	shortRun = time.Minute
	// firstPause and mostPause bound the pause before a program is started again.
	firstPause = 500 * time.Millisecond
	mostPause  = 30 * time.Second
	// pipeGrace is how long the output of a program is read after its end: something that it
	// left behind may hold it open for ever.
	pipeGrace = 2 * time.Second
)

// Program is what is kept running.
type Program struct {
	Name string
	// File is the executable.
	File string
	Args []string
	// Env is the whole environment.
	Env []string
	// Dir is the working directory.
	Dir string
	// Grace between the request to end and the kill.
	Grace time.Duration
}

// State is how a program is now.
type State struct {
	Name string `json:"name"`
	// PID is 0 while it does not run.
	PID   int       `json:"pid,omitempty"`
	Since time.Time `json:"since"`
	// Restarts counts starts but the first.
	Restarts int `json:"restarts"`
	// Ended is how the last run ended, empty for none.
	Ended string `json:"ended,omitempty"`
	Log   string `json:"log"`
}

// Options of New.
type Options struct {
	// Logs is the directory of what programs print. It must exist.
	Logs string
	// LogBytes bounds each of the two files of a program.
	LogBytes int64
	Now      func() time.Time
	Rand     func() float64
	// Ended is told of each end of a program that nobody asked for; nil: nobody is.
	Ended func(State)
}

// Supervisor keeps programs running. Close ends it.
type Supervisor struct {
	options Options
	starts  chan start

	mu     sync.Mutex
	states map[string]*State
}

type start struct {
	cmd  *exec.Cmd
	done chan<- error
}

// New makes a supervisor.
func New(o Options) *Supervisor {
	s := &Supervisor{options: o, starts: make(chan start), states: map[string]*State{}}
	go s.startAll()
	return s
}

// startAll starts programs from one thread that lives as long as the supervisor: the kernel
// signals a child when the thread that started it ends, not the process.
func (s *Supervisor) startAll() {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	for next := range s.starts {
		next.done <- next.cmd.Start()
	}
}

// Close ends the supervisor after all calls of Keep have returned. Whatever is left of them is
// killed by the kernel.
func (s *Supervisor) Close() { close(s.starts) }

// States are those of all programs, by name.
func (s *Supervisor) States() []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var states []State
	for _, state := range s.states {
		states = append(states, *state)
	}
	slices.SortFunc(states, func(a, b State) int { return cmp.Compare(a.Name, b.Name) })
	return states
}

// Keep runs a program until the context ends, and again whenever it ends by itself.
func (s *Supervisor) Keep(ctx context.Context, p Program) error {
	log, err := openJournal(filepath.Join(s.options.Logs, p.Name+".log"), s.options.LogBytes)
	if err != nil {
		return err
	}
	defer log.Close()
	s.change(p.Name, func(state *State) { state.Log = log.name })
	short := 0
	for ctx.Err() == nil {
		began := s.options.Now()
		err := s.run(ctx, p, log)
		if ctx.Err() != nil {
			break
		}
		if s.options.Now().Sub(began) >= shortRun {
			short = 0
		}
		short++
		ended := s.change(p.Name, func(state *State) {
			state.PID, state.Since, state.Ended = 0, s.options.Now(), describe(err)
			state.Restarts++
		})
		if s.options.Ended != nil {
			s.options.Ended(ended)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause(short, s.options.Rand)):
		}
	}
	s.change(p.Name, func(state *State) { state.PID, state.Since = 0, s.options.Now() })
	return nil
}

func (s *Supervisor) change(name string, change func(*State)) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.states[name]
	if state == nil {
		state = &State{Name: name}
		s.states[name] = state
	}
	change(state)
	return *state
}

// describe says how a run ended.
func describe(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// pause before the next start, after this many short runs: it doubles, up to a bound, and is
// a little random so that programs that fail together do not start together.
func pause(short int, rand func() float64) time.Duration {
	length := float64(firstPause) * math.Pow(2, float64(max(short-1, 0)))
	length = min(length, float64(mostPause))
	return time.Duration(length * (0.8 + 0.4*rand()))
}

// run is one run of a program, to its end.
func (s *Supervisor) run(ctx context.Context, p Program, log *journal) error {
	cmd := exec.Command(p.File, p.Args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = p.Env, p.Dir, log, log
	cmd.WaitDelay = pipeGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	s.starts <- start{cmd, started}
	if err := <-started; err != nil {
		return fmt.Errorf("cannot start %s: %w", p.Name, err)
	}
	s.change(p.Name, func(state *State) { state.PID, state.Since = cmd.Process.Pid, s.options.Now() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// The number is the process's own until Wait returned, which it has not.
	group := -cmd.Process.Pid
	if p.Grace > 0 && !errors.Is(context.Cause(ctx), ErrAtOnce) {
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGTERM) // it may have ended this moment
		select {
		case err := <-ended:
			_ = syscall.Kill(group, syscall.SIGKILL) // what it left behind in its group
			return err
		case <-time.After(p.Grace):
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
	return <-ended
}
