package worker

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes of a worker's process: it dies with the program, and signals of a
// terminal do not reach it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
}

// keepDescriptors makes sure that no worker inherits what this program inherited
// itself. Go does the same for what it opens.
func keepDescriptors() {
	// A kernel before 5.11 cannot; then there is mostly nothing to keep either.
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
