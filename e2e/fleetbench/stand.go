package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/fleetsim/control"
	"github.com/cascade-gitops/cascade/e2e/gitserver"
)

const (
	namespace  = "fleet"
	repository = "layers"
	layerName  = "tenant"
	startLimit = 2 * time.Minute
	stepLimit  = 20 * time.Minute
	// writers is how many requests at once set up the hub.
	writers = 16
)

// stand is what is measured and what it works on.
type stand struct {
	options options
	dir     string
	git     *gitserver.Server
	config  *rest.Config
	client  client.WithWatch
	hub     int
	stopHub func() error
	fleet   *exec.Cmd
	hold    io.Closer
	control control.Client
	agent   *exec.Cmd
	metrics string
	log     *os.File
	names   []string

	// What the hub says of the children, by name.
	mu   sync.Mutex
	seen map[string]state
	news chan struct{}
	// unfollow ends the watch of the children; ended is closed then, and failure
	// says why it ended by itself.
	unfollow context.CancelFunc
	ended    chan struct{}
	failure  error
}

// state of a child as far as steps wait for it.
type state struct {
	ready, connected bool
	revision         string
	// at is when this was seen.
	at time.Time
}

func setUp(ctx context.Context, o options, children int) (*stand, error) {
	dir, err := os.MkdirTemp("", "cascade-fleet-")
	if err != nil {
		return nil, err
	}
	s := &stand{options: o, dir: dir, seen: map[string]state{}, news: make(chan struct{}, 1)}
	for i := range children {
		s.names = append(s.names, fmt.Sprintf("tenant-%04d", i))
	}
	if err := s.startHub(ctx); err != nil {
		return s, err
	}
	kubeconfigs, err := s.startFleet(ctx)
	if err != nil {
		return s, err
	}
	if s.git, err = gitserver.Start(context.WithoutCancel(ctx), gitserver.Options{Root: filepath.Join(dir, "git")}); err != nil {
		return s, err
	}
	if err := s.git.Create(ctx, repository); err != nil {
		return s, err
	}
	if _, err := s.commit(ctx, "begin"); err != nil {
		return s, err
	}
	if err := s.declare(ctx, kubeconfigs); err != nil {
		return s, err
	}
	ctx, s.unfollow = context.WithCancel(ctx)
	return s, s.follow(ctx)
}

func (s *stand) startHub(ctx context.Context) error {
	plane := filepath.Join(s.dir, "plane")
	program := filepath.Join(s.options.programs, "controlplane")
	start := exec.CommandContext(ctx, program, "start", "--dir", plane, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid()))
	if out, err := start.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot start API server: %w: %s", err, out)
	}
	s.stopHub = func() error { return exec.Command(program, "stop", "--dir", plane).Run() }
	pid, err := os.ReadFile(filepath.Join(plane, "pid"))
	if err != nil {
		return err
	}
	if s.hub, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		return err
	}
	if s.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(plane, "kubeconfig")); err != nil {
		return err
	}
	s.config.QPS = -1
	s.config.UserAgent = "fleetbench"
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, sourcev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	s.client, err = client.NewWithWatch(s.config, client.Options{Scheme: scheme})
	return err
}

// startFleet starts the simulation and returns the kubeconfigs of the children.
func (s *stand) startFleet(ctx context.Context) ([][]byte, error) {
	s.fleet = exec.Command(filepath.Join(s.options.programs, "fleetsim"))
	s.fleet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.fleet.Stderr = os.Stderr
	in, err := s.fleet.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.hold = in
	out, err := s.fleet.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.fleet.Start(); err != nil {
		return nil, fmt.Errorf("cannot start fleet: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("cannot start fleet: %w", err)
	}
	s.control = control.Client{URL: strings.TrimSpace(line)}
	kubeconfigs, err := s.control.Add(ctx, control.Addition{Names: s.names, Credential: fleetsim.Certificate})
	if err != nil {
		return nil, err
	}
	if s.options.latency > 0 {
		err = s.control.SetFaults(ctx, s.names, fleetsim.Faults{Latency: s.options.latency})
	}
	return kubeconfigs, err
}

// declare creates what people and Cluster API would have created: definitions,
// Clusters that are up, their kubeconfigs, and the layer.
func (s *stand) declare(ctx context.Context, kubeconfigs [][]byte) error {
	crds, err := deploy.CRDs()
	if err != nil {
		return err
	}
	for _, file := range []string{
		"capi/crd/bases/cluster.x-k8s.io_clusters.yaml", "components/local/infrastructure-local/v0.1.0/infrastructure-components.yaml",
	} {
		text, err := os.ReadFile(filepath.Join(s.options.programs, file))
		if err != nil {
			return fmt.Errorf("cannot find the definitions of Cluster API; build them with: make build-demo: %w", err)
		}
		objects, err := ssautil.ReadObjects(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("cannot parse %s: %w", file, err)
		}
		crds = append(crds, slices.DeleteFunc(objects, func(u *unstructured.Unstructured) bool { return !ssautil.IsCRD(u) })...)
	}
	for _, crd := range crds {
		if err := s.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(crd), client.FieldOwner("fleetbench"), client.ForceOwnership); err != nil {
			return fmt.Errorf("cannot apply CRD %s: %w", crd.GetName(), err)
		}
	}
	for _, name := range []string{namespace, v1alpha1.AgentNamespace} {
		if err := s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("cannot create Namespace %s: %w", name, err)
		}
	}
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, startLimit, true, func(ctx context.Context) (bool, error) {
		for _, list := range []client.ObjectList{
			&v1alpha1.ChildList{}, &sourcev1.GitRepositoryList{}, listOf("cluster.x-k8s.io/v1beta2", "Cluster"),
			listOf("infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"), listOf("controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"),
		} {
			if s.client.List(ctx, list) != nil {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return fmt.Errorf("definitions are not served: %w", err)
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i, name := range s.names {
		group.Go(func() error { return s.declareCluster(gctx, name, kubeconfigs[i]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, u := range []*unstructured.Unstructured{s.gitRepository(), s.layer()} {
		if err := s.client.Create(ctx, u); err != nil {
			return fmt.Errorf("cannot create %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return s.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant-git"},
		StringData: map[string]string{"username": "tenant", "password": "simulated"},
	})
}

func listOf(apiVersion, kind string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(apiVersion)
	list.SetKind(kind + "List")
	return list
}

func (s *stand) declareCluster(ctx context.Context, name string, kubeconfig []byte) error {
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]any{"cascade.dev/tier": "tenant"}},
		"spec": map[string]any{
			"clusterNetwork":    map[string]any{"pods": map[string]any{"cidrBlocks": []any{"10.244.0.0/16"}}, "services": map[string]any{"cidrBlocks": []any{"10.96.0.0/16"}}},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "LocalCluster", "name": name},
			"controlPlaneRef":   map[string]any{"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "LocalControlPlane", "name": name},
		},
	}}
	owned := func(kind, group string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": group + ".cluster.x-k8s.io/v1alpha1", "kind": kind,
			"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]any{"cluster.x-k8s.io/cluster-name": name}},
			"spec":     map[string]any{"controlPlaneEndpoint": map[string]any{"host": "127.0.0.1", "port": int64(6443)}},
		}}
	}
	for _, part := range []struct {
		object *unstructured.Unstructured
		status string
	}{
		{owned("LocalCluster", "infrastructure"), `{"status":{"initialization":{"provisioned":true}}}`},
		{owned("LocalControlPlane", "controlplane"), `{"status":{"initialization":{"controlPlaneInitialized":true},"version":"v1.36.3"}}`},
		{cluster, `{"status":{"initialization":{"infrastructureProvisioned":true,"controlPlaneInitialized":true},"phase":"Provisioned"}}`},
	} {
		if err := s.client.Create(ctx, part.object); err != nil {
			return fmt.Errorf("cannot create %s %s: %w", part.object.GetKind(), name, err)
		}
		if err := s.client.Status().Patch(ctx, part.object, client.RawPatch("application/merge-patch+json", []byte(part.status))); err != nil {
			return fmt.Errorf("cannot write status of %s %s: %w", part.object.GetKind(), name, err)
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": name}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": kubeconfig},
	}
	if err := s.client.Create(ctx, secret); err != nil {
		return fmt.Errorf("cannot create Secret %s: %w", secret.Name, err)
	}
	return nil
}

func (s *stand) gitRepository() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
		"metadata": map[string]any{"name": repository, "namespace": namespace},
		"spec":     map[string]any{"url": s.git.HTTPURL(repository), "interval": "1h", "timeout": "5m", "ref": map[string]any{"branch": "main"}},
	}}
}

func (s *stand) layer() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cascade.dev/v1alpha1", "kind": "Layer",
		"metadata": map[string]any{"name": layerName, "namespace": namespace},
		"spec": map[string]any{
			"clusterSelector": map[string]any{"matchLabels": map[string]any{"cascade.dev/tier": "tenant"}},
			"sourceRef":       map[string]any{"kind": "GitRepository", "name": repository},
			"path":            "./tenant", "agent": map[string]any{}, "interval": "1h", "wait": true,
			"credentials": []any{map[string]any{"name": "git-auth", "secretRef": map[string]any{"name": "tenant-git"}}},
		},
	}}
}

// commit writes the layer, in which one line has a value.
func (s *stand) commit(ctx context.Context, value string) (string, error) {
	const text = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: cascade-system}
data:
  revision: %q
  cluster: ${cluster_name}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: endpoints, namespace: cascade-system}
data:
  api: ${cluster_endpoint}
  pods: ${pod_cidr}
---
apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cluster, namespace: apps}
data:
  name: ${cluster_name}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps, namespace: cascade-system}
spec:
  url: https://git.example.com/apps.git
  interval: 1m
  secretRef: {name: git-auth}
  ref: {branch: main}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: apps, namespace: cascade-system}
spec:
  interval: 10m
  prune: true
  path: ./clusters/${cluster_name}
  sourceRef: {kind: GitRepository, name: apps}
`
	return s.git.Commit(ctx, repository, "main", "Set "+value, func(dir string) error {
		if err := os.MkdirAll(filepath.Join(dir, "tenant"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "tenant", "layer.yaml"), fmt.Appendf(nil, text, value), 0o644)
	})
}

// startAgent returns when the agent's process runs; it is ready later.
func (s *stand) startAgent() error {
	health, err := freeAddress()
	if err != nil {
		return err
	}
	if s.metrics, err = freeAddress(); err != nil {
		return err
	}
	if s.log == nil {
		if s.log, err = os.Create(filepath.Join(s.dir, "agent.log")); err != nil {
			return err
		}
	}
	args := append([]string{
		"agent", "--metrics-addr", s.metrics, "--health-addr", health, "--enable-leader-election=false", "--profiling",
		"--storage-path", filepath.Join(s.dir, "storage"), "--agent-image", "registry.example.com/cascade:v1",
	}, s.options.args...)
	s.agent = exec.Command(filepath.Join(s.options.programs, "cascade"), args...)
	s.agent.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(s.dir, "plane", "kubeconfig"))
	s.agent.Stdout, s.agent.Stderr = s.log, s.log
	// If this process is killed, the agent goes with it.
	s.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.agent.Start(); err != nil {
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	return nil
}

func (s *stand) stopAgent() {
	if s.agent == nil || s.agent.Process == nil {
		return
	}
	_ = s.agent.Process.Signal(syscall.SIGTERM)
	_ = s.agent.Wait() // by a signal, as it was told
	s.agent = nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Close ends everything that was started.
func (s *stand) Close() error {
	var errs []error
	if s.unfollow != nil {
		s.unfollow()
	}
	s.stopAgent()
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.hold != nil {
		errs = append(errs, s.hold.Close())
		_ = s.fleet.Wait() // it ends with its input
	}
	if s.git != nil {
		errs = append(errs, s.git.Close())
	}
	if s.stopHub != nil {
		errs = append(errs, s.stopHub())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// follow keeps seen up to date until the context ends.
func (s *stand) follow(ctx context.Context) error {
	list := &v1alpha1.ChildList{}
	if err := s.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.client.Watch(ctx, &v1alpha1.ChildList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &o})
		},
	})
	if err != nil {
		return fmt.Errorf("cannot watch Children: %w", err)
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		for event := range w.ResultChan() {
			if child, ok := event.Object.(*v1alpha1.Child); ok {
				s.saw(child)
			} else {
				s.failure = fmt.Errorf("cannot follow Children: %s: %+v", event.Type, event.Object)
			}
		}
	}()
	return nil
}

func (s *stand) saw(child *v1alpha1.Child) {
	now := state{
		ready:     meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition),
		connected: meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition),
		at:        time.Now(),
	}
	if len(child.Status.Layers) > 0 {
		now.revision = child.Status.Layers[0].Revision
	}
	s.mu.Lock()
	// The time at which it came to this, not of the last event.
	if was := s.seen[child.Name]; was.ready == now.ready && was.connected == now.connected && was.revision == now.revision {
		now.at = was.at
	}
	s.seen[child.Name] = now
	s.mu.Unlock()
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// await returns when the named children are as asked, with the times at which
// they came to it.
func (s *stand) await(ctx context.Context, names []string, what string, ok func(state) bool) ([]time.Time, error) {
	timer := time.NewTimer(stepLimit)
	defer timer.Stop()
	for {
		var times []time.Time
		s.mu.Lock()
		for _, name := range names {
			if now, known := s.seen[name]; known && ok(now) {
				times = append(times, now.at)
			}
		}
		s.mu.Unlock()
		if len(times) == len(names) {
			return times, nil
		}
		select {
		case <-s.news:
		case <-s.ended:
			return nil, errors.Join(errors.New("the watch of Children ended"), s.failure)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return nil, fmt.Errorf("only %d of %d children came to be %s within %s", len(times), len(names), what, stepLimit)
		}
		// Counting costs time that the others could use.
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// profile writes one of the agent's profiles to a file.
func (s *stand) profile(ctx context.Context, name, query string) error {
	if s.options.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(s.options.profiles, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(s.options.profiles, name+".pprof"))
	if err != nil {
		return err
	}
	defer file.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+"/debug/pprof/"+query, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("cannot read profile %s: %w", name, err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(file, resp.Body)
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
