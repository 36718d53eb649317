package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// eager is how often a probe asks until its first success. A kubelet waits a whole period there, which would be most of the
// time that a tier takes to come up.
const eager = 250 * time.Millisecond

// probes are the goroutines that ask one life of a container how it is.
type probes struct {
	unhealthy <-chan string // gets the reason why the container has to be restarted
	stop      func()
}

func (p *pod) startProbes(object *corev1.Pod, container *corev1.Container, cmd *exec.Cmd) probes {
	ctx, cancel := context.WithCancel(p.hard)
	unhealthy := make(chan string, 2) // startup and liveness, neither of which waits for a reader
	var group sync.WaitGroup
	facts := func(change func(*containerFacts)) {
		p.update(func(f *podFacts) { change(f.containers[container.Name]) })
	}
	asker := func(probe *corev1.Probe) func(context.Context) error {
		return func(ctx context.Context) error { return p.ask(ctx, container, probe, cmd) }
	}
	group.Go(func() {
		if probe := container.StartupProbe; probe != nil {
			if !awaitStartup(ctx, probe, asker(probe)) {
				if ctx.Err() == nil {
					unhealthy <- "startup probe failed"
				}
				return
			}
			facts(func(c *containerFacts) { c.started, c.ready = true, container.ReadinessProbe == nil })
		}
		if probe := container.ReadinessProbe; probe != nil {
			group.Go(func() {
				follow(ctx, probe, asker(probe), false, func(ok bool, _ error) {
					facts(func(c *containerFacts) { c.ready = ok })
				})
			})
		}
		if probe := container.LivenessProbe; probe != nil {
			group.Go(func() {
				follow(ctx, probe, asker(probe), true, func(ok bool, err error) {
					if !ok {
						select {
						case unhealthy <- fmt.Sprintf("liveness probe failed: %v", err):
						default: // it is being restarted already
						}
					}
				})
			})
		}
	})
	return probes{unhealthy: unhealthy, stop: func() {
		cancel()
		group.Wait()
	}}
}

// awaitStartup asks until the first success, for as long as the probe allows failures.
func awaitStartup(ctx context.Context, probe *corev1.Probe, ask func(context.Context) error) bool {
	if !sleep(ctx, seconds(probe.InitialDelaySeconds, 0)) {
		return false
	}
	budget := seconds(probe.PeriodSeconds, 10) * time.Duration(atLeastOne(probe.FailureThreshold, 3))
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		if ask(ctx) == nil {
			return true
		}
		if !sleep(ctx, min(eager, seconds(probe.PeriodSeconds, 10))) {
			return false
		}
	}
}

// follow asks once a period and tells of every change of the verdict, which starts out as given.
func follow(ctx context.Context, probe *corev1.Probe, ask func(context.Context) error, verdict bool, tell func(bool, error)) {
	if !sleep(ctx, seconds(probe.InitialDelaySeconds, 0)) {
		return
	}
	period := seconds(probe.PeriodSeconds, 10)
	pause := period
	if !verdict {
		pause = min(eager, period)
	}
	var successes, failures int32
	for {
		err := ask(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			successes, failures, pause = successes+1, 0, period
		} else {
			successes, failures = 0, failures+1
		}
		if !verdict && successes >= atLeastOne(probe.SuccessThreshold, 1) {
			verdict = true
			tell(true, nil)
		}
		if verdict && failures >= atLeastOne(probe.FailureThreshold, 3) {
			verdict = false
			tell(false, err)
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func seconds(n, otherwise int32) time.Duration {
	if n <= 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

func atLeastOne(n, otherwise int32) int32 {
	if n <= 0 {
		return otherwise
	}
	return n
}

// ask asks once.
func (p *pod) ask(ctx context.Context, container *corev1.Container, probe *corev1.Probe, cmd *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(probe.TimeoutSeconds, 1))
	defer cancel()
	p.mu.Lock()
	ip := p.facts.podIP
	p.mu.Unlock()
	switch {
	case probe.HTTPGet != nil:
		return askHTTP(ctx, probe.HTTPGet, container, ip)
	case probe.TCPSocket != nil:
		port, err := portOf(probe.TCPSocket.Port, container)
		if err != nil {
			return err
		}
		var dialer net.Dialer
		connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(orElse(probe.TCPSocket.Host, ip), port))
		if err != nil {
			return err
		}
		return connection.Close()
	case probe.Exec != nil:
		return p.askCommand(ctx, probe.Exec.Command, cmd)
	}
	return errors.New("the probe asks nothing")
}

func askHTTP(ctx context.Context, get *corev1.HTTPGetAction, container *corev1.Container, ip string) error {
	port, err := portOf(get.Port, container)
	if err != nil {
		return err
	}
	scheme := "http"
	if get.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		scheme+"://"+net.JoinHostPort(orElse(get.Host, ip), port)+"/"+trimSlash(get.Path), nil)
	if err != nil {
		return fmt.Errorf("cannot make probe request: %w", err)
	}
	for _, header := range get.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, // each answer is to come from a new connection, or it would say little
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("answer %s", response.Status)
	}
	return nil
}

// askCommand runs the command as the container's process runs: same environment, same directory.
func (p *pod) askCommand(ctx context.Context, command []string, like *exec.Cmd) error {
	if len(command) == 0 {
		return errors.New("the probe has no command")
	}
	path, err := findProgram(command[0], p.host.BinDirs)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, command[1:]...)
	cmd.Env, cmd.Dir = like.Env, like.Dir
	if err := p.host.launcher.Start(cmd); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		// Not collected before Wait below returns, which waits for nothing once the group is dead.
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			p.host.Log.Warn("cannot end probe", "error", err)
		}
	})
	defer stop()
	return cmd.Wait()
}

func portOf(port intstr.IntOrString, container *corev1.Container) (string, error) {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue()), nil
	}
	for _, declared := range container.Ports {
		if declared.Name == port.StrVal {
			return strconv.Itoa(int(declared.ContainerPort)), nil
		}
	}
	return "", fmt.Errorf("container %s has no port %s", container.Name, port.StrVal)
}

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

func trimSlash(path string) string {
	if path != "" && path[0] == '/' {
		return path[1:]
	}
	return path
}
