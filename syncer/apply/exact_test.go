package apply

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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
	if err := (exact{plain}).Patch(t.Context(), read.DeepCopy(), replace); err != nil {
		t.Fatalf("nobody wrote since: %v", err)
	}
	err := (exact{plain}).Patch(t.Context(), read.DeepCopy(), replace)
	if !apierrors.IsConflict(err) {
		t.Errorf("somebody wrote since: %v, want a conflict", err)
	}
	merge := client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"x"}}`))
	if err := (exact{plain}).Patch(t.Context(), read.DeepCopy(), merge); err != nil {
		t.Errorf("a merge patch: %v", err)
	}
}
