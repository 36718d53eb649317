package hostile

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// giveWay lets the hostile servers, and the tenants who push, which are all in this process and its
// children, take what the agent, its API server and the good tenants leave of the processors: they
// stand for other machines. What is only nice keeps a processor for milliseconds from each that
// wakes; what is idle for none. It is called when these run. Threads and processes have the policy
// of the one that began them.
func giveWay(t *testing.T) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
			t.Logf("cannot lower the priority of a thread, which may have ended: %v", err)
		}
	}
}
