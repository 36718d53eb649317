package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/inventory"
)

// Numbers of the memo.
const (
	// firstList is how long an apply waits for the first answer about a kind.
	// After that it asks for each object, until the watch has caught up.
	firstList = 10 * time.Second
	// unusedKind is how long a kind of which nothing is remembered any more is
	// still watched.
	unusedKind = 10 * time.Minute
)

// Memo remembers which objects of a cluster are known to be as they were
// applied, and hears from the API server when one of them is touched.
//
// For each object it keeps what was asked for (a digest) and what the API
// server answered: UID, generation, and the labels and annotations that were
// asked for. A metadata-only watch of each kind, limited to objects that carry
// an owner label, holds the live state against that. An object is clean while
// both agree; kinds without a generation are compared by resource version.
// A lost or late watch makes nothing clean that was not clean before: drift is
// then noticed late, never applied over blindly.
//
// It is safe for concurrent use. Start owns its goroutines.
type Memo struct {
	cluster  *Cluster
	group    string
	selector string
	now      func() time.Time

	// started is closed when base is set.
	started chan struct{}

	mu      sync.Mutex
	base    context.Context // of Start; nil before and after
	running sync.WaitGroup
	kinds   map[schema.GroupKind]*watched
	owners  map[types.NamespacedName]*owned
	onTouch func(owner types.NamespacedName, object inventory.Entry, dirty bool)
}

// watched is a kind that is watched.
type watched struct {
	resource schema.GroupVersionResource
	synced   chan struct{}
	stop     context.CancelFunc
	objects  map[types.NamespacedName]*record
	// seen is the newest version that the watch has shown.
	seen string
	// refused: the API server does not serve the watch any more.
	refused bool
	// late: the first list was waited for, once, and did not come.
	late bool
	// unused is since when nothing of the kind is remembered; zero while
	// something is.
	unused time.Time
}

// record of one object. live is nil while the watch does not show it.
type record struct {
	live *Live
	// verified is nil unless the object was applied by this process.
	verified *verified
	// applying: a request of ours is under way. What the watch shows meanwhile may
	// be our own doing, and is judged when the answer is there.
	applying bool
}

// verified is an object as the API server answered when it was applied.
type verified struct {
	owner      types.NamespacedName
	desired    Digest
	uid        types.UID
	version    string
	generation int64
	// keys are the labels and annotations that were asked for, meta the digest
	// of the values that they had in the answer.
	keys  unique.Handle[string]
	meta  uint64
	ready bool
	dirty bool
}

// owned is what the memo knows of an owner's objects.
type owned struct {
	objects map[objectKey]struct{}
	dirty   int
}

type objectKey struct {
	kind schema.GroupKind
	name types.NamespacedName
}

// Digest of what is asked for of an object.
type Digest [16]byte

// Live is the metadata of an object in the cluster, as far as applying depends
// on it.
type Live struct {
	UID        types.UID
	Version    string
	Generation int64
	Deleting   bool
	// Skip: the object asks not to be reconciled; Force: to be re-created if
	// need be; Merge: not to have fields of other managers taken over.
	Skip, Force, Merge bool
	// Foreign: kubectl or a former engine manages fields that have to be taken
	// over before applying.
	Foreign bool
}

// NewMemo returns a Memo for the objects that carry <group>/name as owner
// label. Until Start is called it remembers nothing.
func NewMemo(c *Cluster, group string, now func() time.Time) *Memo {
	return &Memo{
		cluster: c, group: group, selector: group + "/name", now: now, started: make(chan struct{}),
		kinds: map[schema.GroupKind]*watched{}, owners: map[types.NamespacedName]*owned{},
	}
}

// OnTouch sets the function that is told of an owner when one of its objects
// changed; dirty, if the change touched what was applied. It must not block.
// It is called before Start.
func (m *Memo) OnTouch(f func(owner types.NamespacedName, object inventory.Entry, dirty bool)) {
	m.onTouch = f
}

// Start watches until the context ends and returns when all of its goroutines
// have. It implements controller-runtime's Runnable.
func (m *Memo) Start(ctx context.Context) error {
	m.mu.Lock()
	m.base = ctx
	close(m.started)
	m.mu.Unlock()
	ticker := time.NewTicker(unusedKind / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			m.mu.Lock()
			m.base = nil
			m.mu.Unlock()
			m.running.Wait()
			return nil
		case <-ticker.C:
			m.dropUnused()
		}
	}
}

func (m *Memo) dropUnused() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gk, k := range m.kinds {
		inUse := slices.ContainsFunc(slices.Collect(maps.Values(k.objects)), func(r *record) bool { return r.verified != nil })
		switch {
		case inUse:
			k.unused = time.Time{}
		case k.unused.IsZero():
			k.unused = m.now()
		case m.now().Sub(k.unused) > unusedKind:
			k.stop()
			delete(m.kinds, gk)
		}
	}
}

// watch makes sure that a kind is watched and waits for the first list. It
// reports whether what the watch shows can be relied upon.
func (m *Memo) watch(ctx context.Context, gk schema.GroupKind, resource schema.GroupVersionResource) bool {
	if m == nil {
		return false
	}
	timer := time.NewTimer(firstList)
	defer timer.Stop()
	// Whatever applies is started at the same time as the memo.
	select {
	case <-m.started:
	case <-ctx.Done():
		return false
	case <-timer.C:
		return false
	}
	m.mu.Lock()
	k := m.kinds[gk]
	if k == nil {
		if m.base == nil || m.base.Err() != nil {
			m.mu.Unlock()
			return false
		}
		kindCtx, stop := context.WithCancel(m.base)
		k = &watched{resource: resource, synced: make(chan struct{}), stop: stop, objects: map[types.NamespacedName]*record{}}
		m.kinds[gk] = k
		m.running.Add(1)
		go func() {
			defer m.running.Done()
			m.reflector(gk, k).RunWithContext(kindCtx)
		}()
	}
	late, refused := k.late, k.refused
	m.mu.Unlock()
	if refused {
		return false
	}
	select {
	case <-k.synced:
		return true
	default:
	}
	if late {
		return false
	}
	select {
	case <-k.synced:
		return true
	case <-ctx.Done():
	case <-timer.C:
		log.FromContext(ctx).Info("the watch of a kind has not begun; its objects are asked for one by one", "kind", gk.String())
		m.mu.Lock()
		k.late = true
		m.mu.Unlock()
	}
	return false
}

func (m *Memo) reflector(gk schema.GroupKind, k *watched) *cache.Reflector {
	client := m.cluster.metadata.Resource(k.resource)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = m.selector
			list, err := client.List(ctx, o)
			m.served(k, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = m.selector
			w, err := client.Watch(ctx, o)
			m.served(k, err)
			return w, err
		},
	}
	return cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, &kindStore{memo: m, kind: gk, watched: k}, cache.ReflectorOptions{
		Name: "memo of " + gk.String(), TypeDescription: gk.String(),
	})
}

// served notes whether the API server has the kind in the version that is
// watched. While it has not, nothing of the kind is known to be clean. An API
// server that does not answer is another matter: it has nothing to say.
func (m *Memo) served(k *watched, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		k.refused = false
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err):
		k.refused = true
	}
}

// kindStore is what the reflector of a kind writes to.
type kindStore struct {
	memo    *Memo
	kind    schema.GroupKind
	watched *watched
}

// Transformer drops what the memo does not look at before anything is stored.
func (s *kindStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if p, ok := o.(*metav1.PartialObjectMetadata); ok {
			strip(p)
		}
		return o, nil
	}
}

// strip keeps the names of field managers, but not their fields.
func strip(p *metav1.PartialObjectMetadata) {
	for i := range p.ManagedFields {
		p.ManagedFields[i].FieldsV1 = nil
	}
	p.OwnerReferences, p.Finalizers = nil, nil
}

func (s *kindStore) Add(o any) error    { return s.set(o, false) }
func (s *kindStore) Update(o any) error { return s.set(o, false) }
func (s *kindStore) Delete(o any) error { return s.set(o, true) }
func (s *kindStore) Resync() error      { return nil }

func (s *kindStore) set(o any, gone bool) error {
	p, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("cannot use %T from a watch of metadata", o)
	}
	s.memo.mu.Lock()
	owner, dirty, tell := s.show(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p, gone)
	s.memo.mu.Unlock()
	if tell && s.memo.onTouch != nil {
		s.memo.onTouch(owner, s.entry(p.Namespace, p.Name), dirty)
	}
	return nil
}

// Replace takes over a complete list, after which what is not in it is gone.
func (s *kindStore) Replace(list []any, version string) error {
	type news struct {
		owner, object types.NamespacedName
		dirty         bool
	}
	var told []news
	s.memo.mu.Lock()
	// Versions that go back are those of a restored backup: what is remembered is
	// of another history.
	restored := s.watched.seen != "" && version != "" && newer(s.watched.seen, version)
	s.watched.seen = version
	listed := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		p, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		listed[name] = true
		owner, dirty, tell := s.show(name, p, false)
		if v := s.watched.objects[name].verified; restored && v != nil {
			s.memo.taint(v)
			owner, dirty, tell = v.owner, true, true
		}
		if tell {
			told = append(told, news{owner, name, dirty})
		}
	}
	for name, r := range s.watched.objects {
		if listed[name] {
			continue
		}
		r.live = nil
		if r.applying {
			continue
		}
		if r.verified == nil {
			delete(s.watched.objects, name)
			continue
		}
		// It may have been created after the list was made: to ask once more
		// costs one request.
		s.memo.taint(r.verified)
		told = append(told, news{r.verified.owner, name, true})
	}
	select {
	case <-s.watched.synced:
	default:
		close(s.watched.synced)
	}
	s.memo.mu.Unlock()
	if s.memo.onTouch != nil {
		for _, n := range told {
			s.memo.onTouch(n.owner, s.entry(n.object.Namespace, n.object.Name), n.dirty)
		}
	}
	return nil
}

func (s *kindStore) entry(namespace, name string) inventory.Entry {
	return inventory.Entry{Namespace: namespace, Name: name, Group: s.kind.Group, Kind: s.kind.Kind, Version: s.watched.resource.Version}
}

// show takes in what the watch says of an object. The lock is held.
func (s *kindStore) show(name types.NamespacedName, p *metav1.PartialObjectMetadata, gone bool) (owner types.NamespacedName, dirty, tell bool) {
	r := s.watched.objects[name]
	if r == nil {
		if gone {
			if newer(p.ResourceVersion, s.watched.seen) {
				s.watched.seen = p.ResourceVersion
			}
			return owner, false, false
		}
		r = &record{}
		s.watched.objects[name] = r
	}
	live := s.memo.cluster.liveOf(p)
	if s.watched.seen == "" || newer(live.Version, s.watched.seen) {
		s.watched.seen = live.Version
	}
	if gone {
		r.live = nil
	} else {
		r.live = live
	}
	v := r.verified
	if v == nil {
		if gone && !r.applying {
			delete(s.watched.objects, name)
		}
		return owner, false, false
	}
	if r.applying {
		return owner, false, false
	}
	if !newer(live.Version, v.version) {
		return owner, false, false // our own write, or one before it
	}
	if gone || live.UID != v.uid || live.Deleting || live.Foreign || live.Skip ||
		live.Generation == 0 || live.Generation != v.generation || metaDigest(v.keys, p.Labels, p.Annotations) != v.meta {
		// One change and what follows from it are one reason to look.
		was := v.dirty
		s.memo.taint(v)
		return v.owner, true, !was
	}
	v.version = live.Version
	return v.owner, false, true
}

func (m *Memo) taint(v *verified) {
	if !v.dirty {
		v.dirty = true
		if o := m.owners[v.owner]; o != nil {
			o.dirty++
		}
	}
}

// newer compares resource versions, which are ordered within a resource
// (KEP-5504). What cannot be compared counts as newer.
func newer(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c > 0
}

// live returns what the watch shows of an object.
func (m *Memo) live(gk schema.GroupKind, name types.NamespacedName) *Live {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[gk]
	if k == nil || k.objects[name] == nil {
		return nil
	}
	return k.objects[name].live
}

// clean reports whether an object is known to be in the cluster as desired.
func (m *Memo) clean(gk schema.GroupKind, name types.NamespacedName, owner types.NamespacedName, desired Digest) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.verified(gk, name)
	return v != nil && !v.dirty && v.desired == desired && v.owner == owner && !m.kinds[gk].refused
}

// applied reports whether the object was applied by this process in just this
// form, whatever has become of it since.
func (m *Memo) applied(gk schema.GroupKind, name, owner types.NamespacedName, desired Digest) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.verified(gk, name)
	return v != nil && v.desired == desired && v.owner == owner
}

func (m *Memo) verified(gk schema.GroupKind, name types.NamespacedName) *verified {
	k := m.kinds[gk]
	if k == nil || k.objects[name] == nil {
		return nil
	}
	return k.objects[name].verified
}

// remember records the answer to an apply. Kinds that are not watched are not
// remembered.
func (m *Memo) remember(gk schema.GroupKind, name, owner types.NamespacedName, desired Digest, asked *unstructured.Unstructured, got *metav1.PartialObjectMetadata) {
	if m == nil {
		return
	}
	keys := metaKeys(asked)
	v := &verified{
		owner: owner, desired: desired, uid: got.UID, version: got.ResourceVersion, generation: got.Generation,
		keys: keys, meta: metaDigest(keys, got.Labels, got.Annotations),
	}
	dirty := false
	defer func() {
		if dirty && m.onTouch != nil {
			m.onTouch(owner, inventory.Entry{Namespace: name.Namespace, Name: name.Name, Group: gk.Group, Kind: gk.Kind}, true)
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[gk]
	if k == nil {
		return
	}
	r := k.objects[name]
	if r == nil {
		r = &record{}
		k.objects[name] = r
	}
	m.drop(objectKey{gk, name}, r)
	r.applying = false
	// Something may have happened to it between the answer and now: the watch
	// has shown a later version, or has come past this one and shows nothing.
	switch answer := m.cluster.liveOf(got); {
	case answer.Deleting, answer.Skip, answer.Foreign:
		v.dirty = true
	case r.live != nil:
		v.dirty = newer(r.live.Version, v.version)
	default:
		v.dirty = k.seen != "" && newer(k.seen, v.version)
	}
	r.verified = v
	o := m.owners[owner]
	if o == nil {
		o = &owned{objects: map[objectKey]struct{}{}}
		m.owners[owner] = o
	}
	o.objects[objectKey{gk, name}] = struct{}{}
	if v.dirty {
		o.dirty++
		dirty = true
	}
}

// begin notes that a request to apply an object is under way, until remember or
// abandon.
func (m *Memo) begin(gk schema.GroupKind, name types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[gk]
	if k == nil {
		return
	}
	if k.objects[name] == nil {
		k.objects[name] = &record{}
	}
	k.objects[name].applying = true
}

// abandon ends what begin began without an answer that could be remembered.
func (m *Memo) abandon(gk schema.GroupKind, name types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kinds[gk]
	if k == nil || k.objects[name] == nil {
		return
	}
	r := k.objects[name]
	r.applying = false
	switch {
	case r.verified != nil:
		m.taint(r.verified)
	case r.live == nil:
		delete(k.objects, name)
	}
}

// retain forgets what an owner does not declare any more.
func (m *Memo) retain(owner types.NamespacedName, declared []inventory.Entry) {
	if m == nil {
		return
	}
	kept := make(map[objectKey]bool, 2*len(declared))
	for _, e := range declared {
		// Objects of a cluster's scope may be declared with a namespace.
		kept[objectKey{e.GroupKind(), types.NamespacedName{Namespace: e.Namespace, Name: e.Name}}] = true
		kept[objectKey{e.GroupKind(), types.NamespacedName{Name: e.Name}}] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.owners[owner]; o != nil {
		for _, key := range slices.Collect(maps.Keys(o.objects)) {
			if !kept[key] {
				m.forgetLocked(key)
			}
		}
	}
}

// Owned lists what is remembered of an owner: objects that this process applied
// for it, in the memo's cluster.
func (m *Memo) Owned(owner types.NamespacedName) []inventory.Entry {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.owners[owner]
	if o == nil {
		return nil
	}
	entries := make([]inventory.Entry, 0, len(o.objects))
	for key := range o.objects {
		entries = append(entries, inventory.Entry{
			Namespace: key.name.Namespace, Name: key.name.Name, Group: key.kind.Group, Kind: key.kind.Kind, Version: m.kinds[key.kind].resource.Version,
		})
	}
	return inventory.Union(nil, entries)
}

// drop takes an object out of what its owner has. The lock is held.
func (m *Memo) drop(key objectKey, r *record) {
	if r.verified == nil {
		return
	}
	if o := m.owners[r.verified.owner]; o != nil {
		if r.verified.dirty {
			o.dirty--
		}
		if delete(o.objects, key); len(o.objects) == 0 {
			delete(m.owners, r.verified.owner)
		}
	}
	r.verified = nil
}

// forget drops what is remembered of an object, so that what happens to it is
// no longer told.
func (m *Memo) forget(gk schema.GroupKind, name types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetLocked(objectKey{gk, name})
}

func (m *Memo) forgetLocked(key objectKey) {
	k := m.kinds[key.kind]
	if k == nil || k.objects[key.name] == nil {
		return
	}
	r := k.objects[key.name]
	m.drop(key, r)
	if r.live == nil {
		delete(k.objects, key.name)
	}
}

// Forget drops everything that is remembered of an owner's objects: they are
// verified anew with the next Sync.
func (m *Memo) Forget(owner types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.owners[owner]; o != nil {
		for _, key := range slices.Collect(maps.Keys(o.objects)) {
			m.forgetLocked(key)
		}
	}
}

// Clean reports whether n objects of an owner are remembered and all of them
// are as they were applied.
func (m *Memo) Clean(owner types.NamespacedName, n int) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.owners[owner]
	if o == nil {
		return n == 0
	}
	if len(o.objects) != n || o.dirty > 0 {
		return false
	}
	for _, k := range m.kinds {
		if k.refused {
			for key := range o.objects {
				if m.kinds[key.kind] == k {
					return false
				}
			}
		}
	}
	return true
}

// setReady notes that an object of an early stage may be built upon.
func (m *Memo) setReady(gk schema.GroupKind, name types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.verified(gk, name); v != nil {
		v.ready = true
	}
}

func (m *Memo) isReady(gk schema.GroupKind, name types.NamespacedName) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.verified(gk, name)
	return v != nil && v.ready && !v.dirty
}

// liveOf reads metadata of a live object.
func (c *Cluster) liveOf(p *metav1.PartialObjectMetadata) *Live {
	meta := &unstructured.Unstructured{Object: map[string]any{}}
	meta.SetLabels(p.Labels)
	meta.SetAnnotations(p.Annotations)
	live := &Live{
		UID: p.UID, Version: p.ResourceVersion, Generation: p.Generation, Deleting: p.DeletionTimestamp != nil,
		Skip:  ssautil.AnyInMetadata(meta, skipSelector()),
		Force: ssautil.AnyInMetadata(meta, forceSelector()),
		Merge: ssautil.AnyInMetadata(meta, mergeSelector()),
	}
	live.Foreign = !live.Merge && (hasAny(p.Annotations, leftAnnotations()) || hasAny(p.Labels, leftLabels()) ||
		slices.ContainsFunc(p.ManagedFields, c.takesOver))
	return live
}

func hasAny(m map[string]string, keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { _, ok := m[k]; return ok })
}

// takesOver reports whether the fields of a manager are taken over.
func (c *Cluster) takesOver(e metav1.ManagedFieldsEntry) bool {
	if e.Subresource != "" {
		return false
	}
	for _, m := range c.takenOver {
		if e.Operation == m.OperationType && (e.Manager == m.Name || !m.ExactMatch && strings.HasPrefix(e.Manager, m.Name)) {
			return true
		}
	}
	return false
}

// desiredDigest identifies what is asked for: the object, and how.
func desiredDigest(body []byte, how string) Digest {
	h := sha256.New()
	h.Write(body)
	h.Write([]byte(how))
	var d Digest
	copy(d[:], h.Sum(nil))
	return d
}

// metaKeys lists the labels and annotations of an object. Objects of one kind
// mostly have the same, so the list is shared.
func metaKeys(u *unstructured.Unstructured) unique.Handle[string] {
	var keys []string
	for k := range u.GetLabels() {
		keys = append(keys, "l"+k)
	}
	for k := range u.GetAnnotations() {
		keys = append(keys, "a"+k)
	}
	slices.Sort(keys)
	return unique.Make(strings.Join(keys, "\n"))
}

// metaDigest is of the values that the keys have.
func metaDigest(keys unique.Handle[string], labels, annotations map[string]string) uint64 {
	h := fnv.New64a()
	for key := range strings.SplitSeq(keys.Value(), "\n") {
		if key == "" {
			continue
		}
		from := labels
		if key[0] == 'a' {
			from = annotations
		}
		v, ok := from[key[1:]]
		fmt.Fprintf(h, "%t%q", ok, v)
	}
	return h.Sum64()
}

// encode is the body of an apply request. Equal objects have equal bodies.
func encode(u *unstructured.Unstructured) ([]byte, error) {
	body, err := json.Marshal(u.Object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", ssautil.FmtUnstructured(u), err)
	}
	return body, nil
}
