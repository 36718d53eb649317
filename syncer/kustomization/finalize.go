package kustomization

import (
	"context"
	"errors"
	"slices"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// finalize answers the deletion of a Kustomization by its deletion policy.
func (r *Reconciler) finalize(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.Obj
	if !controllerutil.ContainsFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		return ctrl.Result{}, nil
	}
	prune, err := r.prunesOnDeletion(ctx, obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	if prune {
		if end := r.removeAll(ctx, run); end != nil {
			return end.result, end.err
		}
	}
	r.Memo.Forget(run.name())
	controllerutil.RemoveFinalizer(obj, kustomizev1.KustomizationFinalizer)
	return ctrl.Result{}, client.IgnoreNotFound(run.WriteMetadata(ctx))
}

// removeAll deletes what a deleted Kustomization applied. It ends the reconcile
// unless the Kustomization may go.
func (r *Reconciler) removeAll(ctx context.Context, run *run) *end {
	obj := run.Obj
	stay := func(reason string, err error) *end { return r.failed(ctx, run, reason, err) }
	ref := target.Of(obj, r.Targets.ServiceAccount)
	recorded, err := target.Recorded(obj, ref, run.known.appliedTo())
	if err != nil {
		return stay(meta.PruneFailedReason, err)
	}
	if recorded != nil {
		ref = *recorded
	}
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return stay(meta.PruneFailedReason, err)
	}
	facts := target.DeletionFacts{Target: ref, Objects: len(owned)}
	if facts.AccountGone, facts.Problem = r.Targets.AccountGone(ctx, obj.Namespace, ref); facts.Problem == nil {
		_, facts.Problem = r.Targets.Connect(ctx, obj.Namespace, ref)
	}
	if facts.Problem == nil && ref.Cluster != "" {
		var now target.Ref
		now, facts.Problem = r.Targets.Presently(ctx, obj.Namespace, ref)
		facts.Other, facts.Unidentified = now.Cluster != "" && now.Cluster != ref.Cluster, now.Cluster == ""
	}
	if facts.Problem != nil {
		facts.ClusterGone = r.takenDown(ctx, run, ref)
	}
	answer := target.DecideDeletion(facts)
	if answer.Message != "" && answer.Release {
		r.event(run, corev1.EventTypeWarning, nil, "%s", answer.Message)
	}
	if !answer.Release {
		return stay(meta.PruneFailedReason, errors.New(answer.Message))
	}
	if !answer.Prune {
		return nil
	}
	res, err := r.pruneAt(ctx, run, ref, apply.Options{
		Target: run.name().String(), LowerTier: !ref.Local(), Claimed: r.Claims.Except(obj, ref, claim.Applied{}),
		HandOver: run.held.HandOver, Decided: run.held.Last,
		Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation],
	})
	run.attempted(err)
	if err != nil {
		if facts.Problem, facts.ClusterGone = err, r.takenDown(ctx, run, ref); facts.ClusterGone != "" {
			r.event(run, corev1.EventTypeWarning, nil, "%s", target.DecideDeletion(facts).Message)
			return nil
		}
		return stay(meta.PruneFailedReason, err)
	}
	if end := r.unfinished(run, res); end != nil {
		return end
	}
	// What another owner has as well stays, and is nothing to wait for.
	left := inventory.Difference(res.Inventory, res.Plan.Claimed)
	// These still take down what they applied, perhaps as an account of whoever declares this Kustomization, who
	// keeps it for as long as this one is there.
	below := slices.DeleteFunc(slices.Clone(res.Plan.Going), func(e inventory.Entry) bool { return !slices.Contains(left, e) })
	switch {
	case len(below) > 0:
		status.MarkProgressing(obj, "Waiting for %s to take down what it applied", below[0])
		return again(min(run.known.deleting(r.Now()), 30*time.Second))
	case len(left) > 0 && r.waitsForTermination(run):
		status.MarkProgressing(obj, "Waiting for %d objects to be deleted", len(left))
		return again(deletePoll)
	case len(left) > 0 && obj.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination:
		r.event(run, corev1.EventTypeWarning, nil, "failed to wait for resources termination: %d objects are still being deleted", len(left))
	}
	// What is left is being deleted: the API server accepted
	// each of the deletions.
	return nil
}

// takenDown tells that a cluster which cannot be reached is gone for good, empty if it may come back.
// While Cluster API is still taking it down it may answer again, and what is in it, such as a load
// balancer, is to go.
func (r *Reconciler) takenDown(ctx context.Context, run *run, ref target.Ref) string {
	why, absent, err := r.Targets.ClusterGone(ctx, run.Obj.Namespace, ref)
	if err != nil || !absent {
		return "" // what is wrong with the cluster is told
	}
	return why
}

// waitsForTermination reports whether the Kustomization stays until its objects
// are gone. After its time-out it goes all the same, as with Flux. That begins with the
// deletes: they may have failed, or been held, for long.
func (r *Reconciler) waitsForTermination(run *run) bool {
	return run.Obj.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination &&
		r.Now().Sub(run.known.terminating(r.Now())) < run.Obj.GetTimeout()
}

// prunesOnDeletion reports whether the objects go with the Kustomization. They
// never do when the kind itself is being removed: losing the CRDs must not
// take the workloads along.
func (r *Reconciler) prunesOnDeletion(ctx context.Context, obj *kustomizev1.Kustomization) (bool, error) {
	if obj.Spec.Suspend || obj.Status.Inventory == nil {
		return false, nil
	}
	switch obj.GetDeletionPolicy() {
	case kustomizev1.DeletionPolicyOrphan:
		return false, nil
	case kustomizev1.DeletionPolicyMirrorPrune:
		if !obj.Spec.Prune {
			return false, nil
		}
	}
	removed, err := target.KindRemoved(ctx, r.Targets.Local, "kustomizations."+kustomizev1.GroupVersion.Group)
	return !removed && err == nil, err
}
