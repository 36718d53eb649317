package remote

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// guardManager is the field manager of the label that protects a Namespace.
const guardManager = "cascade-guard"

// guardPause is between two looks at a labelled Namespace while Clusters are not watched:
// the last of them may have gone before the agent began.
const guardPause = 10 * time.Second

// namespaces labels the Namespaces that have a Cluster, so that the API server
// refuses to delete them (deploy/agent/wall.yaml). Without the label, deleting a Namespace
// would delete the keys and workloads beside a Cluster before the API server refuses to
// delete the Cluster. The label is removed with the last Cluster. Any other value of the
// label was set by a person, and stays.
type namespaces struct{ *Children }

// setUp registers the reconciler of Namespaces.
func (n namespaces) setUp(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("namespace").
		For(&corev1.Namespace{}, builder.OnlyMetadata, builder.WithPredicates(n.events())).
		WatchesRawSource(ctrlsource.Func(n.onCluster)).
		Complete(n)
}

// events of Namespaces that are looked at. Those of Clusters, which come by another watch, are the others.
func (n namespaces) events() predicate.Funcs {
	labelled := func(o client.Object) bool { return o.GetLabels()[v1alpha1.ProtectedLabel] == "true" }
	return predicate.Funcs{
		// The last Cluster may have gone while nobody looked, or the first one was seen before its Namespace.
		CreateFunc: func(e event.CreateEvent) bool { return labelled(e.Object) || n.Clusters.Any(e.Object.GetName()) },
		// Another one of the name may come as an update.
		UpdateFunc: func(e event.UpdateEvent) bool {
			return (labelled(e.ObjectOld) || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()) && !labelled(e.ObjectNew)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// onCluster asks for the Namespace of a Cluster that came or went.
func (n namespaces) onCluster(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	n.Clusters.Handle(func(e clusters.Event) {
		if e.Old == nil || e.New == nil {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: e.Name().Namespace}})
		}
	})
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (n namespaces) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := n.Cache.Get(ctx, request.NamespacedName, namespace); err != nil || namespace.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if _, ok := n.Clusters.Version(); !ok {
		// Nobody knows yet whether there are Clusters.
		return reconcile.Result{RequeueAfter: guardPause}, nil
	}
	value, set := namespace.Labels[v1alpha1.ProtectedLabel]
	switch inhabited := n.Clusters.Any(namespace.Name); {
	case inhabited && !set:
		return reconcile.Result{}, n.label(ctx, namespace, map[string]any{v1alpha1.ProtectedLabel: "true"})
	case !inhabited && value == "true":
		return reconcile.Result{}, n.unlabel(ctx, namespace)
	}
	return reconcile.Result{}, nil
}

// label applies the labels that are ours, to this Namespace and no other of its name.
func (n namespaces) label(ctx context.Context, namespace *metav1.PartialObjectMetadata, labels map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": namespace.Name, "uid": string(namespace.UID), "labels": labels},
	}}
	err := n.Cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(guardManager))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // a person was faster, or it is another one
	}
	if err != nil {
		return fmt.Errorf("cannot label Namespace %s: %w", namespace.Name, err)
	}
	return nil
}

// unlabel removes our label if the API server, and not only the cache, has no Cluster in
// the Namespace.
func (n namespaces) unlabel(ctx context.Context, namespace *metav1.PartialObjectMetadata) error {
	kind, _ := n.Clusters.Version()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := n.Cluster.List(ctx, list, client.InNamespace(namespace.Name), client.Limit(1)); err != nil {
		return fmt.Errorf("cannot list Clusters in namespace %s: %w", namespace.Name, err)
	}
	if len(list.Items) > 0 {
		return nil
	}
	// The cache does not have the field manager of the label.
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(namespace.GroupVersionKind())
	if err := n.Cluster.Get(ctx, client.ObjectKeyFromObject(namespace), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	ours := slices.ContainsFunc(live.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == guardManager })
	if live.UID != namespace.UID || !ours {
		return nil
	}
	return n.label(ctx, live, nil)
}
