package firstsync

import (
	"context"
	"errors"
	"slices"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

func newTier(t *testing.T, objects ...client.Object) *Tier {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	tier := &Tier{Client: c, Reader: c, Namespace: "cascade-system", Kinds: []string{kustomizev1.KustomizationKind, helmv2.HelmReleaseKind}}
	tier.init()
	return tier
}

func cluster(name string, paused bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": map[string]any{"paused": paused}}}
	u.SetNamespace("n")
	u.SetName(name)
	return u
}

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "n", Name: name} }

// TestOrigin: how a tier begins of which nothing is on record.
func TestOrigin(t *testing.T) {
	inv := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
	other := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a__ConfigMap", Version: "v1"}}}
	meta := metav1.ObjectMeta{Namespace: "n", Name: "x"}
	child := func(identity *v1alpha1.ChildIdentity, ref *v1alpha1.LocalReference) *v1alpha1.Child {
		return &v1alpha1.Child{ObjectMeta: meta, Spec: v1alpha1.ChildSpec{ClusterRef: ref}, Status: v1alpha1.ChildStatus{Identity: identity}}
	}
	record := func(state string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, Data: map[string]string{stateKey: state}}
	}
	for _, c := range []struct {
		reason  string
		objects []client.Object
		create  bool
		settled bool
	}{
		{"an empty cluster", nil, false, false},
		{"it was said at installation", nil, true, true},
		{"nothing of a Cluster is on record", []client.Object{&kustomizev1.Kustomization{ObjectMeta: meta, Status: kustomizev1.KustomizationStatus{Inventory: other}}}, false, false},
		{"a Kustomization had one", []client.Object{&kustomizev1.Kustomization{ObjectMeta: meta, Status: kustomizev1.KustomizationStatus{Inventory: inv}}}, false, true},
		{"a HelmRelease had one", []client.Object{&helmv2.HelmRelease{ObjectMeta: meta, Status: helmv2.HelmReleaseStatus{Inventory: &helmv2.ResourceInventory{
			Entries: []helmv2.ResourceRef{{ID: "n_a_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}}}}, false, true},
		{"a child was connected", []client.Object{child(&v1alpha1.ChildIdentity{KubeSystemUID: "u"}, &v1alpha1.LocalReference{Name: "x"})}, false, true},
		{"a child that was only written down", []client.Object{child(nil, &v1alpha1.LocalReference{Name: "x"})}, false, false},
		{"a child that no Cluster stands for", []client.Object{child(&v1alpha1.ChildIdentity{KubeSystemUID: "u"}, nil)}, false, false},
		{"the record says that it is open", []client.Object{record(v1alpha1.FirstSyncAdopt)}, false, false},
		{"the record counts, not the flag of a later start", []client.Object{record(v1alpha1.FirstSyncSettled)}, false, true},
		{"but whoever installs it to create means it", []client.Object{record(v1alpha1.FirstSyncAdopt)}, true, true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			tier := newTier(t, c.objects...)
			tier.Create = c.create
			if err := tier.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			cm := &corev1.ConfigMap{}
			if err := tier.Reader.Get(t.Context(), types.NamespacedName{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
				t.Fatal(err)
			}
			if got := cm.Data[stateKey] == v1alpha1.FirstSyncSettled; got != c.settled || tier.settled != c.settled {
				t.Errorf("the record is %v, the tier settled: %v", cm.Data, tier.settled)
			}
		})
	}
}

// TestNoAnswerBeforeTheRecord: whoever asks too early waits, and gets an error.
func TestNoAnswerBeforeTheRecord(t *testing.T) {
	tier := newTier(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tier.For(ctx, []*unstructured.Unstructured{cluster("a", false)}); !errors.Is(err, context.Canceled) {
		t.Errorf("the answer is %v", err)
	}
	if record, err := tier.For(ctx, nil); record != nil || err != nil {
		t.Errorf("what has nothing to do with Clusters waits: %v, %v", record, err)
	}
	if _, err := tier.Quiet(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the answer is %v", err)
	}
	var none *Tier
	if record, err := none.For(ctx, []*unstructured.Unstructured{cluster("a", false)}); record != nil || err != nil {
		t.Errorf("nobody holds anything, and the answer is %v, %v", record, err)
	}
}

// TestMarksOfClusters: what the watch shows is on record, and wakes who waits for it.
func TestMarksOfClusters(t *testing.T) {
	tier := newTier(t)
	tier.Create = true
	if err := tier.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(tier.ready)
	var woken []string
	tier.OnRelease("Kustomization", func(name types.NamespacedName) { woken = append(woken, name.Name) })
	hold := func(owner, name string) {
		t.Helper()
		live := map[types.NamespacedName]inventory.ClusterLive{key(name): {State: inventory.Absent}}
		c, err := inventory.PlanCreation(inventory.FleetOf([]*unstructured.Unstructured{cluster(name, false)}), &inventory.FirstSync{}, live, nil)
		if err != nil {
			t.Fatal(err)
		}
		tier.Note("Kustomization", key(owner), c)
	}
	known := func(name string) (inventory.Standing, bool) {
		t.Helper()
		f, err := tier.For(t.Context(), []*unstructured.Unstructured{cluster(name, false)})
		if err != nil {
			t.Fatal(err)
		}
		return f.Clusters[key(name)], f.Seen[key(name)]
	}
	written := func(name string) string {
		t.Helper()
		if err := tier.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cm := &corev1.ConfigMap{}
		if err := tier.Reader.Get(t.Context(), types.NamespacedName{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
			t.Fatal(err)
		}
		return cm.Data[KeyOf(key(name))]
	}
	hold("of-a", "a")
	hold("of-b", "b")

	tier.onCluster(cluster("a", false), false)
	if s, seen := known("a"); s != "" || !seen || written("a") != "" {
		t.Errorf("a Cluster as usual: %q, seen %v", s, seen)
	}
	tier.onCluster(cluster("a", true), false)
	if s, _ := known("a"); s != inventory.LastPaused || written("a") != "paused" {
		t.Errorf("a paused Cluster: %q", s)
	}
	if quiet, err := tier.Quiet(t.Context()); quiet || err != nil {
		t.Errorf("a Cluster is on record, and the tier is quiet: %v", err)
	}
	moving := cluster("a", true)
	moving.SetAnnotations(map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""})
	tier.onCluster(cache.DeletedFinalStateUnknown{Obj: moving}, true)
	if s, seen := known("a"); s != inventory.LastMoving || seen || written("a") != "moving" {
		t.Errorf("a Cluster that was moved: %q, seen %v", s, seen)
	}
	if want := []string{"of-a", "of-a", "of-a"}; !slices.Equal(woken, want) {
		t.Errorf("woken are %v, want %v", woken, want)
	}
	// A person decides; the record is what tells.
	patch, err := ApprovalPatch([]types.NamespacedName{key("a")})
	if err != nil {
		t.Fatal(err)
	}
	woken = nil
	if err := tier.patch(t.Context(), patch); err != nil {
		t.Fatal(err)
	}
	if s, _ := known("a"); s != inventory.Approved || !slices.Equal(woken, []string{"of-a"}) {
		t.Errorf("after the approval: %q, woken are %v", s, woken)
	}
	tier.onCluster(cluster("a", false), false)
	if s, seen := known("a"); s != "" || !seen || written("a") != "" {
		t.Errorf("what was approved is there: %q, seen %v", s, seen)
	}
	// One that a person deleted is none that was moved.
	tier.onCluster(cluster("a", false), true)
	if s, seen := known("a"); s != "" || seen {
		t.Errorf("deleted: %q, seen %v", s, seen)
	}
	if quiet, err := tier.Quiet(t.Context()); !quiet || err != nil {
		t.Errorf("nothing is on record, and the tier is not quiet: %v", err)
	}
	tier.Note("Kustomization", key("of-a"), nil)
	woken = nil
	tier.onCluster(cluster("a", false), false)
	if len(woken) > 0 {
		t.Errorf("woken are %v, nobody waits", woken)
	}
}

// TestRecordIsMadeAgain: somebody deleted it while the agent ran.
func TestRecordIsMadeAgain(t *testing.T) {
	tier := newTier(t)
	if err := tier.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}}
	if err := tier.Client.Delete(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	tier.onRecordGone(cm)
	if err := tier.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tier.Reader.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil || cm.Data[stateKey] != v1alpha1.FirstSyncAdopt {
		t.Errorf("the record is %v, %v", cm.Data, err)
	}
	// During the first sync a Cluster that is found complete is recorded, and a pause is not.
	tier.onCluster(cluster("p", true), false)
	c, err := inventory.PlanCreation(inventory.FleetOf([]*unstructured.Unstructured{cluster("a", false)}), &inventory.FirstSync{},
		map[types.NamespacedName]inventory.ClusterLive{key("a"): {State: inventory.Present}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tier.Note("Kustomization", key("of-a"), c)
	if err := tier.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tier.Reader.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil || cm.Data["n_a"] != "adopted" || cm.Data["n_p"] != "" {
		t.Errorf("the record is %v, %v", cm.Data, err)
	}
	// From the settlement on it is the pause that counts.
	if err := tier.settle(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	if err := tier.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tier.Reader.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil || cm.Data["n_a"] != "" || cm.Data["n_p"] != "paused" {
		t.Errorf("the record is %v, %v", cm.Data, err)
	}
}
