package helmrelease

import (
	"context"
	"fmt"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// finalize uninstalls the release of a HelmRelease that is deleted, and lets it
// go.
func (r *Reconciler) finalize(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.Obj
	if !controllerutil.ContainsFinalizer(obj, helmv2.HelmReleaseFinalizer) {
		return ctrl.Result{}, nil
	}
	if !obj.Spec.Suspend {
		if gone, result, err := r.uninstall(ctx, run); !gone {
			return result, err
		}
		if err := r.deleteTemplate(ctx, obj); err != nil {
			return r.refuse(ctx, run, &refusal{reason: helmv2.UninstallFailedReason, err: err, event: true})
		}
	}
	if err := run.Write(ctx); err != nil {
		return ctrl.Result{}, err
	}
	r.Releases.Forget(client.ObjectKeyFromObject(obj), obj.UID)
	controllerutil.RemoveFinalizer(obj, helmv2.HelmReleaseFinalizer)
	return ctrl.Result{}, client.IgnoreNotFound(run.WriteMetadata(ctx))
}

// uninstall removes the release of a HelmRelease that is deleted. gone: the
// HelmRelease may go.
func (r *Reconciler) uninstall(ctx context.Context, run *run) (gone bool, result ctrl.Result, err error) {
	obj := run.Obj
	if obj.Status.StorageNamespace == "" {
		return true, ctrl.Result{}, nil // never installed
	}
	stay := func(err error) (bool, ctrl.Result, error) {
		result, err := r.refuse(ctx, run, &refusal{reason: helmv2.UninstallFailedReason, err: err, event: true})
		return false, result, err
	}
	leave := func(why string) (bool, ctrl.Result, error) {
		r.Events.Eventf(obj, corev1.EventTypeWarning, helmv2.UninstallFailedReason, "skipping Helm release uninstallation: %s; what it installed is left behind", why)
		return true, ctrl.Result{}, nil
	}
	switch removed, err := target.KindRemoved(ctx, r.Targets.Local, "helmreleases."+helmv2.GroupVersion.Group); {
	case err != nil:
		return stay(err)
	case removed:
		return leave("the kind HelmRelease itself is being removed")
	}
	at, unsure := target.OfRelease(obj, r.Targets.ServiceAccount), ""
	switch before, err := r.before(ctx, obj); {
	case err != nil:
		return stay(err)
	case before != nil:
		at = *before
		if !at.Local() && at.Cluster == "" && (heldMove(obj) || hasCluster(obj)) {
			unsure = "it is not known which cluster was released to, and this one does not have the release"
		}
	case heldMove(obj):
		unsure = letGoWhy
	}
	switch why, _, err := r.Targets.ClusterGone(ctx, obj.Namespace, at); {
	case err != nil:
		return stay(err)
	case why != "":
		return leave(why)
	}
	switch missing, err := r.Targets.AccountGone(ctx, obj.Namespace, at); {
	case err != nil:
		return stay(fmt.Errorf("failed to confirm ServiceAccount '%s' can be used to uninstall release: %w", at.Account(), err))
	case missing:
		return leave(fmt.Sprintf("the ServiceAccount %s does not exist", at.User))
	}
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, at)
	if err == nil && !at.Local() {
		err = cluster.Answers(ctx, r.Now())
	}
	if err != nil {
		return stay(fmt.Errorf("failed to build REST client getter to uninstall release: %w", err))
	}
	switch other, err := r.isOther(ctx, obj, at); {
	case err != nil:
		return stay(err)
	case other:
		return leave(fmt.Sprintf("the cluster that %s %s leads to is another one now", at.Kind, at.Name))
	}
	if unsure != "" {
		// A release of the name there may be somebody else's.
		switch same, err := r.has(ctx, obj, at); {
		case err != nil:
			return stay(err)
		case !same:
			return leave(unsure)
		}
		unholdMove(obj)
	}
	outcome, err := r.Releases.Uninstall(ctx, release.Request{
		Object: obj, Cluster: cluster, Local: at.Local(), Save: run.Write, Log: log.FromContext(ctx),
		Claimed: r.Claims.Except(obj, at, claim.Applied{}), HandOver: run.held().HandOver, Keep: run.keep,
	})
	if err == nil {
		run.outcome = &outcome
	}
	switch {
	case err != nil:
		return false, ctrl.Result{}, err
	case outcome != (release.Outcome{}):
		return false, r.soon(obj, outcome), nil
	}
	return true, ctrl.Result{}, nil
}

// hasCluster reports whether a Cluster of a release is on record, and the release as installed. One whose uninstallation
// by Helm began may be gone from the storage before its objects are.
func hasCluster(obj *helmv2.HelmRelease) bool {
	latest, i := obj.Status.History.Latest(), obj.Status.Inventory
	if latest == nil || i == nil || latest.Status == common.StatusUninstalled.String() {
		return false
	}
	// What goes before Helm is called is waited for with the release in the storage, and the record of how it was made.
	byHelm := latest.Action == helmv2.ReleaseActionUninstall || latest.Action == helmv2.ReleaseActionUninstallRemediation
	if latest.Status == common.StatusUninstalling.String() && byHelm {
		return false
	}
	return slices.ContainsFunc(i.Entries, func(ref helmv2.ResourceRef) bool {
		e, err := inventory.Parse(ref.ID, ref.Version)
		return err == nil && clusterapi.IsCluster(e.GroupKind())
	})
}
