package remote

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/remote/selection"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// described is a Child of a Cluster of AWS, and what reconciles it in a tier whose API server is
// served by a function.
type described struct {
	child    v1alpha1.Child
	client   client.Client
	children *Children
}

func newDescribed(t *testing.T, serve http.HandlerFunc) *described {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	child := childNamed("alpha", []metav1.Condition{
		{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: start},
		{Type: v1alpha1.SeededCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: start},
	})
	child.Labels = map[string]string{"site": "here"}
	child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "alpha"}
	child.Status.Identity = &v1alpha1.ChildIdentity{ClusterUID: "uid", KubeSystemUID: "other"}
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "app", Ready: true, Revision: "main@sha1:1", LastAttemptedDigest: "sha256:1"}}
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: child.Namespace, Name: "app"}}
	layer.Spec.ClusterSelector.MatchLabels = child.Labels
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
		"spec": map[string]any{
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "AWSCluster", "name": "alpha"},
		},
		"status": map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}},
	}}
	cluster.SetNamespace(child.Namespace)
	cluster.SetName("alpha")
	cluster.SetUID("uid")
	cluster.SetLabels(child.Labels)

	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	local, err := apply.Connect(&rest.Config{Host: server.URL}, scheme)
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return start.Time }
	random := func() float64 { return 0 }
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child, layer).WithStatusSubresource(&child).Build()
	return &described{child: child, client: c, children: &Children{
		Events: &record.FakeRecorder{}, Snapshots: source.NewSnapshots(),
		Client: c, Clusters: clusters.Fixed(cluster), Cluster: local, Bridge: &capibridge.Providers{}, Now: now, Rand: random,
		Connections: link.NewPool(t.Context(), scheme, now, random), Metrics: NewMetrics(prometheus.NewRegistry()), ObserveInterval: time.Minute,
	}}
}

// withoutProvider is an API server that has no kind of a provider.
func withoutProvider(w http.ResponseWriter, r *http.Request) {
	kind := map[string]string{"/api": "APIVersions", "/apis": "APIGroupList"}[r.URL.Path]
	if kind == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":%q,"apiVersion":"v1"}`, kind)
}

// TestDescribeFailsAfterRestart: a process that has just begun cannot read what the
// provider says of a Cluster. What the status says of the time before is not known to hold,
// so it is not Ready; nothing is pushed with other variables, and what is in place stays on
// record.
func TestDescribeFailsAfterRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		serve  http.HandlerFunc
	}{
		"Outage": {"the store of the tier is slow", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "etcd is slow", http.StatusServiceUnavailable)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDescribed(t, tc.serve)
			key := client.ObjectKeyFromObject(&d.child)
			if _, err := d.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err == nil || !strings.Contains(err.Error(), "cannot describe Cluster") {
				t.Errorf("%s: the reconcile ends with %v", tc.reason, err)
			}
			got := &v1alpha1.Child{}
			if err := d.client.Get(t.Context(), key, got); err != nil {
				t.Fatal(err)
			}
			ready := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ReadyCondition)
			if ready == nil || ready.Status != metav1.ConditionUnknown || ready.Reason != v1alpha1.ReasonClusterNotReady || !strings.Contains(ready.Message, "cannot describe Cluster") {
				t.Errorf("%s: Ready is %+v", tc.reason, ready)
			}
			if len(got.Status.Layers) != 1 || got.Status.Layers[0].Revision != "main@sha1:1" {
				t.Errorf("%s: the layers are %+v", tc.reason, got.Status.Layers)
			}
		})
	}
}

// TestUndescribed: a process that has just begun finds the provider of a Cluster gone. What the child
// has stands, and nothing new is pushed, as it would be rendered without the region; all else goes
// on, for however long that is so.
func TestUndescribed(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	object, _ := d.children.Clusters.Get(client.ObjectKeyFromObject(&d.child))
	r := &run{Children: d.children, child: &d.child, notes: &notes{}, object: object}
	if _, err := r.describe(t.Context(), capibridge.FromObject(object)); err != nil || r.undescribed == "" || r.notes.described != "" {
		t.Fatalf("describe() = %v, undescribed is %q", err, r.undescribed)
	}
	p := &push{run: r}
	err := p.gather(t.Context(), &seeding{push: p})
	if !isWaitingError(err) || reason.Of(err) != v1alpha1.ReasonClusterNotReady {
		t.Errorf("gather() = %v", err)
	}
}

// TestDescribeKeeps: a provider whose kinds are not there for a while changes nothing of what a
// cluster is known to be, as its layers would be rendered with other variables.
func TestDescribeKeeps(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	known := capibridge.Facts{Provider: "aws", Region: "eu-west-1", Variables: map[string]string{"cluster_account": "123456789012"}}
	n := &notes{described: "before", since: start.Time, facts: known}
	object, _ := d.children.Clusters.Get(client.ObjectKeyFromObject(&d.child))
	r := &run{Children: d.children, child: &d.child, notes: n, object: object}
	got, err := r.describe(t.Context(), capibridge.FromObject(object))
	if err != nil {
		t.Fatal(err)
	}
	if got.Infrastructure.Reason != capibridge.HealthNotServed {
		t.Errorf("the infrastructure is %+v", got.Infrastructure)
	}
	if got.Region != known.Region || !maps.Equal(got.Variables, known.Variables) {
		t.Errorf("the region is %q, the variables are %v", got.Region, got.Variables)
	}
}

// TestDescribeFirst: nothing was sent yet, so that nothing has other variables: whether the cluster
// is there is for the gate to say.
func TestDescribeFirst(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	d.child.Status.Layers = nil
	object, _ := d.children.Clusters.Get(client.ObjectKeyFromObject(&d.child))
	r := &run{Children: d.children, child: &d.child, notes: &notes{}, object: object}
	if _, err := r.describe(t.Context(), capibridge.FromObject(object)); err != nil || r.undescribed != "" {
		t.Errorf("describe() = %v, undescribed is %q", err, r.undescribed)
	}
}

// TestDescribeAgain: what keeps a cluster from coming up is looked at while it does not, as nothing of the
// Cluster has to change by it. One that is up is not asked about without need.
func TestDescribeAgain(t *testing.T) {
	status := func(fields ...string) func(*run) {
		return func(r *run) {
			for _, field := range fields {
				_ = unstructured.SetNestedField(r.object.Object, false, "status", "initialization", field)
			}
		}
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*run)
		after  time.Duration
		want   bool
	}{
		"Infrastructure": {"an identity may be used by now", status("infrastructureProvisioned", "controlPlaneInitialized"), 40 * time.Second, true},
		"ControlPlane":   {"a quota is exceeded by now", status("controlPlaneInitialized"), 40 * time.Second, true},
		"Soon":           {"each look is several calls", status("infrastructureProvisioned", "controlPlaneInitialized"), 10 * time.Second, false},
		"Up":             {"its state shows on the Cluster", func(*run) {}, 50 * time.Minute, false},
		"Hour":           {"it may have missed something", func(*run) {}, time.Hour, true},
		"Unfinished":     {"an issuer may have come", func(r *run) { r.notes.facts.Unfinished = true }, 10 * time.Minute, true},
		"Unread": {"what could not be read may be there again", func(r *run) {
			r.notes.facts.Unread = capibridge.Health{Reason: capibridge.HealthForbidden}
		}, 10 * time.Minute, true},
		"Asked": {"a person has changed something", func(r *run) {
			r.child.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
		}, time.Second, true},
		"Handled": {"that was looked at", func(r *run) {
			r.child.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
			r.child.Status.LastHandledReconcileAt = "now"
		}, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDescribed(t, withoutProvider)
			d.child.Status.Layers = nil
			object, _ := d.children.Clusters.Get(client.ObjectKeyFromObject(&d.child))
			r := &run{Children: d.children, child: &d.child, notes: &notes{}, object: object.DeepCopy()}
			tc.change(r)
			look := func() {
				if _, err := r.describe(t.Context(), capibridge.FromObject(r.object)); err != nil {
					t.Fatal(err)
				}
			}
			look()
			r.notes.facts.Unread = capibridge.Health{} // as where there is a provider
			tc.change(r)
			d.children.Now = func() time.Time { return start.Add(tc.after) }
			look()
			if again := r.notes.since.After(start.Time); again != tc.want {
				t.Errorf("%s: it is looked at again: %t", tc.reason, again)
			}
		})
	}
}

// TestTakeOverAsksTheTierLittle: a process that took many children over asks each of them who serves,
// before it reads what providers say of those that stand as they were.
func TestTakeOverAsksTheTierLittle(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(r *run, cluster *unstructured.Unstructured, layer *v1alpha1.Layer)
		later  bool
	}{
		"InPlace": {"it stands", func(*run, *unstructured.Unstructured, *v1alpha1.Layer) {}, true},
		"Provider": {"the provider's objects may say where the kubeconfig is", func(_ *run, cluster *unstructured.Unstructured, _ *v1alpha1.Layer) {
			_ = unstructured.SetNestedField(cluster.Object, "AWSCluster", "spec", "infrastructureRef", "kind")
		}, false},
		"Few": {"nobody waits", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) {
			r.Connections.Met(types.NamespacedName{Namespace: "fleet", Name: "other-0"})
		}, false},
		"Own":      {"this process has driven it for long", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) { r.notes.began = start.Add(-crowdedFor) }, false},
		"Failing":  {"a layer is not in place", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) { r.child.Status.Layers[0].Ready = false }, false},
		"NotReady": {"the child is not ready", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) { r.child.Status.Conditions = nil }, false},
		"Moved": {"the source moved on", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) {
			r.child.Status.Layers[0].Revision = "main@sha1:0"
		}, false},
		"Leaving": {"a layer goes", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) {
			r.child.Status.Layers = append(r.child.Status.Layers, v1alpha1.ChildLayer{Name: "old", Ready: true})
		}, false},
		"Met": {"it answered, and others wait still", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) { r.notes.met = true }, true},
		"Governed": {"a Rollout says which revision it has, and it has that", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) {
			r.governing, r.child.Status.Layers[0].Revision = rollout.Governing{{}}, "main@sha1:0"
			r.child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "waves", Brought: true}}
		}, true},
		"Pinned": {"a Rollout let it have what it may not have yet", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) {
			r.governing, r.child.Status.Rollouts = rollout.Governing{{}}, []v1alpha1.ChildRollout{{Name: "waves"}}
		}, false},
		"Changed": {"its spec is another one", func(r *run, _ *unstructured.Unstructured, _ *v1alpha1.Layer) { r.child.Generation++ }, false},
		"Asked": {"a person waits for it", func(_ *run, _ *unstructured.Unstructured, layer *v1alpha1.Layer) {
			layer.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			d := newDescribed(t, func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				withoutProvider(w, r)
			})
			object, _ := d.children.Clusters.Get(client.ObjectKeyFromObject(&d.child))
			object = object.DeepCopy()
			_ = unstructured.SetNestedField(object.Object, "DockerCluster", "spec", "infrastructureRef", "kind")
			layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: d.child.Namespace, Name: "app"}}
			layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			d.children.Snapshots.Put(layerSource(layer), &source.Snapshot{Revision: "main@sha1:1"})
			for i := range mostUnmet + 1 {
				d.children.Connections.Expect(types.NamespacedName{Namespace: "fleet", Name: fmt.Sprintf("other-%d", i)})
			}
			r := &run{Children: d.children, child: &d.child, notes: &notes{began: start.Time}, object: object}
			tc.change(r, object, layer)
			cluster := capibridge.FromObject(object)
			r.later = r.mayWait(cluster, []*v1alpha1.Layer{layer})
			if _, err := r.describe(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			if r.later != tc.later || (asked.Load() == 0) != tc.later {
				t.Fatalf("%s: later is %t, and the tier was asked %d times", tc.reason, r.later, asked.Load())
			}
		})
	}
}

// TestClusterGoes: the Child of a Cluster goes with it. One that somebody declares would be made
// again each time, and has what its owner says of it, as that nothing is to be pushed.
func TestClusterGoes(t *testing.T) {
	const owner, in = "kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace"
	for name, tc := range map[string]struct {
		reason     string
		labels     map[string]string
		goes, left bool
		want       map[string]string
		managed    []metav1.ManagedFieldsEntry
	}{
		"Discovered": {"the tier made it", map[string]string{"site": "here"}, true, false, nil, nil},
		"Declared":   {"a Kustomization would make it again", map[string]string{"site": "here", owner: "fleet", in: "flux"}, true, true, map[string]string{"site": "here", owner: "fleet", in: "flux"}, nil},
		"Directive":  {"nobody declares it who only has it be kept", map[string]string{"kustomize.toolkit.fluxcd.io/prune": "disabled"}, true, false, nil, nil},
		"Labels": {"whose it is, it says beside the labels of its Cluster", map[string]string{"site": "there", "old": "x", owner: "fleet", in: "flux"}, false, true,
			map[string]string{"site": "here", owner: "fleet", in: "flux"}, []metav1.ManagedFieldsEntry{labelling(statusManager, "site", "old"), labelling("kustomize-controller", owner, in)}},
		"Chart": {"Helm gives each object a label, and Git may give more", map[string]string{"app.kubernetes.io/managed-by": "Helm", "part": "x", owner: "fleet", in: "flux"}, false, true,
			map[string]string{"site": "here", "app.kubernetes.io/managed-by": "Helm", "part": "x", owner: "fleet", in: "flux"},
			[]metav1.ManagedFieldsEntry{labelling("helm-controller", "app.kubernetes.io/managed-by", "part", owner, in)}},
		"Both": {"an apply would write its own value again", map[string]string{"site": "there", owner: "fleet", in: "flux"}, false, true,
			map[string]string{"site": "there", owner: "fleet", in: "flux"}, []metav1.ManagedFieldsEntry{labelling("kustomize-controller", "site", owner, in), labelling(statusManager, "site")}},
		"Unknown": {"nobody says who gave it the label", map[string]string{"part": "x", owner: "fleet", in: "flux"}, false, true,
			map[string]string{"site": "here", "part": "x", owner: "fleet", in: "flux"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDescribed(t, withoutProvider)
			d.child.Labels, d.child.Spec.Suspend = tc.labels, true
			if err := d.client.Update(t.Context(), &d.child); err != nil {
				t.Fatal(err)
			}
			d.child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "app", Result: v1alpha1.ResultSucceeded}}
			key := client.ObjectKeyFromObject(&d.child)
			if cluster, _ := d.children.Clusters.Get(key); tc.goes {
				cluster.SetDeletionTimestamp(&start)
				d.children.Clusters = clusters.Fixed(cluster)
			}
			r := &run{Children: d.children, child: d.child.DeepCopy(), notes: d.children.notesOf(key)}
			r.child.ManagedFields = tc.managed
			cluster, ok, _, err := r.facts(t.Context())
			if err != nil || ok == tc.goes {
				t.Fatalf("%s: facts() = %t, %v", tc.reason, ok, err)
			}
			if ok && !maps.Equal(r.labels, selection.WithoutOwner(tc.want)) {
				t.Errorf("%s: layers are pushed by %v, and counted by %v", tc.reason, r.labels, tc.want)
			}
			// What others give the Child is nothing of the Cluster, which variables tell of.
			if want := map[string]string{"site": "here"}; ok && !maps.Equal(cluster.Labels, want) {
				t.Errorf("%s: variables have the labels %v, want %v", tc.reason, cluster.Labels, want)
			}
			got := &v1alpha1.Child{}
			switch err := d.client.Get(t.Context(), key, got); {
			case client.IgnoreNotFound(err) != nil:
				t.Fatal(err)
			case err == nil != tc.left || r.gone == tc.left:
				t.Fatalf("%s: it is left: %v", tc.reason, err)
			case !tc.left:
				return
			}
			if !maps.Equal(got.Labels, tc.want) || !got.Spec.Suspend {
				t.Errorf("%s: it has %v, %+v", tc.reason, got.Labels, got.Spec)
			}
			ready := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.ConnectedCondition)
			if says := ready != nil && ready.Reason == v1alpha1.ReasonClusterNotReady && strings.Contains(ready.Message, "Cluster alpha") &&
				strings.Contains(ready.Message, "Kustomization/flux/fleet") && strings.Contains(ready.Message, "kubectl delete child alpha -n "+key.Namespace); says != tc.goes {
				t.Errorf("%s: it says %+v", tc.reason, ready)
			}
			// A Layer that is being deleted would wait for what is gone.
			app := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "app"}}
			has := r.child.Status.Identity != nil || meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.SeededCondition) || len(holdersOf(app, []v1alpha1.Child{*r.child})) > 0
			if has == tc.goes || len(r.child.Status.Rollouts) != 1 {
				t.Errorf("%s: it has on record %+v", tc.reason, r.child.Status)
			}
		})
	}
}

// labelling is the entry of a manager of fields that gave an object labels.
func labelling(manager string, labels ...string) metav1.ManagedFieldsEntry {
	fields := map[string]any{}
	for _, name := range labels {
		fields["f:"+name] = map[string]any{}
	}
	text, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": fields}})
	if err != nil {
		panic(err)
	}
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: metav1.NewFieldsV1(string(text))}
}
