package pivot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// tiers are two management clusters.
type tiers struct {
	*stage.Stage
	run    string
	by     map[string]*stage.Tier
	client map[string]client.Client
	// ahead is how far the clock of the next process is: the hold of one that was killed is
	// over for it.
	ahead time.Duration
	runs  int
}

// startTiers starts two control planes with all kinds of Cluster API. controllers has the
// manager of Cluster API and the local provider run for each.
func startTiers(t *testing.T, controllers bool) *tiers {
	t.Helper()
	run := scenario.RunDir(t)
	s, err := stage.Open(t.Context(), stage.Options{Run: run, Bin: scenario.Programs(t), Log: t.Logf})
	if err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	w := &tiers{Stage: s, run: run, by: map[string]*stage.Tier{}, client: map[string]client.Client{}}
	for i, name := range []string{"mom", "master"} {
		tier, err := s.Cluster(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		w.by[name] = tier
		if controllers {
			port := 21000 + os.Getpid()%2000*4 + i*2
			w.serve(t, "capi", tier, "capi", "--kubeconfig", tier.Kubeconfig(), "--health-addr", fmt.Sprintf("127.0.0.1:%d", port))
			w.serve(t, "provider", tier, "provider", "--kubeconfig", tier.Kubeconfig(), "--run-dir", run,
				"--bin-dir", strings.Join(scenario.Programs(t), ":"), "--health-addr", fmt.Sprintf("127.0.0.1:%d", port+1))
			for _, p := range []int{port, port + 1} {
				ready(t, p)
			}
		} else {
			w.install(t, tier)
		}
		c, err := tier.Client()
		if err != nil {
			t.Fatal(err)
		}
		w.client[name] = c
		for _, o := range []client.Object{
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.AgentNamespace}},
			firstsync.SettledRecord(v1alpha1.AgentNamespace, "the test says so", time.Now()),
		} {
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	return w
}

// serve runs a program for a tier until the test ends.
func (w *tiers) serve(t *testing.T, name string, tier *stage.Tier, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(w.run, tier.Name+"-"+name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := w.Program("cascade-local")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(args, "--owner-pid", fmt.Sprint(os.Getpid()))...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH="+strings.Join(scenario.Programs(t), ":")+":"+os.Getenv("PATH"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s of %s:\n%s", name, tier.Name, text[max(0, len(text)-4000):])
		}
	})
}

func ready(t *testing.T, port int) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the controllers are ready", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", port), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if text, _ := io.ReadAll(io.LimitReader(response.Body, 1000)); response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", response.Status, text)
		}
		return nil
	})
}

// install brings the kinds of Cluster API, and of providers, without their controllers.
func (w *tiers) install(t *testing.T, tier *stage.Tier) {
	t.Helper()
	c, err := tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(scenario.Path(t, "bin", "capi", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no definitions in bin/capi (make build-landing): %v", err)
	}
	text := foreignKinds()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text += "\n---\n" + string(data)
	}
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		if err := c.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range objects {
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		for _, v := range versions {
			version, _ := v.(map[string]any)
			if stored, _ := version["storage"].(bool); !stored {
				continue
			}
			scenario.Eventually(t, scenario.Converge, kind+" is served", func(ctx context.Context) error {
				list := &unstructured.UnstructuredList{}
				list.SetAPIVersion(group + "/" + fmt.Sprint(version["name"]))
				list.SetKind(kind + "List")
				return c.List(ctx, list)
			})
		}
	}
}

// foreignKinds are definitions of the kinds of providers, open to any field.
func foreignKinds() string {
	var text []string
	for _, k := range []struct{ group, version, kind, scope string }{
		{"infrastructure.cluster.x-k8s.io", "v1beta2", "AWSManagedCluster", "Namespaced"},
		{"controlplane.cluster.x-k8s.io", "v1beta2", "AWSManagedControlPlane", "Namespaced"},
		{"infrastructure.cluster.x-k8s.io", "v1beta2", "AWSManagedMachinePool", "Namespaced"},
		{"infrastructure.cluster.x-k8s.io", "v1beta2", "AWSClusterStaticIdentity", "Cluster"},
		{"infrastructure.cluster.x-k8s.io", "v1beta1", "AzureASOManagedCluster", "Namespaced"},
		{"infrastructure.cluster.x-k8s.io", "v1beta1", "AzureASOManagedControlPlane", "Namespaced"},
		{"resources.azure.com", "v1api20200601", "ResourceGroup", "Namespaced"},
		{"infrastructure.cluster.x-k8s.io", "v1alpha1", "LocalClusterTemplate", "Namespaced"},
		{"infrastructure.cluster.x-k8s.io", "v1alpha1", "LocalCluster", "Namespaced"},
		{"controlplane.cluster.x-k8s.io", "v1alpha1", "LocalControlPlane", "Namespaced"},
	} {
		plural := strings.ToLower(k.kind) + "s"
		labels := "cluster.x-k8s.io/provider: infrastructure-test"
		if k.group == "resources.azure.com" {
			labels = "clusterctl.cluster.x-k8s.io: \"\", clusterctl.cluster.x-k8s.io/move-hierarchy: \"\""
		}
		text = append(text, fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.%s, labels: {%s}}
spec:
  group: %s
  scope: %s
  names: {kind: %s, plural: %s, singular: %s, listKind: %sList}
  versions:
  - name: %s
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, plural, k.group, labels, k.group, k.scope, k.kind, plural, strings.ToLower(k.kind), k.kind, k.version))
	}
	return strings.Join(text, "---\n")
}

// apply creates the objects of YAML in a tier, owners by name and kind.
func (w *tiers) apply(t *testing.T, tier, text string) {
	t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*unstructured.Unstructured{}
	for _, u := range objects {
		if owner := u.GetAnnotations()["test/owner"]; owner != "" {
			o := byName[owner]
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID()}})
		}
		status := u.Object["status"]
		if err := w.client[tier].Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		if status != nil {
			u.Object["status"] = status
			if err := w.client[tier].Status().Update(t.Context(), u); err != nil {
				t.Fatal(err)
			}
		}
		byName[u.GetKind()+"/"+u.GetName()] = u
	}
}

// life counts the requests of one process to both sides, and ends it at one of them.
type life struct {
	mu     sync.Mutex
	calls  int
	killAt int
	// after: the server has done what was asked, and nobody gets its answer.
	after bool
	dead  bool
}

var errKilled = errors.New("the process was killed")

// through is the transport of a process.
func (l *life) through(next http.RoundTripper) http.RoundTripper { return &mortal{l, next} }

type mortal struct {
	life *life
	next http.RoundTripper
}

func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	m.life.mu.Lock()
	m.life.calls++
	kill := m.life.calls == m.life.killAt
	if kill && !m.life.after {
		m.life.dead = true
	}
	dead := m.life.dead
	m.life.mu.Unlock()
	if dead {
		return nil, errKilled
	}
	response, err := m.next.RoundTrip(r)
	if kill {
		m.life.mu.Lock()
		m.life.dead = true
		m.life.mu.Unlock()
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		return nil, errKilled
	}
	return response, err
}

// pivot of Clusters, by a process with this life.
func (w *tiers) pivot(t *testing.T, from, to string, l *life, clusters ...string) *pivot.Pivot {
	t.Helper()
	side := func(name string) pivot.Side {
		config, err := w.by[name].Config()
		if err != nil {
			t.Fatal(err)
		}
		config.UserAgent = "cascade-pivot"
		config.Wrap(l.through)
		// What is served is asked for before the process counts.
		counted := l.killAt
		l.killAt = 0
		c, err := client.New(rest.CopyConfig(config), client.Options{Scheme: w.client[name].Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		l.killAt = counted
		return pivot.Side{Name: name, Client: c, Namespace: v1alpha1.AgentNamespace}
	}
	w.ahead += 2 * time.Minute
	w.runs++
	ahead := w.ahead
	p := &pivot.Pivot{
		Source: side(from), Target: side(to), Keep: w.runs%2 == 0,
		Holder: fmt.Sprintf("process-%d", w.runs), Program: "test", Rest: time.Second,
		Now: func() time.Time { return time.Now().Add(ahead) },
		Wait: func(ctx context.Context, d time.Duration) error {
			timer := time.NewTimer(min(d, 200*time.Millisecond))
			defer timer.Stop()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-timer.C:
				return nil
			}
		},
		// The controllers run as processes, not as Deployments of the tiers.
		// Without controllers nobody fills in the status in the target.
		Tolerated: []string{pivot.ReasonProviderNotRunning, pivot.ReasonHalfProvisioned},
	}
	for _, name := range clusters {
		p.Clusters = append(p.Clusters, types.NamespacedName{Namespace: "fleet", Name: name})
	}
	return p
}

// is an object of a tier; nil if it is not there.
func (w *tiers) is(t *testing.T, tier, version, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := stage.Object(version, kind)
	err := w.client[tier].Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// contents of a tier: of each kind the objects of namespace fleet, without what servers and
// statuses say of them.
func (w *tiers) contents(t *testing.T, tier string, kinds [][2]string) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, kind := range kinds {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(kind[0])
		list.SetKind(kind[1] + "List")
		if err := w.client[tier].List(t.Context(), list, client.InNamespace("fleet")); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			u := &list.Items[i]
			metadata := map[string]any{}
			if labels := u.GetLabels(); len(labels) > 0 {
				metadata["labels"] = labels
			}
			if finalizers := u.GetFinalizers(); len(finalizers) > 0 {
				slices.Sort(finalizers)
				metadata["finalizers"] = finalizers
			}
			var owners []string
			for _, ref := range u.GetOwnerReferences() {
				owners = append(owners, ref.Kind+"/"+ref.Name)
			}
			slices.Sort(owners)
			metadata["owners"] = owners
			annotations := u.GetAnnotations()
			delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
			if len(annotations) > 0 {
				metadata["annotations"] = annotations
			}
			content := map[string]any{"metadata": metadata}
			for k, v := range u.Object {
				if k != "metadata" && k != "status" {
					content[k] = v
				}
			}
			out[u.GetKind()+"/"+u.GetName()] = content
		}
	}
	return out
}

// deletedBy fails if the audit log of a tier has a deletion of an object of Cluster API by
// another client than those named, or the garbage collector after these.
func (w *tiers) deletedBy(t *testing.T, agents ...string) {
	t.Helper()
	for _, tier := range []string{"mom", "master"} {
		events, _, err := w.by[tier].Audit(0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if !e.Writes() || e.ResponseStatus.Code >= 300 || e.Verb != "delete" && e.Verb != "deletecollection" {
				continue
			}
			if clusterapi.IsGroup(e.ObjectRef.APIGroup) && !slices.Contains(agents, e.UserAgent) && !strings.Contains(e.User.Username, "generic-garbage-collector") {
				t.Errorf("%s: %s (%s) deletes %s %s/%s", tier, e.User.Username, e.UserAgent, e.ObjectRef.Resource, e.ObjectRef.Namespace, e.ObjectRef.Name)
			}
		}
	}
}

// watched notes each state of Clusters on both sides, as watches show them, and fails if both
// have one that is not paused. A watch of each side sees all states of its own, in their
// order; those of the other side are read from the server at each change to not paused, which
// is the only one that could be wrong.
func (w *tiers) watched(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for tier, other := range map[string]string{"mom": "master", "master": "mom"} {
		c, err := w.by[tier].Watcher()
		if err != nil {
			t.Fatal(err)
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cluster.x-k8s.io/v1beta2")
		list.SetKind("ClusterList")
		events, err := c.Watch(ctx, list, client.InNamespace("fleet"))
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer events.Stop()
			for e := range events.ResultChan() {
				u, ok := e.Object.(*unstructured.Unstructured)
				if !ok || e.Type == "DELETED" || clusterapi.IsPaused(u) {
					continue
				}
				there := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
				if err := w.client[other].Get(ctx, client.ObjectKeyFromObject(u), there); err != nil || clusterapi.IsPaused(there) {
					continue
				}
				// Between the event and this read the Cluster may have gone to the other side.
				here := u.DeepCopy()
				if err := w.client[tier].Get(ctx, client.ObjectKeyFromObject(u), here); err == nil && !clusterapi.IsPaused(here) {
					t.Errorf("both sides act on Cluster %s", u.GetName())
				}
			}
		})
	}
	return func() { cancel(); group.Wait() }
}
