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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// unservedPause is between two looks for children that nobody drives.
const unservedPause = 10 * time.Second

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
