package rights

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// accounts is the resource of service accounts.
var accounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")

// watched are the resources that are watched: those that RBAC decides by, and accounts.
func watched() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"),
		rbacv1.SchemeGroupVersion.WithResource("roles"), rbacv1.SchemeGroupVersion.WithResource("rolebindings"), accounts,
	}
}

// blindPause is the pause between two tries to watch what the agent may not.
const blindPause = 5 * time.Minute

// userPrefix begins the user names of service accounts.
const userPrefix = "system:serviceaccount:"

// accountOf is the service account of a user, if it is one.
func accountOf(user string) (types.NamespacedName, bool) {
	rest, ok := strings.CutPrefix(user, userPrefix)
	namespace, name, found := strings.Cut(rest, ":")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && found
}

// watches are those of all resources, while some owner acts as an account.
type watches struct {
	stop    context.CancelFunc
	running sync.WaitGroup
}

// watch begins to watch.
func (r *Rights) watch(ctx context.Context) *watches {
	ctx, stop := context.WithCancel(ctx)
	w := &watches{stop: stop}
	for _, resource := range watched() {
		reflector := r.reflector(ctx, resource)
		w.running.Go(func() { reflector.RunWithContext(ctx) })
	}
	return w
}

// end stops watching and returns when nothing is told any more.
func (w *watches) end() {
	w.stop()
	w.running.Wait()
}

func (r *Rights) reflector(ctx context.Context, resource schema.GroupVersionResource) *cache.Reflector {
	client := r.options.Reader.Resource(resource)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := client.List(ctx, o)
			r.served(ctx, resource, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if err := r.pause(ctx, resource); err != nil {
				return nil, err
			}
			watching, err := client.Watch(ctx, o)
			r.served(ctx, resource, err)
			return watching, err
		},
	}
	return cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, &store{rights: r, resource: resource}, cache.ReflectorOptions{
		Name: "rights by " + resource.Resource, TypeDescription: resource.Resource,
	})
}

// pause keeps an agent that may not watch a resource from trying, and logging, all the time.
func (r *Rights) pause(ctx context.Context, resource schema.GroupVersionResource) error {
	r.mu.Lock()
	blind := r.blind[resource]
	r.mu.Unlock()
	if !blind {
		return nil
	}
	timer := time.NewTimer(blindPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// served notes whether a resource can be watched, and tells when that changes.
func (r *Rights) served(ctx context.Context, resource schema.GroupVersionResource, err error) {
	refused := apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
	if err != nil && !refused {
		return // the API server has nothing to say
	}
	r.mu.Lock()
	before := r.blind[resource]
	if refused {
		r.blind[resource] = true
	} else {
		delete(r.blind, resource)
	}
	r.mu.Unlock()
	switch logger := log.FromContext(ctx); {
	case refused && !before && resource == accounts:
		logger.Error(err, "cannot watch service accounts; that one is missing is told only when something is refused")
	case refused && !before:
		logger.Error(err, "cannot watch what rights depend on; the API server is asked about rights in turns", "resource", resource.Resource)
		r.wakeUp()
	case !refused && before:
		logger.Info("can watch what rights depend on again", "resource", resource.Resource)
	}
}

// store is what the reflector of a resource writes to. It keeps nothing but the names of
// service accounts. The reflector calls it from one goroutine.
type store struct {
	rights   *Rights
	resource schema.GroupVersionResource
	synced   bool
}

// Transformer drops what nobody looks at before anything is kept.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if p, ok := o.(*metav1.PartialObjectMetadata); ok {
			p.ManagedFields, p.Annotations, p.Labels, p.OwnerReferences, p.Finalizers = nil, nil, nil, nil, nil
		}
		return o, nil
	}
}

func (s *store) Add(o any) error    { return s.change(o, false) }
func (s *store) Update(o any) error { return s.change(o, false) }
func (s *store) Delete(o any) error { return s.change(o, true) }
func (s *store) Resync() error      { return nil }

func (s *store) change(o any, gone bool) error {
	p, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("cannot use %T from a watch of metadata", o)
	}
	if s.resource == accounts {
		s.rights.accountChanged(types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, gone)
		return nil
	}
	s.rights.changed(p.Namespace)
	return nil
}

// Replace takes in a complete list. What changed since the one before is not known.
func (s *store) Replace(list []any, _ string) error {
	first := !s.synced
	s.synced = true
	if s.resource == accounts {
		names := make(map[types.NamespacedName]struct{}, len(list))
		for _, o := range list {
			if p, ok := o.(*metav1.PartialObjectMetadata); ok {
				names[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = struct{}{}
			}
		}
		s.rights.accountsListed(names)
		return nil
	}
	if first {
		s.rights.listed()
		return nil
	}
	s.rights.changed("")
	return nil
}
