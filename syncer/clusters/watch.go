package clusters

import (
	"context"
	"fmt"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

const (
	// callTimeout bounds each call.
	callTimeout = 30 * time.Second
	// tryAgain is the pause after a call that failed, and until a version that the
	// definition names is served.
	tryAgain = 500 * time.Millisecond
)

// Watch follows Clusters. Fields are set before the first call. It is safe for concurrent
// use.
type Watch struct {
	// Cache makes the informers. Nobody else reads Clusters from it.
	Cache ctrlcache.Cache
	// Reader reads the definition from the API server.
	Reader client.Reader
	// Everywhere has each process follow, not only the one that leads the tier.
	Everywhere bool

	stream stream
}

// NeedLeaderElection says who follows.
func (w *Watch) NeedLeaderElection() bool { return !w.Everywhere }

// Get returns a copy of a Cluster as it was last seen. That there is none does not say
// that it does not exist.
func (w *Watch) Get(name types.NamespacedName) (*unstructured.Unstructured, bool) {
	return w.stream.get(name)
}

// Each calls f with the name of each Cluster that was seen.
func (w *Watch) Each(f func(types.NamespacedName)) { w.stream.each(f) }

// Any reports whether there is a Cluster in a namespace.
func (w *Watch) Any(namespace string) bool {
	found := false
	w.stream.each(func(name types.NamespacedName) { found = found || name.Namespace == namespace })
	return found
}

// Version is the one in which Clusters are watched. ok is false if they are not, or not
// yet.
func (w *Watch) Version() (gvk schema.GroupVersionKind, ok bool) { return w.stream.version() }

// Handle calls f for each Cluster that was seen, and from then on for each event, one
// after the other. f must not block, and must not call the Watch. It is not called any
// more after the returned function was.
func (w *Watch) Handle(f func(Event)) (stop func()) { return w.stream.handle(f) }

// Began returns a channel that is closed when Clusters are watched for the first time,
// which may be never.
func (w *Watch) Began() <-chan struct{} { return w.stream.channels().began }

// Known returns a channel that is closed when all Clusters were seen, or when it is known
// that there are none because their kind does not exist.
func (w *Watch) Known() <-chan struct{} { return w.stream.channels().known }

// Served asks in which version Clusters are best read; it is empty if there is none.
func Served(ctx context.Context, reader client.Reader) (schema.GroupVersionKind, error) {
	definition := &unstructured.Unstructured{}
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	err := reader.Get(ctx, types.NamespacedName{Name: clusterapi.ClusterCRD}, definition)
	if apierrors.IsNotFound(err) {
		return schema.GroupVersionKind{}, nil
	}
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("cannot read CRD %s: %w", clusterapi.ClusterCRD, err)
	}
	version := clusterapi.VersionOf(definition)
	if version == "" {
		return schema.GroupVersionKind{}, nil
	}
	return schema.GroupVersionKind{Group: clusterapi.ClusterKind.Group, Version: version, Kind: clusterapi.ClusterKind.Kind}, nil
}

// Start follows until the context ends. It implements manager.Runnable.
func (w *Watch) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("clusters"))
	// The definition says when to look again.
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	informer, err := w.Cache.GetInformer(ctx, definition)
	if err != nil {
		return fmt.Errorf("cannot watch CRDs: %w", err)
	}
	look := make(chan struct{}, 1)
	poke := func() {
		select {
		case look <- struct{}{}:
		default:
		}
	}
	saw := func(o any) {
		if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if m, ok := o.(*metav1.PartialObjectMetadata); ok && m.Name == clusterapi.ClusterCRD {
			poke()
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: saw, UpdateFunc: func(_, o any) { saw(o) }, DeleteFunc: saw,
	})
	if err != nil {
		return fmt.Errorf("cannot watch CRDs: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	follower := &follower{Watch: w, poke: poke}
	defer follower.end()
	for {
		again := time.NewTimer(tryAgain)
		if follower.turn(ctx) {
			again.Stop()
		}
		select {
		case <-ctx.Done():
			again.Stop()
			return nil
		case <-look:
		case <-again.C:
		}
		again.Stop()
	}
}

// follower moves the watch from version to version. One goroutine uses it.
type follower struct {
	*Watch
	// poke asks for another turn.
	poke func()
	// current has the place, next is to have it; nil if there is none.
	current, next *informing
	waits         sync.WaitGroup
}

// informing is the informer of one version.
type informing struct {
	gvk schema.GroupVersionKind
	// watch is its number in the stream.
	watch        int
	informer     ctrlcache.Informer
	registration cache.ResourceEventHandlerRegistration
	cancel       context.CancelFunc
}

func (i *informing) object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(i.gvk)
	return u
}

// turn does what there is to be done now. done is false if it is to be tried again soon.
func (f *follower) turn(ctx context.Context) (done bool) {
	if f.next != nil && f.next.registration.HasSynced() {
		former := f.current
		f.current, f.next = f.next, nil
		f.stream.move(f.current.watch, f.current.gvk)
		if former != nil {
			f.remove(former)
			log.FromContext(ctx).Info("Clusters are watched in another version", "version", f.current.gvk.Version, "former", former.gvk.Version)
		}
	}
	gvk, err := f.served(ctx)
	switch {
	case ctx.Err() != nil:
		return true
	case err != nil:
		log.FromContext(ctx).Error(err, "cannot tell in which version Clusters are served, trying again")
		return false
	case gvk.Empty():
		f.drop()
		if f.current == nil {
			f.stream.none()
		}
		return true
	case f.current != nil && f.current.gvk == gvk:
		f.drop()
		return true
	case f.next != nil && f.next.gvk == gvk:
		return true
	}
	f.drop()
	if err := f.open(ctx, gvk); err != nil {
		log.FromContext(ctx).V(1).Info("cannot watch Clusters yet, trying again", "version", gvk.Version, "error", err.Error())
		return false
	}
	return true
}

// served is in which version Clusters are to be watched.
func (f *follower) served(ctx context.Context) (schema.GroupVersionKind, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return Served(ctx, f.Reader)
}

// open begins the watch of a version, which is to be the next one.
func (f *follower) open(ctx context.Context, gvk schema.GroupVersionKind) error {
	next := &informing{gvk: gvk}
	var err error
	// A version is served a moment after the definition names it.
	if next.informer, err = f.Cache.GetInformer(ctx, next.object(), ctrlcache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("cannot watch Clusters: %w", err)
	}
	next.watch = f.stream.expect()
	next.registration, err = next.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.stream.see(next.watch, o, false) },
		UpdateFunc: func(_, o any) { f.stream.see(next.watch, o, false) },
		DeleteFunc: func(o any) { f.stream.see(next.watch, o, true) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch Clusters: %w", err)
	}
	var synced context.Context
	synced, next.cancel = context.WithCancel(ctx)
	f.waits.Go(func() {
		if cache.WaitForCacheSync(synced.Done(), next.registration.HasSynced) {
			f.poke()
		}
	})
	f.next = next
	return nil
}

// drop ends a watch that was to be the next one.
func (f *follower) drop() {
	if f.next != nil {
		f.remove(f.next)
		f.next = nil
	}
}

// remove ends a watch.
func (f *follower) remove(i *informing) {
	i.cancel()
	_ = i.informer.RemoveEventHandler(i.registration)
	// It fails for kinds that the scheme does not know; objects name theirs.
	_ = f.Cache.RemoveInformer(context.Background(), i.object())
}

// end waits for what open began. The informers end with the cache.
func (f *follower) end() {
	for _, i := range []*informing{f.current, f.next} {
		if i != nil {
			i.cancel()
			_ = i.informer.RemoveEventHandler(i.registration)
		}
	}
	f.waits.Wait()
}
