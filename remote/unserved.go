package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

const (
	// unservedPause is between two looks for children that nobody drives.
	unservedPause = 10 * time.Second
	// adriftAfter is how long nobody drives a child before its layers are not in place by what it said. When a
	// replica is gone, another one has its shards some seconds after that is seen.
	adriftAfter = 30 * time.Second
)

// unserved has Children say that they are not heard of while no replica drives their shard: nobody else would, and
// what was known of them before would stand. Who has the shard next takes that back. Only the leader does this.
type unserved struct {
	*Children
	// since is when a child came to be driven by nobody; zero if somebody drives it.
	since func(child types.NamespacedName) time.Time
}

// Start implements manager.Runnable.
func (u unserved) Start(ctx context.Context) error {
	ticks := time.NewTicker(unservedPause)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		if err := u.look(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "cannot say that children are not heard of")
		}
	}
}

func (u unserved) look(ctx context.Context) error {
	list := &v1alpha1.ChildList{}
	if err := u.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	var errs []error
	for i := range list.Items {
		before := &list.Items[i]
		since := u.since(client.ObjectKeyFromObject(before))
		switch {
		case since.IsZero(), u.Now().Sub(since) < report.Patience(u.ObserveInterval):
			continue
		case before.Status.HeardAt != nil, before.Status.Identity == nil, unseeded(before), !u.Part.selects(before),
			meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConnectedCondition) == nil:
			continue // it says so, or was never heard of, or nobody is to ask it
		}
		after := before.DeepCopy()
		after.Status.HeardAt = new(metav1.NewTime(since.Truncate(time.Second)))
		err := u.Client.Status().Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(statusManager))
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err): // another look follows
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot write status of Child %s/%s: %w", before.Namespace, before.Name, err))
		default:
			recordAll(u.Events, after, nil, childTransitions(before, after))
		}
	}
	return errors.Join(errs...)
}

// adrift reports whether a child has been driven by nobody for long.
func (r *Layers) adrift(child *v1alpha1.Child) bool {
	if r.unserved == nil || !r.Part.selects(child) {
		return false
	}
	since := r.unserved(client.ObjectKeyFromObject(child))
	return !since.IsZero() && r.Now().Sub(since) >= adriftAfter
}

// onAdrift has the layers of children counted that come to be driven by nobody, and that are driven again: no event
// of theirs tells.
func (r *Layers) onAdrift(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if r.unserved == nil {
		return nil
	}
	go func() {
		ticks := time.NewTicker(unservedPause)
		defer ticks.Stop()
		var known map[types.NamespacedName]bool
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
			known = r.recount(ctx, known, queue.Add)
		}
	}()
	return nil
}

// recount adds the layers of namespaces in which other children than those before are adrift, and returns which are.
func (r *Layers) recount(ctx context.Context, before map[types.NamespacedName]bool, add func(reconcile.Request)) map[types.NamespacedName]bool {
	if !r.Part.leads() {
		return nil
	}
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "cannot list Children to tell which of them nobody drives")
		return before
	}
	now, changed := map[types.NamespacedName]bool{}, map[string]client.Object{}
	for i := range list.Items {
		child := &list.Items[i]
		key := client.ObjectKeyFromObject(child)
		if r.adrift(child) {
			now[key] = true
		}
		if now[key] != before[key] {
			changed[child.Namespace] = child
		}
	}
	for _, child := range changed {
		for _, request := range r.inNamespace(ctx, child) {
			add(request)
		}
	}
	return now
}
