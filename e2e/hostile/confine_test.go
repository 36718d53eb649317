package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/e2e/gauge"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

const (
	// memoryLimit is the one of the Deployment of the agent.
	memoryLimit = 1 << 30
	// memoryBound is what the agent and its workers may come to together.
	memoryBound = 512 << 20
	// sampleEach is how often that is measured.
	sampleEach = 80 * time.Millisecond
)

// confinement is the limit of memory that the kernel gives to the agent.
type confinement struct {
	// dir is the control group; empty where this machine lets nobody make one, and a limit
	// of the process stands for it, which each worker has for itself.
	dir string
}

// confine makes a control group with the limit, and a directory with a program cascade
// that enters it and then becomes the agent, without the race detector, which needs
// several times the memory.
func confine(t *testing.T) (*confinement, []string) {
	t.Helper()
	c, programs := &confinement{}, t.TempDir()
	for _, group := range []struct{ dir, limit string }{
		{"/sys/fs/cgroup/cascade-hostile-" + strconv.Itoa(os.Getpid()), "memory.max"},
		{"/sys/fs/cgroup/memory/cascade-hostile-" + strconv.Itoa(os.Getpid()), "memory.limit_in_bytes"},
	} {
		if os.Mkdir(group.dir, 0o755) != nil {
			continue
		}
		// What is no file system of control groups makes an empty directory.
		if _, err := os.Stat(filepath.Join(group.dir, group.limit)); err != nil {
			_ = os.Remove(group.dir)
			continue
		}
		if err := os.WriteFile(filepath.Join(group.dir, group.limit), []byte(strconv.Itoa(memoryLimit)), 0o644); err != nil {
			_ = os.Remove(group.dir)
			continue
		}
		c.dir = group.dir
		t.Logf("the agent has a limit of %d MiB by %s of its control group", memoryLimit>>20, group.limit)
		// It is empty when the processes of the stage have ended, which is before.
		t.Cleanup(func() {
			if err := os.Remove(group.dir); err != nil {
				t.Errorf("cannot remove the control group: %v", err)
			}
		})
		break
	}
	enter := "ulimit -d " + strconv.Itoa(memoryLimit>>10)
	if c.dir != "" {
		enter = "echo $$ > " + c.dir + "/cgroup.procs"
	} else {
		t.Logf("no control group can be made: the agent has a limit of %d MiB by RLIMIT_DATA", memoryLimit>>20)
	}
	agent := scenario.Path(t, "bin", "cascade")
	if err := gauge.Evict(agent); err != nil {
		t.Fatalf("cannot evict the agent's program: %v", err)
	}
	script := "#!/bin/sh\n" + enter + " || exit 1\nexec " + agent + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(programs, "cascade"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return c, []string{programs, scenario.Path(t, "bin")}
}

// killed is how often the kernel ended a process of the group, and the peak of the group
// with the page cache, as far as it says so.
func (c *confinement) killed() (kills int, peak string) {
	for _, file := range []string{"memory.events", "memory.oom_control"} {
		data, err := os.ReadFile(filepath.Join(c.dir, file))
		if c.dir == "" || err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
				kills, _ = strconv.Atoi(n) // the kernel writes numbers
			}
		}
	}
	for _, file := range []string{"memory.peak", "memory.max_usage_in_bytes"} {
		if data, err := os.ReadFile(filepath.Join(c.dir, file)); c.dir != "" && err == nil {
			peak = strings.TrimSpace(string(data))
		}
	}
	return kills, peak
}

// memory is what an agent and its workers have, sampled until stop.
type memory struct {
	mu sync.Mutex
	// peak is that of all together, in bytes, where a page that several of them have, such
	// as those of the program, counts once; parts says of which.
	peak  int64
	parts string
	// resident is the peak of the sum of their resident sets, where such a page counts for
	// each of them. alone is that of the agent.
	resident, alone int64
	samples         int
	stop            func()
}

// weigh samples the memory of a process and its children.
func weigh(pid int) *memory {
	m, done, ended := &memory{}, make(chan struct{}), make(chan struct{})
	m.stop = sync.OnceFunc(func() { close(done); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(sampleEach)
		defer tick.Stop()
		for {
			m.sample(pid)
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	return m
}

func (m *memory) sample(pid int) {
	sum, together, parts := resident(pid), share(pid), ""
	own := sum
	parts = fmt.Sprintf("agent %d", together>>20)
	children, _ := gauge.Children(pid) // of a process that has ended there are none
	for _, child := range children {
		// A child that has not become a program yet is the agent's memory once more.
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); err != nil || !strings.Contains(string(line), "\x00worker\x00") {
			continue
		}
		size := share(child)
		sum += resident(child)
		together += size
		parts += fmt.Sprintf(", worker %d", size>>20)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples++
	m.alone = max(m.alone, own)
	m.resident = max(m.resident, sum)
	if together > m.peak {
		m.peak, m.parts = together, parts
	}
}

// share of a process in memory: what it has alone, and its part of what it shares with
// others. 0 if it is not there any more.
func share(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64) // the kernel writes numbers
			return kib << 10
		}
	}
	return 0
}

// resident memory of a process, 0 if it is not there any more.
func resident(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64) // the kernel writes numbers
	return pages * int64(os.Getpagesize())
}

// since is the peak, which begins anew.
func (m *memory) since() (peak int64, parts string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	peak, parts = m.peak, m.parts
	m.peak, m.parts = 0, ""
	return peak, parts
}
