package main

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
	"sync"
	"syscall"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/gitserver"
)

const (
	system     = "flux-system"
	repository = "mono"
	startLimit = 2 * time.Minute
	stepLimit  = 15 * time.Minute
)

// stand is what is measured and what it works on.
type stand struct {
	dir     string
	git     *gitserver.Server
	config  *rest.Config
	client  client.WithWatch
	server  int
	agent   *exec.Cmd
	log     *os.File
	stopped func() error

	// What the API server says of the Kustomizations or HelmReleases, by name.
	mu    sync.Mutex
	seen  map[string]state
	news  chan struct{}
	ended chan struct{}
}

// state of a Kustomization or HelmRelease as far as steps wait for it; the revision
// of a HelmRelease is its chart's version.
type state struct {
	ready    bool
	revision string
	handled  string
}

// set up the servers and the agent. The caller closes what is returned, also
// with an error.
func setUp(ctx context.Context, programs string) (*stand, error) {
	dir, err := os.MkdirTemp("", "cascade-bench-")
	if err != nil {
		return nil, err
	}
	s := &stand{dir: dir, seen: map[string]state{}, news: make(chan struct{}, 1)}
	plane := filepath.Join(dir, "plane")
	start := exec.CommandContext(ctx, filepath.Join(programs, "controlplane"), "start", "--dir", plane, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid()))
	if out, err := start.CombinedOutput(); err != nil {
		return s, fmt.Errorf("cannot start API server: %w: %s", err, out)
	}
	s.stopped = func() error {
		return exec.Command(filepath.Join(programs, "controlplane"), "stop", "--dir", plane).Run()
	}
	pid, err := os.ReadFile(filepath.Join(plane, "pid"))
	if err != nil {
		return s, err
	}
	if s.server, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		return s, err
	}
	kubeconfig := filepath.Join(plane, "kubeconfig")
	if s.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return s, err
	}
	s.config.QPS = -1
	s.config.UserAgent = "bench"
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme} {
		if err := add(scheme); err != nil {
			return s, err
		}
	}
	if s.client, err = client.NewWithWatch(s.config, client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if err := s.install(ctx); err != nil {
		return s, err
	}
	if s.git, err = gitserver.Start(context.WithoutCancel(ctx), gitserver.Options{Root: filepath.Join(dir, "git")}); err != nil {
		return s, err
	}
	if err := s.git.Create(ctx, repository); err != nil {
		return s, err
	}
	return s, s.startAgent(ctx, filepath.Join(programs, "cascade"), kubeconfig)
}

// install applies the CRDs and makes the namespaces.
func (s *stand) install(ctx context.Context) error {
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if err := s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(crd), client.FieldOwner("bench"), client.ForceOwnership); err != nil {
			return fmt.Errorf("cannot apply CRD %s: %w", crd.GetName(), err)
		}
	}
	for _, name := range []string{system, namespace} {
		if err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("cannot create Namespace %s: %w", name, err)
		}
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, startLimit, true, func(ctx context.Context) (bool, error) {
		for _, list := range []client.ObjectList{&kustomizev1.KustomizationList{}, &sourcev1.GitRepositoryList{}, &sourcev1.HelmRepositoryList{}, &helmv2.HelmReleaseList{}} {
			if s.client.List(ctx, list) != nil {
				return false, nil
			}
		}
		return true, nil
	})
}

func (s *stand) startAgent(ctx context.Context, program, kubeconfig string) error {
	health, err := freeAddress()
	if err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "agent.log")); err != nil {
		return err
	}
	s.agent = exec.Command(program, "agent", "--metrics-addr", "0", "--health-addr", health, "--enable-leader-election=false",
		"--namespace", system, "--concurrent", "8", "--storage-path", filepath.Join(s.dir, "storage"))
	s.agent.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	s.agent.Stdout, s.agent.Stderr = s.log, s.log
	// If this process is killed, the agent goes with it.
	s.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.agent.Start(); err != nil {
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startLimit, true, func(context.Context) (bool, error) {
		c, err := net.DialTimeout("tcp", health, time.Second)
		if err != nil {
			return false, nil
		}
		return true, c.Close()
	})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Close ends everything that setUp started.
func (s *stand) Close() error {
	var errs []error
	if s.agent != nil && s.agent.Process != nil {
		_ = s.agent.Process.Signal(syscall.SIGTERM)
		_ = s.agent.Wait() // by a signal, as it was told
	}
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.git != nil {
		errs = append(errs, s.git.Close())
	}
	if s.stopped != nil {
		errs = append(errs, s.stopped())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// follow keeps seen up to date until the context ends.
func (s *stand) follow(ctx context.Context) error {
	w, err := s.client.Watch(ctx, &kustomizev1.KustomizationList{}, client.InNamespace(system))
	if err != nil {
		return fmt.Errorf("cannot watch Kustomizations: %w", err)
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		for event := range w.ResultChan() {
			k, ok := event.Object.(*kustomizev1.Kustomization)
			if !ok {
				continue
			}
			s.mu.Lock()
			s.seen[k.Name] = state{
				ready:    meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition),
				revision: k.Status.LastAppliedRevision, handled: k.Status.LastHandledReconcileAt,
			}
			s.mu.Unlock()
			select {
			case s.news <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}

// await returns when n Kustomizations are as asked.
func (s *stand) await(ctx context.Context, n int, ok func(state) bool) error {
	timer := time.NewTimer(stepLimit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		done := 0
		for _, k := range s.seen {
			if ok(k) {
				done++
			}
		}
		s.mu.Unlock()
		if done >= n {
			return nil
		}
		select {
		case <-s.news:
		case <-s.ended:
			return errors.New("the watch of Kustomizations ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("only %d of %d Kustomizations came so far within %s", done, n, stepLimit)
		}
	}
}

func (s *stand) gitRepository() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
		"metadata": map[string]any{"name": repository, "namespace": system},
		"spec":     map[string]any{"url": s.git.HTTPURL(repository), "interval": "1h", "timeout": "5m", "ref": map[string]any{"branch": "main"}},
	}}
}

func kustomization(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
		"metadata": map[string]any{"name": app(i), "namespace": system},
		"spec": map[string]any{
			"interval": "1h", "prune": true, "path": "./" + app(i), "sourceRef": map[string]any{"kind": "GitRepository", "name": repository},
		},
	}}
}
