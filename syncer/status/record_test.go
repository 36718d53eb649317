package status

import (
	"context"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// storeOf returns a store of Kustomizations over a client that has one, and the
// client.
func storeOf(t *testing.T, stored *kustomizev1.Kustomization, funcs interceptor.Funcs) (*Store[*kustomizev1.Kustomization], client.WithWatch) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored).WithStatusSubresource(stored).WithInterceptorFuncs(funcs).Build()
	return &Store[*kustomizev1.Kustomization]{
		Client: c, Live: c, Manager: KustomizationManager,
		New:        func() *kustomizev1.Kustomization { return &kustomizev1.Kustomization{} },
		Meta:       func(o *kustomizev1.Kustomization) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *kustomizev1.Kustomization) { to.Status = *from.Status.DeepCopy() },
	}, c
}

// TestWriteKeepsSpec: a write in the middle of a reconcile does not change what
// is applied, and what is recorded ahead must be recorded.
func TestWriteKeepsSpec(t *testing.T) {
	stored := &kustomizev1.Kustomization{}
	stored.Namespace, stored.Name, stored.Generation, stored.Spec.Path = "x", "a", 2, "./new"
	store, _ := storeOf(t, stored, interceptor.Funcs{})
	obj := stored.DeepCopy()
	obj.Generation, obj.Spec.Path = 1, "./old"
	before := obj.DeepCopy()
	record := store.Record(obj)
	MarkProgressing(obj, "x")
	if err := record.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if obj.Generation != 1 || obj.Spec.Path != "./old" {
		t.Errorf("the write changed what is applied: generation %d, path %s", obj.Generation, obj.Spec.Path)
	}
	if obj.ResourceVersion == before.ResourceVersion {
		t.Error("the write's resource version is not known")
	}
	gone := store.Record(obj.DeepCopy())
	gone.Obj.Name = "gone"
	gone.Obj.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{}}
	if err := gone.WriteAhead(t.Context()); err == nil {
		t.Error("the inventory of a Kustomization that is gone counts as recorded")
	}
	late := store.Record(obj.DeepCopy())
	late.Obj.ResourceVersion = "1"
	late.Obj.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{}}
	if err := late.WriteAhead(t.Context()); err == nil {
		t.Error("the inventory for a spec that was changed meanwhile counts as recorded")
	}
}

// TestWriteAfterDeadline: a reconcile that ran out of time says so. One that was cancelled
// writes nothing: another process may have the tier by now.
func TestWriteAfterDeadline(t *testing.T) {
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx    context.Context
		writes bool
	}{"Late": {late, true}, "Cancelled": {cancelled, false}} {
		t.Run(name, func(t *testing.T) {
			stored := &kustomizev1.Kustomization{}
			stored.Namespace, stored.Name = "x", "a"
			store, c := storeOf(t, stored, interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					if err := ctx.Err(); err != nil {
						return err
					}
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				},
			})
			obj, err := store.Read(t.Context(), types.NamespacedName{Namespace: "x", Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			record := store.Record(obj)
			MarkFailing(record.Obj, "HealthCheckFailed", context.DeadlineExceeded)
			err = record.Write(tc.ctx)
			now := &kustomizev1.Kustomization{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "x", Name: "a"}, now); err != nil {
				t.Fatal(err)
			}
			if wrote := len(now.Status.Conditions) > 0; wrote != tc.writes || (err == nil) != tc.writes {
				t.Errorf("wrote %t: %v", wrote, err)
			}
		})
	}
}

// TestWriteAheadOfOthers: another writer's label is no reason not to write ahead, and
// another writer's status or spec is.
func TestWriteAheadOfOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		writes bool
	}{
		"Label":  {"kubectl label says nothing about what is applied", func(k *kustomizev1.Kustomization) { k.Labels = map[string]string{"a": "b"} }, true},
		"Status": {"the inventory may be another one", func(k *kustomizev1.Kustomization) { k.Status.LastAppliedRevision = "other" }, false},
		"Spec":   {"something else is to be applied", func(k *kustomizev1.Kustomization) { k.Generation++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			stored := &kustomizev1.Kustomization{}
			stored.Namespace, stored.Name = "x", "a"
			store, c := storeOf(t, stored, interceptor.Funcs{})
			obj, err := store.Read(t.Context(), types.NamespacedName{Namespace: "x", Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			other := obj.DeepCopy()
			tc.change(other)
			if err := c.Update(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			tc.change(other) // which the write of the spec took back
			if err := c.Status().Update(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			record := store.Record(obj)
			record.Obj.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "x_a__ConfigMap", Version: "v1"}}}
			if err := record.WriteAhead(t.Context()); (err == nil) != tc.writes || err != nil && !apierrors.IsConflict(err) {
				t.Errorf("%s: WriteAhead() = %v", tc.reason, err)
			}
		})
	}
}

// TestRecord tries the step that records: what is written of an object, and when
// nothing is.
func TestRecord(t *testing.T) {
	type record = Record[*kustomizev1.Kustomization]
	for name, tc := range map[string]struct {
		reason           string
		do               func(*record) error
		statuses, writes int
	}{
		"Same": {"a status that did not change is not written", func(r *record) error { return r.Write(t.Context()) }, 0, 0},
		"Once": {"what was written is not written again", func(r *record) error {
			MarkProgressing(r.Obj, "x")
			if err := r.Write(t.Context()); err != nil {
				return err
			}
			return r.Write(t.Context())
		}, 1, 0},
		"Ahead": {"the inventory ahead, the rest at the end", func(r *record) error {
			r.Obj.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "x_a__ConfigMap", Version: "v1"}}}
			if err := r.WriteAhead(t.Context()); err != nil {
				return err
			}
			MarkReady(r.Obj, "ReconciliationSucceeded", "done")
			return r.Write(t.Context())
		}, 2, 0},
		"Annotation": {"metadata goes by a write of its own and leaves the status in memory alone", func(r *record) error {
			MarkProgressing(r.Obj, "x")
			r.Obj.Annotations = map[string]string{"cascade.dev/target": "{}"}
			if err := r.WriteMetadata(t.Context()); err != nil {
				return err
			}
			if len(r.Obj.Status.Conditions) == 0 {
				t.Error("the status in memory is lost")
			}
			return r.Write(t.Context())
		}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			statuses, writes := 0, 0
			stored := &kustomizev1.Kustomization{}
			stored.Namespace, stored.Name = "x", "a"
			store, c := storeOf(t, stored, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
					writes++
					return c.Patch(ctx, obj, patch, opts...)
				},
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
					statuses++
					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				},
			})
			obj, err := store.Read(t.Context(), types.NamespacedName{Namespace: "x", Name: "a"})
			if err != nil {
				t.Fatal(err)
			}
			if err := tc.do(store.Record(obj)); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if statuses != tc.statuses || writes != tc.writes {
				t.Errorf("%s: %d writes of status and %d others, want %d and %d", tc.reason, statuses, writes, tc.statuses, tc.writes)
			}
			got := &kustomizev1.Kustomization{}
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "x", Name: "a"}, got); err != nil {
				t.Fatal(err)
			}
			if got.ResourceVersion != obj.ResourceVersion {
				t.Errorf("%s: the record is at version %s, the object at %s", tc.reason, obj.ResourceVersion, got.ResourceVersion)
			}
		})
	}
}

// TestFinalizersOfOthers: finalizers are a list, which a patch replaces; one that
// somebody else added meanwhile must not be lost.
func TestFinalizersOfOthers(t *testing.T) {
	stored := &kustomizev1.Kustomization{}
	stored.Namespace, stored.Name = "x", "a"
	store, c := storeOf(t, stored, interceptor.Funcs{})
	name := types.NamespacedName{Namespace: "x", Name: "a"}
	obj, err := store.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	other := obj.DeepCopy()
	other.Finalizers = []string{"example.com/other"}
	if err := c.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	record := store.Record(obj)
	obj.Finalizers = []string{kustomizev1.KustomizationFinalizer}
	if err := record.WriteMetadata(t.Context()); err == nil {
		t.Error("a finalizer was written over that of somebody else")
	}
}

// TestReadPastOwnWrite: the object is read from the API server while the cache
// lags behind the last write, and from the cache otherwise.
func TestReadPastOwnWrite(t *testing.T) {
	stored := &kustomizev1.Kustomization{}
	stored.Namespace, stored.Name = "x", "a"
	store, live := storeOf(t, stored, interceptor.Funcs{})
	name := types.NamespacedName{Namespace: "x", Name: "a"}
	obj, err := store.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	stale := obj.DeepCopy()
	MarkReady(obj, "ReconciliationSucceeded", "done")
	if err := store.Record(stale.DeepCopy()).Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	record := store.Record(stale.DeepCopy())
	MarkReady(record.Obj, "ReconciliationSucceeded", "done")
	if err := record.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.Client = fake.NewClientBuilder().WithScheme(live.Scheme()).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			stale.DeepCopyInto(obj.(*kustomizev1.Kustomization))
			return nil
		},
	}).Build()
	got, err := store.Read(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Conditions) == 0 {
		t.Error("the object is of before our own write")
	}
	store.Forget(name)
	if got, err := store.Read(t.Context(), name); err != nil || len(got.Status.Conditions) > 0 {
		t.Errorf("the cache is not asked: %v, %v", got.Status.Conditions, err)
	}
}

func TestIsPast(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		written, read string
		want          bool
	}{
		"Never written": {"nothing of ours can be missing", "", "5", false},
		"Same":          {"the cache has our write", "5", "5", false},
		"Later":         {"somebody wrote after us", "5", "6", false},
		"Longer":        {"versions are numbers, not texts", "9", "10", false},
		"Earlier":       {"the cache lags behind", "10", "9", true},
		"Unknown form":  {"what cannot be compared is read from the API server", "10", "x", true},
	} {
		t.Run(name, func(t *testing.T) {
			name := types.NamespacedName{Namespace: "x", Name: "a"}
			s := &Store[*kustomizev1.Kustomization]{written: map[types.NamespacedName]string{name: tc.written}}
			if got := s.isPast(name, tc.read); got != tc.want {
				t.Errorf("%s: isPast() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}
