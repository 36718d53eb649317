package wake

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Indexes of objects by what they refer to.
const (
	// SourceIndex has the sources, by SourceKey.
	SourceIndex = "cascade.source"
	// DependencyIndex has what spec.dependsOn names, as namespace/name.
	DependencyIndex = "cascade.dependsOn"
	// ConfigIndex has ConfigMaps and Secrets, by ConfigKey.
	ConfigIndex = "cascade.config"
)

// SourceKey is the key of a source in SourceIndex.
func SourceKey(key source.Key) string { return key.Kind + "/" + key.String() }

// ConfigKey is the key of a ConfigMap or Secret in ConfigIndex.
func ConfigKey(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// AddIndexes makes the cache find the objects of a kind by what they refer to.
func AddIndexes[T client.Object](ctx context.Context, mgr ctrl.Manager, kind T, indexes map[string]func(T) []string) error {
	for name, keys := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(ctx, kind, name, func(o client.Object) []string { return keys(o.(T)) }); err != nil {
			return fmt.Errorf("cannot index %T: %w", kind, err)
		}
	}
	return nil
}

// Index finds the objects of a kind by what they refer to.
type Index struct {
	// Client reads from the cache.
	Client client.Reader
	// List returns an empty list of the kind.
	List func() client.ObjectList
}

// Requests are for the objects that an index has under a key.
func (i Index) Requests(ctx context.Context, index, key string) []reconcile.Request {
	var requests []reconcile.Request
	i.Each(ctx, index, key, func(o client.Object) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	})
	return requests
}

// Each calls f with the objects that an index has under a key. f must not change
// them.
func (i Index) Each(ctx context.Context, index, key string, f func(client.Object)) {
	list := i.List()
	if err := i.Client.List(ctx, list, client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list what refers to an object", "object", key)
		return
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		f(o.(client.Object))
		return nil
	})
}

// UsersOf is the handler for sources of a kind: it enqueues who refers to one.
func (i Index) UsersOf(kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return i.Requests(ctx, SourceIndex, kind+"/"+client.ObjectKeyFromObject(o).String())
	})
}

// OnSnapshot enqueues who refers to a source that has a new snapshot.
func (i Index) OnSnapshot(snapshots *source.Snapshots) ctrlsource.Source {
	return ctrlsource.Func(func(ctx context.Context, queue Queue) error {
		snapshots.OnChange(func(key source.Key) {
			for _, request := range i.Requests(ctx, SourceIndex, SourceKey(key)) {
				Enqueue(queue, request.NamespacedName, PriorityChanged, 0)
			}
		})
		return nil
	})
}

// WatchConfigs wakes what refers to a ConfigMap or Secret that changed. configs,
// if not nil, has their metadata.
func (i Index) WatchConfigs(b *builder.Builder, configs cache.Cache) {
	if configs == nil {
		return
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
		wake := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return i.Requests(ctx, ConfigIndex, ConfigKey(kind, o.GetNamespace(), o.GetName()))
		})
		b.WatchesRawSource(ctrlsource.Kind(configs, client.Object(o), wake, predicate.ResourceVersionChangedPredicate{}))
	}
}
