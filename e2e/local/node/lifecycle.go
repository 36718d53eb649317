package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cascade-gitops/cascade/e2e/local/process"
)

// Files in the directory of a node.
func recordFile(dir string) string { return filepath.Join(dir, "node.pid") }
func readyFile(dir string) string  { return filepath.Join(dir, "node.ready") }
func logFile(dir string) string    { return filepath.Join(dir, "node.log") }

const (
	recordSuffix = ".pid"
	killSignal   = syscall.SIGKILL
)

// markReady says that this very process is ready, so that a mark of a former one deceives nobody.
func markReady(dir string) error {
	id, err := process.Lookup(os.Getpid())
	if err != nil {
		return err
	}
	return process.WriteRecord(readyFile(dir), id)
}

// Running returns the process of the node that was started in the directory; fs.ErrNotExist if none runs.
func Running(dir string) (process.ID, error) {
	id, err := process.ReadRecord(recordFile(dir))
	if err != nil {
		return process.ID{}, err
	}
	if !id.Alive() {
		return process.ID{}, fmt.Errorf("cannot find node process %d: %w", id.PID, fs.ErrNotExist)
	}
	return id, nil
}

// Start starts a node in the background with the command and environment, in its directory, and returns when its Node is
// Ready. The node outlives the caller. If one already runs in the directory, Start only waits for it.
func Start(ctx context.Context, dir string, environment, command []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cannot make node directory: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(dir, "node.lock"))
	if err != nil {
		return err
	}
	defer unlock()

	id, err := Running(dir)
	if errors.Is(err, fs.ErrNotExist) {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Env = dir, environment
		if id, err = process.Detach(cmd, logFile(dir)); err == nil {
			err = process.WriteRecord(recordFile(dir), id)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot start node in %s: %w", dir, err)
	}
	for {
		if ready, err := process.ReadRecord(readyFile(dir)); err == nil && ready == id {
			return nil
		}
		if !id.Alive() {
			return fmt.Errorf("cannot start node in %s: it ended, see %s", dir, logFile(dir))
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return fmt.Errorf("cannot start node in %s: not ready, see %s: %w", dir, logFile(dir), ctx.Err())
		}
	}
}

// Stop ends the node in the directory and all its pods. No node is no error.
func Stop(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(dir, "node.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if id, err := Running(dir); err == nil {
		if err := id.Terminate(ctx, 5*time.Second); err != nil {
			return fmt.Errorf("cannot stop node in %s: %w", dir, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot stop node in %s: %w", dir, err)
	}
	return killStale(filepath.Join(dir, "pods"))
}

// lock takes a file lock, which the kernel gives back if the holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock %s: %w", path, err)
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || !sleep(ctx, 50*time.Millisecond) {
			file.Close()
			return nil, fmt.Errorf("cannot take lock %s: %w", path, errors.Join(err, ctx.Err()))
		}
	}
}
