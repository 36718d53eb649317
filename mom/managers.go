//go:build linux

package mom

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cascade-gitops/cascade/mom/provider"
	"github.com/cascade-gitops/cascade/mom/supervise"
)

// host is where everything is reached.
const host = "127.0.0.1"

func loopback(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// freePorts returns ports that nobody listened on a moment ago, on any address: the webhooks
// of managers listen on all of them. If somebody takes one before, its program ends, and is
// started again until it gets it.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		listener, err := net.Listen("tcp", ":0")
		if err != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// takePorts finds two ports for each provider, and for the agent. All are of one call: what was free for a call before is
// free for the next one as well, and of two programs of one port one would be started again for ever.
func (r *run) takePorts() error {
	ports, err := freePorts(2 * (len(r.Providers) + 1))
	r.ports = slices.Collect(slices.Chunk(ports, 2))
	return err
}

// manager is a provider that runs here.
type manager struct {
	*provider.Provider
	place   provider.Place
	address provider.Address
}

// prepareProviders installs what the managers serve.
func (r *run) prepareProviders(ctx context.Context) error {
	for i, p := range r.Providers {
		ports := r.ports[i]
		certificate, err := provider.NewCertificate(host, r.Now(), rand.Reader)
		if err != nil {
			return err
		}
		m := &manager{Provider: p, address: provider.Address{Host: host, Port: ports[0], Authority: certificate.Authority}, place: provider.Place{
			Kubeconfig: r.Folder.programs(), WebhookPort: ports[0], Health: loopback(ports[1]),
			Certificates: r.Folder.certificates(p.Name), Programs: r.Programs, Run: r.Folder.path("run"),
		}}
		for _, dir := range []string{m.place.Certificates, m.place.Run} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("cannot make directory of provider %s: %w", p.Name, err)
			}
		}
		for name, content := range map[string][]byte{"tls.crt": certificate.Certificate, "tls.key": certificate.Key} {
			if err := replaceFile(filepath.Join(m.place.Certificates, name), content); err != nil {
				return err
			}
		}
		definitions, err := p.Definitions(m.address)
		if err != nil {
			return err
		}
		if err := applyAll(ctx, r.client, slices.Insert(definitions, 0, namespace(p.Namespace))); err != nil {
			return fmt.Errorf("cannot install provider %s: %w", p.Name, err)
		}
		r.managers = append(r.managers, m)
	}
	return nil
}

// startProviders starts the managers, and lets the API server ask their webhooks when they
// answer.
func (r *run) startProviders(ctx context.Context) error {
	for _, m := range r.managers {
		args, env, err := m.Command(m.place)
		if err != nil {
			return err
		}
		r.write(supervise.Program{
			Name: m.Name, File: filepath.Join(r.Programs, m.Program), Args: args, Env: slices.Concat(r.Environment, env), Grace: writerGrace,
		})
	}
	for _, m := range r.managers {
		if err := r.awaitHealth(ctx, m.Name, m.place.Health); err != nil {
			return err
		}
		if !m.Webhooks() {
			continue
		}
		if err := r.awaitWebhooks(ctx, m); err != nil {
			return err
		}
		configurations, err := m.Admission(m.address)
		if err != nil {
			return err
		}
		if err := applyAll(ctx, r.client, configurations); err != nil {
			return fmt.Errorf("cannot install webhooks of provider %s: %w", m.Name, err)
		}
	}
	return nil
}

// awaitHealth waits until a program says that it is ready.
func (r *run) awaitHealth(ctx context.Context, name, address string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	asking := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	err := poll(ctx, name, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := asking.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		// Somebody else may have the port that was free a moment ago.
		if response.StatusCode != http.StatusOK || r.pidOf(name) == 0 {
			return fmt.Errorf("it says %s", response.Status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w; see %s", err, filepath.Join(r.Folder.logs(), name+".log"))
	}
	return nil
}

// awaitWebhooks waits until the webhooks answer: managers say that they are ready a moment
// before that.
func (r *run) awaitWebhooks(ctx context.Context, m *manager) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // it is asked whether it answers, nothing else
	return poll(ctx, "the webhooks of "+m.Name, func(ctx context.Context) error {
		connection, err := dialer.DialContext(ctx, "tcp", loopback(m.address.Port))
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// children are the children of the tier, as people see them.
func (r *run) children(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.Programs, AgentProgram), "get", "children", "-A", "--kubeconfig", r.Folder.Kubeconfig())
	cmd.Env, cmd.WaitDelay = r.Environment, time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return "", fmt.Errorf("cannot list children: %w", err)
	}
	return out.String(), nil
}
