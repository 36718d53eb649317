package remote

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// setUp registers the reconciler of Rollouts. Rollouts themselves are watched once the tier
// has the kind.
func (r *Rollouts) setUp(mgr ctrl.Manager, stalls *stall.Watchdog, options controller.Options) (controller.Controller, error) {
	c, err := ctrl.NewControllerManagedBy(mgr).Named("rollout").
		Watches(&v1alpha1.Child{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace)).
		Watches(&v1alpha1.Layer{}, handler.EnqueueRequestsFromMapFunc(r.inNamespace), builder.WithPredicates(predicate.Or(relevant(), imageNoted()))).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(r.onCluster)).
		WatchesRawSource(ctrlsource.Func(r.onComposed)).
		WatchesRawSource(ctrlsource.Func(r.onKept)).
		WatchesRawSource(ctrlsource.Func(r.exchange.onExchanged)).
		WatchesRawSource(ctrlsource.Func(r.onElected)).
		WithOptions(options).
		Build(stalls.Guard("Rollout", func() client.Object { return &v1alpha1.Rollout{} }, r))
	if err != nil {
		return nil, fmt.Errorf("cannot set up the reconciler of Rollouts: %w", err)
	}
	r.followCharts = sync.OnceValue(func() error {
		if err := c.Watch(ctrlsource.Kind(mgr.GetCache(), &sourcev1.HelmChart{}, handler.TypedEnqueueRequestsFromMapFunc(r.ofChart), otherVersion())); err != nil {
			return fmt.Errorf("cannot watch HelmCharts: %w", err)
		}
		return nil
	})
	return c, nil
}

// ofChart are the Rollouts that take versions of a HelmChart.
func (r *Rollouts) ofChart(ctx context.Context, chart *sourcev1.HelmChart) []reconcile.Request {
	list, err := r.rollouts.list(ctx, r.Client, metav1.NamespaceAll)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list Rollouts")
		return nil
	}
	var requests []reconcile.Request
	for i := range list {
		o := &list[i]
		if ref := o.Spec.SourceRef; ref != nil && ref.Kind == sourcev1.HelmChartKind && ref.Name == chart.Name && cmp.Or(ref.Namespace, o.Namespace) == chart.Namespace {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
		}
	}
	return requests
}

// otherVersion passes HelmCharts that come, go, or have another version.
func otherVersion() predicate.TypedPredicate[*sourcev1.HelmChart] {
	version := func(c *sourcev1.HelmChart) string {
		if c.Status.Artifact == nil {
			return ""
		}
		return c.Status.Artifact.Revision
	}
	return predicate.TypedFuncs[*sourcev1.HelmChart]{UpdateFunc: func(e event.TypedUpdateEvent[*sourcev1.HelmChart]) bool {
		return version(e.ObjectOld) != version(e.ObjectNew)
	}}
}

// setUp registers what reads and writes for Rollouts in repositories. A few at a time may
// wait for a server.
func (x *exchange) setUp(mgr ctrl.Manager, stalls *stall.Watchdog, options controller.Options) (controller.Controller, error) {
	options.MaxConcurrentReconciles = mostExchanges
	c, err := ctrl.NewControllerManagedBy(mgr).Named("rolloutexchange").
		WatchesRawSource(ctrlsource.Func(x.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(x.onElected)).
		WithOptions(options).
		Build(stalls.Guard("Rollout", func() client.Object { return &v1alpha1.Rollout{} }, x))
	if err != nil {
		return nil, fmt.Errorf("cannot set up what reads the repositories of Rollouts: %w", err)
	}
	return c, nil
}

// mostExchanges is how many Rollouts wait for the servers of their repositories at a time.
const mostExchanges = 4

// onKept looks at Rollouts whose proven commit was fetched, or cannot be.
func (r *Rollouts) onKept(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnKept(func(holders []source.Holder) {
		for _, h := range holders {
			if h.Kind == "Rollout" {
				queue.Add(reconcile.Request{NamespacedName: h.NamespacedName})
			}
		}
	})
	return nil
}

func (r *Rollouts) inNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	list, err := r.rollouts.list(ctx, r.Client, o.GetNamespace())
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list Rollouts", "namespace", o.GetNamespace())
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list))
	for i := range list {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
	return requests
}

// wake looks at all Rollouts of a namespace, empty for all namespaces.
func (r *Rollouts) wake(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request], namespace string) {
	list, err := r.rollouts.list(ctx, r.Client, namespace)
	if err != nil {
		log.FromContext(ctx).Error(err, "cannot list Rollouts")
		return
	}
	for i := range list {
		queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list[i])})
	}
}

// onSnapshot looks at Rollouts when a source has a new revision. Which of them it concerns
// is a matter of their layers; Rollouts are few.
func (r *Rollouts) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(source.Key) { r.wake(ctx, queue, "") })
	return nil
}

// onCluster looks at the Rollouts of a namespace when a Cluster there begins or ends to
// roll, which its Child does not show.
func (r *Rollouts) onCluster(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Clusters.Handle(func(e clusters.Event) { r.wake(ctx, queue, e.Name().Namespace) })
	return nil
}

// onComposed looks at the Rollouts of a namespace when a Kustomization there declares
// something else of Clusters, or has applied what it declares.
func (r *Rollouts) onComposed(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if r.Compositions != nil {
		r.Compositions.OnComposed(func(kustomization types.NamespacedName) { r.wake(ctx, queue, kustomization.Namespace) })
	}
	return nil
}

// onElected looks at all Rollouts when this process comes to lead the tier, and at those that
// went while nobody led it, or before all of their clusters were let go.
func (r *Rollouts) onElected(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		if r.Part.Elected != nil {
			select {
			case <-ctx.Done():
				return
			case <-r.Part.Elected:
			}
			// What others wrote since is read before anything is decided.
			r.mu.Lock()
			r.caught = map[types.NamespacedName]bool{}
			r.mu.Unlock()
			r.wake(ctx, queue, "")
		}
		r.wakeGone(ctx, queue)
	}()
	return nil
}

// wakeGone looks at the Rollouts that Children have on record and that are not there any more.
func (r *Rollouts) wakeGone(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if served, err := r.rollouts.isServed(r.Client.RESTMapper()); err == nil && !served {
		return
	}
	all, err := r.rollouts.list(ctx, r.Client, metav1.NamespaceAll)
	list := &v1alpha1.ChildList{}
	if err == nil {
		err = r.Client.List(ctx, list, client.UnsafeDisableDeepCopy)
	}
	if err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "cannot find out which Rollouts went: what they let clusters have stays on record until the next start")
		}
		return
	}
	there := map[types.NamespacedName]bool{}
	for i := range all {
		there[client.ObjectKeyFromObject(&all[i])] = true
	}
	for i := range list.Items {
		for _, pin := range list.Items[i].Status.Rollouts {
			if name := (types.NamespacedName{Namespace: list.Items[i].Namespace, Name: pin.Name}); !there[name] {
				queue.Add(reconcile.Request{NamespacedName: name})
			}
		}
	}
}
