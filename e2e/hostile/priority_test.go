package hostile

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

// lowest is the lowest priority, below that of the agent's workers.
const lowest = 19

// giveWay lets the hostile servers, and the tenants who push, which are all in this process and its
// children, take what the agent, its API server and the forge of the good tenants leave of the
// processors: they stand for other machines. It is called when these run. Threads have the priority
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
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, lowest); err != nil {
			t.Logf("cannot lower the priority of a thread, which may have ended: %v", err)
		}
	}
}
