// Package testbed is what benchmarks measure on: an API server without controllers, Git
// without credentials, and an agent beside them. It adds nothing that a measurement
// would see: no limit of requests, no node, no other client.
//
// Everything that runs keeps its files below one directory and ends with Close, the
// agent also if this process is killed.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/gauge"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// startLimit bounds the start of one program.
const startLimit = 2 * time.Minute

// Testbed is what Start set up, and the agent.
type Testbed struct {
	// Dir is the directory of everything.
	Dir string
	// Git serves repositories without credentials.
	Git *gitserver.Server
	// Config and Client are of the API server.
	Config *rest.Config
	Client client.WithWatch
	// Server is the process of the API server.
	Server int
	// Agent is its process; nil while none runs.
	Agent *exec.Cmd
	// Env is what agents have in their environment besides this process' own.
	Env []string
	// Log has what agents printed; nil until the first.
	Log *os.File

	name, programs string
	stopServer     func() error
}

// Start starts the API server, and Git with one empty repository. The name is the user
// agent and the field manager of the client, whose scheme has what add adds. The
// caller closes what is returned, also with an error.
func Start(ctx context.Context, programs, name, repository string, add ...func(*runtime.Scheme) error) (*Testbed, error) {
	b := &Testbed{name: name, programs: programs}
	var err error
	if b.Dir, err = os.MkdirTemp("", "cascade-"+name+"-"); err != nil {
		return b, err
	}
	if err := b.startServer(ctx); err != nil {
		return b, err
	}
	scheme := runtime.NewScheme()
	for _, add := range add {
		if err := add(scheme); err != nil {
			return b, err
		}
	}
	if b.Client, err = client.NewWithWatch(b.Config, client.Options{Scheme: scheme}); err != nil {
		return b, err
	}
	if b.Git, err = gitserver.Start(context.WithoutCancel(ctx), gitserver.Options{Root: filepath.Join(b.Dir, "git")}); err != nil {
		return b, err
	}
	return b, b.Git.Create(ctx, repository)
}

// Kubeconfig is the file for the API server.
func (b *Testbed) Kubeconfig() string { return filepath.Join(b.Dir, "plane", "kubeconfig") }

// Etcd is the socket for clients of the store of the API server.
func (b *Testbed) Etcd() string { return filepath.Join(b.Dir, "plane", "etcd.sock") }

func (b *Testbed) startServer(ctx context.Context) error {
	plane, program := filepath.Join(b.Dir, "plane"), filepath.Join(b.programs, "controlplane")
	start := exec.CommandContext(ctx, program, "start", "--dir", plane, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid()))
	if out, err := start.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot start API server: %w: %s", err, out)
	}
	b.stopServer = func() error { return exec.Command(program, "stop", "--dir", plane).Run() }
	pid, err := os.ReadFile(filepath.Join(plane, "pid"))
	if err != nil {
		return err
	}
	if b.Server, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		return err
	}
	if b.Config, err = clientcmd.BuildConfigFromFlags("", b.Kubeconfig()); err != nil {
		return err
	}
	b.Config.QPS = -1
	b.Config.UserAgent = b.name
	return nil
}

// Define installs definitions and makes namespaces, and waits until the kinds of some
// lists are served.
func (b *Testbed) Define(ctx context.Context, crds []*unstructured.Unstructured, namespaces []string, lists ...client.ObjectList) error {
	for _, crd := range crds {
		if err := b.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(crd), client.FieldOwner(b.name), client.ForceOwnership); err != nil {
			return fmt.Errorf("cannot apply CRD %s: %w", crd.GetName(), err)
		}
	}
	for _, name := range namespaces {
		if err := b.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("cannot create Namespace %s: %w", name, err)
		}
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, startLimit, true, func(ctx context.Context) (bool, error) {
		for _, list := range lists {
			if b.Client.List(ctx, list) != nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("definitions are not served: %w", err)
	}
	return nil
}

// GitRepository follows the repository, and looks for commits only if it is asked to.
func (b *Testbed) GitRepository(namespace, repository string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
		"metadata": map[string]any{"name": repository, "namespace": namespace},
		"spec":     map[string]any{"url": b.Git.HTTPURL(repository), "interval": "1h", "timeout": "5m", "ref": map[string]any{"branch": "main"}},
	}}
}

// StartAgent runs an agent with these flags besides those that it needs here. It
// returns when the process runs; AgentReady waits for more.
func (b *Testbed) StartAgent(health string, flags ...string) error {
	if b.Log == nil {
		var err error
		if b.Log, err = os.Create(filepath.Join(b.Dir, "agent.log")); err != nil {
			return err
		}
	}
	program := filepath.Join(b.programs, "cascade")
	if err := gauge.Evict(program); err != nil {
		return fmt.Errorf("cannot evict the agent's program: %w", err)
	}
	b.Agent = exec.Command(program, append([]string{
		"agent", "--health-addr", health, "--enable-leader-election=false", "--storage-path", filepath.Join(b.Dir, "storage"),
	}, flags...)...)
	b.Agent.Env = append(append(os.Environ(), "KUBECONFIG="+b.Kubeconfig()), b.Env...)
	b.Agent.Stdout, b.Agent.Stderr = b.Log, b.Log
	// If this process is killed, the agent goes with it.
	b.Agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.Agent.Start(); err != nil {
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	return nil
}

// AgentReady waits until something listens at the agent's address for health.
func (b *Testbed) AgentReady(ctx context.Context, health string) error {
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startLimit, true, func(context.Context) (bool, error) {
		c, err := net.DialTimeout("tcp", health, time.Second)
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
}

// StopAgent ends the agent, if one runs, and waits until it has ended.
func (b *Testbed) StopAgent() {
	if b.Agent == nil || b.Agent.Process == nil {
		return
	}
	_ = b.Agent.Process.Signal(syscall.SIGTERM)
	_ = b.Agent.Wait() // by a signal, as it was told
	b.Agent = nil
}

// Close ends everything.
func (b *Testbed) Close() error {
	var errs []error
	b.StopAgent()
	if b.Log != nil {
		errs = append(errs, b.Log.Close())
	}
	if b.Git != nil {
		errs = append(errs, b.Git.Close())
	}
	if b.stopServer != nil {
		errs = append(errs, b.stopServer())
	}
	return errors.Join(append(errs, os.RemoveAll(b.Dir))...)
}

// FreeAddress is one on which nothing listens.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
