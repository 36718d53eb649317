package informer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Informers makes the informers of one cache. It is safe for concurrent use.
type Informers struct {
	config *rest.Config
	scheme *runtime.Scheme
	log    logr.Logger
	// tolerant are the groups whose objects are decoded one by one.
	tolerant func(group string) bool
	// required are the kinds without which the agent is not ready.
	required func(schema.GroupKind) bool

	mu     sync.Mutex
	client *http.Client
	mapper meta.RESTMapper
	// failing has the kinds that could not be read the last time.
	failing map[string]error
}

// New returns Informers that decode the objects of the groups of tolerant one by one, of
// whose statuses others than their controllers may write. A kind that is not of required may
// be taken out of the tier.
func New(config *rest.Config, scheme *runtime.Scheme, log logr.Logger, tolerant func(group string) bool, required func(schema.GroupKind) bool) *Informers {
	return &Informers{config: config, scheme: scheme, log: log, tolerant: tolerant, required: required, failing: map[string]error{}}
}

// Mapper implements the MapperProvider of a manager, and keeps what it returns.
func (i *Informers) Mapper(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	mapper, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.client, i.mapper = client, mapper
	return mapper, nil
}

// Informer implements NewInformer of the options of a cache.
func (i *Informers) Informer(lw cache.ListerWatcher, o runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(i.reader(lw, o).listWatch(), o, resync, indexers)
}

// reader of a kind of which o is an object.
func (i *Informers) reader(lw cache.ListerWatcher, o runtime.Object) *reader {
	r := &reader{of: i, kind: fmt.Sprintf("%T", o), client: cache.ToListerWatcherWithContext(lw)}
	if gvk, err := apiutil.GVKForObject(o, i.scheme); err == nil {
		// Two versions of a kind may be watched while one takes the place of the other.
		r.kind, r.optional = gvk.Kind+"."+gvk.GroupVersion().String(), !i.required(gvk.GroupKind())
		if _, isMetadata := o.(*metav1.PartialObjectMetadata); !isMetadata && i.tolerant(gvk.Group) {
			r.client = &tolerant{of: i, gvk: gvk}
		}
	}
	return r
}

// Check implements healthz.Checker: an error names the kinds that cannot be read.
func (i *Informers) Check(*http.Request) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.failing) == 0 {
		return nil
	}
	var problems []string
	for _, kind := range slices.Sorted(maps.Keys(i.failing)) {
		problems = append(problems, fmt.Sprintf("cannot read %s: %v", kind, i.failing[kind]))
	}
	return errors.New(strings.Join(problems, "; "))
}

// read notes how a list or the begin of a watch ended.
func (i *Informers) read(ctx context.Context, r *reader, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case err == nil:
		r.served, r.removed = true, false
		delete(i.failing, r.kind)
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		// The informer ends, or has to list anew.
	case r.served && r.optional && notServed(err):
		// A process that began now would do without it.
		if !r.removed {
			i.log.Info("a kind is not served any more; what was seen last of its objects stays", "kind", r.kind)
		}
		r.removed = true
		delete(i.failing, r.kind)
	default:
		if i.failing[r.kind] == nil {
			// An informer that ended is missed by nobody.
			context.AfterFunc(ctx, func() { i.forget(r.kind) })
		}
		i.failing[r.kind] = err
	}
}

// notServed tells the error of a kind that is not there from others.
func notServed(err error) bool {
	return meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
}

func (i *Informers) forget(kind string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.failing, kind)
}

// transport is what reads the API server with, once the manager made it.
func (i *Informers) transport(gk schema.GroupKind, version string) (*http.Client, *meta.RESTMapping, error) {
	i.mu.Lock()
	client, mapper := i.client, i.mapper
	i.mu.Unlock()
	if mapper == nil {
		return nil, nil, errors.New("cannot read before there is a manager")
	}
	mapping, err := mapper.RESTMapping(gk, version)
	return client, mapping, err
}

// reader notes whether a kind can be read.
type reader struct {
	of     *Informers
	kind   string
	client cache.ListerWatcherWithContext
	// optional: the agent is ready without the kind.
	optional bool
	// served: it was read once. removed: since then it was taken out. Both are guarded by mu of
	// the Informers.
	served, removed bool
}

func (r *reader) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := r.client.ListWithContext(ctx, o)
			r.of.read(ctx, r, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := r.client.WatchWithContext(ctx, o)
			r.of.read(ctx, r, err)
			return w, err
		},
	}
}
