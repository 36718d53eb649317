package remote

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// decodedChild is a Child as a watch shows it.
func decodedChild(t *testing.T, n int) *v1alpha1.Child {
	t.Helper()
	c := &v1alpha1.Child{}
	c.Name = fmt.Sprintf("tenant-%d", n)
	c.Status.Version = "v1.36.0"
	for i := range 10 {
		digest := fmt.Sprintf("sha256:%060d%04d", n, i)
		c.Status.Layers = append(c.Status.Layers, v1alpha1.ChildLayer{
			Name: fmt.Sprintf("layer-%d", i), Ready: true, Reason: v1alpha1.ReasonSucceeded,
			Revision: fmt.Sprintf("main@sha1:%040d", i), LastAttemptedRevision: fmt.Sprintf("main@sha1:%040d", i),
			Digest: digest, LastAttemptedDigest: digest, DeletionPolicy: v1alpha1.DeletionOrphan,
		})
	}
	for _, of := range []string{v1alpha1.ReadyCondition, v1alpha1.ConnectedCondition, v1alpha1.SeededCondition} {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: of, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, Message: "10 of 10 layers are in place"})
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	into := &v1alpha1.Child{}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// TestCached: a Child that a cache keeps is what was decoded, and takes half of the memory.
func TestCached(t *testing.T) {
	const many = 500
	keeps := func(transform func(any) (any, error)) (kept []*v1alpha1.Child, each uint64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for n := range many {
			o, err := transform(decodedChild(t, n))
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, o.(*v1alpha1.Child))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		return kept, (after.HeapAlloc - before.HeapAlloc) / many
	}
	want, plain := keeps(func(o any) (any, error) { return o, nil })
	got, each := keeps(Cached())
	if each > plain*6/10 {
		t.Errorf("a Child takes %d bytes, %d as it was decoded", each, plain)
	}
	for i := range want {
		if diff := cmp.Diff(want[i], got[i]); diff != "" {
			t.Fatalf("-decoded, +kept:\n%s", diff)
		}
	}
	t.Logf("%d bytes instead of %d", each, plain)
}

// TestCachedOthers: what has no texts in common, or is no Child, is kept as it is.
func TestCachedOthers(t *testing.T) {
	transform := Cached()
	for _, o := range []any{&v1alpha1.Layer{}, &v1alpha1.Child{}, "gone"} {
		if got, err := transform(o); err != nil || got != o {
			t.Errorf("%v became %v, %v", o, got, err)
		}
	}
	managed := &v1alpha1.Child{}
	managed.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "cascade"}}
	if _, err := transform(managed); err != nil || managed.ManagedFields != nil {
		t.Errorf("managed fields are kept: %v, %v", managed.ManagedFields, err)
	}
	declared := &v1alpha1.Child{Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "alpha"}}}
	declared.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "fleet"}
	declared.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kustomize-controller"}, {Manager: "cascade", Subresource: "status"}}
	if _, err := transform(declared); err != nil || len(declared.ManagedFields) != 1 || declared.ManagedFields[0].Manager != "kustomize-controller" {
		t.Errorf("whose the labels are of a Child that somebody declares is not known: %v, %v", declared.ManagedFields, err)
	}
}
