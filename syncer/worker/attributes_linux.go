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

// lowPriority is how far a worker stands back behind other processes: it gets a third of
// a processor that both want.
const lowPriority = 5

// standBack lets everything else go first on a busy machine: the program, and the API
// server and what else is on its node. What runs for ever in a worker delays no one who
// needs none. The worker leads a process group of its own, whose threads are all meant.
func standBack(pid int) {
	_ = unix.Setpriority(unix.PRIO_PGRP, pid, lowPriority) // without it, it is only less polite
}

// keepDescriptors makes sure that no worker inherits what this program inherited
// itself. Go does the same for what it opens.
func keepDescriptors() {
	// A kernel before 5.11 cannot; then there is mostly nothing to keep either.
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}
