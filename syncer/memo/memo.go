package memo

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// Memo remembers what is clean in one cluster. It is safe for concurrent use, and
// Start owns its goroutines. The nil Memo and the zero Memo know nothing.
type Memo struct {
	label, group string
	// polled: nothing is watched.
	polled  bool
	now     func() time.Time
	records records
	watches watches
}

// Object names an object of a cluster.
type Object struct {
	Kind schema.GroupKind
	Name types.NamespacedName
}

// New returns a Memo for the objects that carry <group>/name as owner label.
// Until Start is called it remembers nothing.
func New(r *observed.Reader, group string, now func() time.Time) *Memo {
	m := &Memo{label: group + "/name", group: group, now: now}
	m.records.init(r, now)
	m.watches.init(r, m.label, &m.records)
	return m
}

// Label is the owner label by which objects are watched.
func (m *Memo) Label() string { return m.label }

// Watches reports whether the memo tells of changes by itself.
func (m *Memo) Watches() bool { return m != nil && !m.polled }

// Now is the time of the memo's clock.
func (m *Memo) Now() time.Time { return m.now() }

// OnTouch sets the function that is told of an owner when one of its objects
// changed; dirty, if the change touched what was applied. It must not block.
// It is called before Start.
func (m *Memo) OnTouch(f func(owner types.NamespacedName, object inventory.Entry, dirty bool)) {
	m.records.onTouch = f
}

// Start watches until the context ends and returns when all of its goroutines
// have. It implements controller-runtime's Runnable.
func (m *Memo) Start(ctx context.Context) error {
	m.watches.run(ctx)
	return nil
}

// Watch makes sure that a kind is watched and waits for the first list. It
// reports whether what the watch shows can be relied upon. All versions of a kind have
// one watch, in the preferred one; when the API server drops that version, the watch
// goes on in the one that is declared.
func (m *Memo) Watch(ctx context.Context, gk schema.GroupKind, preferred, declared schema.GroupVersionResource) bool {
	return m != nil && !m.polled && m.watches.watch(ctx, gk, preferred, declared)
}

// Live returns what the watch shows of an object; nil if it shows nothing.
func (m *Memo) Live(o Object) *observed.Object {
	if m == nil {
		return nil
	}
	return m.records.live(o)
}

// Matches reports whether an object is known to be in the cluster as desired.
func (m *Memo) Matches(o Object, owner types.NamespacedName, desired digest.Short) bool {
	return m != nil && m.records.matches(o, owner, desired)
}

// Applied reports whether the object was applied by this process in just this
// form, whatever has become of it since.
func (m *Memo) Applied(o Object, owner types.NamespacedName, desired digest.Short) bool {
	return m != nil && m.records.applied(o, owner, desired)
}

// Skip notes that an object is not applied: a person exempts it in the cluster or, if it
// is to be applied once, it is there. It reports whether the watch will show the end of
// that. What the watch does not show is not remembered.
func (m *Memo) Skip(o Object, owner types.NamespacedName, desired digest.Short, once bool) bool {
	if m == nil {
		return false
	}
	if !m.polled && m.records.skip(o, owner, desired, once) {
		return true
	}
	m.records.dropObject(o, owner)
	return false
}

// Skips reports whether an object is known to be one that is not applied.
func (m *Memo) Skips(o Object, owner types.NamespacedName, desired digest.Short) bool {
	return m != nil && m.records.skips(o, owner, desired)
}

// Begin notes that a request to apply an object is under way, until Remember or
// Abandon.
func (m *Memo) Begin(o Object) {
	if m != nil {
		m.records.begin(o)
	}
}

// Remember records the answer to an apply, and reports whether the watch will show what
// happens to the object: a webhook may have taken the owner label off. Kinds that are
// not watched are not remembered.
func (m *Memo) Remember(o Object, owner types.NamespacedName, desired digest.Short, asked *unstructured.Unstructured, got *metav1.PartialObjectMetadata) bool {
	if m == nil {
		return false
	}
	if got.Labels[m.label] == "" {
		m.records.dropObject(o, owner)
		return false
	}
	m.records.remember(o, owner, desired, asked, got)
	return true
}

// Abandon ends what Begin began for an owner without an answer that could be remembered:
// nobody knows whether the request had an effect. The owner tries again by itself; another
// one that had applied the object is told.
func (m *Memo) Abandon(o Object, owner types.NamespacedName) {
	if m != nil {
		m.records.abandon(o, owner)
	}
}

// SetReady notes that an object of an early stage may be built upon.
func (m *Memo) SetReady(o Object) {
	if m != nil {
		m.records.setReady(o)
	}
}

// Ready reports whether SetReady was called for an object that was not touched
// since.
func (m *Memo) Ready(o Object) bool { return m != nil && m.records.ready(o) }

// Drop forgets what is remembered of an object, so that what an owner does to it is no
// longer told to that owner. Others that had applied it are told.
func (m *Memo) Drop(o Object, owner types.NamespacedName) {
	if m != nil {
		m.records.dropObject(o, owner)
	}
}

// Doubt makes objects of an owner unclean, so that they are applied again, and returns how
// many of them were clean. What is not applied is not doubted.
func (m *Memo) Doubt(owner types.NamespacedName, objects []inventory.Entry) int {
	if m == nil {
		return 0
	}
	return m.records.doubt(owner, objects)
}

// DoubtAll has everything that is remembered of an owner's objects verified anew with the
// next apply. Until then their changes are told as before: a Forget would lose those.
func (m *Memo) DoubtAll(owner types.NamespacedName) {
	if m != nil {
		m.records.doubtAll(owner)
	}
}

// Applies lists what of an owner is applied again when it is doubted.
func (m *Memo) Applies(owner types.NamespacedName) []inventory.Entry {
	if m == nil {
		return nil
	}
	return m.records.listed(owner, func(v *verified) bool { return !v.skipped })
}

// Retain forgets what an owner does not declare any more.
func (m *Memo) Retain(owner types.NamespacedName, declared []inventory.Entry) {
	if m != nil {
		m.records.retain(owner, declared)
	}
}

// Forget drops everything that is remembered of an owner's objects: they are
// verified anew with the next apply.
func (m *Memo) Forget(owner types.NamespacedName) {
	if m != nil {
		m.records.forget(owner)
	}
}

// Owned lists what is remembered of an owner: objects that this process applied
// for it, in the memo's cluster.
func (m *Memo) Owned(owner types.NamespacedName) []inventory.Entry {
	if m == nil {
		return nil
	}
	return m.records.owned(owner)
}

// Clean reports whether n objects of an owner are remembered and all of them
// are as they were applied.
func (m *Memo) Clean(owner types.NamespacedName, n int) bool {
	return m != nil && m.records.clean(owner, n)
}
