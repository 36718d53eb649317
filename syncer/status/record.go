package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Store reads the objects of one kind and writes their status, for the
// reconciler of that kind. It remembers its last write of each object, which the
// cache may not have yet. It is safe for concurrent use; its fields are set
// before its first use.
type Store[T Object] struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Manager is the field manager of the writes.
	Manager string
	// New returns an empty object of the kind.
	New func() T
	// Meta returns where an object has its metadata.
	Meta func(T) *metav1.ObjectMeta
	// CopyStatus makes the status of one object that of another.
	CopyStatus func(to, from T)

	mu sync.Mutex
	// written has the resource version of the last write of each object.
	written map[types.NamespacedName]string
}

// Read returns the object as the cache has it, or as the API server has it where
// the cache lags behind the last write: the inventory or history must be the one
// that was written. It returns the API server's error NotFound as it is.
func (s *Store[T]) Read(ctx context.Context, name types.NamespacedName) (T, error) {
	obj := s.New()
	if err := s.Client.Get(ctx, name, obj); err != nil {
		return obj, err
	}
	if s.isPast(name, obj.GetResourceVersion()) {
		obj = s.New()
		return obj, s.Live.Get(ctx, name, obj)
	}
	return obj, nil
}

// isPast reports whether a version is from before the last write.
func (s *Store[T]) isPast(name types.NamespacedName, version string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.written[name]
	if last == "" || last == version {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(version, last)
	return err != nil || c < 0
}

// Forget drops what is kept for an object that is gone.
func (s *Store[T]) Forget(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, name)
}

// Record begins a reconcile of an object that Read returned.
func (s *Store[T]) Record(obj T) *Record[T] {
	return &Record[T]{Obj: obj, written: copyOf(obj), store: s}
}

// Record is one object during one reconcile. It is not safe for concurrent use.
type Record[T Object] struct {
	// Obj is the object that the reconciler works on.
	Obj T
	// written is the object as the API server has it.
	written T
	store   *Store[T]
}

// Written is the object as it was last written, or read. It must not be changed.
func (r *Record[T]) Written() T { return r.written }

// Write writes what changed of the status since the last write.
func (r *Record[T]) Write(ctx context.Context) error {
	base := r.base()
	if equality.Semantic.DeepEqual(base, r.Obj) {
		return nil
	}
	patched := copyOf(r.Obj)
	if err := Patch(ctx, r.store.Client, base, patched, r.store.Manager); err != nil {
		return err
	}
	r.take(patched)
	return nil
}

// lastWrite bounds a write after the deadline of its reconcile.
const lastWrite = 10 * time.Second

// ofItsOwn is the context of a write. A reconcile whose deadline has passed still says
// what became of it. One that was cancelled does not: another process may have taken
// the tier over.
func ofItsOwn(ctx context.Context) (context.Context, context.CancelFunc) {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
}

// aheadTries bounds how often WriteAhead begins anew because others write labels or
// annotations of the object at the same time.
const aheadTries = 5

// WriteAhead writes the status before what it tells of is done. Unlike Write it
// fails, with the API server's error Conflict, if the object was changed meanwhile: what
// is created next must be in an inventory, and of the spec that was read. A change of
// labels or annotations is no such change. An object that is gone is an error, too.
func (r *Record[T]) WriteAhead(ctx context.Context) error {
	for try := 1; ; try++ {
		patched := copyOf(r.Obj)
		patch := client.MergeFromWithOptions(r.base(), client.MergeFromWithOptimisticLock{})
		err := r.store.Client.Status().Patch(ctx, patched, patch, client.FieldOwner(r.store.Manager))
		if err == nil {
			r.take(patched)
			return nil
		}
		if apierrors.IsConflict(err) && try < aheadTries && r.catchUp(ctx) {
			continue
		}
		return fmt.Errorf("cannot write status of %s: %w", client.ObjectKeyFromObject(r.Obj), err)
	}
}

// catchUp takes over the resource version of the object as it is now, if nothing but
// metadata that does not matter to the reconcile has changed.
func (r *Record[T]) catchUp(ctx context.Context) bool {
	now := r.store.New()
	if err := r.store.Live.Get(ctx, client.ObjectKeyFromObject(r.Obj), now); err != nil {
		return false
	}
	as := copyOf(r.written)
	r.store.CopyStatus(as, now)
	if now.GetUID() != r.Obj.GetUID() || now.GetGeneration() != r.Obj.GetGeneration() ||
		now.GetDeletionTimestamp() != nil && r.Obj.GetDeletionTimestamp() == nil || !equality.Semantic.DeepEqual(as, r.written) {
		return false
	}
	r.Obj.SetResourceVersion(now.GetResourceVersion())
	r.written.SetResourceVersion(now.GetResourceVersion())
	return true
}

// WriteMetadata writes what changed of the metadata since the last write:
// finalizers and annotations. The status stays as it is in memory. It fails if the
// object was changed meanwhile and the finalizers are to be written, which replace
// those of others, or an approval taken off, which may be another one by now.
func (r *Record[T]) WriteMetadata(ctx context.Context) error {
	ctx, cancel := ofItsOwn(ctx)
	defer cancel()
	patched, base := copyOf(r.Obj), copyOf(r.written)
	base.SetResourceVersion(r.Obj.GetResourceVersion())
	r.store.CopyStatus(base, patched)
	patch := client.MergeFrom(base)
	approval := func(o T) string { return o.GetAnnotations()[v1alpha1.ApprovePruneAnnotation] }
	if !slices.Equal(base.GetFinalizers(), patched.GetFinalizers()) || approval(base) != approval(patched) {
		patch = client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	}
	if err := r.store.Client.Patch(ctx, patched, patch, client.FieldOwner(r.store.Manager)); err != nil {
		return err
	}
	before := r.written
	generation := r.Obj.GetGeneration()
	*r.store.Meta(r.Obj) = *r.store.Meta(patched).DeepCopy()
	r.Obj.SetGeneration(generation)
	r.take(patched)
	r.store.CopyStatus(r.written, before)
	return nil
}

// WriteHeld writes down what the object holds, if that changed: before the conditions
// that tell of it. What no condition tells of is not held any more, but for a hand-over that
// is overdue, whose time stays on record, and for what goes later by itself: these have none. An object that is gone holds nothing.
func (r *Record[T]) WriteHeld(ctx context.Context, held v1alpha1.Held) error {
	if !meta.IsStatusConditionTrue(r.Obj.GetConditions(), v1alpha1.PruneBlockedCondition) {
		held.Prune = nil
	}
	if !meta.IsStatusConditionTrue(r.Obj.GetConditions(), v1alpha1.CreateHeldCondition) &&
		!meta.IsStatusConditionTrue(r.Obj.GetConditions(), v1alpha1.ManagedElsewhereCondition) {
		held.Create = nil
	}
	if !v1alpha1.SetHeld(r.Obj, held) {
		return nil
	}
	return client.IgnoreNotFound(r.WriteMetadata(ctx))
}

// base is what a patch of the status is made against: nothing but the status
// differs from the object.
func (r *Record[T]) base() T {
	base := copyOf(r.Obj)
	r.store.CopyStatus(base, r.written)
	return base
}

// take takes in the answer to a write: nothing but the resource version. A
// reconcile goes on with the spec that it began with, whatever has become of it.
func (r *Record[T]) take(answer T) {
	r.Obj.SetResourceVersion(answer.GetResourceVersion())
	r.written = copyOf(r.Obj)
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.store.written == nil {
		r.store.written = map[types.NamespacedName]string{}
	}
	r.store.written[client.ObjectKeyFromObject(r.Obj)] = r.Obj.GetResourceVersion()
}

func copyOf[T Object](obj T) T { return obj.DeepCopyObject().(T) }
