package kustomization

import (
	"context"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// How soon a Kustomization is looked at again.
const (
	// healthPoll is the pause between two looks at objects that are getting
	// healthy, where no event comes before.
	healthPoll = 5 * time.Second
	// glancePause is at least between two looks at objects that were not healthy in time, whatever
	// tells of them; for many it is glanceEach of them.
	glancePause = 30 * time.Second
	glanceEach  = 200 * time.Millisecond
	// stagePoll is the same for the definitions that the rest needs.
	stagePoll = 500 * time.Millisecond
	// goingPoll is the same for an object that is created again when its finalizer lets it go.
	goingPoll = 15 * time.Second
	// heldPoll is the pause between two looks at Clusters that are held, where no
	// event comes before: nothing tells of what a Cluster refers to.
	heldPoll = time.Minute
	// deletionRetry is the longest pause after a deletion that failed: somebody waits for it,
	// whatever the interval is.
	deletionRetry = time.Minute
	// deletePoll is the pause between two looks at objects that are being
	// deleted.
	deletePoll = 2 * time.Second
	// blockedPoll is the pause between two looks at what a person is to decide about.
	blockedPoll = 30 * time.Second
	// ofClusterPoll is the same for what goes after Clusters of others, which may stay for good.
	ofClusterPoll = 5 * time.Minute
)

// stageTimeout bounds the wait for the definitions and classes that the rest
// of a rendering needs, as Flux does.
const stageTimeout = 60 * time.Second

// mostParked bounds the Kustomizations that wait for a worker, or for what it does,
// while others are reconciled. Each has its snapshot, which others have as well.
const mostParked = 500

// A Kustomization that takes longer than most do, as one whose cluster does not answer, is
// reconciled beside the others, at most so many of them.
const (
	patience  = 5 * time.Second
	mostAside = 32
)

// SetupWithManager registers the reconciler and its indexes. configs, if not
// nil, has the metadata of the ConfigMaps and Secrets that are watched.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int, configs cache.Cache) error {
	r.open()
	err := wake.AddIndexes(ctx, mgr, &kustomizev1.Kustomization{}, map[string]func(*kustomizev1.Kustomization) []string{
		wake.SourceIndex:     func(k *kustomizev1.Kustomization) []string { return []string{wake.SourceKey(sourceKey(k))} },
		wake.DependencyIndex: func(k *kustomizev1.Kustomization) []string { return depend.Keys(dependencies(k)) },
		wake.ConfigIndex:     configKeys,
	})
	if err != nil {
		return err
	}
	index := r.index()
	lot := r.Stalls.Lot(kustomizev1.KustomizationKind, func() client.Object { return &kustomizev1.Kustomization{} }, r, park.Options{
		Workers: concurrent, Parked: mostParked, Patience: patience, Aside: mostAside,
		Deadline: stall.Deadline, Backoff: r.Rules.Retries.RateLimiter(),
	})
	if err := mgr.Add(lot); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&kustomizev1.Kustomization{}, builder.WithPredicates(wake.Shard(r.Sources.Ours).Changed(v1alpha1.ApprovePruneAnnotation, v1alpha1.DriftAnnotation))).
		Watches(&kustomizev1.Kustomization{}, &handler.Funcs{UpdateFunc: r.onDependency}).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(r.onTouch)).
		WatchesRawSource(ctrlsource.Func(r.onRights)).
		WatchesRawSource(ctrlsource.Func(r.onKept)).
		WatchesRawSource(wake.OnRelease(r.FirstSync, kustomizev1.KustomizationKind)).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: r.Rules.Retries.RateLimiter()})
	sources, err := r.Sources.Watch(mgr, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind)
	if err != nil {
		return err
	}
	for _, o := range sources {
		kind := find.KindOf(o)
		b = b.Watches(o, &handler.Funcs{UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue wake.Queue) { r.onSource(ctx, kind, e, queue) }}).
			Watches(o, index.UsersOf(kind), builder.WithPredicates(r.Sources.News()))
	}
	if r.Sources.Fetched[generatorv1.ArtifactGeneratorKind] {
		b = b.Watches(&generatorv1.ArtifactGenerator{}, &handler.Funcs{UpdateFunc: r.onGenerator})
	}
	index.WatchConfigs(b, configs)
	c, err := b.Build(lot)
	if err != nil {
		return err
	}
	return mgr.Add(&rolloutWatch{reconciler: r, mapper: mgr.GetRESTMapper(), cache: mgr.GetCache(), controller: c, wanted: make(chan struct{})})
}

// index finds Kustomizations by what they refer to.
func (r *Reconciler) index() wake.Index {
	return wake.Index{Client: r.Client, List: func() client.ObjectList { return &kustomizev1.KustomizationList{} }}
}

// onSnapshot enqueues the Kustomizations on a source that has a new snapshot: at once who
// reads what changed, and then who only takes note of it.
func (r *Reconciler) onSnapshot(ctx context.Context, queue wake.Queue) error {
	index := r.index()
	r.Sources.Snapshots.OnChange(func(key source.Key) {
		snapshot := r.Sources.Snapshots.Get(key)
		var notes []types.NamespacedName
		for _, request := range index.Requests(ctx, wake.SourceIndex, wake.SourceKey(key)) {
			if snapshot != nil && r.known.of(request.NamespacedName).sameFiles(snapshot) {
				notes = append(notes, request.NamespacedName)
				continue
			}
			wake.Enqueue(queue, request.NamespacedName, wake.PriorityChanged, 0)
		}
		now := r.Now()
		r.notes.forget(now)
		for n, name := range notes {
			// What depends on it waits until it has the revision.
			if n < notesAtOnce || len(index.Requests(ctx, wake.DependencyIndex, name.String())) > 0 {
				wake.Enqueue(queue, name, wake.PriorityUnchanged, 0)
				continue
			}
			wake.Enqueue(queue, name, wake.PriorityUnchanged, r.notes.after(name, len(notes), now))
		}
	})
	return nil
}

// configKeys are the ConfigMaps and Secrets that an object refers to.
func configKeys(k *kustomizev1.Kustomization) []string {
	key := func(kind, name string) string { return wake.ConfigKey(kind, k.Namespace, name) }
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

// onTouch enqueues the Kustomizations of which an object changed in the
// cluster.
func (r *Reconciler) onTouch(_ context.Context, queue wake.Queue) error {
	r.Memo.OnTouch(func(name types.NamespacedName, object inventory.Entry, dirty bool) {
		if after, ok := r.known.of(name).touched(object, dirty, r.Now()); ok {
			wake.Enqueue(queue, name, wake.PriorityChanged, after)
		}
	})
	return nil
}

// onDependency wakes those that wait for a Kustomization.
func (r *Reconciler) onDependency(ctx context.Context, e event.UpdateEvent, queue wake.Queue) {
	before, ok1 := e.ObjectOld.(*kustomizev1.Kustomization)
	after, ok2 := e.ObjectNew.(*kustomizev1.Kustomization)
	if !ok1 || !ok2 {
		return
	}
	ready := becameReady(before, after)
	r.index().Each(ctx, wake.DependencyIndex, client.ObjectKeyFromObject(after).String(), func(o client.Object) {
		k := o.(*kustomizev1.Kustomization)
		// A dependant that has not said yet that it waits is told by its revision.
		behind := sourceKey(k) == sourceKey(after) && k.Status.LastAppliedRevision != after.Status.LastAppliedRevision
		if ready && behind || depend.Waits(k) && (ready || depend.HasExpression(dependencies(k))) {
			wake.Enqueue(queue, client.ObjectKeyFromObject(k), 0, 0)
		}
	})
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
