package kustomization

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// rolloutIndex has Rollouts by the name of the Kustomization that they move.
const rolloutIndex = "cascade.kustomizationRef"

// kindIsThere reports whether the API server serves one of our kinds. One that is installed
// later is found when the agent starts anew; definitions come with the agent.
func kindIsThere(mgr ctrl.Manager, kind string) (bool, error) {
	_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: kind}, v1alpha1.GroupVersion.Version)
	if apimeta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up kind %s: %w", kind, err)
	}
	return true, nil
}

// watchRollouts completes the controller, which wakes Kustomizations when a Rollout that
// moves one changes, and when a Child may have another revision. Children are watched from
// the first such Rollout on: where there is none, nothing of them is read.
func (r *Reconciler) watchRollouts(ctx context.Context, mgr ctrl.Manager, b *builder.Builder, lot reconcile.Reconciler) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Rollout{}, rolloutIndex, func(o client.Object) []string {
		if ref := o.(*v1alpha1.Rollout).Spec.Moves.KustomizationRef; ref != nil {
			return []string{ref.Name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot index Rollouts: %w", err)
	}
	var c controller.Controller
	var once sync.Once
	children := func(ctx context.Context) {
		once.Do(func() {
			watch := ctrlsource.Kind(mgr.GetCache(), client.Object(&v1alpha1.Child{}), &handler.Funcs{
				CreateFunc: func(ctx context.Context, e event.CreateEvent, queue wake.Queue) { r.onChild(ctx, e.Object, queue) },
				UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue wake.Queue) { r.onChild(ctx, e.ObjectNew, queue) },
				DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue wake.Queue) { r.onChild(ctx, e.Object, queue) },
			}, otherPins())
			if err := c.Watch(watch); err != nil {
				log.FromContext(ctx).Error(err, "cannot watch Children; Kustomizations with Rollouts notice new pins at their interval")
			}
		})
	}
	onRollout := func(ctx context.Context, o client.Object, queue wake.Queue) {
		if ref := o.(*v1alpha1.Rollout).Spec.Moves.KustomizationRef; ref != nil {
			children(ctx)
			wake.Enqueue(queue, types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}, wake.PriorityChanged, wake.TouchDelay)
		}
	}
	b = b.Watches(&v1alpha1.Rollout{}, &handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue wake.Queue) { onRollout(ctx, e.Object, queue) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue wake.Queue) {
			onRollout(ctx, e.ObjectNew, queue)
			if before := e.ObjectOld.(*v1alpha1.Rollout).Spec.Moves.KustomizationRef; before != nil {
				onRollout(ctx, e.ObjectOld, queue)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue wake.Queue) { onRollout(ctx, e.Object, queue) },
	}, builder.WithPredicates(otherRollout()))
	c, err = b.Build(lot)
	return err
}

// otherRollout passes changes of a Rollout that mean something to the Kustomization which
// it moves.
func otherRollout() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.Rollout), e.ObjectNew.(*v1alpha1.Rollout)
		good := func(r *v1alpha1.Rollout) string {
			if r.Status.LastGood == nil {
				return ""
			}
			return r.Status.LastGood.Revision
		}
		return before.Generation != after.Generation || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || good(before) != good(after)
	}}
}

// otherPins passes changes of a Child by which it may have another revision.
func otherPins() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.Child), e.ObjectNew.(*v1alpha1.Child)
		return !maps.Equal(before.Labels, after.Labels) || !slices.EqualFunc(before.Status.Rollouts, after.Status.Rollouts, func(a, b v1alpha1.ChildRollout) bool {
			return a.Name == b.Name && a.Revision == b.Revision && a.Run == b.Run
		})
	}}
}

// onChild wakes the Kustomizations of the namespace that Rollouts move. Several Children
// that change at once are one reconcile.
func (r *Reconciler) onChild(ctx context.Context, child client.Object, queue wake.Queue) {
	list := &v1alpha1.RolloutList{}
	if err := r.Client.List(ctx, list, client.InNamespace(child.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list Rollouts", "namespace", child.GetNamespace())
		return
	}
	for i := range list.Items {
		if ref := list.Items[i].Spec.Moves.KustomizationRef; ref != nil {
			wake.Enqueue(queue, types.NamespacedName{Namespace: child.GetNamespace(), Name: ref.Name}, wake.PriorityChanged, wake.TouchDelay)
		}
	}
}
