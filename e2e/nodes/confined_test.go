package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// confined fails unless the process of the agent's pod has what its manifest says, as the
// kernel sees it. It logs its memory.
func (c *cluster) confined(t *testing.T, pod corev1.Pod) {
	t.Helper()
	proc := process(t, pod)
	status, err := fields(filepath.Join(proc, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{
		"Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532",
		"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
	} {
		if status[field] != want {
			t.Errorf("the agent's process has %s %q, want %q", field, status[field], want)
		}
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 5 && f[4] == "/" && !strings.HasPrefix(f[5], "ro") {
			t.Errorf("the agent may write to its root: %s", line)
		}
	}
	t.Logf("%s: the agent has %s resident, had %s at most, of which %s are its own", c.tier.Name, status["VmRSS"], status["VmHWM"], status["RssAnon"])
}

// process is the directory in /proc of the agent of a pod. The site sees the processes of its
// machines.
func process(t *testing.T, pod corev1.Pod) string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if strings.HasPrefix(string(line), "cascade\x00agent\x00") && strings.Contains(string(groups), "pod"+string(pod.UID)) {
			found = append(found, dir)
		}
	}
	if len(found) != 1 {
		t.Fatalf("pod %s has the processes %v", pod.Name, found)
	}
	return found[0]
}

// fields are those of a file in which each line begins with a name.
func fields(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		values[name] = strings.TrimSpace(value)
	}
	return values, nil
}
