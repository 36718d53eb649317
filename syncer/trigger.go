package syncer

import (
	"context"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Indexes of Kustomizations by what they refer to.
const (
	sourceIndex     = "cascade.source"
	dependencyIndex = "cascade.dependsOn"
	configIndex     = "cascade.config"
)

// Priorities of the queue, for lack of others 0: what a commit changed goes
// before what only takes note of it.
const (
	priorityChanged   = 100
	priorityUnchanged = -100
)

// addIndexes makes the cache find the objects of a kind by what they refer to.
func addIndexes[T client.Object](ctx context.Context, mgr ctrl.Manager, kind T, indexes map[string]func(T) []string) error {
	for name, keys := range indexes {
		if err := mgr.GetFieldIndexer().IndexField(ctx, kind, name, func(o client.Object) []string { return keys(o.(T)) }); err != nil {
			return fmt.Errorf("cannot index %T: %w", kind, err)
		}
	}
	return nil
}

// SetupWithManager registers the reconciler and its indexes. configs, if not
// nil, has the metadata of the ConfigMaps and Secrets that are watched.
func (r *Kustomizations) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int, configs cache.Cache) error {
	r.known = map[types.NamespacedName]*progress{}
	err := addIndexes(ctx, mgr, &kustomizev1.Kustomization{}, map[string]func(*kustomizev1.Kustomization) []string{
		sourceIndex: func(k *kustomizev1.Kustomization) []string {
			key := sourceKey(k)
			return []string{key.Kind + "/" + key.String()}
		},
		dependencyIndex: func(k *kustomizev1.Kustomization) []string {
			var keys []string
			for _, d := range k.Spec.DependsOn {
				keys = append(keys, dependencyKey(k, d).String())
			}
			return keys
		},
		configIndex: configKeys,
	})
	if err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&kustomizev1.Kustomization{}, builder.WithPredicates(r.Sources.passes(), changed(v1alpha1.ApprovePruneAnnotation, v1alpha1.DriftAnnotation))).
		Watches(&kustomizev1.Kustomization{}, &handler.Funcs{UpdateFunc: r.onDependency}).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(r.onTouch)).
		WatchesRawSource(onRelease(r.FirstSync, kustomizev1.KustomizationKind)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()})
	others, err := r.Sources.watch(mgr, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind)
	if err != nil {
		return err
	}
	for _, o := range others {
		b = b.Watches(o, handler.EnqueueRequestsFromMapFunc(r.usersOf(kindOf(o))), builder.WithPredicates(newRevision()))
	}
	watchConfigs(b, configs, func(ctx context.Context, key string) []reconcile.Request { return r.indexed(ctx, configIndex, key) })
	return b.Complete(r)
}

// watchConfigs wakes what refers to a ConfigMap or Secret that changed. configs,
// if not nil, has their metadata.
func watchConfigs(b *builder.Builder, configs cache.Cache, users func(ctx context.Context, key string) []reconcile.Request) {
	if configs == nil {
		return
	}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
		b.WatchesRawSource(ctrlsource.Kind(configs, client.Object(o), handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return users(ctx, kind+"/"+client.ObjectKeyFromObject(o).String())
		}), predicate.ResourceVersionChangedPredicate{}))
	}
}

// configKeys are the ConfigMaps and Secrets that an object refers to.
func configKeys(k *kustomizev1.Kustomization) []string {
	key := func(kind, name string) string { return kind + "/" + k.Namespace + "/" + name }
	var keys []string
	if k.Spec.PostBuild != nil {
		for _, ref := range k.Spec.PostBuild.SubstituteFrom {
			keys = append(keys, key(ref.Kind, ref.Name))
		}
	}
	if d := k.Spec.Decryption; d != nil && d.SecretRef != nil {
		keys = append(keys, key("Secret", d.SecretRef.Name))
	}
	if c := k.Spec.KubeConfig; c != nil {
		if c.SecretRef != nil {
			keys = append(keys, key("Secret", c.SecretRef.Name))
		}
		if c.ConfigMapRef != nil {
			keys = append(keys, key("ConfigMap", c.ConfigMapRef.Name))
		}
	}
	return keys
}

// usersOf returns who is to be woken when a source of a kind changed.
func (r *Kustomizations) usersOf(kind string) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.indexed(ctx, sourceIndex, kind+"/"+client.ObjectKeyFromObject(o).String())
	}
}

// newRevision passes sources that have another artifact.
func newRevision() predicate.Predicate {
	return predicate.Funcs{
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(sourcev1.Source)
			after, ok2 := e.ObjectNew.(sourcev1.Source)
			if !ok1 || !ok2 || after.GetArtifact() == nil {
				return false
			}
			// The digest as well: other rules of what to ignore make another
			// content of the same revision.
			return before.GetArtifact() == nil || before.GetArtifact().Revision != after.GetArtifact().Revision ||
				before.GetArtifact().Digest != after.GetArtifact().Digest
		},
	}
}

func (r *Kustomizations) indexed(ctx context.Context, index, key string) []reconcile.Request {
	return requestsOf(ctx, r.Client, &kustomizev1.KustomizationList{}, index, key)
}

// requestsOf are for the objects that an index has under a key. list is an
// empty one of their kind.
func requestsOf(ctx context.Context, c client.Client, list client.ObjectList, index, key string) []reconcile.Request {
	if err := c.List(ctx, list, client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list what refers to an object", "object", key)
		return nil
	}
	var requests []reconcile.Request
	_ = apimeta.EachListItem(list, func(o runtime.Object) error {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o.(client.Object))})
		return nil
	})
	return requests
}

// onSnapshot enqueues the Kustomizations of a source that has a new snapshot.
func (r *Kustomizations) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Sources.Snapshots.OnChange(func(key source.Key) {
		snapshot := r.Sources.Snapshots.Get(key)
		for _, request := range r.indexed(ctx, sourceIndex, key.Kind+"/"+key.String()) {
			priority := priorityChanged
			if snapshot != nil && r.progress(request.NamespacedName).sameFiles(snapshot) {
				priority = priorityUnchanged
			}
			enqueue(queue, request.NamespacedName, priority, 0)
		}
	})
	return nil
}

// onTouch enqueues the Kustomizations of which an object changed in the
// cluster.
func (r *Kustomizations) onTouch(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Memo.OnTouch(func(name types.NamespacedName, object inventory.Entry, dirty bool) {
		if after, ok := r.progress(name).touched(object, dirty, r.Now()); ok {
			enqueue(queue, name, priorityChanged, after)
		}
	})
	return nil
}

// onRelease enqueues what holds Clusters back when there is news of them.
func onRelease(tier *firstsync.Tier, kind string) ctrlsource.Source {
	return ctrlsource.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		tier.OnRelease(kind, func(name types.NamespacedName) { enqueue(queue, name, priorityChanged, touchDelay) })
		return nil
	})
}

func enqueue(queue workqueue.TypedRateLimitingInterface[reconcile.Request], name types.NamespacedName, priority int, after time.Duration) {
	request := reconcile.Request{NamespacedName: name}
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority, After: after}, request)
		return
	}
	queue.AddAfter(request, after)
}

// onDependency wakes those that wait for a Kustomization.
func (r *Kustomizations) onDependency(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	before, ok1 := e.ObjectOld.(*kustomizev1.Kustomization)
	after, ok2 := e.ObjectNew.(*kustomizev1.Kustomization)
	if !ok1 || !ok2 {
		return
	}
	list := &kustomizev1.KustomizationList{}
	if err := r.Client.List(ctx, list, client.MatchingFields{dependencyIndex: client.ObjectKeyFromObject(after).String()}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list dependants", "name", after.Name, "namespace", after.Namespace)
		return
	}
	for i := range list.Items {
		k := &list.Items[i]
		// A dependant that has not said yet that it waits is told by its revision.
		ready := becameReady(before, after)
		behind := sourceKey(k) == sourceKey(after) && k.Status.LastAppliedRevision != after.Status.LastAppliedRevision
		if ready && behind || waitsForDependency(k) && (ready || hasExpression(k)) {
			enqueue(queue, client.ObjectKeyFromObject(k), 0, 0)
		}
	}
}

// hasExpression: any change of a dependency may be what is waited for.
func hasExpression(k *kustomizev1.Kustomization) bool {
	for _, d := range k.Spec.DependsOn {
		if d.ReadyExpr != "" {
			return true
		}
	}
	return false
}

// becameReady reports an update after which a dependant may go on.
func becameReady(before, after *kustomizev1.Kustomization) bool {
	if !apimeta.IsStatusConditionTrue(after.Status.Conditions, meta.ReadyCondition) {
		return false
	}
	return !apimeta.IsStatusConditionTrue(before.Status.Conditions, meta.ReadyCondition) ||
		before.Status.LastAppliedRevision != after.Status.LastAppliedRevision ||
		before.Status.ObservedGeneration != after.Status.ObservedGeneration
}

func waitsForDependency(obj *kustomizev1.Kustomization) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	return c != nil && c.Reason == meta.DependencyNotReadyReason
}

func sourceKey(k *kustomizev1.Kustomization) source.Key {
	namespace := k.Spec.SourceRef.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return source.Key{Kind: k.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: k.Spec.SourceRef.Name}}
}

func dependencyKey(k *kustomizev1.Kustomization, d kustomizev1.DependencyReference) types.NamespacedName {
	namespace := d.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return types.NamespacedName{Namespace: namespace, Name: d.Name}
}
