package memo

import (
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// unusedKind is how long a kind of which nothing is remembered any more is
// still watched.
const unusedKind = 10 * time.Minute

// records compares what was asked for of objects with what the watch shows of
// them. The zero value has none.
type records struct {
	reader  *observed.Reader
	now     func() time.Time
	onTouch func(owner types.NamespacedName, object inventory.Entry, dirty bool)

	mu sync.Mutex // guards kinds, owners and taken, and everything in them
	// kinds are those that are watched.
	kinds  map[schema.GroupKind]*kind
	owners map[types.NamespacedName]*owner
	// taken are objects that other owners took from each.
	taken map[types.NamespacedName]map[Object][]taken
}

// kind is a kind that is watched. All fields but group are guarded by the lock of
// records.
type kind struct {
	group    schema.GroupKind
	resource schema.GroupVersionResource
	objects  map[types.NamespacedName]*record
	// seen is the newest version that the watch has shown.
	seen string
	// refused: the API server does not serve the watch any more.
	refused bool
	// unused is since when nothing of the kind is remembered; zero while
	// something is.
	unused time.Time
}

// record of one object. live is nil while the watch does not show it.
type record struct {
	live *observed.Object
	// verified is nil unless the object was applied by this process.
	verified *verified
	// applying: a request of ours is under way. What the watch shows meanwhile may
	// be our own doing, and is judged when the answer is there: the last of it is
	// meanwhile, nil if there was nothing, or the object went.
	applying  bool
	meanwhile *metav1.PartialObjectMetadata
}

// verified is an object as the API server answered when it was applied.
type verified struct {
	owner      types.NamespacedName
	desired    digest.Short
	uid        types.UID
	version    string
	generation int64
	// written is who manages which fields, of an object without a generation.
	written uint64
	// keys are the labels and annotations that were asked for, values the digest
	// of the values that they had in the answer.
	keys   digest.Keys
	values uint64
	ready  bool
	dirty  bool
	// skipped: the object was not applied, because a person exempts it in the cluster or,
	// if it is once, because it is there.
	skipped, once bool
	// displaced is another owner that had applied the object before, nil if there is
	// none. It is told when this one lets go of the object.
	displaced *types.NamespacedName
}

// owner is what is known of the objects of one owner. dirty counts those that
// were touched.
type owner struct {
	objects map[Object]struct{}
	dirty   int
}

// touch is a change of an object of an owner. dirty: it touched what was applied.
type touch struct {
	owner  types.NamespacedName
	object inventory.Entry
	dirty  bool
}

func (r *records) init(reader *observed.Reader, now func() time.Time) {
	r.reader, r.now = reader, now
	r.kinds, r.owners = map[schema.GroupKind]*kind{}, map[types.NamespacedName]*owner{}
	r.taken = map[types.NamespacedName]map[Object][]taken{}
}

// tell tells the listener of touches. The lock is not held.
func (r *records) tell(touches ...touch) {
	if r.onTouch == nil {
		return
	}
	for _, t := range touches {
		r.onTouch(t.owner, t.object, t.dirty)
	}
}

// open adds a kind that is watched from now on.
func (r *records) open(gk schema.GroupKind, resource schema.GroupVersionResource) *kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &kind{group: gk, resource: resource, objects: map[types.NamespacedName]*record{}}
	r.kinds[gk] = k
	return k
}

// movesTo reports whether the watch of a kind is to begin anew in another version: the
// API server does not serve the one that it is in. What was verified has to be verified
// again, because nobody knows what happened meanwhile.
func (r *records) movesTo(k *kind, resource schema.GroupVersionResource) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !k.refused || k.resource == resource {
		return false
	}
	k.resource, k.refused = resource, false
	for _, o := range k.objects {
		o.live = nil
		if o.verified != nil {
			r.taint(o.verified)
		}
	}
	return true
}

// dropUnused forgets a kind of which nothing was remembered for a while, and
// reports whether it did.
func (r *records) dropUnused(k *kind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range k.objects {
		if o.verified != nil {
			k.unused = time.Time{}
			return false
		}
	}
	switch now := r.now(); {
	case k.unused.IsZero():
		k.unused = now
	case now.Sub(k.unused) > unusedKind:
		delete(r.kinds, k.group)
		return true
	}
	return false
}

// setRefused notes whether the API server serves the watch of a kind. The owners of its
// objects are told when it does not any more: nobody would notice what happens to these.
func (r *records) setRefused(k *kind, refused bool) {
	r.mu.Lock()
	var told []touch
	if refused && !k.refused {
		for name, o := range k.objects {
			if o.verified != nil {
				r.taint(o.verified)
				told = append(told, touch{o.verified.owner, k.entry(name), true})
			}
		}
	}
	k.refused = refused
	r.mu.Unlock()
	r.tell(told...)
}

func (r *records) isRefused(k *kind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return k.refused
}

// record returns the record of an object; nil if there is none. The lock is held.
func (r *records) record(o Object) *record {
	if k := r.kinds[o.Kind]; k != nil {
		return k.objects[o.Name]
	}
	return nil
}

// verified returns what was verified of an object; nil if nothing was. The lock
// is held.
func (r *records) verified(o Object) *verified {
	if known := r.record(o); known != nil {
		return known.verified
	}
	return nil
}

func (r *records) live(o Object) *observed.Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.record(o); known != nil {
		return known.live
	}
	return nil
}

func (r *records) matches(o Object, owner types.NamespacedName, desired digest.Short) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.verified(o)
	return v != nil && !v.skipped && r.holds(o, v, owner, desired)
}

// holds reports whether what is known of an object is of this owner and form, and nothing
// touched it. The lock is held.
func (r *records) holds(o Object, v *verified, owner types.NamespacedName, desired digest.Short) bool {
	return !v.dirty && v.desired == desired && v.owner == owner && !r.kinds[o.Kind].refused
}

func (r *records) applied(o Object, owner types.NamespacedName, desired digest.Short) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.verified(o)
	return v != nil && !v.skipped && v.desired == desired && v.owner == owner
}

func (r *records) skips(o Object, owner types.NamespacedName, desired digest.Short) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.verified(o)
	return v != nil && v.skipped && r.holds(o, v, owner, desired)
}

// skip notes that an object is not applied, and reports whether the watch shows why.
func (r *records) skip(o Object, by types.NamespacedName, desired digest.Short, once bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.record(o)
	if known == nil || known.live == nil || !once && !known.live.Skip {
		return false
	}
	v := &verified{owner: by, desired: desired, uid: known.live.UID, version: known.live.Version, skipped: true, once: once}
	v.displaces(known.verified)
	r.disown(o, known)
	r.own(o, known, v)
	return true
}

// displaces takes over who is to be told when this owner lets go of the object.
func (v *verified) displaces(before *verified) {
	switch {
	case before == nil:
	case before.owner != v.owner:
		v.displaced = &before.owner
	default:
		v.displaced = before.displaced
	}
}

func (r *records) begin(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kinds[o.Kind]
	if k == nil {
		return
	}
	if k.objects[o.Name] == nil {
		k.objects[o.Name] = &record{}
	}
	k.objects[o.Name].applying = true
}

func (r *records) abandon(o Object, by types.NamespacedName) {
	if other := r.abandonLocking(o, by); other != nil {
		r.tell(*other)
	}
}

// abandonLocking returns what is to be told.
func (r *records) abandonLocking(o Object, by types.NamespacedName) *touch {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.record(o)
	if known == nil {
		return nil
	}
	known.applying, known.meanwhile = false, nil
	switch v := known.verified; {
	case v != nil:
		// What the watch showed meanwhile was not judged, and what it shows from now on is
		// no news of what is dirty already.
		news := !v.dirty && v.owner != by
		r.taint(v)
		if news {
			return &touch{v.owner, r.kinds[o.Kind].entry(o.Name), true}
		}
	case known.live == nil:
		delete(r.kinds[o.Kind].objects, o.Name)
	}
	return nil
}

func (r *records) remember(o Object, by types.NamespacedName, desired digest.Short, asked *unstructured.Unstructured, got *metav1.PartialObjectMetadata) {
	keys := digest.KeysOf(asked)
	v := &verified{
		owner: by, desired: desired, uid: got.UID, version: got.ResourceVersion, generation: observed.Generation(o.Kind, got),
		keys: keys, values: keys.Values(got.Labels, got.Annotations),
	}
	if v.generation == 0 {
		v.written = observed.Written(got)
	}
	if touched, dirty := r.rememberLocking(o, v, r.reader.Of(got)); touched {
		r.tell(touch{by, entryOf(o), dirty})
	}
}

// entryOf is an object without a version.
func entryOf(o Object) inventory.Entry {
	return inventory.Entry{Namespace: o.Name.Namespace, Name: o.Name.Name, Group: o.Kind.Group, Kind: o.Kind.Kind}
}

// rememberLocking reports whether the object was touched already, and whether it is not as
// it was applied because of that.
func (r *records) rememberLocking(o Object, v *verified, answer *observed.Object) (touched, dirty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.kinds[o.Kind]
	if k == nil {
		return false, false
	}
	known := k.objects[o.Name]
	if known == nil {
		known = &record{}
		k.objects[o.Name] = known
	}
	// Who leaves an object as it is takes it from nobody.
	if was := known.verified; was != nil && was.owner != v.owner && !was.skipped {
		r.take(o, was.owner, v.owner)
	}
	v.displaces(known.verified)
	r.disown(o, known)
	known.applying = false
	// Something may have happened to the object between the answer and now: the
	// watch has shown a later version, or has come past this one and shows nothing.
	switch {
	case answer.Deleting:
		// A finalizer may hold it for long, and another look before it is gone comes to the same: the
		// watch tells of that, unless it was there already.
		v.dirty = true
		touched = k.seen != "" && (known.live == nil || known.live.UID != v.uid) && newer(k.seen, v.version)
	case answer.Skip, answer.Foreign:
		v.dirty, touched = true, true
	case known.live != nil:
		// Controllers write status as soon as they see a change.
		if newer(known.live.Version, v.version) {
			v.dirty = known.meanwhile == nil || v.differs(o.Kind, known.live, known.meanwhile)
			v.version, touched = known.live.Version, true
		}
	default:
		v.dirty = k.seen != "" && newer(k.seen, v.version)
		touched = v.dirty
	}
	known.meanwhile = nil
	r.own(o, known, v)
	return touched, v.dirty
}

// own gives an object that has no owner to one. The lock is held.
func (r *records) own(o Object, known *record, v *verified) {
	known.verified = v
	by := r.owners[v.owner]
	if by == nil {
		by = &owner{objects: map[Object]struct{}{}}
		r.owners[v.owner] = by
	}
	by.objects[o] = struct{}{}
	if v.dirty {
		by.dirty++
	}
}

// disown takes an object away from its owner. The lock is held.
func (r *records) disown(o Object, known *record) {
	v := known.verified
	if v == nil {
		return
	}
	if by := r.owners[v.owner]; by != nil {
		if v.dirty {
			by.dirty--
		}
		if delete(by.objects, o); len(by.objects) == 0 {
			delete(r.owners, v.owner)
		}
	}
	known.verified = nil
}

func (r *records) setReady(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.verified(o); v != nil {
		v.ready = true
	}
}

func (r *records) ready(o Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.verified(o)
	return v != nil && v.ready && !v.dirty
}

// dropObject tells those other than by that had applied the object.
func (r *records) dropObject(o Object, by types.NamespacedName) {
	r.mu.Lock()
	var told []touch
	if v := r.verified(o); v != nil {
		for _, other := range []*types.NamespacedName{&v.owner, v.displaced} {
			if other != nil && *other != by {
				told = append(told, touch{*other, r.kinds[o.Kind].entry(o.Name), true})
			}
		}
	}
	r.dropLocked(o)
	r.mu.Unlock()
	r.tell(told...)
}

func (r *records) dropLocked(o Object) {
	known := r.record(o)
	if known == nil {
		return
	}
	r.disown(o, known)
	if known.live == nil {
		delete(r.kinds[o.Kind].objects, o.Name)
	}
}

func (r *records) retain(by types.NamespacedName, declared []inventory.Entry) {
	kept := make(map[Object]bool, len(declared))
	for _, e := range declared {
		kept[Object{e.GroupKind(), types.NamespacedName{Namespace: e.Namespace, Name: e.Name}}] = true
	}
	r.dropOf(by, func(o Object) bool { return !kept[o] })
}

func (r *records) forget(by types.NamespacedName) { r.dropOf(by, func(Object) bool { return true }) }

// dropOf drops those objects of an owner that are to be dropped. It tells those that had
// applied them before: what they declare was applied by another one since.
func (r *records) dropOf(by types.NamespacedName, drops func(Object) bool) {
	r.mu.Lock()
	told := r.settle(by, drops)
	if known := r.owners[by]; known != nil {
		for _, o := range slices.Collect(maps.Keys(known.objects)) {
			if !drops(o) {
				continue
			}
			if v := r.verified(o); v.displaced != nil {
				told = append(told, touch{*v.displaced, r.kinds[o.Kind].entry(o.Name), true})
			}
			r.dropLocked(o)
		}
	}
	r.mu.Unlock()
	r.tell(told...)
}

func (r *records) owned(by types.NamespacedName) []inventory.Entry {
	return r.listed(by, func(*verified) bool { return true })
}

// listed are those objects of an owner that are to be listed.
func (r *records) listed(by types.NamespacedName, lists func(*verified) bool) []inventory.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.owners[by]
	if known == nil {
		return nil
	}
	entries := make([]inventory.Entry, 0, len(known.objects))
	for o := range known.objects {
		if lists(r.verified(o)) {
			entries = append(entries, r.kinds[o.Kind].entry(o.Name))
		}
	}
	return inventory.Union(nil, entries)
}

func (r *records) doubt(by types.NamespacedName, objects []inventory.Entry) (doubted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range objects {
		v := r.verified(Object{e.GroupKind(), types.NamespacedName{Namespace: e.Namespace, Name: e.Name}})
		if v != nil && v.owner == by && !v.skipped && !v.dirty {
			r.taint(v)
			doubted++
		}
	}
	return doubted
}

// doubtAll makes all objects of an owner dirty, those that are not applied, too.
func (r *records) doubtAll(by types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.owners[by]; known != nil {
		for o := range known.objects {
			r.taint(r.verified(o))
		}
	}
}

func (r *records) clean(by types.NamespacedName, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.owners[by]
	if known == nil {
		return n == 0
	}
	if len(known.objects) != n || known.dirty > 0 {
		return false
	}
	return !slices.ContainsFunc(slices.Collect(maps.Values(r.kinds)), func(k *kind) bool { return k.refused && known.has(k.group) })
}

// has reports whether one of the owner's objects is of a kind.
func (o *owner) has(gk schema.GroupKind) bool {
	for object := range o.objects {
		if object.Kind == gk {
			return true
		}
	}
	return false
}
