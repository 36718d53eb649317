package firstsync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kuberecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

var now = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

func newTier(t *testing.T, objects ...client.Object) *Tier {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kind := schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"}
	scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(schema.GroupVersionKind{Group: kind.Group, Version: kind.Version, Kind: "ClusterList"}, &unstructured.UnstructuredList{})
	crd := schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	scheme.AddKnownTypeWithName(crd, &unstructured.Unstructured{})
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(crd, meta.RESTScopeRoot)
	mapper.Add(kind, meta.RESTScopeNamespace)
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).Build()
	tier := &Tier{Client: c, Reader: c, Namespace: "cascade-system", Now: func() time.Time { return now }, Kinds: []string{kustomizev1.KustomizationKind, helmv2.HelmReleaseKind}}
	tier.init()
	return tier
}

func cluster(name string, paused bool) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": map[string]any{"paused": paused}}}
	u.SetNamespace("n")
	u.SetName(name)
	return u
}

// definition of Clusters.
func definition() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"spec": map[string]any{"versions": []any{map[string]any{"name": "v1beta2", "served": true}}},
	}}
	u.SetName("clusters.cluster.x-k8s.io")
	return u
}

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "n", Name: name} }

// TestOrigin: how a tier begins, by what is on record, what shows a past, and the flag.
func TestOrigin(t *testing.T) {
	inv := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
	other := &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a__ConfigMap", Version: "v1"}}}
	named := metav1.ObjectMeta{Namespace: "n", Name: "x"}
	child := func(identity *v1alpha1.ChildIdentity, ref *v1alpha1.LocalReference) *v1alpha1.Child {
		return &v1alpha1.Child{ObjectMeta: named, Spec: v1alpha1.ChildSpec{ClusterRef: ref}, Status: v1alpha1.ChildStatus{Identity: identity}}
	}
	record := func(state string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, Data: map[string]string{stateKey: state}}
	}
	seed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "cascade-system", Name: v1alpha1.FirstSeedPrefix + "n.x", Labels: map[string]string{v1alpha1.FirstSeedLabel: "child"},
	}}
	const open, adopt, settled = v1alpha1.FirstSyncOpen, v1alpha1.FirstSyncAdopt, v1alpha1.FirstSyncSettled
	for _, c := range []struct {
		reason  string
		objects []client.Object
		// plain is the state without --first-sync=create, and create the one with it.
		plain, create string
	}{
		{"an empty cluster", nil, open, settled},
		{"nothing of a Cluster is on record", []client.Object{&kustomizev1.Kustomization{ObjectMeta: named, Status: kustomizev1.KustomizationStatus{Inventory: other}}}, open, settled},
		{"a Kustomization had one", []client.Object{&kustomizev1.Kustomization{ObjectMeta: named, Status: kustomizev1.KustomizationStatus{Inventory: inv}}}, open, open},
		{"a HelmRelease had one", []client.Object{&helmv2.HelmRelease{ObjectMeta: named, Status: helmv2.HelmReleaseStatus{Inventory: &helmv2.ResourceInventory{
			Entries: []helmv2.ResourceRef{{ID: "n_a_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}}}}, open, open},
		{"a child was connected", []client.Object{child(&v1alpha1.ChildIdentity{KubeSystemUID: "u"}, &v1alpha1.LocalReference{Name: "x"})}, open, open},
		{"a child that was only written down", []client.Object{child(nil, &v1alpha1.LocalReference{Name: "x"})}, open, settled},
		{"a child that no Cluster stands for", []client.Object{child(&v1alpha1.ChildIdentity{KubeSystemUID: "u"}, nil)}, open, settled},
		{"a Cluster exists", []client.Object{definition(), cluster("a", false)}, open, open},
		{"Cluster API is installed", []client.Object{definition()}, open, settled},
		{"an agent was pushed to a cluster", []client.Object{seed}, open, open},
		{"the record is open", []client.Object{record(open)}, open, open},
		{"a person set the record of a backup to adopt, and the flag is still in the Deployment", []client.Object{record(adopt)}, adopt, adopt},
		{"the record is settled", []client.Object{record(settled)}, settled, settled},
		{"a word that nobody knows stays as it is", []client.Object{record("held")}, "held", "held"},
	} {
		for create, want := range map[bool]string{false: c.plain, true: c.create} {
			t.Run(fmt.Sprintf("%s/%t", c.reason, create), func(t *testing.T) {
				tier := newTier(t, c.objects...)
				tier.Create = create
				if err := tier.load(t.Context()); err != nil {
					t.Fatal(err)
				}
				cm := written(t, tier)
				if cm.Data[stateKey] != want || tier.record.state != want {
					t.Errorf("the record is %v, the tier has %s, want %s", cm.Data, tier.record.state, want)
				}
				if since, ok := SettledSince(cm); ok != (want == settled) || ok && !since.Equal(now) {
					t.Errorf("it is settled since %s, %v", since, ok)
				}
			})
		}
	}
}

// TestOriginBesideAnother: what a record in another namespace says of Clusters that were moved away counts in a tier that
// begins, also in one that is told that it never had any, and after its first sync. One that another tier manages stays so,
// here and for who pushes it from above; else its Child would be deleted. Of others a person is asked.
func TestOriginBesideAnother(t *testing.T) {
	gone := elsewhereKey(key("a"))
	for name, c := range map[string]struct {
		reason string
		// data of the records in other namespaces.
		data, second map[string]string
		create, here bool
		away, held   bool
	}{
		"Moved":    {"a pivot gave it to another tier, before the agent was installed in another namespace", map[string]string{stateKey: "settled", gone: "p", KeyOf(key("a")): "moving"}, nil, true, false, true, false},
		"Moving":   {"it went while it was moved", map[string]string{stateKey: "settled", KeyOf(key("a")): "moving"}, nil, true, false, false, true},
		"Paused":   {"or while it was paused", map[string]string{stateKey: "open", KeyOf(key("a")): "paused"}, nil, true, false, false, true},
		"Adopt":    {"a person says that the first sync is over, and nothing of this one", map[string]string{stateKey: "settled", gone: "p"}, nil, false, false, true, false},
		"Second":   {"one of several says that another tier has it", map[string]string{stateKey: "settled", gone: "p"}, map[string]string{stateKey: "settled", KeyOf(key("a")): "paused"}, true, false, true, false},
		"Here":     {"it is here, so that it is this tier's", map[string]string{stateKey: "settled", gone: "p", KeyOf(key("a")): "moving"}, nil, false, true, false, false},
		"Another":  {"nothing is said of this one", map[string]string{stateKey: "settled", elsewhereKey(key("b")): "p"}, nil, true, false, false, false},
		"Approved": {"it may be built", map[string]string{stateKey: "open", KeyOf(key("a")): "approved"}, nil, true, false, false, false},
		"Open":     {"a tenant's agent is in its own first sync", map[string]string{stateKey: "open"}, nil, true, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects, live := []client.Object{definition()}, inventory.ClusterLive{State: inventory.Absent}
			for namespace, data := range map[string]map[string]string{"elsewhere": c.data, "second": c.second} {
				if cm := NewRecord(namespace); data != nil {
					cm.Data = data
					objects = append(objects, cm)
				}
			}
			if c.here {
				objects, live = append(objects, cluster("a", false)), inventory.ClusterLive{State: inventory.Present}
			}
			tier := newTier(t, objects...)
			tier.Create = c.create
			close(tier.ready)
			if err := tier.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			declared := []*unstructured.Unstructured{cluster("a", false)}
			plan := func(k Keeper) *inventory.Creation {
				t.Helper()
				record, err := k.For(t.Context(), declared)
				if err != nil {
					t.Fatal(err)
				}
				creation, err := inventory.PlanCreation(inventory.FleetOf(declared), record, map[types.NamespacedName]inventory.ClusterLive{key("a"): live}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return creation
			}
			if pushed := plan(Other{Reader: tier.Reader}); c.away && (pushed.Blocked() || len(pushed.ManagedElsewhere) != 1) {
				t.Errorf("%s: who pushes it holds %v, and leaves %v to the other tier", c.reason, pushed.Held, pushed.ManagedElsewhere)
			}
			if !c.create {
				if err := tier.settle(t.Context(), "a person"); err != nil {
					t.Fatal(err)
				}
			}
			cm := written(t, tier)
			if is := plan(tier); cm.Data[stateKey] != v1alpha1.FirstSyncSettled || is.Blocked() != c.held || (len(is.ManagedElsewhere) == 1) != c.away {
				t.Errorf("%s: held are %v, and managed elsewhere %v, with %v", c.reason, is.Held, is.ManagedElsewhere, cm.Data)
			}
			away, err := Record{Reader: tier.Reader, Namespace: tier.Namespace, Kept: true}.Elsewhere(t.Context(), key("a"))
			if err != nil || away != c.away || away && cm.Data[KeyOf(key("a"))] != string(inventory.LastMoving) {
				t.Errorf("%s: that another tier manages it is %t, %v, with %v", c.reason, away, err, cm.Data)
			}
			patch, err := ApprovalPatch([]types.NamespacedName{key("a")}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := tier.patch(t.Context(), patch); err != nil {
				t.Fatal(err)
			}
			if is := plan(tier); is.Blocked() || is.Withholding() {
				t.Errorf("%s: it is held once it was approved: %v", c.reason, written(t, tier).Data)
			}
		})
	}
}

// written is the record as the API server has it.
func written(t *testing.T, tier *Tier) *corev1.ConfigMap {
	t.Helper()
	cm := &corev1.ConfigMap{}
	if err := tier.Reader.Get(t.Context(), types.NamespacedName{Namespace: tier.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		t.Fatal(err)
	}
	return cm
}

// TestRecordComesBack: a record that somebody deletes while the agent runs comes back with
// the state and the marks that it had, and one that somebody else made meanwhile counts.
func TestRecordComesBack(t *testing.T) {
	for _, state := range []string{v1alpha1.FirstSyncOpen, v1alpha1.FirstSyncAdopt, v1alpha1.FirstSyncSettled} {
		for _, create := range []bool{false, true} {
			cm := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap},
				Data:       map[string]string{stateKey: state, whyKey: "a test", sinceKey: "2026-08-01T00:00:00Z", "n_moved": "moving", "n_said": "approved"},
			}
			tier := newTier(t, cm.DeepCopy())
			tier.Create = create
			if err := tier.load(t.Context()); err != nil {
				t.Fatal(err)
			}
			tier.pending[key("late")] = inventory.LastPaused
			if err := tier.Client.Delete(t.Context(), cm.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			tier.onRecordGone(cm)
			if err := tier.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := maps.Clone(cm.Data)
			want["n_late"] = "paused"
			if got := written(t, tier).Data; !maps.Equal(got, want) {
				t.Errorf("%s, create %t: the record is %v, it was %v", state, create, got, want)
			}
			// Somebody was faster.
			if err := tier.Client.Delete(t.Context(), written(t, tier)); err != nil {
				t.Fatal(err)
			}
			tier.onRecordGone(cm)
			if err := tier.Client.Create(t.Context(), record{state: v1alpha1.FirstSyncAdopt, why: "a person"}.configMap("cascade-system")); err != nil {
				t.Fatal(err)
			}
			if err := tier.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := written(t, tier).Data; got[stateKey] != v1alpha1.FirstSyncAdopt || tier.record.state != v1alpha1.FirstSyncAdopt {
				t.Errorf("%s, create %t: the record is %v, a person had written adopt", state, create, got)
			}
		}
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
	if quiet, err := tier.Quiet(ctx); quiet || err != nil {
		t.Errorf("to be sure of nothing is an answer: %v, %v", quiet, err)
	}
	var none *Tier
	if record, err := none.For(ctx, []*unstructured.Unstructured{cluster("a", false)}); record != nil || err != nil {
		t.Errorf("nobody holds anything, and the answer is %v, %v", record, err)
	}
}

// TestUnlisted: while Clusters cannot be listed, as with a webhook that a release is to mend, what
// has nothing to do with them goes on, and what has is told so soon.
func TestUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := newTier(t, record{state: v1alpha1.FirstSyncSettled, since: now.Format(time.RFC3339)}.configMap("cascade-system"))
		of := []*unstructured.Unstructured{cluster("a", false)}
		fails := func(words string) {
			t.Helper()
			begun := time.Now()
			if _, err := tier.For(t.Context(), of); err == nil || !strings.Contains(err.Error(), words) || time.Since(begun) > time.Minute {
				t.Errorf("after %s: %v", time.Since(begun), err)
			}
		}
		fails("cannot read the record of the first sync")
		if err := tier.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		fails("cannot list the Clusters")
		begun := time.Now()
		if quiet, err := tier.Quiet(t.Context()); quiet || err != nil || time.Since(begun) > 0 {
			t.Errorf("after %s: quiet %t, %v", time.Since(begun), quiet, err)
		}
		config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "n", "name": "x"}}}
		if f, err := tier.For(t.Context(), []*unstructured.Unstructured{config}); f != nil || err != nil || time.Since(begun) > 0 {
			t.Errorf("after %s: %v, %v", time.Since(begun), f, err)
		}
		// The list comes while somebody waits.
		go func() {
			time.Sleep(time.Second)
			close(tier.ready)
		}()
		if f, err := tier.For(t.Context(), of); f == nil || !f.Settled || err != nil {
			t.Errorf("once they are listed: %v, %v", f, err)
		}
	})
}

// TestMarksOfClusters: what the watch shows is on record, and wakes who waits for it.
func TestMarksOfClusters(t *testing.T) {
	tier := newTier(t)
	tier.Create = true
	if err := tier.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(tier.ready)
	told := kuberecord.NewFakeRecorder(10)
	tier.Events = told
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

	tier.onCluster(clusters.Event{New: cluster("a", false)})
	if s, seen := known("a"); s != "" || !seen || written("a") != "" {
		t.Errorf("a Cluster as usual: %q, seen %v", s, seen)
	}
	tier.onCluster(clusters.Event{New: cluster("a", true)})
	if s, _ := known("a"); s != inventory.LastPaused || written("a") != "paused" {
		t.Errorf("a paused Cluster: %q", s)
	}
	if quiet, err := tier.Quiet(t.Context()); quiet || err != nil {
		t.Errorf("a Cluster is on record, and the tier is quiet: %v", err)
	}
	moving := cluster("a", true)
	moving.SetAnnotations(map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""})
	tier.onCluster(clusters.Event{Old: moving})
	if s, seen := known("a"); s != inventory.LastMoving || seen || written("a") != "moving" {
		t.Errorf("a Cluster that was moved: %q, seen %v", s, seen)
	}
	if want := []string{"of-a", "of-a", "of-a"}; !slices.Equal(woken, want) {
		t.Errorf("woken are %v, want %v", woken, want)
	}
	// A person decides; the record is what tells.
	patch, err := ApprovalPatch([]types.NamespacedName{key("a")}, new("ann"))
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
	select {
	case got := <-told.Events:
		if want := "Normal CreateApproved ann approved the creation of Cluster " + key("a").String(); got != want {
			t.Errorf("the event is %q, want %q", got, want)
		}
	default:
		t.Error("nothing is told of the approval")
	}
	tier.onCluster(clusters.Event{New: cluster("a", false)})
	if s, seen := known("a"); s != "" || !seen || written("a") != "" {
		t.Errorf("what was approved is there: %q, seen %v", s, seen)
	}
	// One that a person deleted is none that was moved.
	tier.onCluster(clusters.Event{Old: cluster("a", false)})
	if s, seen := known("a"); s != "" || seen {
		t.Errorf("deleted: %q, seen %v", s, seen)
	}
	if quiet, err := tier.Quiet(t.Context()); !quiet || err != nil {
		t.Errorf("nothing is on record, and the tier is not quiet: %v", err)
	}
	tier.Note("Kustomization", key("of-a"), nil)
	woken = nil
	tier.onCluster(clusters.Event{New: cluster("a", false)})
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
	if err := tier.Reader.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil || cm.Data[stateKey] != v1alpha1.FirstSyncOpen {
		t.Errorf("the record is %v, %v", cm.Data, err)
	}
	// During the first sync a Cluster that is found complete is recorded, and a pause is not.
	tier.onCluster(clusters.Event{New: cluster("p", true)})
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

// TestOlderEvent: the watch is behind what this process wrote.
func TestOlderEvent(t *testing.T) {
	tier := newTier(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, Data: map[string]string{stateKey: v1alpha1.FirstSyncOpen},
	})
	if err := tier.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	record := func() *corev1.ConfigMap {
		t.Helper()
		cm := &corev1.ConfigMap{}
		if err := tier.Reader.Get(t.Context(), types.NamespacedName{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
			t.Fatal(err)
		}
		return cm
	}
	before := record()
	if err := tier.settle(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	after := record()
	tier.onRecord(before.DeepCopy())
	if !tier.record.settled() {
		t.Error("an event from before our write counts: the first sync is open again")
	}
	tier.onRecord(after.DeepCopy())
	if !tier.record.settled() {
		t.Error("our own write is not what it was")
	}
	// The watch came to our write, and goes back: etcd was restored.
	tier.onRecord(before.DeepCopy())
	if tier.record.settled() {
		t.Error("the record of a backup does not count")
	}
	// What a person writes after us counts.
	if err := tier.settle(t.Context(), "a test"); err != nil {
		t.Fatal(err)
	}
	later := record()
	later.Data[stateKey] = v1alpha1.FirstSyncAdopt
	if err := tier.Client.Update(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	tier.onRecord(record())
	if tier.record.state != v1alpha1.FirstSyncAdopt {
		t.Errorf("the state is %q, a person wrote adopt", tier.record.state)
	}
	// A record that was deleted is made again, whatever its versions are.
	tier.onRecordGone(nil)
	if tier.written != "" {
		t.Error("a version of a record that is gone counts")
	}
}
