package stage

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Agent is a process of the agent that runs beside its cluster instead of in a
// pod of it, where a test decides how and when it runs.
type Agent struct {
	// Log is the file with its output, of all agents of the tier.
	Log string

	metrics string
	health  string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// startTries bounds how often an agent is started that ends at once: between the choice
// of a free port and its use, another process may take it.
const startTries = 3

// errEnded: the process ended before it was ready.
var errEnded = errors.New("it ended")

// AgentOptions say how an agent is started.
type AgentOptions struct {
	// Program is the file of the agent; empty: the one of the stage.
	Program string
	// Name is that of its pod, by which it holds the lease of the tier; empty: it runs
	// without a lease, the only one of the tier.
	Name string
	// Flags besides those that it needs here.
	Flags []string
	// Guarded: its metrics are served over TLS to those whom the API server lets.
	Guarded bool
}

// StartAgent runs the agent of a tier, as its administrator, with these flags
// besides those that it needs here. It returns when the agent is ready. The
// agent ends with the stage.
func (t *Tier) StartAgent(ctx context.Context, flags ...string) (*Agent, error) {
	return t.StartAgentWith(ctx, AgentOptions{Flags: flags})
}

// StartAgentWith is StartAgent with more to say.
func (t *Tier) StartAgentWith(ctx context.Context, o AgentOptions) (*Agent, error) {
	if o.Program == "" {
		var err error
		if o.Program, err = t.stage.Program("cascade"); err != nil {
			return nil, err
		}
	}
	for try := 1; ; try++ {
		a, err := t.startAgent(ctx, o)
		if !errors.Is(err, errEnded) || try == startTries {
			return a, err
		}
	}
}

func (t *Tier) startAgent(ctx context.Context, o AgentOptions) (*Agent, error) {
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	a := &Agent{Log: filepath.Join(t.Dir, "agent.log"), health: health, ended: make(chan struct{})}
	if a.metrics, err = freeAddress(); err != nil {
		return nil, err
	}
	output, err := os.OpenFile(a.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open log of the agent: %w", err)
	}
	defer output.Close()
	if o.Guarded {
		o.Flags = append([]string{"--metrics-auth=kubernetes"}, o.Flags...)
	}
	a.cmd = exec.Command(o.Program, append([]string{
		"agent", "--metrics-addr", a.metrics, "--profiling", "--health-addr", health, fmt.Sprintf("--enable-leader-election=%t", o.Name != ""),
		"--agent-image", Image, "--storage-path", filepath.Join(t.Dir, "storage"+o.Name),
	}, o.Flags...)...)
	a.cmd.Env = append(t.stage.environment(), "KUBECONFIG="+t.Kubeconfig())
	if o.Name != "" {
		a.cmd.Env = append(a.cmd.Env, "POD_NAME="+o.Name)
	}
	a.cmd.Stdout, a.cmd.Stderr = output, output
	// If this process is killed, the agent goes with it.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the agent: %w", err)
	}
	go func() {
		defer close(a.ended)
		_ = a.cmd.Wait() // its log says why it ended
	}()
	t.stage.mu.Lock()
	t.stage.agents = append(t.stage.agents, a)
	t.stage.mu.Unlock()
	// Both ports have to be its own: another process that has one may answer in its place.
	metrics, status := "http://"+a.metrics+"/metrics", http.StatusOK
	if o.Guarded {
		metrics, status = "https://"+a.metrics+"/metrics", http.StatusUnauthorized
	}
	if err := a.await(ctx, "http://"+health+"/readyz", http.StatusOK); err != nil {
		return a, err
	}
	return a, a.await(ctx, metrics, status)
}

// Metrics is the address of the agent's port for metrics and profiles.
func (a *Agent) Metrics() string { return a.metrics }

// await waits until a URL of the agent answers with a status, while the agent runs. Nobody
// signed its certificate.
func (a *Agent) await(ctx context.Context, url string, status int) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	asking := &http.Client{Transport: transport}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if answer, err := asking.Do(request); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == status && a.Running() {
				return nil
			}
		}
		select {
		case <-a.ended:
			return fmt.Errorf("cannot start the agent: %w; see %s", errEnded, a.Log)
		case <-ctx.Done():
			return fmt.Errorf("cannot start the agent: it is not ready within %s; see %s", startTimeout, a.Log)
		case <-tick.C:
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("cannot find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// PID of the process.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Signal sends a signal to the process: SIGSTOP pauses it and SIGCONT lets it go on.
func (a *Agent) Signal(signal syscall.Signal) error {
	if err := a.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("cannot signal the agent: %w", err)
	}
	return nil
}

// Running reports whether the process has not ended.
func (a *Agent) Running() bool {
	select {
	case <-a.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process without any notice and waits until it is gone.
func (a *Agent) Kill() {
	_ = a.cmd.Process.Kill() // fails only if it ended by itself
	<-a.ended
}

// Healthy fails if the agent says that it is not well.
func (a *Agent) Healthy(ctx context.Context) error {
	_, err := a.get(ctx, a.health, "/healthz")
	return err
}

// Profile reads one of Go's profiles, as its name and query say.
func (a *Agent) Profile(ctx context.Context, profile string) (string, error) {
	return a.Read(ctx, "/debug/pprof/"+profile)
}

// Metric reads a gauge that the agent shows to Prometheus, the sum of its series.
func (a *Agent) Metric(ctx context.Context, name string) (float64, error) {
	body, err := a.Read(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("cannot parse metrics of the agent: %w", err)
	}
	if families[name] == nil {
		return 0, fmt.Errorf("cannot find metric %s of the agent", name)
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		sum += m.GetGauge().GetValue()
	}
	return sum, nil
}

// Read asks the agent's port for metrics and profiles for a path.
func (a *Agent) Read(ctx context.Context, path string) (string, error) {
	return a.get(ctx, a.metrics, path)
}

func (a *Agent) get(ctx context.Context, address, path string) (_ string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("cannot ask the agent for %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("cannot ask the agent for %s: status %d", path, answer.StatusCode)
	}
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}
