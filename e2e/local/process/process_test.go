package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestID(t *testing.T) {
	// The name of the command holds what a careless parser of /proc trips over.
	odd := filepath.Join(t.TempDir(), "a ) b (")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, odd); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(odd, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Lookup(cmd.Process.Pid)
	if err != nil || !id.Alive() {
		t.Fatalf("%+v is not alive: %v", id, err)
	}
	record := filepath.Join(t.TempDir(), "record")
	if err := WriteRecord(record, id); err != nil {
		t.Fatal(err)
	}
	if read, err := ReadRecord(record); err != nil || read != id {
		t.Fatalf("read %+v (%v), wrote %+v", read, err, id)
	}
	other := ID{PID: id.PID, Start: id.Start - 1}
	if other.Alive() {
		t.Error("a former process with the number counts as alive")
	}
	if err := other.Kill(syscall.SIGKILL); err != nil || !id.Alive() {
		t.Errorf("the process was killed in place of a former one with its number (%v)", err)
	}
	if err := id.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// Not collected, hence a zombie, and gone all the same.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := id.WaitGone(ctx, time.Millisecond); err != nil {
		t.Error(err)
	}
	if _, err := Lookup(id.PID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a zombie is found: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
}

// launcherMode makes this program start a process with a Launcher, tell its number, and wait to be killed.
const launcherMode = "PROCESS_TEST_LAUNCHER"

func TestMain(m *testing.M) {
	if os.Getenv(launcherMode) == "" {
		os.Exit(m.Run())
	}
	cmd := exec.Command("sleep", "600")
	if err := NewLauncher().Start(cmd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestLauncher(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), launcherMode+"=1")
	output, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(output, &pid); err != nil {
		t.Fatal(err)
	}
	child, err := Lookup(pid)
	if err != nil {
		t.Fatal(err)
	}
	// Idle threads of the parent come and go; the child must not go with one of them.
	time.Sleep(200 * time.Millisecond)
	if !child.Alive() {
		t.Fatal("the child ended before its parent")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := parent.Wait(); err == nil {
		t.Fatal("the parent was not killed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := child.WaitGone(ctx, time.Millisecond); err != nil {
		t.Error(err)
	}
}

func TestWatchOwner(t *testing.T) {
	owner := exec.Command("sleep", "600")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := Lookup(owner.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	ctx := WatchOwner(t.Context(), id)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
		if errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("cause: %v", context.Cause(ctx))
		}
	case <-time.After(5 * time.Second):
		t.Error("the end of the owner went unnoticed")
	}
	if err := owner.Wait(); err == nil {
		t.Error("it was not killed")
	}
}
