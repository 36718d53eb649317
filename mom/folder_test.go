//go:build linux

package mom

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// TestFolder: one process serves a folder, others see it, and it is asked to stop.
func TestFolder(t *testing.T) {
	if dir := os.Getenv("MOM_TEST_FOLDER"); dir != "" {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		lock, err := Folder(dir).acquire()
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		(&board{folder: Folder(dir)}).change(func(s *Status) { s.Message = "up" })
		<-asked
		return
	}
	f := Folder(t.TempDir())
	if ran, err := f.Down(t.Context()); ran || err != nil {
		t.Errorf("nothing runs: %t, %v", ran, err)
	}
	if _, known, err := f.ReadStatus(); known || err != nil {
		t.Errorf("nothing ran: %t, %v", known, err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFolder$")
	cmd.Env = append(os.Environ(), "MOM_TEST_FOLDER="+string(f))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	err := poll(t.Context(), "the other process", func(context.Context) error {
		status, known, err := f.ReadStatus()
		if err == nil && (!known || status.Message != "up") {
			err = errors.New("it is not there")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := f.Holder(); err != nil || pid != cmd.Process.Pid {
		t.Errorf("process %d serves it, want %d, %v", pid, cmd.Process.Pid, err)
	}
	if _, err := f.acquire(); !errors.Is(err, ErrRuns) || !strings.Contains(err.Error(), "cascade mom status") {
		t.Errorf("a second one: %v", err)
	}
	if ran, err := f.Down(t.Context()); !ran || err != nil {
		t.Errorf("down: %t, %v", ran, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	lock, err := f.acquire()
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Close() // nothing was written
}

// TestHolder: who holds the lock in another container has no number here, and holds it.
func TestHolder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		lock   syscall.Flock_t
		want   int
	}{
		"Here":    {"a process of this machine", syscall.Flock_t{Type: syscall.F_WRLCK, Pid: 7}, 7},
		"Nobody":  {"the kernel says nothing but that", syscall.Flock_t{Type: syscall.F_UNLCK, Pid: 7}, 0},
		"Other":   {"one of another PID namespace is 0", syscall.Flock_t{Type: syscall.F_WRLCK}, Unnamed},
		"Machine": {"one of another client of NFS is negative", syscall.Flock_t{Type: syscall.F_WRLCK, Pid: -5}, Unnamed},
	} {
		if got := holderOf(tc.lock); got != tc.want {
			t.Errorf("%s: %s: %d, want %d", name, tc.reason, got, tc.want)
		}
	}
}
