package kustomization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
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
	switch {
	case len(owned) == 0:
		obj.Status.Inventory = nil
		return nil
	case !obj.Spec.Prune:
		return r.leaveBehind(ctx, run, old)
	}
	// Ahead of the plan: what asks not to be pruned goes out of the inventory with that, and nobody would know of it any more.
	clusters, there, err := r.leftThere(ctx, run, old, func(o metav1.Object) bool { return directive.Keeps(o.GetLabels(), o.GetAnnotations()) })
	if there {
		run.known.arrived() // as below
		return r.holdClusters(run, clusters, errors.New(takeBackOrMove))
	}
	var res apply.Result
	if err == nil {
		res, err = r.pruneAt(ctx, run, old, apply.Options{
			Target: run.name().String(), LowerTier: !old.Local(), Moved: true, Claimed: r.Claims.Except(obj, old, claim.Applied{}),
			HandOver: run.held.HandOver, Decided: run.held.Last,
			Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation], Undecided: run.undecided(),
		})
	}
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
			"%w; %s, or set spec.prune: false to leave behind what is in the cluster of before, once the Clusters are gone there", err, takeBack(old, goneForGood))); end != nil {
			return end
		}
		r.event(run, corev1.EventTypeWarning, nil, "%d objects are left behind in the cluster that was applied to before: %s", len(obj.Status.Inventory.Entries), err)
		obj.Status.Inventory = nil
		return nil
	}
	status.MarkFailing(obj, meta.PruneFailedReason, fmt.Errorf("cannot prune in the cluster that was applied to before: %w", err))
	return again(min(obj.GetRetryInterval(), leavePoll))
}

// leaveBehind leaves what was applied to another cluster where it is, unless that has Clusters which would be built a
// second time.
func (r *Reconciler) leaveBehind(ctx context.Context, run *run, old target.Ref) *end {
	clusters, there, err := r.leftThere(ctx, run, old, whatever)
	switch {
	case err != nil && len(clusters) == 0:
		return r.failed(ctx, run, meta.PruneFailedReason, err)
	case err != nil:
		return r.holdClusters(run, clusters, fmt.Errorf("%w; %s", err, takeBack(old, goneForGood)))
	case there:
		return r.holdClusters(run, clusters, errors.New(takeBackOrMove))
	}
	run.Obj.Status.Inventory = nil
	return nil
}

// leftThere are the Clusters that would be built a second time if the cluster of before has them. there: it has one that
// a move leaves there.
func (r *Reconciler) leftThere(ctx context.Context, run *run, old target.Ref, leaves func(metav1.Object) bool) (clusters []inventory.Entry, there bool, err error) {
	if clusters, err = run.missing(ctx); err != nil || len(clusters) == 0 {
		return nil, false, err
	}
	former := r.Targets.Local // as in hasHere
	if !old.Local() {
		if former, err = r.former(ctx, run, old); err != nil {
			return clusters, false, err
		}
	}
	there, err = run.has(ctx, former, func(e inventory.Entry) bool { return slices.Contains(clusters, e) }, leaves, former.ConfirmGone)
	if old.Local() && apierrors.IsForbidden(err) {
		err = nil // as in recordOwn
	}
	return clusters, there, err
}

// The message of a move that is held: how it begins, and what a person does who did not mean it.
const (
	willNotApply = "will not apply "
	takeBackMove = "take back the change of spec.kubeConfig"
	// takeBackOrMove is where the cluster of before answers, and leaves no Cluster to the next one.
	takeBackOrMove = takeBackMove + ", move them with `cascade pivot`, or delete them there"
)

// goneForGood is when a person lets the cluster of before go.
const goneForGood = "that cluster is gone for good"

// takeBack is what a person does who did not mean a move, or knows what becomes of the cluster of before.
func takeBack(before target.Ref, when string) string {
	if before.Local() {
		return takeBackMove // our own cluster is not gone, and on record again
	}
	return takeBackMove + " or, if " + when + ", remove annotation " + target.Annotation
}

// heldMove reports whether a move is held, for Clusters that would be built a second time.
func heldMove(obj *kustomizev1.Kustomization) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	return c != nil && strings.HasPrefix(c.Message, willNotApply)
}

// takenBack ends the hold of a move that was taken back, whatever the Kustomization waits for now: it may be suspended, or
// unable to be built, for long. Of a Secret that leads to another cluster the spec tells nothing, nor of a former cluster
// that was let go: aim ends that hold.
func (r *Reconciler) takenBack(run *run) {
	obj := run.Obj
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	if c == nil || !strings.Contains(c.Message, takeBackMove) {
		return
	}
	wanted := target.Of(obj, r.Targets.ServiceAccount)
	recorded, err := target.Recorded(obj, wanted, run.known.appliedTo())
	if err == nil && recorded != nil && recorded.SameWay(wanted) {
		status.RemoveCondition(obj, v1alpha1.PruneBlockedCondition)
	}
}

// holdMove ends the reconcile where Clusters would be built a second time: those that are declared still, the next cluster
// does not have, and the one of before, which cannot be asked, may run. Nobody would answer for these any more. why tells
// what to do, too.
func (r *Reconciler) holdMove(ctx context.Context, run *run, why error) *end {
	clusters, err := run.missing(ctx)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	if len(clusters) == 0 {
		return nil
	}
	return r.holdClusters(run, clusters, why)
}

// holdClusters ends the reconcile of a move by which Clusters would be built a second time.
func (r *Reconciler) holdClusters(run *run, clusters []inventory.Entry, why error) *end {
	r.pruneHeld(run, &v1alpha1.HeldPrune{Protected: int32(len(clusters))}, fmt.Errorf(
		willNotApply+"%s to another cluster: the one of before may have them still, and they would be built a second time: %w", inventory.Names(clusters), why))
	return again(blockedPoll)
}

// missing are the Clusters that are declared still, and that the cluster which is aimed at does not have.
func (run *run) missing(ctx context.Context) ([]inventory.Entry, error) {
	owned, err := entries(run.Obj.Status.Inventory)
	if err != nil {
		return nil, err
	}
	declared := inventory.ClustersAmong(inventory.Union(inventory.OfAll(run.rendering.Objects), run.kept()))
	return slices.DeleteFunc(owned, func(e inventory.Entry) bool {
		return !isCluster(e) || !slices.ContainsFunc(declared, func(c types.NamespacedName) bool {
			return c.Name == e.Name && (c.Namespace == e.Namespace || c.Namespace == "")
		}) || run.cluster.InServed(e.GroupKind(), func(served *apimeta.RESTMapping) error {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(served.GroupVersionKind)
			return run.cluster.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, o)
		}) == nil
	}), nil
}

// holdUntold is holdMove where nothing tells whether the next cluster is the one of before. Our own cluster can be asked.
func (r *Reconciler) holdUntold(ctx context.Context, run *run, before target.Ref) *end {
	if before.Local() {
		switch here, err := r.hasHere(ctx, run, isCluster); {
		case apierrors.IsForbidden(err):
			return nil // as in recordOwn
		case err != nil:
			return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
		case !here:
			return nil
		}
	}
	return r.holdMove(ctx, run, fmt.Errorf("one of both clusters does not let its Namespace %s be read, which tells whether they are the same; %s",
		metav1.NamespaceSystem, takeBack(before, "this is the cluster of before, or that one is gone for good")))
}

// holdMute is holdMove where the same reference leads to a cluster of which nothing tells whether it is the one of before:
// that one did not tell which it is, or this one does not. It is, where this process aimed at it last, or it has a Cluster
// of the inventory: all else may have the same name in the management cluster of another environment, as its Kustomization
// does. What nobody tried to apply may be nowhere: the inventory is written ahead of the first object. Only what would be
// built is held, so that a Kustomization goes on whose Cluster is in no cluster, or in another one by right.
func (r *Reconciler) holdMute(ctx context.Context, run *run, before *target.Ref) *end {
	switch obj := run.Obj; {
	case before == nil, before.Local(), run.target.Local(), before.Cluster != "" && run.target.Cluster != "":
		return nil
	case run.known.aimedAt(wayTo(run.cluster)), run.known.aimedAt(digest.Sum{}) && !tried(obj):
		return nil
	}
	// With no Cluster there is nothing to ask.
	if owned, err := entries(run.Obj.Status.Inventory); err == nil && !slices.ContainsFunc(owned, isCluster) {
		return nil
	}
	// What is not confirmed to be gone is no proof either, and an account of one namespace cannot list definitions.
	unconfirmed := func(context.Context, inventory.Entry) error { return nil }
	switch there, err := run.has(ctx, run.cluster, isCluster, whatever, unconfirmed); {
	case there:
		return nil
	case err != nil && !apierrors.IsForbidden(err): // of one kind, and the Clusters may be there
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	clusters, err := run.missing(ctx)
	var record *inventory.FirstSync
	if err == nil && len(clusters) > 0 {
		record, err = firstsync.Other{Reader: run.cluster}.For(ctx, run.rendering.Objects)
	}
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	if record != nil {
		// It had the Cluster, and does not build it: a pivot took it from there.
		clusters = slices.DeleteFunc(clusters, func(e inventory.Entry) bool {
			return record.Clusters[types.NamespacedName{Namespace: e.Namespace, Name: e.Name}] == inventory.ManagedElsewhere
		})
	}
	built := slices.DeleteFunc(slices.Clone(clusters), run.switchedOff)
	if run.unproven = len(built) < len(clusters); len(built) == 0 {
		return nil
	}
	return r.holdClusters(run, built, fmt.Errorf("the cluster that %[1]s %[2]s leads to has no Cluster of this Kustomization, and its Namespace %[3]s, or that of the one of before, does not tell whether they are the same; "+
		"have it lead to that one again or, if it does, or that one is gone for good, remove annotation %[4]s", run.target.Kind, run.target.Name, metav1.NamespaceSystem, target.Annotation))
}

// switchedOff reports whether what was rendered says of a Cluster that it is not to be applied. It may run all the same, in
// the cluster of before.
func (run *run) switchedOff(e inventory.Entry) bool {
	return slices.ContainsFunc(run.rendering.Objects, func(u *unstructured.Unstructured) bool {
		o := inventory.Of(u)
		return isCluster(o) && o.Name == e.Name && (o.Namespace == e.Namespace || o.Namespace == "") && directive.Selects(directive.Skip(), u)
	})
}

// tried reports whether the status tells of an apply that came to its end, whatever that was. The revision that was applied
// last is on record only once all of it was healthy, which a Cluster may not be for hours, and an object that is refused
// does not stop the Cluster beside it.
func tried(obj *kustomizev1.Kustomization) bool {
	s := &obj.Status
	return s.LastAppliedRevision != "" || len(s.History) > 0 || slices.ContainsFunc(s.Conditions, func(c metav1.Condition) bool {
		return c.Type == meta.HealthyCondition || c.Type == v1alpha1.CreateHeldCondition
	})
}

// wayTo identifies the API server of a cluster, whatever credential it is reached with.
func wayTo(c *apply.Cluster) digest.Sum {
	return digest.Of(c.Config.Host, c.Config.ServerName, string(c.Config.CAData))
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
				"%s, or set spec.prune: false to leave behind what is in the cluster of before", inventory.Names(parts), takeBackMove))
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

// former is the cluster that a recorded reference leads to, if it is still that cluster.
func (r *Reconciler) former(ctx context.Context, run *run, ref target.Ref) (*apply.Cluster, error) {
	cluster, err := r.Targets.Connect(ctx, run.Obj.Namespace, ref)
	if err != nil {
		return nil, err
	}
	now, err := r.Targets.Presently(ctx, run.Obj.Namespace, ref)
	switch {
	case err != nil:
		return nil, err
	case ref.Cluster == "", now.Cluster == ref.Cluster:
		return cluster, nil
	case now.Cluster == "":
		return nil, fmt.Errorf("its kubeconfig may not read Namespace %s any more, which tells whether it still leads to that cluster", metav1.NamespaceSystem)
	}
	return nil, errors.New("its kubeconfig leads to another cluster now")
}

// pruneAt removes the objects of the inventory from the cluster that a recorded
// reference leads to, if it is still that cluster.
func (r *Reconciler) pruneAt(ctx context.Context, run *run, ref target.Ref, o apply.Options) (apply.Result, error) {
	obj := run.Obj
	cluster, err := r.former(ctx, run, ref)
	if err != nil {
		return apply.Result{}, err
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
