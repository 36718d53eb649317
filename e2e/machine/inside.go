package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startTimeout bounds the start of containerd.
const startTimeout = time.Minute

// beginMachine is the first process of a machine. It ends, and the machine with it, when one
// of its programs does.
func beginMachine() (int, error) {
	pipe := openLifeline()
	var s settings
	if err := json.NewDecoder(pipe).Decode(&s); err != nil {
		return 1, fmt.Errorf("cannot learn what this machine is: %w", err)
	}
	endWithPipe(pipe)
	r := newReaper()
	if err := s.setUp(r); err != nil {
		return 1, err
	}
	ended := make(chan error)
	for _, start := range []func(*reaper, chan<- error) error{s.containerd, s.kubelet, s.proxy} {
		if err := start(r, ended); err != nil {
			return 1, err
		}
	}
	return 1, <-ended
}

// setUp gives the machine its name, its directories and its network.
func (s settings) setUp(r *reaper) error {
	if err := syscall.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("cannot name the machine: %w", err)
	}
	if err := machineMounts(s.Dir); err != nil {
		return err
	}
	for _, args := range []string{
		"link set lo up", "addr add " + s.Address.String() + " dev eth0", "link set eth0 up", "route add default via " + s.Gateway.String(),
	} {
		if err := r.must(os.Stderr, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// daemon starts a program that must not end.
func (s settings) daemon(r *reaper, end chan<- error, name, program string, args ...string) error {
	log, err := os.OpenFile(filepath.Join("/var/log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("cannot make the log of %s: %w", name, err)
	}
	defer log.Close()
	ended, err := r.start(log, nil, program, args...)
	if err != nil {
		return err
	}
	go func() {
		status := <-ended
		end <- fmt.Errorf("%s ended with %d; see %s.log", name, status, name)
	}()
	return nil
}

const containerdSocket = "/run/containerd/containerd.sock"

func (s settings) containerd(r *reaper, end chan<- error) error {
	if err := s.daemon(r, end, "containerd", "containerd", "--config", "/etc/containerd/config.toml"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", containerdSocket)
		if err == nil {
			_ = c.Close()
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot reach containerd: %w; see containerd.log", err)
		case <-tick.C:
		}
	}
	for _, image := range s.Images {
		if err := r.must(os.Stderr, "ctr", "--namespace", "k8s.io", "images", "import", image); err != nil {
			return err
		}
	}
	return nil
}

func (s settings) kubelet(r *reaper, end chan<- error) error {
	return s.daemon(r, end, "kubelet", filepath.Join(s.Bin, "kubelet"), "--config=/etc/kubernetes/kubelet.yaml",
		"--kubeconfig=/etc/kubernetes/kubelet.conf", "--hostname-override="+s.Name, "--node-ip="+s.Address.Addr().String())
}

func (s settings) proxy(r *reaper, end chan<- error) error {
	return s.daemon(r, end, "kube-proxy", filepath.Join(s.Bin, "kube-proxy"), "--config=/etc/kubernetes/kube-proxy.yaml", "--hostname-override="+s.Name)
}
