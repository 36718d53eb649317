package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/fleetsim/control"
	"github.com/cascade-gitops/cascade/e2e/gauge"
	"github.com/cascade-gitops/cascade/e2e/testbed"
)

const (
	namespace  = "fleet"
	repository = "layers"
	layerName  = "tenant"
	// stepLimit is how long a step may take, of a fleet with up to stepLayers layers in all its
	// children. It grows with them.
	stepLimit  = 20 * time.Minute
	stepLayers = 5000
	// writers is how many requests at once set up the hub.
	writers = 16
)

// stand is what is measured and what it works on: the hub and its agent, and the
// simulated children.
type stand struct {
	*testbed.Testbed
	options options
	fleet   *exec.Cmd
	hold    io.Closer
	control control.Client
	// metrics is the agent's address for metrics and profiles.
	metrics string
	// names of the children.
	names []string
	// writes are counted in the hub, by resource.
	writes *gauge.Writes
	// seen are the children as the hub says, by name.
	seen     *testbed.Seen[state]
	unfollow context.CancelFunc
}

// state of a child as far as steps wait for it.
type state struct {
	ready, connected bool
	revision         string
	// at is when this was seen.
	at time.Time
}

func setUp(ctx context.Context, o options, children int) (*stand, error) {
	b, err := testbed.Start(ctx, o.programs, "fleetbench", repository, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, sourcev1.AddToScheme, v1alpha1.AddToScheme)
	s := &stand{Testbed: b, options: o}
	if err != nil {
		return s, err
	}
	for i := range children {
		s.names = append(s.names, fmt.Sprintf("tenant-%04d", i))
	}
	kubeconfigs, err := s.startFleet(ctx)
	if err != nil {
		return s, err
	}
	if _, err := s.commit(ctx, "begin"); err != nil {
		return s, err
	}
	if err := s.declare(ctx, kubeconfigs); err != nil {
		return s, err
	}
	ctx, s.unfollow = context.WithCancel(ctx)
	if s.writes, err = gauge.FollowWrites(ctx, s.Config, written...); err != nil {
		return s, err
	}
	return s, s.follow(ctx)
}

// written are the resources that the agent writes in the hub.
var written = []string{
	"apis/cascade.dev/v1alpha1/children", "apis/cascade.dev/v1alpha1/layers", "apis/cascade.dev/v1alpha1/rollouts", "apis/cluster.x-k8s.io/v1beta2/clusters",
	"apis/source.toolkit.fluxcd.io/v1/gitrepositories", "apis/coordination.k8s.io/v1/leases", "api/v1/configmaps", "api/v1/secrets", "api/v1/events",
}

// startFleet starts the simulation and returns the kubeconfigs of the children.
func (s *stand) startFleet(ctx context.Context) ([][]byte, error) {
	s.fleet = exec.Command(filepath.Join(s.options.programs, "fleetsim"), "-below", strconv.Itoa(s.options.below))
	s.fleet.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A million objects are collected often by default, with processor time that agents and hub would have.
	s.fleet.Env = append(os.Environ(), "GOGC=300")
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
	if err := s.Define(ctx, crds, []string{namespace, v1alpha1.AgentNamespace},
		&v1alpha1.ChildList{}, &sourcev1.GitRepositoryList{}, listOf("cluster.x-k8s.io/v1beta2", "Cluster"),
		listOf("infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"), listOf("controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"),
	); err != nil {
		return err
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i, name := range s.names {
		group.Go(func() error { return s.declareCluster(gctx, name, kubeconfigs[i]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	declared := []*unstructured.Unstructured{s.GitRepository(namespace, repository), s.layer()}
	for i := 1; i < s.options.layers; i++ {
		declared = append(declared, s.plainLayer(i))
	}
	for _, u := range declared {
		if err := s.Client.Create(ctx, u); err != nil {
			return fmt.Errorf("cannot create %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return s.Client.Create(ctx, &corev1.Secret{
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
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]any{"cascade.dev/tier": "tenant", waveLabel: waveOf(name)}},
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
		if err := s.Client.Create(ctx, part.object); err != nil {
			return fmt.Errorf("cannot create %s %s: %w", part.object.GetKind(), name, err)
		}
		if err := s.Client.Status().Patch(ctx, part.object, client.RawPatch("application/merge-patch+json", []byte(part.status))); err != nil {
			return fmt.Errorf("cannot write status of %s %s: %w", part.object.GetKind(), name, err)
		}
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": name}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": kubeconfig},
	}
	if err := s.Client.Create(ctx, secret); err != nil {
		return fmt.Errorf("cannot create Secret %s: %w", secret.Name, err)
	}
	return nil
}

func (s *stand) layer() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Layer",
		"metadata": map[string]any{"name": layerName, "namespace": namespace},
		"spec": map[string]any{
			"clusterSelector": map[string]any{"matchLabels": map[string]any{"cascade.dev/tier": "tenant"}},
			"sourceRef":       map[string]any{"kind": "GitRepository", "name": repository},
			"path":            "./tenant", "agent": map[string]any{}, "interval": "1h", "wait": true,
			"credentials": []any{map[string]any{"name": "git-auth", "secretRef": map[string]any{"name": "tenant-git"}}},
		},
	}}
}

// plainLayer is the layer of a number, which has no agent and the default interval.
func (s *stand) plainLayer(number int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Layer",
		"metadata": map[string]any{"name": plainName(number), "namespace": namespace},
		"spec": map[string]any{
			"clusterSelector": map[string]any{"matchLabels": map[string]any{"cascade.dev/tier": "tenant"}},
			"sourceRef":       map[string]any{"kind": "GitRepository", "name": repository},
			"path":            "./" + plainName(number), "wait": true,
		},
	}}
}

func plainName(number int) string { return fmt.Sprintf("layer-%02d", number) }

// writePlain writes what a plain layer declares: a namespace, and ConfigMaps of the size
// of a small object of a workload.
func (s *stand) writePlain(dir string, number int) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", plainName(number))
	for i := 1; i < s.options.objects; i++ {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: object-%02d, namespace: %s}\ndata:\n  cluster: ${cluster_name}\n  text: %s\n", i, plainName(number), strings.Repeat("x", 400))
	}
	dir = filepath.Join(dir, plainName(number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "layer.yaml"), text.Bytes(), 0o644)
}

// commit writes the layers; in the first, one line has a value.
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
	return s.Git.Commit(ctx, repository, "main", "Set "+value, func(dir string) error {
		if err := os.MkdirAll(filepath.Join(dir, "tenant"), 0o755); err != nil {
			return err
		}
		for i := 1; i < s.options.layers; i++ {
			if err := s.writePlain(dir, i); err != nil {
				return err
			}
		}
		return os.WriteFile(filepath.Join(dir, "tenant", "layer.yaml"), fmt.Appendf(nil, text, value), 0o644)
	})
}

// startAgent returns when the agent's process runs; it is ready later.
func (s *stand) startAgent(more ...string) error {
	health, err := testbed.FreeAddress()
	if err != nil {
		return err
	}
	if s.metrics, err = testbed.FreeAddress(); err != nil {
		return err
	}
	flags := append([]string{"--metrics-addr", s.metrics, "--agent-image", "registry.example.com/cascade:v1"}, s.options.args...)
	if s.options.profiles != "" {
		flags = append(flags, "--profiling")
	}
	return s.StartAgent(health, append(flags, more...)...)
}

// Close ends everything that was started.
func (s *stand) Close() error {
	if s.unfollow != nil {
		s.unfollow()
	}
	s.StopAgent()
	var failure error
	if s.writes != nil {
		s.writes.Close()
	}
	if s.hold != nil {
		failure = s.hold.Close()
		_ = s.fleet.Wait() // it ends with its input
	}
	return errors.Join(failure, s.Testbed.Close())
}

// follow keeps seen up to date until the context ends.
func (s *stand) follow(ctx context.Context) error {
	list := &v1alpha1.ChildList{}
	if err := s.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return s.Client.Watch(ctx, &v1alpha1.ChildList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &o})
		},
	})
	if err != nil {
		return fmt.Errorf("cannot watch Children: %w", err)
	}
	s.seen = testbed.Follow(w.ResultChan(), func(event watch.Event, was func(string) state) (string, state, error) {
		child, ok := event.Object.(*v1alpha1.Child)
		if !ok {
			return "", state{}, fmt.Errorf("cannot follow Children: %s: %+v", event.Type, event.Object)
		}
		return child.Name, stateOf(child, was(child.Name)), nil
	})
	return nil
}

// stateOf a child, which had another before.
func stateOf(child *v1alpha1.Child, was state) state {
	now := state{
		ready:     meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition),
		connected: meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition),
		at:        time.Now(),
	}
	for i := range child.Status.Layers {
		if child.Status.Layers[i].Name == layerName {
			now.revision = child.Status.Layers[i].Revision
		}
	}
	// The time at which it came to this, not of the last event.
	if was.ready == now.ready && was.connected == now.connected && was.revision == now.revision {
		now.at = was.at
	}
	return now
}

// limit is how long a step may take.
func (s *stand) limit() time.Duration {
	return stepLimit * time.Duration(max(1, len(s.names)*s.options.layers/stepLayers))
}

// await returns when the named children are as wanted, with the times at which
// they came to it.
func (s *stand) await(ctx context.Context, names []string, what string, ok func(state) bool) ([]time.Time, error) {
	var times []time.Time
	err := s.seen.Await(ctx, s.limit(), 20*time.Millisecond, func(states map[string]state) bool {
		times = times[:0]
		for _, name := range names {
			if now, known := states[name]; known && ok(now) {
				times = append(times, now.at)
			}
		}
		return len(times) == len(names)
	})
	if err != nil {
		return nil, fmt.Errorf("only %d of %d children came to be %s: %w", len(times), len(names), what, err)
	}
	return times, nil
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

// profileCPU writes what the agent's processor time goes into during a step, from so long after
// its begin.
func (s *stand) profileCPU(ctx context.Context, step string, after, long time.Duration) error {
	if err := pause(ctx, after); err != nil {
		return err
	}
	return s.profile(ctx, fmt.Sprintf("%s-%d-cpu", step, len(s.names)), fmt.Sprintf("profile?seconds=%.0f", long.Seconds()))
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
