package kustomization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// leavePoll is how soon it is tried again to leave a cluster.
const leavePoll = 10 * time.Second

// leave prunes what was applied to another cluster. That is tried for
// spec.timeout; then the objects are left there, and an event says so. A move with
// Clusters waits for a person then.
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
		HandOver: run.held.HandOver, Decided: run.held.Last,
		Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation], Undecided: run.undecided(),
	})
	if err == nil {
		if end := r.unfinished(run, res); end != nil {
			run.known.arrived() // it answers: the time-out is for one that does not
			return end
		}
		if len(res.Inventory) == 0 {
			return nil
		}
		err = fmt.Errorf("%d objects are not gone yet", len(res.Inventory))
		if shared := res.Plan.Claimed; len(shared) > 0 {
			// The other owner may be about to leave, too, and deletes nothing that does not have its labels.
			err = fmt.Errorf("%w; another owner has %s as well, and has not applied it since", err, inventory.Names(shared))
		}
	}
	if run.known.leaving(run.start, r.Now()) > obj.GetTimeout() {
		if end := r.holdMove(ctx, run, fmt.Errorf(
			"%w; take back the change of spec.kubeConfig, or set spec.prune: false to leave behind what is in the cluster of before", err)); end != nil {
			return end
		}
		r.event(run, corev1.EventTypeWarning, nil, "%d objects are left behind in the cluster that was applied to before: %s", len(obj.Status.Inventory.Entries), err)
		obj.Status.Inventory = nil
		return nil
	}
	status.MarkFailing(obj, meta.PruneFailedReason, fmt.Errorf("cannot prune in the cluster that was applied to before: %w", err))
	return again(min(obj.GetRetryInterval(), leavePoll))
}

// holdMove ends the reconcile where Clusters would be built a second time: those that are declared still, the next cluster
// does not have, and the one of before, which cannot be asked, may run. Nobody would answer for these any more. why tells
// what to do, too.
func (r *Reconciler) holdMove(ctx context.Context, run *run, why error) *end {
	owned, err := entries(run.Obj.Status.Inventory)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	declared := inventory.ClustersAmong(inventory.Union(inventory.OfAll(run.rendering.Objects), run.kept()))
	clusters := slices.DeleteFunc(owned, func(e inventory.Entry) bool {
		return !clusterapi.IsCluster(e.GroupKind()) || !slices.ContainsFunc(declared, func(c types.NamespacedName) bool {
			return c.Name == e.Name && (c.Namespace == e.Namespace || c.Namespace == "")
		}) || run.cluster.InServed(e.GroupKind(), func(served *apimeta.RESTMapping) error {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(served.GroupVersionKind)
			return run.cluster.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, o)
		}) == nil
	})
	if len(clusters) == 0 {
		return nil
	}
	r.pruneHeld(run, &v1alpha1.HeldPrune{Protected: int32(len(clusters))}, fmt.Errorf(
		"will not apply %s to another cluster: the one of before may have them still, and they would be built a second time: %w", inventory.Names(clusters), why))
	return again(blockedPoll)
}

// holdUntold is holdMove where nothing tells whether the next cluster is the one of before. Our own cluster can be asked.
func (r *Reconciler) holdUntold(ctx context.Context, run *run, before target.Ref) *end {
	back := "take back the change of spec.kubeConfig"
	if before.Local() {
		switch here, err := r.hasHere(ctx, run, clusterapi.IsCluster); {
		case apierrors.IsForbidden(err):
			return nil // as in recordOwn
		case err != nil:
			return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
		case !here:
			return nil
		}
	} else {
		back += " or, if this is the cluster of before, or that one is gone for good, remove annotation " + target.Annotation
	}
	return r.holdMove(ctx, run, fmt.Errorf("one of both clusters does not let its Namespace %s be read, which tells whether they are the same; %s", metav1.NamespaceSystem, back))
}

// unfinished takes in how far a removal has come. It ends the reconcile while something has to
// happen before the rest can be deleted, however long that takes: a person decides, another owner
// takes its objects, a Cluster goes, or a move that was taken back ends.
func (r *Reconciler) unfinished(run *run, res apply.Result) *end {
	obj := run.Obj
	obj.Status.Inventory = refs(res.Inventory)
	r.tell(run, res)
	waits := r.handsOver(run, res)
	if res.Plan.Blocked() {
		// Confirmations on the objects, and the end of the kind, wake nobody.
		end := r.blocked(run, res)
		end.result.RequeueAfter = min(end.result.RequeueAfter, blockedPoll)
		return end
	}
	if parts := res.Plan.OfCluster; len(parts) > 0 && obj.DeletionTimestamp.IsZero() && !waits && !deletesCluster(res) {
		// All of the Kustomization waits, unlike in a deletion, and perhaps for ever: whoever has the Cluster may keep it.
		r.pruneHeld(run, &v1alpha1.HeldPrune{Protected: int32(len(parts))}, fmt.Errorf(
			"will not delete %s, of Clusters which exist and are not deleted with them, and applies nothing to the new cluster before these are gone; "+
				"take back the change of spec.kubeConfig, or set spec.prune: false to leave behind what is in the cluster of before", inventory.Names(parts)))
		return again(blockedPoll)
	}
	r.settle(run, res.Plan)
	switch plan := res.Plan; {
	case plan.Superseded:
		status.MarkProgressing(obj, "Waiting for this Kustomization to be applied as it is declared by now; nothing is deleted until then")
	case waits:
		status.MarkProgressing(obj, "Waiting for another owner to take over %d objects, the first is %s", len(plan.HandOver), plan.HandOver[0])
		return again(r.handOverPause(res.HandOver))
	case len(plan.Queued) > 0:
		status.MarkProgressing(obj, "Waiting for another Cluster to be gone before %d are deleted, the first is %s", len(plan.Queued), plan.Queued[0])
	case len(plan.Last) > 0:
		status.MarkProgressing(obj, "Waiting for %s to be gone before %d are deleted that it may need for that, the first is %s", plan.LastFor, len(plan.Last), plan.Last[0])
		return again(min(run.known.deleting(r.Now()), 30*time.Second))
	case len(plan.OfCluster) > 0:
		// They go with their Cluster; who else would answer for them if it stays?
		keys := ""
		if plan.Credential != "" {
			keys = ", with keys of " + plan.Credential
		}
		status.MarkProgressing(obj, "Waiting for the Clusters of %d objects to be gone, the first is %s%s", len(plan.OfCluster), plan.OfCluster[0], keys)
	default:
		return nil
	}
	return again(min(obj.GetRetryInterval(), 30*time.Second))
}

// deletesCluster reports whether a Cluster goes in a removal, or did a moment ago.
func deletesCluster(res apply.Result) bool {
	going := slices.Concat(res.Deleted, res.Plan.Waiting, res.Plan.Queued)
	return slices.ContainsFunc(going, func(e inventory.Entry) bool { return clusterapi.IsCluster(e.GroupKind()) })
}

// pruneAt removes the objects of the inventory from the cluster that a recorded
// reference leads to, if it is still that cluster.
func (r *Reconciler) pruneAt(ctx context.Context, run *run, ref target.Ref, o apply.Options) (apply.Result, error) {
	obj := run.Obj
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, ref)
	if err != nil {
		return apply.Result{}, err
	}
	now, err := r.Targets.Presently(ctx, obj.Namespace, ref)
	switch {
	case err != nil:
		return apply.Result{}, err
	case ref.Cluster == "", now.Cluster == ref.Cluster:
	case now.Cluster == "":
		return apply.Result{}, fmt.Errorf("its kubeconfig may not read Namespace %s any more, which tells whether it still leads to that cluster", metav1.NamespaceSystem)
	default:
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
	run.keeps(res, err)
	if err != nil {
		r.settleFailed(run, res.Plan)
		return apply.Result{}, err
	}
	return res, nil
}
