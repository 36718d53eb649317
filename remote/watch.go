package remote

import (
	"context"
	"fmt"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
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
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// SetupWithManager registers the reconcilers of Layer and Child, and that of the
// Namespaces with Clusters. Clusters and their kubeconfig Secrets are watched from the
// moment that Cluster API is installed in the tier, which may be never.
func SetupWithManager(mgr ctrl.Manager, stalls *stall.Watchdog, children *Children, layers *Layers, concurrent int) error {
	children.references.Reader, children.references.now = children.Cluster, children.Now
	layers.Wake = func(child types.NamespacedName) { children.Connections.wake(child, true) }
	c, err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Child{}, builder.WithPredicates(relevant())).
		Watches(&v1alpha1.Layer{}, handler.EnqueueRequestsFromMapFunc(children.inNamespace), builder.WithPredicates(relevant())).
		WatchesRawSource(ctrlsource.Func(children.onSnapshot)).
		WatchesRawSource(ctrlsource.Func(children.onProbe)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrent,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, breakPause),
		}).
		Build(stalls.Guard("Child", func() client.Object { return &v1alpha1.Child{} }, children))
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Layer{}, builder.WithPredicates(relevant())).
		Watches(&v1alpha1.Child{}, handler.EnqueueRequestsFromMapFunc(layers.inNamespace)).
		Complete(stalls.Guard("Layer", func() client.Object { return &v1alpha1.Layer{} }, layers)); err != nil {
		return err
	}
	guard, err := namespaces{children}.setUp(mgr)
	if err != nil {
		return err
	}
	return mgr.Add(&clusterWatch{mgr: mgr, controller: c, guard: guard, children: children})
}

// onProbe makes the end of a probe call for a reconcile. Children that are only due
// queue behind those with an event.
func (r *Children) onProbe(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Connections.onProbe(func(key types.NamespacedName, urgent bool) {
		request := reconcile.Request{NamespacedName: key}
		byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request])
		if !ok || urgent {
			queue.Add(request)
			return
		}
		byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: new(periodic)}, request)
	})
	return nil
}

// relevant passes changes of spec, labels, and the annotations that ask for
// something; not of status, which we write ourselves.
func relevant() predicate.Predicate {
	asked := func(o client.Object) [2]string {
		a := o.GetAnnotations()
		return [2]string{a[fluxmeta.ReconcileRequestAnnotation], a[v1alpha1.ApprovePruneAnnotation]}
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

// onSnapshot wakes the children of layers whose source has a new snapshot.
func (r *Children) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(key source.Key) {
		layers := &v1alpha1.LayerList{}
		if err := r.Client.List(ctx, layers, client.InNamespace(key.Namespace)); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Layers of source", "source", key.String())
			return
		}
		for i := range layers.Items {
			layer := &layers.Items[i]
			from, provided := componentSource(layer)
			if (layer.Spec.SourceRef == nil || layerSource(layer) != key) && (!provided || from != key) {
				continue
			}
			for _, request := range r.inNamespace(ctx, layer) {
				queue.Add(request)
			}
			return
		}
	})
	return nil
}

// clusterWatch begins to watch Clusters when their CRD appears.
type clusterWatch struct {
	mgr ctrl.Manager
	// controller is that of Children, guard that of Namespaces.
	controller, guard controller.Controller
	children          *Children
}

var _ manager.LeaderElectionRunnable = &clusterWatch{}

// NeedLeaderElection says that only the leader watches, as for the controllers.
func (w *clusterWatch) NeedLeaderElection() bool { return true }

// Start waits for the CRD, begins the watches, and ends.
func (w *clusterWatch) Start(ctx context.Context) error {
	appeared := make(chan struct{}, 1)
	crds := &metav1.PartialObjectMetadata{}
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	informer, err := w.mgr.GetCache().GetInformer(ctx, crds)
	if err != nil {
		return fmt.Errorf("cannot watch CRDs: %w", err)
	}
	saw := func(o any) {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok && m.Name == clusterapi.ClusterCRD {
			select {
			case appeared <- struct{}{}:
			default:
			}
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: saw, UpdateFunc: func(_, o any) { saw(o) },
	})
	if err != nil {
		return fmt.Errorf("cannot watch CRDs: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-appeared:
		}
		// A CRD is served a moment after it appears.
		mapping, err := w.mgr.GetRESTMapper().RESTMapping(clusterapi.ClusterKind)
		if err != nil {
			time.AfterFunc(500*time.Millisecond, func() {
				select {
				case appeared <- struct{}{}:
				default:
				}
			})
			continue
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(mapping.GroupVersionKind)
		if err := w.controller.Watch(ctrlsource.Kind(w.mgr.GetCache(), u, &handler.TypedEnqueueRequestForObject[*unstructured.Unstructured]{}, w.children.hangUp())); err != nil {
			return fmt.Errorf("cannot watch Clusters: %w", err)
		}
		w.children.clusters.watch(mapping.GroupVersionKind)
		if err := w.guard.Watch(ofClusters(w.mgr.GetCache(), u)); err != nil {
			return fmt.Errorf("cannot watch Clusters: %w", err)
		}
		secrets := &metav1.PartialObjectMetadata{}
		secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		if err := w.controller.Watch(ctrlsource.Kind(w.mgr.GetCache(), secrets, handler.TypedEnqueueRequestsFromMapFunc(ofCluster))); err != nil {
			return fmt.Errorf("cannot watch kubeconfig Secrets: %w", err)
		}
		return nil
	}
}

// hangUp ends the calls to a cluster as soon as its deletion is seen, rather than at
// the end of the run. It passes every event on.
func (r *Children) hangUp() predicate.TypedPredicate[*unstructured.Unstructured] {
	see := func(u *unstructured.Unstructured) bool {
		if u.GetDeletionTimestamp() != nil {
			r.Connections.Forget(client.ObjectKeyFromObject(u))
		}
		return true
	}
	return predicate.TypedFuncs[*unstructured.Unstructured]{
		CreateFunc: func(e event.TypedCreateEvent[*unstructured.Unstructured]) bool { return see(e.Object) },
		UpdateFunc: func(e event.TypedUpdateEvent[*unstructured.Unstructured]) bool { return see(e.ObjectNew) },
		DeleteFunc: func(e event.TypedDeleteEvent[*unstructured.Unstructured]) bool {
			r.Connections.Forget(client.ObjectKeyFromObject(e.Object))
			return true
		},
	}
}

func ofCluster(_ context.Context, o *metav1.PartialObjectMetadata) []reconcile.Request {
	cluster, ok := clusterapi.ClusterOfKubeconfig(o)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: cluster}}}
}
