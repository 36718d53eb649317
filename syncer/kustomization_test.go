package syncer

import (
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestWriteKeepsSpec: a write in the middle of a reconcile does not change what
// is applied, and what is recorded ahead must be recorded.
func TestWriteKeepsSpec(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := &kustomizev1.Kustomization{}
	stored.Namespace, stored.Name, stored.Generation, stored.Spec.Path = "x", "a", 2, "./new"
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).Build()
	r := &Kustomizations{Client: c, known: map[types.NamespacedName]*progress{}}
	obj := stored.DeepCopy()
	obj.Generation, obj.Spec.Path = 1, "./old"
	before := obj.DeepCopy()
	progressing(obj, "x")
	if err := r.write(t.Context(), before, obj); err != nil {
		t.Fatal(err)
	}
	if obj.Generation != 1 || obj.Spec.Path != "./old" {
		t.Errorf("the write changed what is applied: generation %d, path %s", obj.Generation, obj.Spec.Path)
	}
	if obj.ResourceVersion == before.ResourceVersion {
		t.Error("the write's resource version is not known")
	}
	gone := &run{obj: obj.DeepCopy(), written: obj.DeepCopy()}
	gone.obj.Name = "gone"
	gone.obj.Status.Inventory = refs(nil)
	if err := r.record(t.Context(), gone); err == nil {
		t.Error("the inventory of a Kustomization that is gone counts as recorded")
	}
	late := &run{obj: obj.DeepCopy(), written: obj.DeepCopy()}
	late.obj.ResourceVersion = "1"
	late.obj.Status.Inventory = refs(nil)
	if err := r.record(t.Context(), late); err == nil {
		t.Error("the inventory for a spec that was changed meanwhile counts as recorded")
	}
}
