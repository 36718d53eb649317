package kustomization

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/wake"

	snapshots "github.com/cascade-gitops/cascade/syncer/source"
)

// rolloutsAgain is how soon the kind Rollout is looked for again where it is missing: the
// definitions may be those of an earlier version.
const rolloutsAgain = 30 * time.Second

// rolloutKind reads Rollouts where their kind is served. The zero value has not looked yet.
// It is safe for concurrent use.
type rolloutKind struct {
	now func() time.Time

	mu     sync.Mutex
	served bool
	asked  time.Time
}

// isServed reports whether there is the kind, as of a moment ago.
func (k *rolloutKind) isServed(mapper apimeta.RESTMapper) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.served || !k.asked.IsZero() && k.now().Sub(k.asked) < rolloutsAgain {
		return k.served, nil
	}
	gvk := v1alpha1.GroupVersion.WithKind("Rollout")
	switch _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); {
	case apimeta.IsNoMatchError(err):
	case err != nil:
		return false, fmt.Errorf("cannot find out whether this tier has Rollouts: %w", err)
	default:
		k.served = true
	}
	k.asked = k.now()
	return k.served, nil
}

// of are the Rollouts that move a Kustomization, nil if there are none. They must not be
// changed.
func (k *rolloutKind) of(ctx context.Context, c client.Client, obj *kustomizev1.Kustomization) ([]v1alpha1.Rollout, error) {
	served, err := k.isServed(c.RESTMapper())
	if err != nil || !served {
		return nil, err
	}
	list := &v1alpha1.RolloutList{}
	if err := c.List(ctx, list, client.InNamespace(obj.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Rollouts: %w", err)
	}
	var moving []v1alpha1.Rollout
	for i := range list.Items {
		if ref := list.Items[i].Spec.Moves.KustomizationRef; ref != nil && ref.Name == obj.Name && list.Items[i].DeletionTimestamp.IsZero() {
			moving = append(moving, list.Items[i])
		}
	}
	slices.SortFunc(moving, func(a, b v1alpha1.Rollout) int { return strings.Compare(a.Name, b.Name) })
	return moving, nil
}

// rolloutWatch wakes Kustomizations when a Rollout that moves one changes, and when a
// Child may have another revision. It begins when there is the kind. Children are watched
// from the first such Rollout on: where there is none, nothing of them is read.
type rolloutWatch struct {
	reconciler *Reconciler
	mapper     apimeta.RESTMapper
	cache      cache.Cache
	controller controller.Controller
	// wanted is closed when there is a Rollout that moves a Kustomization.
	wanted chan struct{}
	once   sync.Once
}

// NeedLeaderElection says who watches: the one that reconciles.
func (w *rolloutWatch) NeedLeaderElection() bool { return true }

// Start waits for the kind, begins the watch, and ends.
func (w *rolloutWatch) Start(ctx context.Context) error {
	ticks := time.NewTicker(rolloutsAgain)
	defer ticks.Stop()
	for {
		if served, err := w.reconciler.rollouts.isServed(w.mapper); err == nil && served {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
	err := w.controller.Watch(source.Kind(w.cache, client.Object(&v1alpha1.Rollout{}), &handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, queue wake.Queue) { w.onRollout(e.Object, queue) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, queue wake.Queue) {
			w.onRollout(e.ObjectOld, queue) // it may have moved another one
			w.onRollout(e.ObjectNew, queue)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, queue wake.Queue) { w.onRollout(e.Object, queue) },
	}, otherRollout()))
	if err != nil {
		return fmt.Errorf("cannot watch Rollouts: %w", err)
	}
	// The handler of Rollouts must not begin it: a controller that is starting waits for what
	// its handlers do, and a new watch for the controller.
	select {
	case <-ctx.Done():
		return nil
	case <-w.wanted:
	}
	onChild := w.reconciler.onChild
	err = w.controller.Watch(source.Kind(w.cache, client.Object(&v1alpha1.Child{}), &handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue wake.Queue) { onChild(ctx, e.Object, queue) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue wake.Queue) { onChild(ctx, e.ObjectNew, queue) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue wake.Queue) { onChild(ctx, e.Object, queue) },
	}, otherPins()))
	if err != nil {
		return fmt.Errorf("cannot watch Children: %w", err)
	}
	return nil
}

func (w *rolloutWatch) onRollout(o client.Object, queue wake.Queue) {
	ref := o.(*v1alpha1.Rollout).Spec.Moves.KustomizationRef
	if ref == nil {
		return
	}
	w.once.Do(func() { close(w.wanted) })
	wake.Enqueue(queue, types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}, wake.PriorityChanged, wake.TouchDelay)
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
		return before.Generation != after.Generation || before.Status.UID != after.Status.UID || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || good(before) != good(after)
	}}
}

// otherPins passes Children that come, go, or may have another revision.
func otherPins() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*v1alpha1.Child), e.ObjectNew.(*v1alpha1.Child)
		return !maps.Equal(before.Labels, after.Labels) || !slices.EqualFunc(before.Status.Rollouts, after.Status.Rollouts, func(a, b v1alpha1.ChildRollout) bool {
			return a.Name == b.Name && a.UID == b.UID && a.Revision == b.Revision && a.Run == b.Run
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

// holderOf is who retains revisions for the Clusters of a Kustomization.
func holderOf(name types.NamespacedName) snapshots.Holder {
	return snapshots.Holder{Kind: kustomizev1.KustomizationKind, NamespacedName: name}
}

// onKept wakes Kustomizations that wait for a revision which was fetched, or cannot be.
func (r *Reconciler) onKept(_ context.Context, queue wake.Queue) error {
	r.Sources.Snapshots.OnKept(func(holders []snapshots.Holder) {
		for _, h := range holders {
			if h == holderOf(h.NamespacedName) {
				wake.Enqueue(queue, h.NamespacedName, wake.PriorityChanged, 0)
			}
		}
	})
	return nil
}
