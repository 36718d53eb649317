package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// Missing tells what a computer lacks to have a site, and how it gets it; nothing if it
// has everything.
func Missing() []string {
	if os.Geteuid() != 0 {
		return []string{"it needs root: containers, networks and mounts are made"}
	}
	var missing []string
	for _, program := range []string{"ip", "iptables", "containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Sprintf("program %s is not there: make e2e-nodes installs it from Debian's packages", program))
		}
	}
	if systems, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(systems), "\toverlay\n") {
		missing = append(missing, "the kernel has no overlayfs: modprobe overlay")
	}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); errors.Is(err, fs.ErrNotExist) {
		missing = append(missing, "the kernel does not show iptables what crosses a bridge: modprobe br_netfilter")
	}
	if !haveControllers() {
		missing = append(missing, "below "+cgroupRoot+" there are not the controllers cpu, memory and pids")
	}
	if len(missing) > 0 {
		return missing
	}
	for _, probe := range []struct{ what, program, args string }{
		{"namespaces for processes, mounts and networks", "true", ""},
		{"pairs of virtual Ethernet devices", "ip", "link add probe0 type veth peer name probe1"},
		{"bridges", "ip", "link add probe2 type bridge"},
		{"translation of addresses by iptables", "iptables", "-t nat -A POSTROUTING -m comment --comment probe -j MASQUERADE"},
	} {
		cmd := exec.Command(probe.program, strings.Fields(probe.args)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
		if out, err := cmd.CombinedOutput(); err != nil {
			missing = append(missing, fmt.Sprintf("this process cannot make %s: %v: %s", probe.what, err, strings.TrimSpace(string(out))))
		}
	}
	return missing
}
