package firstsync

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

func TestElsewhere(t *testing.T) {
	a, b := types.NamespacedName{Namespace: "n", Name: "a"}, types.NamespacedName{Namespace: "n", Name: "b"}
	cm := &corev1.ConfigMap{Data: map[string]string{stateKey: v1alpha1.FirstSyncSettled, "n_a": "paused"}}
	ManageElsewhere(cm, "p1", a, b)
	if ManagedBy(cm, a) != "p1" || ManagedBy(cm, types.NamespacedName{Namespace: "n", Name: "c"}) != "" {
		t.Errorf("it is managed by %q", ManagedBy(cm, a))
	}
	r := recordOf(cm)
	if r.clusters[a] != inventory.LastMoving || r.standings()[a] != inventory.ManagedElsewhere || r.standings()[b] != inventory.ManagedElsewhere {
		t.Errorf("they are not elsewhere: %+v", r)
	}
	if got := recordOf(r.configMap("x")); !maps.Equal(got.elsewhere, r.elsewhere) || !maps.Equal(got.clusters, r.clusters) {
		t.Errorf("a record that is made again is another one: %+v", got)
	}
	if want, change := noted(inventory.ManagedElsewhere, inventory.LastPaused, false); change || want != inventory.ManagedElsewhere {
		t.Errorf("the agent notes %q in place of what a pivot wrote", want)
	}
	Release(cm, "p2", a)
	if ManagedBy(cm, a) != "p1" {
		t.Error("one pivot released what another one holds")
	}
	Release(cm, "p1", b)
	ManageHere(cm, a)
	if want := map[string]string{stateKey: v1alpha1.FirstSyncSettled}; !maps.Equal(cm.Data, want) {
		t.Errorf("after it came here: %v", cm.Data)
	}
	open := &corev1.ConfigMap{Data: map[string]string{stateKey: v1alpha1.FirstSyncOpen}}
	ManageElsewhere(open, "p1", a)
	ManageHere(open, a)
	if got := recordOf(open); got.clusters[a] != inventory.Adopted || len(got.elsewhere) != 0 {
		t.Errorf("in a first sync it is found complete: %+v", got)
	}
	ManageElsewhere(cm, "p1", a)
	patch, err := ApprovalPatch([]types.NamespacedName{a}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := apply(t, cm.Data, patch); got["n_a_elsewhere"] != "" || got["n_a"] != "approved" {
		t.Errorf("a person said that it is to be built here: %v", got)
	}
}

// TestElsewhereCountsFirst: what the agent is about to write of a Cluster does not take the
// place of what a pivot wrote.
func TestElsewhereCountsFirst(t *testing.T) {
	a := types.NamespacedName{Namespace: "n", Name: "a"}
	tier := &Tier{Kinds: []string{"x"}}
	tier.init()
	woken := 0
	tier.OnRelease("x", func(types.NamespacedName) { woken++ })
	tier.holders[holder{"x", a}] = map[types.NamespacedName]bool{a: true}
	tier.pending[a] = inventory.LastPaused
	cm := &corev1.ConfigMap{Data: map[string]string{stateKey: v1alpha1.FirstSyncSettled}}
	tier.take(cm)
	woken = 0
	ManageElsewhere(cm, "p1", a)
	tier.take(cm)
	if got := tier.standing(a); got != inventory.ManagedElsewhere || woken != 1 {
		t.Errorf("standing %q, who holds it was woken %d times", got, woken)
	}
	close(tier.ready)
	if quiet, err := tier.Quiet(t.Context()); quiet || err != nil {
		t.Errorf("quiet %t, %v, while a Cluster is elsewhere", quiet, err)
	}
	tier.take(&corev1.ConfigMap{Data: map[string]string{stateKey: v1alpha1.FirstSyncSettled}})
	if got := tier.standing(a); got != "" || woken != 2 {
		t.Errorf("after it came back: standing %q, woken %d times", got, woken)
	}
}

// TestElsewhereRestored: a saved state of the tier knows where a Cluster is that it does not have.
func TestElsewhereRestored(t *testing.T) {
	a, b := types.NamespacedName{Namespace: "n", Name: "a"}, types.NamespacedName{Namespace: "n", Name: "b"}
	cm := &corev1.ConfigMap{Data: map[string]string{stateKey: v1alpha1.FirstSyncSettled, "n_b": "approved"}}
	ManageElsewhere(cm, "p1", a)
	restored := Restored("x", cm, func(types.NamespacedName) bool { return false })
	if got := ManagedBy(restored, a); got != "p1" {
		t.Errorf("restored, it is managed by %q: Git builds it again", got)
	}
	if settled, away := Says(restored); settled || !away[a] || away[b] {
		t.Errorf("the record says settled %t, away %v", settled, away)
	}
	if got := Elsewhere(restored); !slices.Equal(got, []types.NamespacedName{a}) {
		t.Errorf("elsewhere are %v", got)
	}
}

// TestElsewhereInReplica: a process that does not lead, in which no Tier is started, knows which
// Clusters another tier manages.
func TestElsewhereInReplica(t *testing.T) {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap}, Data: map[string]string{stateKey: v1alpha1.FirstSyncSettled},
	}
	ManageElsewhere(cm, "p1", key("a"))
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, cm.Name, nil)
	for name, tt := range map[string]struct {
		reason  string
		objects []client.Object
		err     error
		kept    bool
		of      string
		want    bool
		fails   bool
	}{
		"Moved":   {"a pivot moved it", []client.Object{cm}, nil, true, "a", true, false},
		"Here":    {"nothing is on record of it", []client.Object{cm}, nil, true, "b", false, false},
		"Other":   {"an agent of other controllers keeps the record", []client.Object{cm}, nil, false, "a", true, false},
		"Missing": {"somebody deleted it, and the one that leads makes it again", nil, nil, true, "b", false, true},
		"Unkept":  {"nobody keeps one, so that no pivot wrote into it", nil, nil, false, "b", false, false},
		"Unread":  {"it cannot be told", []client.Object{cm}, refused, true, "b", false, true},
		"Unasked": {"nor by an agent that keeps none", []client.Object{cm}, refused, false, "b", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			reader := interceptor.NewClient(newTier(t, tt.objects...).Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, name client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if tt.err != nil {
						return tt.err
					}
					return c.Get(ctx, name, o, opts...)
				},
			})
			is, err := Record{Reader: reader, Namespace: "cascade-system", Kept: tt.kept}.Elsewhere(t.Context(), key(tt.of))
			if is != tt.want || (err != nil) != tt.fails {
				t.Errorf("%s: elsewhere %t, %v", tt.reason, is, err)
			}
		})
	}
}

// TestElsewhereForOlder: the version before, to which a tier may be taken back, reads one key of a
// Cluster, and does not build one that is being moved. It has to find that whoever wrote the record.
func TestElsewhereForOlder(t *testing.T) {
	older := func(cm *corev1.ConfigMap, name string) string { return cm.Data[KeyOf(key(name))] }
	settled := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.FirstSyncConfigMap},
			Data:       map[string]string{stateKey: v1alpha1.FirstSyncSettled, sinceKey: "2026-08-01T00:00:00Z"},
		}
	}
	cm := settled()
	ManageElsewhere(cm, "p1", key("a"))
	if older(cm, "a") != "moving" {
		t.Errorf("a pivot wrote %v", cm.Data)
	}
	Release(cm, "p2", key("a"))
	if older(cm, "a") != "moving" {
		t.Errorf("another pivot took it off: %v", cm.Data)
	}
	Release(cm, "p1", key("a"))
	if want := settled().Data; !maps.Equal(cm.Data, want) {
		t.Errorf("a pivot that came to nothing left %v", cm.Data)
	}

	// A pivot of an earlier version wrote its own key alone, while the agent noted the pause.
	cm = settled()
	cm.Data["n_a_elsewhere"] = "p1"
	tier := newTier(t, cm)
	tier.pending[key("a")] = inventory.LastPaused
	if err := tier.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	flush := func(reason, want string) {
		t.Helper()
		if err := tier.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if cm := written(t, tier); older(cm, "a") != want {
			t.Errorf("%s: the record is %v, want %q", reason, cm.Data, want)
		}
	}
	select {
	case <-tier.wake:
	default:
		t.Error("nothing has the mark written")
	}
	flush("an earlier pivot", "moving")
	live := cluster("a", true)
	tier.onCluster(clusters.Event{New: live})
	flush("it is paused", "moving")
	live.SetAnnotations(map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""})
	tier.onCluster(clusters.Event{Old: live})
	flush("it went", "moving")

	// A person takes the pivot's key off, with the Cluster still here.
	tier.onCluster(clusters.Event{New: cluster("a", false)})
	if err := tier.patch(t.Context(), []byte(`{"data":{"n_a_elsewhere":null}}`)); err != nil {
		t.Fatal(err)
	}
	flush("it stays here", "")
	if err := tier.patch(t.Context(), []byte(`{"data":{"n_a_elsewhere":"p2"}}`)); err != nil {
		t.Fatal(err)
	}
	flush("another pivot", "moving")
	tier.onCluster(clusters.Event{New: cluster("a", true)})
	if err := tier.patch(t.Context(), []byte(`{"data":{"n_a_elsewhere":null,"n_a":null}}`)); err != nil {
		t.Fatal(err)
	}
	flush("it came to nothing, and the Cluster is still paused", "paused")
}
