package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// leave prunes what was applied to another cluster. That is tried for
// spec.timeout; then the objects are left there, and an event says so.
func (r *Reconciler) leave(ctx context.Context, run *run, old target.Ref) *end {
	obj := run.Obj
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return r.failed(ctx, run, meta.PruneFailedReason, err)
	}
	if len(owned) == 0 || !obj.Spec.Prune {
		obj.Status.Inventory = nil
		return nil
	}
	res, err := r.pruneAt(ctx, run, old, apply.Options{
		Target: run.name().String(), LowerTier: !old.Local(), Moved: true, Claimed: r.Claims.Except(obj, old, claim.Applied{}),
		HandOver: run.held.HandOver,
		Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation], Undecided: run.undecided(),
	})
	if err == nil {
		obj.Status.Inventory = refs(res.Inventory)
		r.tell(run, res)
		switch {
		case res.Plan.Blocked():
			run.known.arrived() // it answers: the time-out is for one that does not
			return r.blocked(run, res)
		case len(res.Inventory) == 0:
			status.RemoveCondition(obj, v1alpha1.PruneBlockedCondition)
			return nil
		}
		err = fmt.Errorf("%d objects of the cluster that was applied to before are not gone yet", len(res.Inventory))
	}
	if r.Now().Sub(run.known.leaving(run.start)) > obj.GetTimeout() {
		r.event(run, corev1.EventTypeWarning, nil, "%d objects are left behind in the cluster that was applied to before: %s", len(obj.Status.Inventory.Entries), err)
		obj.Status.Inventory = nil
		return nil
	}
	status.MarkFailing(obj, meta.PruneFailedReason, fmt.Errorf("cannot prune in the cluster that was applied to before: %w", err))
	return again(min(obj.GetRetryInterval(), 10*time.Second))
}

// pruneAt removes the objects of the inventory from the cluster that a recorded
// reference leads to, if it is still that cluster.
func (r *Reconciler) pruneAt(ctx context.Context, run *run, ref target.Ref, o apply.Options) (apply.Result, error) {
	obj := run.Obj
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, ref)
	if err != nil {
		return apply.Result{}, err
	}
	now, err := r.Targets.Identify(ctx, obj.Namespace, target.Ref{Kind: ref.Kind, Name: ref.Name, Key: ref.Key, User: ref.User})
	if err != nil {
		return apply.Result{}, err
	}
	if ref.Cluster != "" && now.Cluster != ref.Cluster {
		return apply.Result{}, errors.New("its kubeconfig leads to another cluster now")
	}
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return apply.Result{}, err
	}
	old := *run
	if old.cluster, old.memo = cluster, nil; ref.Local() {
		old.memo = r.Memo
	}
	res, err := r.applierOf(&old).Remove(ctx, owned, o)
	if err != nil {
		return apply.Result{}, err
	}
	return res, nil
}
