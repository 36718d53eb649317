package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	events "k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// TestOfLayer: what a person said of a tier wins over what a layer's own record says.
func TestOfLayer(t *testing.T) {
	for _, c := range []struct {
		reason string
		known  *inventory.FirstSync
		own    bool
		want   bool
	}{
		{"a child without an agent, to which the layer was never applied whole", nil, false, false},
		{"to which it was", nil, true, true},
		{"the agent of the child has not settled, and the layer has", &inventory.FirstSync{}, true, true},
		{"neither has", &inventory.FirstSync{}, false, false},
		{"a person set the record of a backup to adopt", &inventory.FirstSync{Insisted: true}, true, false},
		{"the tier is settled", &inventory.FirstSync{Settled: true}, false, true},
	} {
		if got := ofLayer(c.known, c.own); got.Settled != c.want {
			t.Errorf("%s: settled is %v", c.reason, got.Settled)
		}
	}
}

// TestRecordElsewhere: the agent of a management cluster that a layer is pushed to may be in any namespace. What its record
// says of a Cluster that was moved on counts, or it would be built a second time (read 717).
func TestRecordElsewhere(t *testing.T) {
	m := newMet(t)
	m.far.record = firstsync.SettledRecord("ops", "", start.Time)
	m.far.record.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
	m.far.record.Data["fleet_a_elsewhere"] = "pivot"
	config, err := m.children.InCluster()
	if err != nil {
		t.Fatal(err)
	}
	child := childNamed("alpha", nil)
	s := &seeding{push: &push{run: &run{Children: m.children, child: &child, recorded: child.DeepCopy(), notes: &notes{}}}}
	s.session = m.children.Connections.Of(m.key).Begin(link.Request{Recorded: "far", Read: func(context.Context) (*rest.Config, error) { return config, nil }})
	cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
	cluster.SetNamespace("fleet")
	cluster.SetName("a")
	got, err := s.firstSync(t.Context(), []apply.Phase{{Objects: []*unstructured.Unstructured{cluster}}}, &record.Record{Settled: true})
	if err != nil || got == nil || got.Clusters[types.NamespacedName{Namespace: "fleet", Name: "a"}] != inventory.ManagedElsewhere {
		t.Errorf("what counts for the Clusters of the layer is %+v, %v", got, err)
	}
}

// TestBeginAgent: a child is told once that its agent creates Clusters without approval. A record that is gone later was
// deleted, with what it said of Clusters that were moved away: they would be built a second time (read 839).
func TestBeginAgent(t *testing.T) {
	m := newMet(t)
	var told atomic.Pointer[corev1.ConfigMap] // the record in the child
	const at = "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST " + at:
			cm := &corev1.ConfigMap{}
			body, err := io.ReadAll(r.Body)
			if err == nil {
				_, _, err = clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, cm)
			}
			if err != nil {
				t.Error(err)
			}
			cm.TypeMeta = metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}
			told.Store(cm)
			fallthrough
		case "GET " + at + "/" + v1alpha1.FirstSyncConfigMap:
			if cm := told.Load(); cm != nil {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(cm)
				return
			}
		}
		m.far.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	if err := m.client.Create(t.Context(), firstsync.SettledRecord(v1alpha1.AgentNamespace, "", start.Time)); err != nil {
		t.Fatal(err)
	}
	ends := false // before this tier has the child on record
	tier := interceptor.NewClient(m.client.(client.WithWatch), interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if ends {
			return errors.New("the process ends")
		}
		return c.Create(ctx, o, opts...)
	}})
	child, said := childNamed("alpha", nil), events.NewFakeRecorder(10)
	m.children.Events = said
	child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: child.Namespace, Name: "app"}}
	layer.Spec.Agent = &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{FirstSync: v1alpha1.FirstSyncPolicyCreate}}
	s := &seeding{layer: layer, push: &push{run: &run{Children: m.children, child: &child, recorded: child.DeepCopy(), notes: &notes{}, object: &unstructured.Unstructured{}}}}
	s.object.SetCreationTimestamp(metav1.NewTime(start.Add(time.Hour)))
	s.session = m.children.Connections.Of(m.key).Begin(link.Request{Recorded: "far", Read: func(context.Context) (*rest.Config, error) { return &rest.Config{Host: server.URL}, nil }})
	for _, c := range []struct {
		reason string
		before func()
		ends   bool
		says   string
		told   bool
	}{
		{"it is new, and the process ends before it is on record", func() {}, true, "FirstSyncSettled", true},
		{"the next process finds what it was told", func() {}, false, "", true},
		{"the Namespace of its agent was deleted", func() { told.Store(nil) }, false, "FirstSyncHeld", false},
		{"that it was seeded is not on record, as in a tier that was lost", func() {
			if err := m.client.DeleteAllOf(t.Context(), &corev1.ConfigMap{}, client.InNamespace(v1alpha1.AgentNamespace), client.HasLabels{v1alpha1.FirstSeedLabel}); err != nil {
				t.Fatal(err)
			}
		}, false, "FirstSyncSettled", true},
	} {
		c.before()
		ends = c.ends
		m.children.FirstSeeds = NewFirstSeeds(tier, v1alpha1.AgentNamespace)
		if err := s.beginAgent(t.Context()); (err != nil) != c.ends {
			t.Fatalf("%s: %v", c.reason, err)
		}
		says := ""
		select {
		case says = <-said.Events:
		default:
		}
		if (says == "") != (c.says == "") || !strings.Contains(says, c.says) || (told.Load() != nil) != c.told {
			t.Errorf("%s: it says %q, and the record in the child is %v", c.reason, says, told.Load())
		}
	}
}

// TestFirstSeeds: the first cluster of a name stays on record, for the next process too.
func TestFirstSeeds(t *testing.T) {
	tier := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "other"}, Data: map[string]string{"namespace": "fleet", "name": "x"}},
	).Build()
	alpha, x := types.NamespacedName{Namespace: "fleet", Name: "alpha"}, types.NamespacedName{Namespace: "fleet", Name: "x"}
	seeds := func() *FirstSeeds { return NewFirstSeeds(tier, v1alpha1.AgentNamespace) }
	one, raced := seeds(), seeds()
	for _, s := range []*FirstSeeds{one, raced} {
		if identity, ok, err := s.of(t.Context(), alpha); ok || err != nil {
			t.Fatalf("nothing is on record: %q, %v", identity, err)
		}
	}
	if err := one.remember(t.Context(), alpha, "first"); err != nil {
		t.Fatal(err)
	}
	// It was read before the other process wrote.
	if err := raced.remember(t.Context(), alpha, "second"); err != nil {
		t.Fatal(err)
	}
	// A replica that takes children over reads what theirs wrote, instead of writing it again.
	beta := types.NamespacedName{Namespace: "fleet", Name: "beta"}
	if err := raced.remember(t.Context(), beta, "third"); err != nil {
		t.Fatal(err)
	}
	one.reread()
	if identity, ok, err := one.of(t.Context(), beta); identity != "third" || !ok || err != nil {
		t.Errorf("after children were taken over: %q, %v, %v", identity, ok, err)
	}
	for name, s := range map[string]*FirstSeeds{"own": one, "raced": raced, "next": seeds()} {
		if identity, ok, err := s.of(t.Context(), alpha); identity != "first" || !ok || err != nil {
			t.Errorf("%s: %q, %v, %v", name, identity, ok, err)
		}
		if _, ok, err := s.of(t.Context(), x); ok || err != nil {
			t.Errorf("%s: a ConfigMap of somebody else counts: %v", name, err)
		}
	}
}

// TestAgentArgs: what earlier versions passed to a child does not reach it any more.
func TestAgentArgs(t *testing.T) {
	for _, c := range []struct {
		reason  string
		agent   *v1alpha1.AgentSpec
		creates bool
		args    []string
	}{
		{"by default it holds", &v1alpha1.AgentSpec{}, false, nil},
		{"as it is said now", &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{FirstSync: v1alpha1.FirstSyncPolicyCreate, Args: []string{"--drift=report"}}}, true, []string{"--drift=report"}},
		{"as it was said before", &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{FirstSync: v1alpha1.FirstSyncPolicyAdopt, Args: []string{"--first-sync=create", "--drift=report"}}}, true, []string{"--drift=report"}},
		{"in two words", &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{Args: []string{"--drift", "report", "--first-sync", "create"}}}, true, []string{"--drift", "report"}},
		{"the last one counts", &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{Args: []string{"--first-sync=create", "--first-sync=adopt"}}}, false, nil},
		{"without a value", &v1alpha1.AgentSpec{AgentValues: v1alpha1.AgentValues{Args: []string{"--first-sync"}}}, false, nil},
	} {
		if got := createsFirst(c.agent); got != c.creates {
			t.Errorf("%s: %v", c.reason, got)
		}
		if got, _ := agentArgs(c.agent); !slices.Equal(got, c.args) {
			t.Errorf("%s: the arguments are %v", c.reason, got)
		}
	}
}
