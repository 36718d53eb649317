package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// Options of a machine.
type Options struct {
	// Name of the machine and of its node, at most 10 letters.
	Name string
	// Server is the API server as machines reach it, a loopback address of the site that
	// was forwarded.
	Server netip.AddrPort
	// PKI is the directory with ca.crt and ca.key of the cluster.
	PKI string
	// Images are archives that are there from the beginning.
	Images []string
	// Sandbox is the image that pods have their namespaces from. It must be among Images.
	Sandbox string
	// Registries, host and port, are asked without TLS.
	Registries []string
	// ClusterDNS is the address of the Service of the cluster's name server.
	ClusterDNS netip.Addr
	// Pods is the range of addresses of a network for pods that is there from the
	// beginning. Without it, the machine has neither a configuration nor plugins: it is
	// not ready until somebody brings them.
	Pods netip.Prefix
}

// Machine is one that runs.
type Machine struct {
	Name string
	// Address on the bridge.
	Address netip.Addr
	// Dir has its files: log, lib, etc.
	Dir string

	cmd  *exec.Cmd
	life *os.File
	done chan struct{}
}

// settings are what the first process of a machine is told.
type settings struct {
	Options
	Dir, Bin, Cgroup string
	Address          netip.Prefix
	Gateway          netip.Addr
}

// Start starts a machine, or one again that was stopped: it has its address and its disk, and
// nothing of what was in its memory. It returns when its processes are about to start; the
// node is there when the cluster says so.
func (n *Network) Start(ctx context.Context, o Options) (*Machine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.machines, func(m *Machine) bool { return m.Name == o.Name })
	if i < 0 {
		i = len(n.machines)
	} else if n.machines[i].Running() {
		return nil, fmt.Errorf("cannot start machine %s: it runs", o.Name)
	}
	octets := n.Address().As4()
	octets[3] += byte(1 + i)
	m := &Machine{Name: o.Name, Address: netip.AddrFrom4(octets), Dir: filepath.Join(n.dir, "machines", o.Name), done: make(chan struct{})}
	s := settings{
		Options: o, Dir: m.Dir, Bin: n.bin, Cgroup: prefix + os.Getenv(siteVariable) + "/" + o.Name,
		Address: netip.PrefixFrom(m.Address, n.prefix.Bits()), Gateway: n.Address(),
	}
	// What is left of an earlier life: groups without processes, and the end of a cable.
	if err := removeCgroups(s.Cgroup); err != nil {
		return nil, err
	}
	_ = ip(ctx, "link del "+cable(o.Name)) // the kernel may have done it already
	if err := makeCgroup(s.Cgroup); err != nil {
		return nil, err
	}
	if err := s.writeFiles(); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(m.Dir, logDir, "machine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot make the log of machine %s: %w", o.Name, err)
	}
	defer log.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make the pipe of machine %s: %w", o.Name, err)
	}
	defer ours.Close()
	m.life = theirs
	if m.cmd, err = first(roleMachine, nil, ours); err != nil {
		return nil, err
	}
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot start machine %s: %w", o.Name, err), theirs.Close())
	}
	go func() {
		defer close(m.done)
		_ = m.cmd.Wait() // its log says why it ended
	}()
	n.machines = slices.Insert(slices.Delete(n.machines, i, min(i+1, len(n.machines))), i, m)
	if err := n.plug(ctx, cable(o.Name), m.cmd.Process.Pid); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(theirs).Encode(s); err != nil {
		return nil, fmt.Errorf("cannot tell machine %s what it is: %w", o.Name, err)
	}
	return m, nil
}

// cable is the name of the site's end of a machine's device.
func cable(machine string) string { return "m-" + machine }

// Running reports whether its processes have not ended.
func (m *Machine) Running() bool {
	select {
	case <-m.done:
		return false
	default:
		return true
	}
}

// stopGrace is for the kernel to take a machine down.
const stopGrace = 30 * time.Second

// Stop ends the machine without any notice, as a power failure does.
func (m *Machine) Stop() error {
	// Fails if it was stopped before.
	_ = m.life.Close()
	select {
	case <-m.done:
		return nil
	case <-time.After(stopGrace):
		return fmt.Errorf("cannot stop machine %s: it is there after %s", m.Name, stopGrace)
	}
}

// Logs are the files that its programs write.
func (m *Machine) Logs() []string {
	files, _ := filepath.Glob(filepath.Join(m.Dir, logDir, "*.log"))
	return files
}
