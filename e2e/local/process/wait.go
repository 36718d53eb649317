package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// AwaitExit returns when the child has ended, and leaves it uncollected: until the caller collects it, its number (and that
// of its process group) cannot be given to another process, so the rest of its group can be killed without doubt.
func AwaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot wait for process %d: %w", pid, err)
		}
		return nil
	}
}
