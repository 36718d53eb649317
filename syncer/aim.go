package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// aim sets the cluster that is applied to, and takes what was applied to
// another before out of that. It is done when applying may begin.
func (r *Kustomizations) aim(ctx context.Context, run *run) (done bool, result ctrl.Result, err error) {
	obj := run.obj
	refuse := func(err error) (bool, ctrl.Result, error) {
		result, err := r.failed(ctx, run, meta.ReconciliationFailedReason, err)
		return false, result, err
	}
	if run.cluster, err = r.Targets.Get(ctx, obj); err != nil {
		return refuse(fmt.Errorf("failed to build kube client: %w", err))
	}
	var recorded *TargetRef
	if text := obj.Annotations[TargetAnnotation]; text != "" {
		ref, err := r.recordedTarget(obj, text)
		if err != nil {
			return refuse(err)
		}
		recorded = &ref
	}
	if run.target.Local() {
		run.memo = r.Memo
		if recorded == nil {
			return true, ctrl.Result{}, nil
		}
	} else if err := run.cluster.Answers(ctx, r.Now()); err != nil {
		return refuse(err)
	}
	local, err := r.Targets.Identify(ctx, obj.Namespace, TargetRef{})
	if err != nil {
		return refuse(err)
	}
	if run.target, err = r.Targets.Identify(ctx, obj.Namespace, run.target); err != nil {
		return refuse(err)
	}
	switch CompareTargets(recorded, run.target, local.Cluster) {
	case TargetMoved:
		left, result, err := r.leave(ctx, run, *recorded)
		if !left || err != nil {
			return false, result, err
		}
	case TargetReplaced:
		r.event(obj, corev1.EventTypeWarning, nil, "the cluster that %s %s leads to is another one now; what was applied to the former is left behind", run.target.Kind, run.target.Name)
		obj.Status.Inventory = nil
	case TargetUnrecorded:
		// The inventory is taken to be about this cluster, as with Flux. Only what
		// this very process applied to our own is known to be of the time before
		// spec.kubeConfig was set.
		if owned := r.Memo.Owned(run.name()); len(owned) > 0 {
			obj.Status.Inventory = refs(owned)
			left, result, err := r.leave(ctx, run, TargetRef{Cluster: local.Cluster})
			if !left || err != nil {
				return false, result, err
			}
		}
	case TargetSame:
	}
	return true, ctrl.Result{}, r.recordTarget(ctx, run)
}

// recordedTarget reads the annotation, which whoever may write the object can
// write too: it must not lend more rights than the object has.
func (r *Kustomizations) recordedTarget(obj *kustomizev1.Kustomization, text string) (TargetRef, error) {
	ref, err := DecodeTarget(text)
	if err != nil {
		return ref, err
	}
	own := strings.HasPrefix(ref.User, serviceAccountUser(obj.Namespace, ""))
	if !own && (ref.User != "" || TargetOf(obj, r.Targets.ServiceAccount).User != "") {
		return ref, fmt.Errorf("cannot use annotation %s: it names a user who is no service account of the namespace; remove it", TargetAnnotation)
	}
	return ref, nil
}

// recordTarget writes down what the inventory is about, ahead of applying.
func (r *Kustomizations) recordTarget(ctx context.Context, run *run) error {
	before := run.obj.DeepCopy()
	switch want := run.target.Encode(); {
	case run.target.Local() && run.obj.Annotations[TargetAnnotation] == "", !run.target.Local() && run.obj.Annotations[TargetAnnotation] == want:
		return nil
	case run.target.Local():
		delete(run.obj.Annotations, TargetAnnotation)
	default:
		if run.obj.Annotations == nil {
			run.obj.Annotations = map[string]string{}
		}
		run.obj.Annotations[TargetAnnotation] = want
	}
	if err := r.patchMetadata(ctx, before, run.obj); err != nil {
		return fmt.Errorf("cannot record target of Kustomization %s: %w", run.name(), err)
	}
	return nil
}

// leave prunes what was applied to another cluster. That is tried for
// spec.timeout; then the objects are left there, and an event says so.
func (r *Kustomizations) leave(ctx context.Context, run *run, old TargetRef) (left bool, result ctrl.Result, err error) {
	obj := run.obj
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		result, err := r.failed(ctx, run, meta.PruneFailedReason, err)
		return false, result, err
	}
	if len(owned) == 0 || !obj.Spec.Prune {
		obj.Status.Inventory = nil
		return true, ctrl.Result{}, nil
	}
	res, err := r.pruneAt(ctx, run, old, apply.Options{
		Target: run.name().String(), LowerTier: !old.Local(), Moved: true, Claimed: r.claims(run.name(), old),
		Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation], Undecided: undecided(obj),
	})
	if err == nil {
		obj.Status.Inventory = refs(res.Inventory)
		r.tell(obj, res)
		switch {
		case res.Plan.Blocked():
			result, err := r.blocked(obj, res)
			return false, result, err
		case len(res.Inventory) == 0:
			run.known.arrived()
			removeCondition(obj, v1alpha1.PruneBlockedCondition)
			return true, ctrl.Result{}, nil
		}
		err = fmt.Errorf("%d objects of the cluster that was applied to before are not gone yet", len(res.Inventory))
	}
	if r.Now().Sub(run.known.leaving(run.start)) > obj.GetTimeout() {
		run.known.arrived()
		r.event(obj, corev1.EventTypeWarning, nil, "%d objects are left behind in the cluster that was applied to before: %s", len(obj.Status.Inventory.Entries), err)
		obj.Status.Inventory = nil
		return true, ctrl.Result{}, nil
	}
	failing(obj, meta.PruneFailedReason, fmt.Errorf("cannot prune in the cluster that was applied to before: %w", err))
	return false, ctrl.Result{RequeueAfter: min(obj.GetRetryInterval(), 10*time.Second)}, nil
}

// pruneAt removes the objects of the inventory from the cluster that a recorded
// reference leads to, if it is still that cluster.
func (r *Kustomizations) pruneAt(ctx context.Context, run *run, ref TargetRef, o apply.Options) (apply.Result, error) {
	obj := run.obj
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, ref)
	if err != nil {
		return apply.Result{}, err
	}
	now, err := r.Targets.Identify(ctx, obj.Namespace, TargetRef{Kind: ref.Kind, Name: ref.Name, Key: ref.Key, User: ref.User})
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
	res, err := r.applier(&old).Remove(ctx, owned, o)
	if err != nil {
		return apply.Result{}, err
	}
	return res, nil
}

// finalize answers the deletion of a Kustomization by its deletion policy.
func (r *Kustomizations) finalize(ctx context.Context, obj *kustomizev1.Kustomization) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		return ctrl.Result{}, nil
	}
	run := &run{obj: obj, known: r.progress(client.ObjectKeyFromObject(obj)), start: r.Now()}
	prune, err := r.prunesOnDeletion(ctx, obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	if prune {
		if gone, result, err := r.removeAll(ctx, run); !gone {
			return result, err
		}
	}
	r.Memo.Forget(run.name())
	before := obj.DeepCopy()
	controllerutil.RemoveFinalizer(obj, kustomizev1.KustomizationFinalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.patchMetadata(ctx, before, obj))
}

// removeAll deletes what a deleted Kustomization applied. gone: the
// Kustomization may go.
func (r *Kustomizations) removeAll(ctx context.Context, run *run) (gone bool, result ctrl.Result, err error) {
	obj := run.obj
	stay := func(reason string, err error) (bool, ctrl.Result, error) {
		result, err := r.failed(ctx, run, reason, err)
		return false, result, err
	}
	ref := TargetOf(obj, r.Targets.ServiceAccount)
	if text := obj.Annotations[TargetAnnotation]; text != "" {
		if ref, err = r.recordedTarget(obj, text); err != nil {
			return stay(meta.PruneFailedReason, err)
		}
	}
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return stay(meta.PruneFailedReason, err)
	}
	account := obj.Spec.ServiceAccountName
	if account == "" {
		account = r.Targets.ServiceAccount
	}
	facts := DeletionFacts{Target: ref, Objects: len(owned)}
	if facts.AccountGone, facts.Problem = r.Targets.AccountGone(ctx, obj.Namespace, account, ref); facts.Problem == nil {
		_, facts.Problem = r.Targets.Connect(ctx, obj.Namespace, ref)
	}
	answer := DecideDeletion(facts)
	if answer.Message != "" && answer.Release {
		r.event(obj, corev1.EventTypeWarning, nil, "%s", answer.Message)
	}
	if !answer.Release {
		return stay(meta.PruneFailedReason, errors.New(answer.Message))
	}
	if !answer.Prune {
		return true, ctrl.Result{}, nil
	}
	res, err := r.pruneAt(ctx, run, ref, apply.Options{
		Target: run.name().String(), LowerTier: !ref.Local(), Claimed: r.claims(run.name(), ref),
		Approved: obj.Annotations[v1alpha1.ApprovePruneAnnotation],
	})
	if err != nil {
		return stay(meta.PruneFailedReason, err)
	}
	obj.Status.Inventory = refs(res.Inventory)
	r.tell(obj, res)
	switch {
	case res.Plan.Blocked():
		// Confirmations on the objects, and the end of the kind, wake nobody.
		result, err := r.blocked(obj, res)
		result.RequeueAfter = min(result.RequeueAfter, blockedPoll)
		return false, result, err
	case len(res.Plan.Queued) > 0:
		progressing(obj, "Waiting for another Cluster to be gone before %d are deleted, the first is %s", len(res.Plan.Queued), res.Plan.Queued[0])
		return false, ctrl.Result{RequeueAfter: min(obj.GetRetryInterval(), 30*time.Second)}, nil
	case len(res.Plan.OfCluster) > 0:
		// They go with their Cluster; who else would answer for them if it stays?
		progressing(obj, "Waiting for the Clusters of %d objects to be gone, the first is %s", len(res.Plan.OfCluster), res.Plan.OfCluster[0])
		return false, ctrl.Result{RequeueAfter: min(obj.GetRetryInterval(), 30*time.Second)}, nil
	case len(res.Inventory) > 0 && r.waitsForTermination(obj):
		progressing(obj, "Waiting for %d objects to be deleted", len(res.Inventory))
		return false, ctrl.Result{RequeueAfter: deletePoll}, nil
	case len(res.Inventory) > 0 && obj.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination:
		r.event(obj, corev1.EventTypeWarning, nil, "failed to wait for resources termination: %d objects are still being deleted", len(res.Inventory))
	}
	// What is left in the inventory is being deleted: the API server accepted
	// each of the deletions.
	return true, ctrl.Result{}, nil
}

// waitsForTermination reports whether the Kustomization stays until its objects
// are gone. After its time-out it goes all the same, as with Flux.
func (r *Kustomizations) waitsForTermination(obj *kustomizev1.Kustomization) bool {
	return obj.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination &&
		r.Now().Sub(obj.DeletionTimestamp.Time) < obj.GetTimeout()
}

// prunesOnDeletion reports whether the objects go with the Kustomization. They
// never do when the kind itself is being removed: losing the CRDs must not
// take the workloads along.
func (r *Kustomizations) prunesOnDeletion(ctx context.Context, obj *kustomizev1.Kustomization) (bool, error) {
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
	removed, err := kindRemoved(ctx, r.Targets.Local, "kustomizations."+ownerGroup)
	return !removed && err == nil, err
}

// kindRemoved reports whether a kind is being removed, by the name of its
// definition. Its objects are deleted then without anybody meaning what they
// stand for.
func kindRemoved(ctx context.Context, local client.Reader, definition string) (bool, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := local.Get(ctx, types.NamespacedName{Name: definition}, crd); err != nil {
		return false, fmt.Errorf("cannot read CRD %s: %w", definition, err)
	}
	return !crd.DeletionTimestamp.IsZero(), nil
}
