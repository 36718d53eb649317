package provider

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const infrastructureFinalizer = "infrastructure.cluster.x-k8s.io/localcluster"

// infrastructures reconciles LocalClusters. There is no infrastructure: all there is to do is to say at the right time
// that it is there.
type infrastructures struct{ reconciler }

func (r *infrastructures) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &LocalCluster{}
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	object = object.deepCopy() // the cache's own is not to be changed
	owner, err := r.owner(ctx, object)
	if err != nil || owner.paused(object) {
		return ctrl.Result{}, err
	}
	before := object.deepCopy()
	if object.DeletionTimestamp != nil {
		if controllerutil.RemoveFinalizer(object, infrastructureFinalizer) {
			err = r.client.Patch(ctx, object, client.MergeFrom(before))
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if owner == nil {
		return ctrl.Result{}, nil // Cluster API makes the Cluster the owner, which wakes this again
	}

	plane, err := r.controlPlaneOf(ctx, *owner)
	if err != nil {
		return ctrl.Result{}, err
	}
	controllerutil.AddFinalizer(object, infrastructureFinalizer)
	if plane != nil && plane.Status.Initialization.ControlPlaneInitialized {
		object.Spec.ControlPlaneEndpoint = plane.Spec.ControlPlaneEndpoint
	}
	if err := patchObject(ctx, r.client, object, before); err != nil {
		return ctrl.Result{}, err
	}

	before = object.deepCopy()
	object.Status = infrastructureStatus(object, plane)
	return ctrl.Result{}, patchStatus(ctx, r.client, object, before, object.Status, before.Status)
}

// infrastructureStatus says whether the infrastructure counts as provisioned, and why not.
func infrastructureStatus(object *LocalCluster, plane *LocalControlPlane) LocalClusterStatus {
	status := object.deepCopy().Status
	status.ObservedGeneration = object.Generation
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Provisioned", ObservedGeneration: object.Generation}
	planeAnswers := plane != nil && plane.Status.Initialization.ControlPlaneInitialized
	if !status.Initialization.Provisioned && object.Spec.Order != OrderSlow && !planeAnswers {
		ready.Status, ready.Reason = metav1.ConditionFalse, "WaitingForControlPlane"
		ready.Message = "in the fast order the control plane comes first"
	} else {
		status.Initialization.Provisioned = true
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	return status
}

// controlPlaneOf returns the LocalControlPlane of the Cluster, or nil if there is none yet.
func (r reconciler) controlPlaneOf(ctx context.Context, owner cluster) (*LocalControlPlane, error) {
	name, ok := owner.reference("controlPlaneRef", "LocalControlPlane")
	if !ok {
		return nil, nil
	}
	plane := &LocalControlPlane{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: owner.object.GetNamespace(), Name: name}, plane)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read LocalControlPlane %s: %w", name, err)
	}
	return plane, nil
}
