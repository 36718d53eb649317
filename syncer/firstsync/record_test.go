package firstsync

import (
	"encoding/json"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

func TestRecordOf(t *testing.T) {
	name := types.NamespacedName{Namespace: "fleet", Name: "a.b"}
	for _, c := range []struct {
		reason   string
		data     map[string]string
		settled  bool
		standing inventory.Standing
	}{
		{"an empty record is not settled", nil, false, ""},
		{"a word that nobody knows is not settled", map[string]string{stateKey: "Settled"}, false, ""},
		{"settled", map[string]string{stateKey: v1alpha1.FirstSyncSettled, whyKey: "x"}, true, ""},
		{"approved", map[string]string{stateKey: v1alpha1.FirstSyncAdopt, "fleet_a.b": "approved"}, false, inventory.Approved},
		{"a standing that nobody knows approves nothing", map[string]string{"fleet_a.b": "yes"}, false, ""},
		{"a key without a namespace is of no Cluster", map[string]string{"_a.b": "approved", "a.b": "approved"}, false, ""},
	} {
		if r := recordOf(&corev1.ConfigMap{Data: c.data}); r.settled() != c.settled || r.clusters[name] != c.standing || len(r.clusters) > 1 {
			t.Errorf("%s: %+v", c.reason, r)
		}
	}
	if got, ok := nameOf(KeyOf(name)); !ok || got != name {
		t.Errorf("the key of %s is that of %s", name, got)
	}
}

// apply does what the API server does with a merge patch.
func apply(t *testing.T, to map[string]string, patch []byte) map[string]string {
	t.Helper()
	var p struct{ Data map[string]*string }
	if err := json.Unmarshal(patch, &p); err != nil {
		t.Fatal(err)
	}
	out := maps.Clone(to)
	for k, v := range p.Data {
		if delete(out, k); v != nil {
			out[k] = *v
		}
	}
	return out
}

func TestPatches(t *testing.T) {
	before := map[string]string{stateKey: v1alpha1.FirstSyncAdopt, "n_a": "adopted", "n_b": "approved", "n_c": "moving"}
	patch, err := ApprovalPatch([]types.NamespacedName{{Namespace: "n", Name: "d"}, {Namespace: "n", Name: "c"}}, new("ann"))
	if err != nil {
		t.Fatal(err)
	}
	approved := apply(t, before, patch)
	if want := map[string]string{stateKey: v1alpha1.FirstSyncAdopt, "n_a": "adopted", "n_b": "approved", "n_c": "approved", "n_d": "approved"}; !maps.Equal(approved, want) {
		t.Errorf("after the approval: %v", approved)
	}
	if patch, err = SettlementPatch(&corev1.ConfigMap{Data: before}, "so it is", now); err != nil {
		t.Fatal(err)
	}
	if got, want := apply(t, before, patch), map[string]string{stateKey: v1alpha1.FirstSyncSettled, whyKey: "so it is", sinceKey: "2026-09-01T12:00:00Z", "n_c": "moving"}; !maps.Equal(got, want) {
		t.Errorf("after the settlement: %v", got)
	}
}

func TestMarkOf(t *testing.T) {
	for _, c := range []struct {
		reason      string
		paused      any
		annotations map[string]string
		want        inventory.Standing
	}{
		{"as usual", nil, nil, ""},
		{"paused", true, nil, inventory.LastPaused},
		{"not paused any more", false, nil, ""},
		{"paused by annotation, with no value", nil, map[string]string{"cluster.x-k8s.io/paused": ""}, inventory.LastPaused},
		{"marked for a move, which pauses as well", true, map[string]string{"clusterctl.cluster.x-k8s.io/delete-for-move": ""}, inventory.LastMoving},
		{"a confirmed deletion is no move", true, map[string]string{"cascade.dev/deletion": "confirmed"}, ""},
		{"a move of what was confirmed is", true, map[string]string{"cascade.dev/deletion": "confirmed", "clusterctl.cluster.x-k8s.io/delete-for-move": ""}, inventory.LastMoving},
		{"a field of the wrong type is no pause", "true", nil, ""},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
		if c.paused != nil {
			u.Object["spec"].(map[string]any)["paused"] = c.paused
		}
		u.SetAnnotations(c.annotations)
		if got := markOf(u); got != c.want {
			t.Errorf("%s: %q", c.reason, got)
		}
	}
}

func TestNoted(t *testing.T) {
	for _, c := range []struct {
		reason   string
		is, mark inventory.Standing
		gone     bool
		want     inventory.Standing
		change   bool
	}{
		{"nothing to note", "", "", false, "", false},
		{"it is paused", "", inventory.LastPaused, false, inventory.LastPaused, true},
		{"it still is", inventory.LastPaused, inventory.LastPaused, false, inventory.LastPaused, false},
		{"it goes on", inventory.LastPaused, "", false, "", true},
		{"it goes paused", inventory.LastPaused, inventory.LastPaused, true, inventory.LastPaused, false},
		{"it goes by a move", inventory.LastPaused, inventory.LastMoving, true, inventory.LastMoving, true},
		{"it goes as clusters go", inventory.LastPaused, "", true, "", true},
		{"what was approved is there", inventory.Approved, "", false, "", true},
		{"what was approved while it was still going", inventory.Approved, "", true, inventory.Approved, false},
		{"what was approved is moved", inventory.Approved, inventory.LastMoving, true, inventory.LastMoving, true},
	} {
		if want, change := noted(c.is, c.mark, c.gone); want != c.want || change != c.change {
			t.Errorf("%s: %q, %v", c.reason, want, change)
		}
	}
}
