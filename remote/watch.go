package remote

import (
	"context"
	"fmt"
	"slices"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// A child that takes long is reconciled beside the others, at most so many of them, and
// mostParked bounds those that wait for that besides. The calls to it tell soon whether it does:
// patience is for all else. A process that is short of processor time takes long for children
// that are well, and each one more that is under way is one more in memory.
const (
	patience   = time.Minute
	mostAside  = 256
	mostParked = 2048
)

// SetupWithManager registers the reconcilers of Layer, Child and Rollout, and that of the
// Namespaces with Clusters. Kubeconfig Secrets are watched from the moment that Cluster
// API is installed in the tier, which may be never.
func SetupWithManager(mgr ctrl.Manager, stalls *stall.Watchdog, children *Children, layers *Layers, rollouts *Rollouts, concurrent int) error {
	children.references.now = children.Now
	children.rollouts = &rolloutKind{now: children.Now}
	layers.inUse, layers.references = &children.inUse, &children.references
	layers.accounts, layers.rollouts, layers.clusters = children.Accounts, children.rollouts, children.Clusters
	rollouts.accounts, rollouts.rollouts, rollouts.contents = children.Accounts, children.rollouts, &children.contents
	rollouts.templates, rollouts.workers = &children.templates, children.Workers
	inventory := &profiles{client: mgr.GetClient(), cache: mgr.GetCache(), mapper: mgr.GetRESTMapper(), part: children.Part, events: children.Events}
	everywhere := controller.Options{}
	if tenures := children.Part.Tenures; tenures != nil {
		// Each replica drives the children of its own shards, whoever leads the tier.
		everywhere.NeedLeaderElection = new(false)
		tenures.OnChange(func(ctx context.Context, has func(types.NamespacedName) bool) error {
			return children.gained(ctx, inventory, has)
		}, children.end)
		layers.unserved = tenures.Unserved
		if err := mgr.Add(unserved{children, tenures.Unserved}); err != nil {
			return err
		}
	}
	layers.Wake = func(child types.NamespacedName) { children.Connections.Wake(child, link.Urgent) }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Child{}, identityIndex, func(o client.Object) []string {
		if id := o.(*v1alpha1.Child).Status.Identity; id != nil {
			return []string{id.KubeSystemUID}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("cannot index Children: %w", err)
	}
	lot, options := childLot(stalls, children, concurrent)
	options.NeedLeaderElection = everywhere.NeedLeaderElection
	if err := mgr.Add(lot); err != nil {
		return err
	}
	c, err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Child{}, builder.WithPredicates(predicate.Or(relevant(), otherPins()))).
		Watches(&v1alpha1.Layer{}, handler.EnqueueRequestsFromMapFunc(children.inNamespace), builder.WithPredicates(predicate.Or(relevant(), imageNoted()))).
		WatchesRawSource(ctrlsource.Func(children.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(children.onKept)).
		WatchesRawSource(ctrlsource.Func(children.onProbe)).
		WatchesRawSource(ctrlsource.Func(children.onCluster)).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(options).
		Build(lot)
	if err != nil {
		return err
	}
	counts, err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Layer{}, builder.WithPredicates(relevant())).
		Watches(&v1alpha1.Child{}, handler.EnqueueRequestsFromMapFunc(layers.inNamespace)).
		WatchesRawSource(ctrlsource.Func(layers.onElected)).
		WatchesRawSource(ctrlsource.Func(layers.onAdrift)).
		WithOptions(everywhere).
		Build(stalls.Guard("Layer", func() client.Object { return &v1alpha1.Layer{} }, layers))
	if err != nil {
		return err
	}
	rollouts.exchange = &exchange{Rollouts: rollouts}
	decisions, err := rollouts.setUp(mgr, stalls, everywhere)
	if err != nil {
		return err
	}
	exchanges, err := rollouts.exchange.setUp(mgr, stalls, everywhere)
	if err != nil {
		return err
	}
	if err := mgr.Add(&rolloutWatch{
		kind: children.rollouts, mapper: mgr.GetRESTMapper(), cache: mgr.GetCache(), children: children, ofChildren: c, ofLayers: counts, ofRollouts: decisions, ofExchanges: exchanges,
	}); err != nil {
		return err
	}
	if err := (namespaces{children}).setUp(mgr); err != nil {
		return err
	}
	if err := inventory.setUp(mgr, stalls, everywhere); err != nil {
		return err
	}
	return mgr.Add(&kubeconfigWatch{cache: mgr.GetCache(), controller: c, children: children})
}

// childLot is that of the Children, and what their controller is told. Each has a memory of failures of its own: the
// controller forgets a Child that parks, whose pauses would not grow then.
func childLot(stalls *stall.Watchdog, children reconcile.Reconciler, concurrent int) (*park.Lot, controller.Options) {
	retries := func() workqueue.TypedRateLimiter[reconcile.Request] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, retryMost)
	}
	return stalls.Lot("Child", func() client.Object { return &v1alpha1.Child{} }, children, park.Options{
		Workers: concurrent, Parked: mostParked, Patience: patience, Aside: mostAside, Deadline: stall.Deadline, Backoff: retries(),
	}), controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: retries()}
}

// onProbe makes the end of a probe call for a reconcile. Children that are only due
// queue behind those that were taken over, and these behind those with an event.
func (r *Children) onProbe(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Connections.OnProbe(func(key types.NamespacedName, turn link.Turn) {
		request := reconcile.Request{NamespacedName: key}
		byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request])
		if !ok || turn == link.Urgent {
			queue.Add(request)
			return
		}
		priority := periodic
		if turn == link.TakenOver {
			priority = takenOver
		}
		byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
	})
	return nil
}

// relevant passes changes of spec, labels, and the annotations that ask for
// something; not of status, which we write ourselves.
func relevant() predicate.Predicate {
	asked := func(o client.Object) [5]string {
		a := o.GetAnnotations()
		return [5]string{
			a[fluxmeta.ReconcileRequestAnnotation], a[v1alpha1.ApprovePruneAnnotation], a[v1alpha1.ApproveTakeOverAnnotation],
			a[v1alpha1.ApproveRemovalAnnotation], a[v1alpha1.DeletionAnnotation],
		}
	}
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool { return asked(e.ObjectOld) != asked(e.ObjectNew) },
	})
}

func (r *Children) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list Children", "namespace", o.GetNamespace())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

func (r *Layers) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	list := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "cannot list Layers", "namespace", o.GetNamespace())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// onElected has all layers counted when this process comes to lead the tier.
func (r *Layers) onElected(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if r.Part.Elected == nil {
		return nil
	}
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-r.Part.Elected:
		}
		list := &v1alpha1.LayerList{}
		if err := r.Client.List(ctx, list); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Layers")
			return
		}
		for i := range list.Items {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}()
	return nil
}

// onSnapshot wakes the children of layers whose source has a new snapshot.
func (r *Children) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(key source.Key) {
		layers := &v1alpha1.LayerList{}
		// Any namespace may have been let use it.
		if err := r.Client.List(ctx, layers, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Layers of source", "source", key.String())
			return
		}
		for _, layer := range using(layers.Items, key) {
			for _, request := range r.inNamespace(ctx, layer) {
				queue.Add(request)
			}
		}
	})
	return nil
}

// using are layers that name a source, one of each namespace that has any.
func using(layers []v1alpha1.Layer, key source.Key) []*v1alpha1.Layer {
	var found []*v1alpha1.Layer
	for i := range layers {
		layer := &layers[i]
		from, provided := componentSource(layer)
		if (layer.Spec.SourceRef == nil || layerSource(layer) != key) && (!provided || from != key) {
			continue
		}
		if !slices.ContainsFunc(found, func(l *v1alpha1.Layer) bool { return l.Namespace == layer.Namespace }) {
			found = append(found, layer)
		}
	}
	return found
}

// kubeconfigWatch begins to watch the kubeconfig Secrets when there may be Clusters.
type kubeconfigWatch struct {
	cache      ctrlcache.Cache
	controller controller.Controller
	children   *Children
}

var _ manager.LeaderElectionRunnable = &kubeconfigWatch{}

// NeedLeaderElection says who watches: as for the controllers, the leader, or with shards
// each replica.
func (w *kubeconfigWatch) NeedLeaderElection() bool { return w.children.Part.Tenures == nil }

// Start waits for Clusters to be watched, begins the watch, and ends.
func (w *kubeconfigWatch) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-w.children.Clusters.Began():
	}
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := w.controller.Watch(ctrlsource.Kind(w.cache, secrets, handler.TypedEnqueueRequestsFromMapFunc(ofCluster))); err != nil {
		return fmt.Errorf("cannot watch kubeconfig Secrets: %w", err)
	}
	return nil
}

// onCluster asks for the Child of each Cluster that changes. The calls to a cluster end
// as soon as its deletion is seen, rather than at the end of the run.
func (r *Children) onCluster(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Clusters.Handle(func(e clusters.Event) {
		if e.New == nil || e.New.GetDeletionTimestamp() != nil {
			r.Connections.Forget(e.Name())
		}
		request := reconcile.Request{NamespacedName: e.Name()}
		if byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok && e.Listed {
			byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: new(periodic)}, request)
			return
		}
		queue.Add(request)
	})
	return nil
}

func ofCluster(_ context.Context, o *metav1.PartialObjectMetadata) []reconcile.Request {
	cluster, ok := clusterapi.ClusterOfKubeconfig(o)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: cluster}}}
}
