package apply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/ssa"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// TestExact: a JSON patch of Flux's library does not undo what somebody wrote since the
// library read the object. Other patches pass as they are.
func TestExact(t *testing.T) {
	stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a"}, Data: map[string]string{"k": "v"}}
	plain := fake.NewClientBuilder().WithObjects(stored).Build()
	read := &corev1.ConfigMap{}
	if err := plain.Get(t.Context(), client.ObjectKeyFromObject(stored), read); err != nil {
		t.Fatal(err)
	}
	replace := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/data","value":{"k":"w"}}]`))
	if err := (exact{Client: plain}).Patch(t.Context(), read.DeepCopy(), replace); err != nil {
		t.Fatalf("nobody wrote since: %v", err)
	}
	err := (exact{Client: plain}).Patch(t.Context(), read.DeepCopy(), replace)
	if !apierrors.IsConflict(err) {
		t.Errorf("somebody wrote since: %v, want a conflict", err)
	}
	merge := client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"x"}}`))
	if err := (exact{Client: plain}).Patch(t.Context(), read.DeepCopy(), merge); err != nil {
		t.Errorf("a merge patch: %v", err)
	}
}

// TestKept: what a person stops by kubectl stays so, unless it is declared; what else he changed is
// taken over as ever (read 233).
func TestKept(t *testing.T) {
	cluster := func(spec, rest string) *unstructured.Unstructured {
		return parsed(t, "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: a, namespace: x, "+rest+"}\nspec: {"+spec+"}")
	}
	for name, tc := range map[string]struct {
		reason            string
		declared, changed *unstructured.Unstructured
		spec              string
		annotated         bool
	}{
		"Alone":     {"nothing else was changed", cluster("size: 1", ""), cluster("size: 1, paused: true", ""), "map[paused:true size:1]", false},
		"Mixed":     {"the rest is taken over", cluster("size: 1", ""), cluster("size: 2, extra: 3, paused: true", "annotations: {cluster.x-k8s.io/paused: \"\", other: b}"), "map[paused:true size:1]", true},
		"Declared":  {"what is declared counts", cluster("size: 1, paused: false", ""), cluster("size: 1, paused: true", ""), "map[paused:false size:1]", false},
		"Annotated": {"by the annotation", cluster("size: 1", ""), cluster("size: 1", "annotations: {cluster.x-k8s.io/paused: \"\"}"), "map[size:1]", true},
	} {
		t.Run(name, func(t *testing.T) {
			plain := fake.NewClientBuilder().WithReturnManagedFields().Build()
			a := &Applier{owner: apps, client: &Cluster{Client: plain, parallel: 1}}
			options := ssa.DefaultApplyOptions()
			options.Cleanup = observed.NewReader(nil).Cleanup()
			apply := func() {
				t.Helper()
				if _, err := a.library(tc.declared).ApplyAll(t.Context(), []*unstructured.Unstructured{tc.declared.DeepCopy()}, options); err != nil {
					t.Fatal(err)
				}
			}
			apply()
			live := tc.declared.DeepCopy()
			if err := plain.Get(t.Context(), client.ObjectKeyFromObject(live), live); err != nil {
				t.Fatal(err)
			}
			live.Object["spec"] = tc.changed.Object["spec"]
			live.SetAnnotations(tc.changed.GetAnnotations())
			if err := plain.Update(t.Context(), live, client.FieldOwner("kubectl-edit")); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				apply()
			}
			if err := plain.Get(t.Context(), client.ObjectKeyFromObject(live), live); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(live.Object["spec"]); got != tc.spec || clusterapi.IsPaused(live) != (tc.annotated || strings.Contains(tc.spec, "true")) || live.GetAnnotations()["other"] != "" {
				t.Errorf("%s: %s, want %s; annotations %v, managed by %v", tc.reason, got, tc.spec, live.GetAnnotations(), live.GetManagedFields())
			}
		})
	}
}
