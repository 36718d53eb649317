package helmrelease

import (
	"context"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// heldPoll is the pause between two looks at what is held, where no event comes before:
// nothing tells of what a Cluster refers to, nor of what a person confirms on an object.
const heldPoll = time.Minute

// roomPoll is the pause of a release for whose values there was no room in memory.
const roomPoll = 15 * time.Second

// mostParked bounds the releases that wait without a worker. Each has its chart and its
// manifest in memory, a megabyte or so; release.Memory bounds those that are larger.
const mostParked = 200

// A release that takes longer than most do without waiting, as one whose cluster does not
// answer, is reconciled beside the others, at most so many of them.
const (
	patience  = 10 * time.Second
	mostAside = 16
)

// SetupWithManager registers the reconciler and its indexes. configs, if not
// nil, has the metadata of the ConfigMaps and Secrets that are watched.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int, configs cache.Cache) error {
	r.open()
	err := wake.AddIndexes(ctx, mgr, &helmv2.HelmRelease{}, map[string]func(*helmv2.HelmRelease) []string{
		wake.SourceIndex:     func(h *helmv2.HelmRelease) []string { return []string{wake.SourceKey(chartKey(h))} },
		wake.DependencyIndex: func(h *helmv2.HelmRelease) []string { return depend.Keys(dependencies(h)) },
		wake.ConfigIndex:     configKeys,
	})
	if err != nil {
		return err
	}
	index := r.index()
	lot := r.Stalls.Lot(helmv2.HelmReleaseKind, func() client.Object { return &helmv2.HelmRelease{} }, r, park.Options{
		Workers: concurrent, Parked: mostParked, Patience: patience, Aside: mostAside,
		Deadline: stall.Deadline, Backoff: r.Rules.Retries.RateLimiter(),
	})
	if err := mgr.Add(lot); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&helmv2.HelmRelease{}, builder.WithPredicates(wake.Shard(r.Sources.Ours).Changed(v1alpha1.DeletionAnnotation, v1alpha1.RolloutRevisionAnnotation))).
		Watches(&helmv2.HelmRelease{}, &handler.Funcs{UpdateFunc: r.onDependency}).
		WatchesRawSource(index.OnSnapshot(r.Sources.Snapshots)).
		WatchesRawSource(wake.OnRelease(r.FirstSync, helmv2.HelmReleaseKind)).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: r.Rules.Retries.RateLimiter()})
	sources, err := r.Sources.Watch(mgr, sourcev1.HelmChartKind, sourcev1.OCIRepositoryKind, sourcev1.ExternalArtifactKind)
	if err != nil {
		return err
	}
	// Those that this process fetches as well: a release waits for the status of
	// its chart, which is written after the snapshot is handed over.
	for _, o := range sources {
		b = b.Watches(o, index.UsersOf(find.KindOf(o)), builder.WithPredicates(predicate.Or(wake.NewArtifact(), tellsOther())))
	}
	index.WatchConfigs(b, configs)
	return b.Complete(lot)
}

// index finds HelmReleases by what they refer to.
func (r *Reconciler) index() wake.Index {
	return wake.Index{Client: r.Client, List: func() client.ObjectList { return &helmv2.HelmReleaseList{} }}
}

// tellsOther passes charts of which sourceReady says something else than before: that
// they can be used, or another cause why not. A chart that cannot be used any more is
// no news for a release that has it already.
func tellsOther() predicate.Predicate {
	verdict := func(o client.Object) string {
		from, ok := o.(sourcev1.Source)
		if !ok {
			return ""
		}
		if err := sourceReady(source.Key{Kind: find.KindOf(o)}, from); err != nil {
			return err.Error()
		}
		return ""
	}
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before := verdict(e.ObjectOld)
			return before != "" && before != verdict(e.ObjectNew)
		},
	}
}

// configKeys are the ConfigMaps and Secrets that an object refers to.
func configKeys(h *helmv2.HelmRelease) []string {
	var keys []string
	for _, ref := range h.Spec.ValuesFrom {
		keys = append(keys, wake.ConfigKey(ref.Kind, h.Namespace, ref.Name))
	}
	if ref := target.OfRelease(h, ""); !ref.Local() {
		keys = append(keys, wake.ConfigKey(ref.Kind, h.Namespace, ref.Name))
	}
	return keys
}

// onDependency wakes those that wait for a HelmRelease.
func (r *Reconciler) onDependency(ctx context.Context, e event.UpdateEvent, queue wake.Queue) {
	before, ok1 := e.ObjectOld.(*helmv2.HelmRelease)
	after, ok2 := e.ObjectNew.(*helmv2.HelmRelease)
	if !ok1 || !ok2 {
		return
	}
	ready := !isReady(before) && isReady(after)
	r.index().Each(ctx, wake.DependencyIndex, client.ObjectKeyFromObject(after).String(), func(o client.Object) {
		waiting := o.(*helmv2.HelmRelease)
		if depend.Waits(waiting) && (ready || depend.HasExpression(dependencies(waiting))) {
			wake.Enqueue(queue, client.ObjectKeyFromObject(waiting), 0, 0)
		}
	})
}

func isReady(h *helmv2.HelmRelease) bool {
	return apimeta.IsStatusConditionTrue(h.Status.Conditions, meta.ReadyCondition) && h.Status.ObservedGeneration == h.Generation
}
