package remote

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// rolloutsAgain is how soon the kind Rollout is looked for again in a tier that lacks it: the
// definitions there may be those of an earlier version.
const rolloutsAgain = 30 * time.Second

// rolloutKind reads Rollouts, from the cache, in tiers that have the kind. A nil one is a
// tier without. It is safe for concurrent use.
type rolloutKind struct {
	now func() time.Time

	mu     sync.Mutex
	served bool
	asked  time.Time
}

// isServed reports whether the tier has the kind.
func (k *rolloutKind) isServed(mapper meta.RESTMapper) (bool, error) {
	if k == nil {
		return false, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.served || !k.asked.IsZero() && k.now().Sub(k.asked) < rolloutsAgain {
		return k.served, nil
	}
	gvk := v1alpha1.GroupVersion.WithKind("Rollout")
	switch _, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version); {
	case meta.IsNoMatchError(err):
	case err != nil:
		return false, fmt.Errorf("cannot find out whether this tier has Rollouts: %w", err)
	default:
		k.served = true
	}
	k.asked = k.now()
	return k.served, nil
}

// list returns the Rollouts of a namespace. They must not be modified.
func (k *rolloutKind) list(ctx context.Context, c client.Client, namespace string) ([]v1alpha1.Rollout, error) {
	if k == nil {
		return nil, nil
	}
	if served, err := k.isServed(c.RESTMapper()); err != nil || !served {
		return nil, err
	}
	list := &v1alpha1.RolloutList{}
	if err := c.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Rollouts: %w", err)
	}
	return list.Items, nil
}

// rolloutWatch begins to watch Rollouts when the tier has the kind.
type rolloutWatch struct {
	kind     *rolloutKind
	mapper   meta.RESTMapper
	cache    cache.Cache
	children *Children
	// ofChildren, ofLayers, ofRollouts and ofExchanges are the controllers that are woken.
	ofChildren, ofLayers, ofRollouts, ofExchanges controller.Controller
}

var _ manager.LeaderElectionRunnable = &rolloutWatch{}

// NeedLeaderElection says who watches: as for the controllers, the leader, or with shards
// each replica.
func (w *rolloutWatch) NeedLeaderElection() bool { return w.children.Part.Tenures == nil }

// Start waits for the kind, begins the watches, and ends.
func (w *rolloutWatch) Start(ctx context.Context) error {
	ticks := time.NewTicker(rolloutsAgain)
	defer ticks.Stop()
	for {
		if served, err := w.kind.isServed(w.mapper); err == nil && served {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
	ofChildren := handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, r *v1alpha1.Rollout) []reconcile.Request {
		return w.children.inNamespace(ctx, r)
	})
	if err := w.ofChildren.Watch(ctrlsource.Kind(w.cache, &v1alpha1.Rollout{}, ofChildren, otherMoves())); err != nil {
		return fmt.Errorf("cannot watch Rollouts: %w", err)
	}
	if err := w.ofLayers.Watch(ctrlsource.Kind(w.cache, &v1alpha1.Rollout{}, handler.TypedEnqueueRequestsFromMapFunc(movedLayer), otherAim())); err != nil {
		return fmt.Errorf("cannot watch Rollouts: %w", err)
	}
	moved := w.children.Part.moved()
	changed := predicate.Or[*v1alpha1.Rollout](predicate.TypedGenerationChangedPredicate[*v1alpha1.Rollout]{}, predicate.TypedAnnotationChangedPredicate[*v1alpha1.Rollout]{}, moved)
	if err := w.ofRollouts.Watch(ctrlsource.Kind(w.cache, &v1alpha1.Rollout{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.Rollout]{}, changed)); err != nil {
		return fmt.Errorf("cannot watch Rollouts: %w", err)
	}
	if err := w.ofExchanges.Watch(ctrlsource.Kind(w.cache, &v1alpha1.Rollout{}, &handler.TypedEnqueueRequestForObject[*v1alpha1.Rollout]{}, predicate.Or(otherExchange(), moved))); err != nil {
		return fmt.Errorf("cannot watch Rollouts: %w", err)
	}
	return nil
}

// moved passes Rollouts of which other labels make them another agent's. Who has one now begins
// with it, and who had it drops it.
func (p Part) moved() predicate.TypedPredicate[*v1alpha1.Rollout] {
	return predicate.TypedFuncs[*v1alpha1.Rollout]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.Rollout]) bool {
		return p.selects(e.ObjectOld) != p.selects(e.ObjectNew)
	}}
}

// otherExchange passes Rollouts that may have something else to read or to write in their
// repository.
func otherExchange() predicate.TypedPredicate[*v1alpha1.Rollout] {
	return predicate.TypedFuncs[*v1alpha1.Rollout]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.Rollout]) bool {
		before, after := e.ObjectOld, e.ObjectNew
		waits := func(r *v1alpha1.RolloutRun) any {
			if r == nil {
				return nil
			}
			return [4]any{r.Number, r.Phase, r.Wave, r.Begun}
		}
		return before.UID != after.UID || before.Generation != after.Generation || !maps.Equal(before.Annotations, after.Annotations) ||
			!equality.Semantic.DeepEqual(before.Status.LastGood, after.Status.LastGood) || waits(before.Status.Run) != waits(after.Status.Run)
	}}
}

// movedLayer is the layer that a Rollout moves.
func movedLayer(_ context.Context, r *v1alpha1.Rollout) []reconcile.Request {
	if r.Spec.Moves.LayerRef == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.Moves.LayerRef.Name}}}
}

// otherMoves passes Rollouts that come, go, or change what they move or for whom.
func otherMoves() predicate.TypedPredicate[*v1alpha1.Rollout] {
	return predicate.TypedFuncs[*v1alpha1.Rollout]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.Rollout]) bool {
		return movesOther(e.ObjectOld, e.ObjectNew)
	}}
}

func movesOther(before, after *v1alpha1.Rollout) bool {
	return before.UID != after.UID || before.Status.UID != after.Status.UID || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.Spec.Moves, after.Spec.Moves) || !equality.Semantic.DeepEqual(before.Spec.ClusterSelector, after.Spec.ClusterSelector)
}

// otherAim passes these, and Rollouts that bring another revision.
func otherAim() predicate.TypedPredicate[*v1alpha1.Rollout] {
	return predicate.TypedFuncs[*v1alpha1.Rollout]{UpdateFunc: func(e event.TypedUpdateEvent[*v1alpha1.Rollout]) bool {
		return movesOther(e.ObjectOld, e.ObjectNew) || !equality.Semantic.DeepEqual(rollout.Wanted(e.ObjectOld), rollout.Wanted(e.ObjectNew))
	}}
}

// otherPins passes the change of a Child by which it may have another revision of something.
// What became of a revision does not wake it: that is what its own reconciles tell.
func otherPins() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false }, DeleteFunc: func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, wasChild := e.ObjectOld.(*v1alpha1.Child)
			after, isChild := e.ObjectNew.(*v1alpha1.Child)
			return wasChild && isChild && !slices.EqualFunc(before.Status.Rollouts, after.Status.Rollouts, func(a, b v1alpha1.ChildRollout) bool {
				return a.Same(b)
			})
		},
	}
}

// onKept wakes children that wait for a revision that was fetched, or cannot be.
func (r *Children) onKept(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnKept(func(holders []source.Holder) {
		for _, h := range holders {
			if h.Kind == holderOf(h.NamespacedName).Kind {
				queue.Add(reconcile.Request{NamespacedName: h.NamespacedName})
			}
		}
	})
	return nil
}
