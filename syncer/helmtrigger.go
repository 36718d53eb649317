package syncer

import (
	"context"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// SetupWithManager registers the reconciler and its indexes. configs, if not
// nil, has the metadata of the ConfigMaps and Secrets that are watched.
func (r *HelmReleases) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int, configs cache.Cache) error {
	r.written = map[types.NamespacedName]*lastWrite{}
	err := addIndexes(ctx, mgr, &helmv2.HelmRelease{}, map[string]func(*helmv2.HelmRelease) []string{
		sourceIndex: func(h *helmv2.HelmRelease) []string {
			key := chartKey(h)
			return []string{key.Kind + "/" + key.String()}
		},
		dependencyIndex: func(h *helmv2.HelmRelease) []string {
			var keys []string
			for _, d := range h.Spec.DependsOn {
				keys = append(keys, releaseDependency(h, d).String())
			}
			return keys
		},
		configIndex: releaseConfigKeys,
	})
	if err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&helmv2.HelmRelease{}, builder.WithPredicates(r.Sources.passes(), changed(v1alpha1.DeletionAnnotation))).
		Watches(&helmv2.HelmRelease{}, &handler.Funcs{UpdateFunc: r.onDependency}).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WatchesRawSource(onRelease(r.FirstSync, helmv2.HelmReleaseKind)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()})
	others, err := r.Sources.watch(mgr, sourcev1.HelmChartKind, sourcev1.OCIRepositoryKind, sourcev1.ExternalArtifactKind)
	if err != nil {
		return err
	}
	// Those that this process fetches as well: a release waits for the status of
	// its chart, which is written after the snapshot is handed over.
	for _, o := range []client.Object{&sourcev1.HelmChart{}, &sourcev1.OCIRepository{}} {
		if r.Sources.Fetched[kindOf(o)] {
			others = append(others, o)
		}
	}
	for _, o := range others {
		kind := kindOf(o)
		b = b.Watches(o, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.indexed(ctx, sourceIndex, kind+"/"+client.ObjectKeyFromObject(o).String())
		}), builder.WithPredicates(predicate.Or(newRevision(), becameUsable())))
	}
	watchConfigs(b, configs, func(ctx context.Context, key string) []reconcile.Request { return r.indexed(ctx, configIndex, key) })
	return b.Complete(r)
}

// becameUsable passes charts of which sourceReady may say something else than
// before.
func becameUsable() predicate.Predicate {
	usable := func(o client.Object) bool {
		from, ok := o.(sourcev1.Source)
		return ok && sourceReady(source.Key{Kind: kindOf(o)}, from) == nil
	}
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool { return usable(e.ObjectNew) && !usable(e.ObjectOld) },
	}
}

// releaseConfigKeys are the ConfigMaps and Secrets that an object refers to.
func releaseConfigKeys(h *helmv2.HelmRelease) []string {
	key := func(kind, name string) string { return kind + "/" + h.Namespace + "/" + name }
	var keys []string
	for _, ref := range h.Spec.ValuesFrom {
		keys = append(keys, key(ref.Kind, ref.Name))
	}
	if ref := TargetOfRelease(h, ""); !ref.Local() {
		keys = append(keys, key(ref.Kind, ref.Name))
	}
	return keys
}

func (r *HelmReleases) indexed(ctx context.Context, index, key string) []reconcile.Request {
	return requestsOf(ctx, r.Client, &helmv2.HelmReleaseList{}, index, key)
}

// onSnapshot enqueues the HelmReleases of a chart that has a new snapshot.
func (r *HelmReleases) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Sources.Snapshots.OnChange(func(key source.Key) {
		for _, request := range r.indexed(ctx, sourceIndex, key.Kind+"/"+key.String()) {
			enqueue(queue, request.NamespacedName, priorityChanged, 0)
		}
	})
	return nil
}

// onDependency wakes those that wait for a HelmRelease.
func (r *HelmReleases) onDependency(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	before, ok1 := e.ObjectOld.(*helmv2.HelmRelease)
	after, ok2 := e.ObjectNew.(*helmv2.HelmRelease)
	if !ok1 || !ok2 {
		return
	}
	isReady := func(h *helmv2.HelmRelease) bool {
		return apimeta.IsStatusConditionTrue(h.Status.Conditions, meta.ReadyCondition) && h.Status.ObservedGeneration == h.Generation
	}
	becameReady := !isReady(before) && isReady(after)
	for _, request := range r.indexed(ctx, dependencyIndex, client.ObjectKeyFromObject(after).String()) {
		waiting := &helmv2.HelmRelease{}
		if err := r.Client.Get(ctx, request.NamespacedName, waiting, client.UnsafeDisableDeepCopy); err != nil {
			continue
		}
		c := apimeta.FindStatusCondition(waiting.Status.Conditions, meta.ReadyCondition)
		if c == nil || c.Reason != meta.DependencyNotReadyReason {
			continue
		}
		// Any change may be what an expression waits for.
		expression := false
		for _, d := range waiting.Spec.DependsOn {
			expression = expression || d.ReadyExpr != ""
		}
		if becameReady || expression {
			enqueue(queue, request.NamespacedName, 0, 0)
		}
	}
}
