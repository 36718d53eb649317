package artifact

import (
	"context"
	"errors"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// A generator that takes longer than most do is reconciled beside the others, at most so many
// of them.
const (
	patience    = 2 * time.Second
	mostAside   = 8
	mostWaiting = 200
)

// SetupWithManager registers the reconciler and its indexes.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int) error {
	r.open()
	err := wake.AddIndexes(ctx, mgr, &generatorv1.ArtifactGenerator{}, map[string]func(*generatorv1.ArtifactGenerator) []string{
		wake.SourceIndex: sourceKeys,
	})
	if err != nil {
		return err
	}
	lot := r.Stalls.Lot(generatorv1.ArtifactGeneratorKind, func() client.Object { return &generatorv1.ArtifactGenerator{} }, r, park.Options{
		Workers: concurrent, Parked: mostWaiting, Patience: patience, Aside: mostAside, Backoff: r.Rules.Retries.RateLimiter(),
	})
	b := ctrl.NewControllerManagedBy(mgr).
		For(&generatorv1.ArtifactGenerator{}, builder.WithPredicates(wake.Shard(r.Sources.Ours).Changed(generatorv1.ReconcileAnnotation))).
		WatchesRawSource(r.index().OnSnapshot(r.Sources.Snapshots)).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: r.Rules.Retries.RateLimiter()})
	sources, err := r.Sources.Watch(mgr, sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmChartKind, sourcev1.ExternalArtifactKind)
	if err != nil {
		return err
	}
	for _, o := range sources {
		b = b.Watches(o, r.index().UsersOf(find.KindOf(o)), builder.WithPredicates(r.Sources.News()))
	}
	b = b.Watches(&sourcev1.ExternalArtifact{}, handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue wake.Queue) {
			r.onArtifact(e.Object, false, queue)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue wake.Queue) {
			r.onArtifact(e.ObjectNew, false, queue)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue wake.Queue) {
			r.onArtifact(e.Object, true, queue)
		},
	})
	return errors.Join(mgr.Add(lot), b.Complete(lot))
}

// index finds generators by what they are made of.
func (r *Reconciler) index() wake.Index {
	return wake.Index{Client: r.Client, List: func() client.ObjectList { return &generatorv1.ArtifactGeneratorList{} }}
}

func sourceKeys(g *generatorv1.ArtifactGenerator) []string {
	var keys []string
	for _, s := range g.Spec.Sources {
		key := source.Key{Kind: s.Kind, NamespacedName: types.NamespacedName{Namespace: namespaceOf(s.Namespace, g), Name: s.Name}}
		keys = append(keys, wake.SourceKey(key))
	}
	return keys
}

// onArtifact wakes the generators of an ExternalArtifact that somebody else wrote or deleted:
// the one that made it, and those that would have its name.
func (r *Reconciler) onArtifact(o client.Object, deleted bool, queue wake.Queue) {
	e, ok := o.(*sourcev1.ExternalArtifact)
	if !ok {
		return
	}
	by := r.claimants(client.ObjectKeyFromObject(e))
	if maker, ok := generatorOf(e); ok {
		by = append(by, maker)
	}
	for _, name := range by {
		if deleted || !r.asWritten(name, e) {
			queue.Add(reconcile.Request{NamespacedName: name})
		}
	}
}
