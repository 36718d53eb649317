package fleetsim

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func startFleet(t *testing.T, o Options) *Fleet {
	t.Helper()
	o.Complain = func(err error) { t.Errorf("inside of the simulation: %v", err) }
	f, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("cannot close: %v", err)
		}
	})
	return f
}

func addCluster(t *testing.T, f *Fleet, name string) *Cluster {
	t.Helper()
	c, err := f.Add(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func configOf(t *testing.T, c *Cluster, with Credential) *rest.Config {
	t.Helper()
	text, err := c.Kubeconfig(with, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.Timeout = 20 * time.Second
	return config
}

func clientOf(t *testing.T, c *Cluster, with Credential) client.WithWatch {
	t.Helper()
	made, err := client.NewWithWatch(configOf(t, c, with), client.Options{Scheme: typedScheme})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// agentObjects are what a parent seeds, in order.
func agentObjects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	all, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	rights, workload, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "registry.example/cascade:v1"}})
	if err != nil {
		t.Fatal(err)
	}
	return append(append(all, rights...), workload...)
}

func apply(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	u = u.DeepCopy()
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner("cascade-seed")); err != nil {
		return fmt.Errorf("cannot apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

func object(apiVersion, kind, namespace, name string, more map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for k, v := range more {
		u.Object[k] = v
	}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// TestSeeding applies what a parent applies, twice: the second time changes
// nothing, and the agent reports.
func TestSeeding(t *testing.T) {
	f := startFleet(t, Options{Record: true})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	ctx := t.Context()
	objects := agentObjects(t)
	objects = append(objects,
		object("source.toolkit.fluxcd.io/v1", "GitRepository", "cascade-system", "apps", map[string]any{"spec": map[string]any{"url": "https://git.example/apps", "interval": "1m"}}),
		object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "cascade-system", "apps", map[string]any{"spec": map[string]any{
			"interval": "1m", "prune": true, "path": "./apps", "sourceRef": map[string]any{"kind": "GitRepository", "name": "apps"},
		}}),
	)
	versions := map[string]string{}
	for round := range 2 {
		for _, u := range objects {
			if err := apply(ctx, api, u); err != nil {
				t.Fatal(err)
			}
			live := u.DeepCopy()
			if err := api.Get(ctx, client.ObjectKeyFromObject(u), live); err != nil {
				t.Fatal(err)
			}
			key := live.GetKind() + "/" + live.GetName()
			if round == 1 && versions[key] != live.GetResourceVersion() {
				t.Errorf("%s went from version %s to %s by an apply that changes nothing", key, versions[key], live.GetResourceVersion())
			}
		}
		for _, u := range objects {
			live := u.DeepCopy()
			if err := api.Get(ctx, client.ObjectKeyFromObject(u), live); err != nil {
				t.Fatal(err)
			}
			versions[live.GetKind()+"/"+live.GetName()] = live.GetResourceVersion()
		}
	}
	changed := 0
	for _, w := range c.Writes() {
		if w.Changed {
			changed++
		}
	}
	if changed != len(objects) {
		t.Errorf("%d writes changed something, want one for each of %d objects", changed, len(objects))
	}
	report := &corev1.ConfigMap{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap}, report); err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.LeaderLease}, lease); err != nil {
		t.Fatal(err)
	}
	if lease.Spec.RenewTime == nil || lease.Labels[v1alpha1.ReportLabel] == "" {
		t.Errorf("lease is %+v", lease)
	}
}

// TestClustersDiffer: two clusters that hold the same share it, and have UIDs of
// their own; what the second is asked is known from the first.
func TestClustersDiffer(t *testing.T) {
	f := startFleet(t, Options{Seed: 7})
	a, b := addCluster(t, f, "a"), addCluster(t, f, "b")
	ctx := t.Context()
	uids := map[string]int{}
	var stats []Stats
	for _, c := range []*Cluster{a, b} {
		api := clientOf(t, c, Token)
		for _, u := range agentObjects(t) {
			if err := apply(ctx, api, u); err != nil {
				t.Fatal(err)
			}
			live := u.DeepCopy()
			if err := api.Get(ctx, client.ObjectKeyFromObject(u), live); err != nil {
				t.Fatal(err)
			}
			uids[string(live.GetUID())]++
		}
		ns := &corev1.Namespace{}
		if err := api.Get(ctx, client.ObjectKey{Name: "kube-system"}, ns); err != nil {
			t.Fatal(err)
		}
		uids[string(ns.UID)]++
		stats = append(stats, f.Stats())
	}
	if more := stats[1].Outcomes - stats[0].Outcomes; more != 0 || stats[0].Outcomes == 0 {
		t.Errorf("%d outcomes were computed for the second cluster", more)
	}
	for uid, n := range uids {
		if n > 1 {
			t.Errorf("UID %s was given %d times", uid, n)
		}
	}
	for key, r := range a.objects {
		other := b.objects[key]
		if other == nil || other.content != r.content || other.managed != r.managed {
			t.Errorf("%v is not shared", key)
		}
	}
	if a.catalog != b.catalog {
		t.Error("the same kinds make two catalogs")
	}
	if diff := cmp.Diff(1, len(f.definition(a.objects[builtin("CustomResourceDefinition").key("", "layers.cascade.dev")].content).kind.versions)); diff != "" {
		t.Errorf("versions of Layer: %s", diff)
	}
}
