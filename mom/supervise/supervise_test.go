//go:build linux

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// waitFor polls what another process does; the test itself ends what never happens.
func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

func newSupervisor(t *testing.T, ended func(State)) (*Supervisor, string) {
	t.Helper()
	logs := t.TempDir()
	s := New(Options{Logs: logs, LogBytes: 1 << 20, Now: time.Now, Rand: func() float64 { return 0.5 }, Ended: ended})
	t.Cleanup(s.Close)
	return s, logs
}

func shell(name, script string) Program {
	return Program{Name: name, File: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ(), Grace: 10 * time.Second}
}

func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z"
}

func TestKeep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, script string
		cause          error
		want           string
	}{
		"Asked":  {"a program is asked to end, and does", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`, nil, "up\nbye\n"},
		"AtOnce": {"no grace where none may be given", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`, ErrAtOnce, "up\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s, logs := newSupervisor(t, nil)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			done := make(chan error, 1)
			go func() { done <- s.Keep(ctx, shell("program", tc.script)) }()
			log := filepath.Join(logs, "program.log")
			waitFor(t, "it is up", func() bool {
				text, err := os.ReadFile(log)
				return err == nil && strings.HasPrefix(string(text), "up\n")
			})
			pid := s.States()[0].PID
			cancel(tc.cause)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if alive(pid) {
				t.Errorf("%s: process %d is there after Keep returned", tc.reason, pid)
			}
			if text, err := os.ReadFile(log); err != nil || string(text) != tc.want {
				t.Errorf("%s: it printed %q, want %q, %v", tc.reason, text, tc.want, err)
			}
			if state := s.States()[0]; state.PID != 0 || state.Restarts != 0 {
				t.Errorf("%s: state %+v", tc.reason, state)
			}
		})
	}
}

func TestKeepStubborn(t *testing.T) {
	s, logs := newSupervisor(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := shell("program", `trap '' TERM; sleep 1000 & echo $!; while :; do sleep 0.01; done`)
	p.Grace = 50 * time.Millisecond
	done := make(chan error, 1)
	go func() { done <- s.Keep(ctx, p) }()
	var child int
	waitFor(t, "it says what it started", func() bool {
		text, err := os.ReadFile(filepath.Join(logs, "program.log"))
		if err != nil {
			return false
		}
		child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "what it started is gone with its group", func() bool { return !alive(child) })
}

func TestKeepRestarts(t *testing.T) {
	ended := make(chan State, 10)
	s, logs := newSupervisor(t, func(state State) { ended <- state })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	go func() { done <- s.Keep(ctx, shell("program", `echo run; exit 3`)) }()
	first, second := <-ended, <-ended
	if first.Ended != "exit status 3" || first.Restarts != 1 || second.Restarts != 2 || first.Log != filepath.Join(logs, "program.log") {
		t.Errorf("states are %+v, %+v", first, second)
	}
	go func() { done <- s.Keep(ctx, Program{Name: "missing", File: "/nowhere/program"}) }()
	for state := range ended {
		if state.Name == "missing" {
			if !strings.Contains(state.Ended, "cannot start missing") {
				t.Errorf("a program that is not there: %+v", state)
			}
			break
		}
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestKilled: the children of a supervisor that is killed do not outlive it.
func TestKilled(t *testing.T) {
	if logs := os.Getenv("SUPERVISE_TEST_LOGS"); logs != "" {
		s := New(Options{Logs: logs, LogBytes: 1 << 20, Now: time.Now, Rand: func() float64 { return 0 }})
		_ = s.Keep(context.Background(), shell("program", `echo $$; while :; do sleep 0.01; done`))
		return
	}
	logs := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), "SUPERVISE_TEST_LOGS="+logs)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	waitFor(t, "the child runs", func() bool {
		text, err := os.ReadFile(filepath.Join(logs, "program.log"))
		if err != nil {
			return false
		}
		child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	waitFor(t, "the child is gone", func() bool { return !alive(child) })
}

func TestPause(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		short  int
		rand   float64
		want   time.Duration
	}{
		"First":  {"a first end may be a chance", 1, 0.5, firstPause},
		"Second": {"each short run doubles it", 2, 0.5, 2 * firstPause},
		"Many":   {"up to a bound", 100, 0.5, mostPause},
		"Least":  {"less by a fifth at most", 1, 0, firstPause * 4 / 5},
		"Long":   {"after a long run it begins anew", 0, 0.5, firstPause},
	} {
		t.Run(name, func(t *testing.T) {
			if got := pause(tc.short, func() float64 { return tc.rand }); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestJournal(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	j, err := openJournal(name, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"12345", "67890", "abcde", "a line that is longer than all of it"} {
		if n, err := j.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	j.Close()
	now, err := os.ReadFile(name)
	if err != nil || string(now) != "a line that is longer than all of it" {
		t.Errorf("the log has %q, %v", now, err)
	}
	before, err := os.ReadFile(name + ".1")
	if err != nil || string(before) != "abcde" {
		t.Errorf("the one before it has %q, %v", before, err)
	}
	again, err := openJournal(name, 10)
	if err != nil {
		t.Fatal(err)
	}
	if again.size != int64(len(now)) {
		t.Errorf("a log that is opened again has size %d", again.size)
	}
	again.Close()
}
