package memo

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/observed"
)

// firstList is how long an apply waits for the first answer about a kind.
// After that it asks for each object, until the watch has caught up.
const firstList = 10 * time.Second

// watches runs a metadata watch for each kind of which something is remembered,
// and shows what it says to records.
type watches struct {
	reader  *observed.Reader
	label   string
	records *records

	// started is closed when base is set.
	started chan struct{}
	running sync.WaitGroup

	mu    sync.Mutex      // guards base, kinds and everything in them
	base  context.Context // of run; nil before and after
	kinds map[schema.GroupKind]*watched
}

// watched is the watch of one kind.
type watched struct {
	kind *kind
	// synced is closed when the first list is in the records.
	synced chan struct{}
	stop   context.CancelFunc
	// late: the first list was waited for, once, and did not come.
	late bool
}

func (w *watches) init(r *observed.Reader, label string, records *records) {
	w.reader, w.label, w.records = r, label, records
	w.started, w.kinds = make(chan struct{}), map[schema.GroupKind]*watched{}
}

// run lets kinds be watched until the context ends, and returns when the last
// watch has ended.
func (w *watches) run(ctx context.Context) {
	w.mu.Lock()
	w.base = ctx
	close(w.started)
	w.mu.Unlock()
	ticker := time.NewTicker(unusedKind / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			w.base = nil
			w.mu.Unlock()
			w.running.Wait()
			return
		case <-ticker.C:
			w.dropUnused()
		}
	}
}

func (w *watches) dropUnused() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for gk, k := range w.kinds {
		if w.records.dropUnused(k.kind) {
			k.stop()
			delete(w.kinds, gk)
		}
	}
}

// watch makes sure that a kind is watched and waits for the first list.
func (w *watches) watch(ctx context.Context, gk schema.GroupKind, preferred, declared schema.GroupVersionResource) bool {
	timer := time.NewTimer(firstList)
	defer timer.Stop()
	// Whatever applies is started at the same time as the memo.
	select {
	case <-w.started:
	case <-ctx.Done():
		return false
	case <-timer.C:
		return false
	}
	k, late := w.ensure(gk, preferred, declared)
	if k == nil || w.records.isRefused(k.kind) {
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
		w.mu.Lock()
		k.late = true
		w.mu.Unlock()
	}
	return false
}

// ensure returns the watch of a kind, which it starts if there is none, or none that
// the API server still serves. It returns nil when no watch may be started any more.
func (w *watches) ensure(gk schema.GroupKind, preferred, declared schema.GroupVersionResource) (k *watched, late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.kinds[gk]
	if known != nil && !w.records.movesTo(known.kind, declared) {
		return known, known.late
	}
	if w.base == nil || w.base.Err() != nil {
		return nil, false
	}
	ctx, stop := context.WithCancel(w.base)
	k = &watched{synced: make(chan struct{}), stop: stop}
	resource := preferred
	if known != nil {
		known.stop()
		k.kind, resource = known.kind, declared
	} else {
		k.kind = w.records.open(gk, resource)
	}
	w.kinds[gk] = k
	w.running.Go(func() { w.reflector(k, resource).RunWithContext(ctx) })
	return k, false
}

func (w *watches) reflector(k *watched, resource schema.GroupVersionResource) *cache.Reflector {
	client := w.reader.Resource(resource)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = w.label
			list, err := client.List(ctx, o)
			w.served(k, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = w.label
			watching, err := client.Watch(ctx, o)
			w.served(k, err)
			return watching, err
		},
	}
	return cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, &store{records: w.records, watched: k}, cache.ReflectorOptions{
		Name: "memo of " + k.kind.group.String(), TypeDescription: k.kind.group.String(),
	})
}

// served notes whether the API server has the kind in the version that is
// watched. While it has not, nothing of the kind is known to be clean. An API
// server that does not answer is another matter: it has nothing to say.
func (w *watches) served(k *watched, err error) {
	w.mu.Lock()
	current := w.kinds[k.kind.group] == k
	w.mu.Unlock()
	switch {
	case !current:
		// Another watch has taken its place.
	case err == nil:
		w.records.setRefused(k.kind, false)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsMethodNotSupported(err):
		w.records.setRefused(k.kind, true)
	}
}

// store is what the reflector of a kind writes to. The reflector calls it from
// one goroutine.
type store struct {
	records *records
	watched *watched
}

// Transformer drops what the memo does not look at before anything is stored.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if p, ok := o.(*metav1.PartialObjectMetadata); ok {
			strip(s.watched.kind.group, p)
		}
		return o, nil
	}
}

// strip keeps the names of field managers, but their fields only where no generation tells of changes.
func strip(kind schema.GroupKind, p *metav1.PartialObjectMetadata) {
	generation := observed.Generation(kind, p)
	for i := range p.ManagedFields {
		if generation != 0 || p.ManagedFields[i].Subresource != "" {
			p.ManagedFields[i].FieldsV1 = nil
		}
	}
	p.OwnerReferences, p.Finalizers = nil, nil
}

func (s *store) Add(o any) error    { return s.set(o, false) }
func (s *store) Update(o any) error { return s.set(o, false) }
func (s *store) Delete(o any) error { return s.set(o, true) }
func (s *store) Resync() error      { return nil }

func (s *store) set(o any, gone bool) error {
	p, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("cannot use %T from a watch of metadata", o)
	}
	s.records.show(s.watched.kind, p, gone)
	return nil
}

// Replace takes over a complete list.
func (s *store) Replace(list []any, version string) error {
	objects := make([]*metav1.PartialObjectMetadata, 0, len(list))
	for _, o := range list {
		if p, ok := o.(*metav1.PartialObjectMetadata); ok {
			objects = append(objects, p)
		}
	}
	touches := s.records.replace(s.watched.kind, objects, version)
	select {
	case <-s.watched.synced:
	default:
		close(s.watched.synced)
	}
	s.records.tell(touches...)
	return nil
}
