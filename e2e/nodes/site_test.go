package nodes

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestSite: tests run where they can do no harm: in a network of their own, and with a limit of
// threads and memory for all that they start.
func TestSite(t *testing.T) {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			t.Errorf("the site is on the network of the computer: %s is up", i.Name)
		}
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			groups[parts[1]] = parts[2]
		}
	}
	limited := map[string]string{"pids": "pids.max", "memory": "memory.limit_in_bytes"}
	if _, shared := groups["pids"]; !shared {
		limited = map[string]string{"": "pids.max memory.max"}
	}
	for controller, files := range limited {
		site, _, _ := strings.Cut(strings.TrimPrefix(groups[controller], "/"), "/")
		for _, file := range strings.Fields(files) {
			limit, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, site, file))
			if err != nil {
				t.Error(err)
			}
			if most, err := strconv.Atoi(strings.TrimSpace(string(limit))); err != nil || site == "" || most > 1<<40 {
				t.Errorf("group %q has no limit: %s is %s", site, file, limit)
			}
		}
	}
}
