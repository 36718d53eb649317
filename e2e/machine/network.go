package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

const bridgeName = "machines"

// domain is where names of the site are.
const domain = "site.test"

// Network connects the machines of a site. A site has one.
type Network struct {
	dir, bin string
	prefix   netip.Prefix
	dns      *exec.Cmd

	mu        sync.Mutex
	listeners []net.Listener
	machines  []*Machine
}

// Open makes the network. Files are below dir, programs in bin. The name server of its
// machines knows the Name of each of these services, and no other name.
func Open(ctx context.Context, dir, bin string, services ...string) (_ *Network, err error) {
	n := &Network{dir: dir, bin: bin, prefix: netip.MustParsePrefix("172.30.0.1/16")}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	for _, args := range []string{
		"link add " + bridgeName + " type bridge",
		"addr add " + n.prefix.String() + " dev " + bridgeName,
		"link set " + bridgeName + " up",
	} {
		if err := ip(ctx, args); err != nil {
			return n, err
		}
	}
	return n, n.serveNames(services)
}

// Address of the site, on which it serves its machines.
func (n *Network) Address() netip.Addr { return n.prefix.Addr() }

// Name of a service of the site. All have the address of the site.
func Name(service string) string { return service + "." + domain }

func ip(ctx context.Context, args string) error {
	if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// serveNames starts the name server that machines have in /etc/resolv.conf.
func (n *Network) serveNames(services []string) error {
	config := filepath.Join(n.dir, "Corefile")
	var hosts strings.Builder
	for _, service := range services {
		fmt.Fprintf(&hosts, "    %s %s\n", n.Address(), Name(service))
	}
	text := fmt.Sprintf(". {\n  bind %s\n  errors\n  hosts {\n%s  }\n}\n", n.Address(), hosts.String())
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return fmt.Errorf("cannot write the configuration of the name server: %w", err)
	}
	log, err := os.Create(filepath.Join(n.dir, "names.log"))
	if err != nil {
		return fmt.Errorf("cannot make the log of the name server: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(n.bin, "coredns"), "-conf", config)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start the name server: %w", err)
	}
	n.dns = cmd
	return nil
}

// Forward lets machines reach what listens on a loopback address of the site, at the same
// port of the address of the site.
func (n *Network) Forward(to string) error {
	target, err := netip.ParseAddrPort(to)
	if err != nil {
		return fmt.Errorf("cannot forward to %q: %w", to, err)
	}
	at := netip.AddrPortFrom(n.Address(), target.Port())
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return fmt.Errorf("cannot forward to %s: %w", to, err)
	}
	n.mu.Lock()
	n.listeners = append(n.listeners, l)
	n.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go relay(c, to)
		}
	}()
	return nil
}

// relay connects two ends until one of them is done.
func relay(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[1], way[0])
			if c, ok := way[1].(*net.TCPConn); ok {
				_ = c.CloseWrite()
			}
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

// plug gives a process, which has a network of its own, a device in this one.
func (n *Network) plug(ctx context.Context, name string, pid int) error {
	for _, args := range []string{
		"link add " + name + " type veth peer name eth0 netns " + strconv.Itoa(pid),
		"link set " + name + " master " + bridgeName + " up",
	} {
		if err := ip(ctx, args); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the machines and the network.
func (n *Network) Close() error {
	n.mu.Lock()
	machines, listeners := n.machines, n.listeners
	n.mu.Unlock()
	var failures []error
	for _, m := range machines {
		failures = append(failures, m.Stop())
	}
	for _, l := range listeners {
		failures = append(failures, l.Close())
	}
	if n.dns != nil {
		_ = n.dns.Process.Kill()
		_ = n.dns.Wait() // it was killed
	}
	return errors.Join(failures...)
}
