package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascade-gitops/cascade/e2e/local/node"
)

// Machine is where control planes run: a directory for each, and the programs that run them. Everything it starts outlives
// the process that asked, and ends with the owner.
type Machine struct {
	Run     string // directory of everything that runs; control planes are in clusters below it
	BinDirs []string
	Self    string // this program, which also runs nodes
	Owner   int    // process whose end ends every control plane and node; 0: none

	AuditReads bool // control planes record every request, not writes only
	PodNetwork bool // API servers proxy to pods, see node.OnPodNetwork
}

const (
	startTimeout = 90 * time.Second
	stopTimeout  = 60 * time.Second
	lookTimeout  = 2 * time.Second
)

// pulse is what a look at a control plane tells.
type pulse int

const (
	absent  pulse = iota // nobody listens: it was never started, or it died
	silent               // somebody listens and is not ready; starting another would not help
	answers              // it says that it is ready
)

func (m Machine) dir(id string) string { return filepath.Join(m.Run, "clusters", id) }

// look asks the control plane whether it is ready. It is done often and for all of them, so it goes over the one connection to
// each that the client library keeps open.
func (m Machine) look(ctx context.Context, id string) pulse {
	kubeconfig, err := m.kubeconfig(id)
	if err != nil {
		return absent
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return absent
	}
	anonymous := rest.AnonymousClientConfig(config)
	asker, err := rest.HTTPClientFor(anonymous)
	if err != nil {
		return absent
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/readyz", nil)
	if err != nil {
		return absent
	}
	response, err := asker.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return absent
	}
	if err != nil {
		return silent
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode >= http.StatusInternalServerError {
		return silent
	}
	return answers
}

func (m Machine) port(id string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(m.dir(id), "port"))
	if err != nil {
		return 0, fmt.Errorf("cannot read port of control plane %s: %w", id, err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("cannot parse port of control plane %s: %w", id, err)
	}
	return port, nil
}

func (m Machine) kubeconfig(id string) ([]byte, error) {
	raw, err := os.ReadFile(filepath.Join(m.dir(id), "kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig of control plane %s: %w", id, err)
	}
	return raw, nil
}

// start starts the control plane, with the data that its directory has, and returns when it is usable.
func (m Machine) start(ctx context.Context, id, name, serviceCIDR string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := os.MkdirAll(m.temporary(id), 0o700); err != nil {
		return fmt.Errorf("cannot make directory of control plane %s: %w", id, err)
	}
	args := []string{"start", "--dir", m.dir(id), "--name", name}
	if serviceCIDR != "" {
		args = append(args, "--service-cidr", serviceCIDR)
	}
	if m.Owner != 0 {
		args = append(args, "--owner-pid", strconv.Itoa(m.Owner))
	}
	if m.AuditReads {
		args = append(args, "--audit-reads")
	}
	if m.PodNetwork {
		args = append(args, "--pod-network")
	}
	return m.controlplane(ctx, id, args)
}

// startNode starts the node of the control plane if it does not run.
func (m Machine) startNode(ctx context.Context, id, name string) error {
	dir := filepath.Join(m.dir(id), "node")
	if _, err := node.Running(dir); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot look at node of control plane %s: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return node.Start(ctx, dir, m.environment(id), []string{m.Self, "node",
		"--kubeconfig", filepath.Join(m.dir(id), "kubeconfig"), "--name", name, "--dir", dir,
		"--bin-dir", strings.Join(m.BinDirs, ":"), "--owner-pid", strconv.Itoa(m.Owner), fmt.Sprintf("--pod-network=%t", m.PodNetwork)})
}

// remove stops the control plane and its node, and deletes its data. That there is none is no error.
func (m Machine) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	dir := m.dir(id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := node.Stop(ctx, filepath.Join(dir, "node")); err != nil {
		return err
	}
	if err := m.controlplane(ctx, id, []string{"stop", "--dir", dir}); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("cannot delete control plane %s: %w", id, err)
	}
	return nil
}

func (m Machine) controlplane(ctx context.Context, id string, args []string) error {
	program := "controlplane"
	for _, dir := range m.BinDirs {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			program = path
			break
		}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	// Whatever it leaves in the background may hold the output open for ever.
	cmd.WaitDelay = time.Second
	cmd.Dir, cmd.Env = m.dir(id), m.environment(id)
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("cannot %s control plane %s: %w: %s", args[0], id, err, lastLines(output.String()))
	}
	return nil
}

// environment is that of what outlives this process, so nothing in it may refer to what goes with this process: a pod's HOME
// and TMPDIR are deleted with the pod, and its KUBECONFIG is of another cluster.
func (m Machine) environment(id string) []string {
	kept := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir(id), "TMPDIR=" + m.temporary(id)}
	for _, pair := range os.Environ() {
		if strings.HasPrefix(pair, "CASCADE_E2E_") {
			kept = append(kept, pair)
		}
	}
	return kept
}

func (m Machine) temporary(id string) string { return filepath.Join(m.dir(id), "tmp") }

// lastLines cuts output down to what fits a condition's message.
func lastLines(output string) string {
	const most = 1024
	output = strings.TrimSpace(output)
	if len(output) > most {
		output = "..." + output[len(output)-most:]
	}
	return output
}
