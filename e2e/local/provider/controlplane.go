package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	controlPlaneFinalizer = "controlplane.cluster.x-k8s.io/localcontrolplane"

	// lookAgain is how long a dead control plane stays unnoticed at most. A look is one
	// small request on loopback.
	lookAgain = 5 * time.Second
	// reconcileTimeout covers a start of the control plane and of its node.
	reconcileTimeout = 4 * time.Minute
)

// controlPlanes reconciles LocalControlPlanes.
type controlPlanes struct{ reconciler }

func (r *controlPlanes) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	object := &LocalControlPlane{}
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	object = object.deepCopy() // the cache's own is not to be changed
	owner, err := r.owner(ctx, object)
	if err != nil || owner.paused(object) {
		return ctrl.Result{}, err
	}
	if object.DeletionTimestamp != nil {
		return ctrl.Result{}, r.remove(ctx, object)
	}
	if owner == nil {
		return ctrl.Result{}, nil // Cluster API makes the Cluster the owner, which wakes this again
	}

	// Recorded before anything runs, so that nothing runs without a record of it. The id is in the spec, as clouds' are:
	// status is lost when an object is restored, and the UID is another one then.
	before := object.deepCopy()
	controllerutil.AddFinalizer(object, controlPlaneFinalizer)
	object.Spec.ID = id(object)
	if err := patchObject(ctx, r.client, object, before); err != nil {
		return ctrl.Result{}, err
	}
	read := object.deepCopy().Status
	wait, err := r.waitsForInfrastructure(ctx, *owner)
	if err != nil {
		return ctrl.Result{}, err
	}
	if wait {
		return ctrl.Result{}, r.report(ctx, object, read, "WaitingForInfrastructure", errors.New("in the slow order the infrastructure comes first"))
	}

	bringErr := r.bring(ctx, object, *owner)
	reason := "StartFailed"
	var quiet silentError
	if errors.As(bringErr, &quiet) {
		reason, bringErr = "NotAnswering", quiet
	}
	if err := r.report(ctx, object, read, reason, bringErr); err != nil {
		return ctrl.Result{}, err
	}
	switch {
	case bringErr == nil:
		return ctrl.Result{RequeueAfter: lookAgain}, nil
	case reason == "NotAnswering":
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	return ctrl.Result{}, bringErr
}

// silentError says that a control plane lives and does not answer: nothing to be done but to say so.
type silentError string

func (e silentError) Error() string { return string(e) }

// id names the directory of the control plane.
func id(object *LocalControlPlane) string {
	if object.Spec.ID != "" {
		return object.Spec.ID
	}
	// The UID makes it unique among the clusters of all tiers, which share the machine; a part of it does, and leaves room in
	// the path for sockets, whose paths are short.
	name, uid := object.Name, string(object.UID)
	return name[:min(len(name), 24)] + "-" + uid[:min(len(uid), 8)]
}

// waitsForInfrastructure says whether the control plane is not to be started yet.
func (r *controlPlanes) waitsForInfrastructure(ctx context.Context, owner cluster) (bool, error) {
	name, ok := owner.reference("infrastructureRef", "LocalCluster")
	if !ok || owner.infrastructureProvisioned() {
		return false, nil
	}
	infrastructure := &LocalCluster{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: owner.object.GetNamespace(), Name: name}, infrastructure)
	if apierrors.IsNotFound(err) {
		return true, nil // its order is not known yet, and the Cluster wakes this again when its status changes
	}
	if err != nil {
		return false, fmt.Errorf("cannot read LocalCluster %s: %w", name, err)
	}
	return infrastructure.Spec.Order == OrderSlow, nil
}

// bring makes the control plane run and its credentials known. Where it already does, it costs two small requests.
func (r *controlPlanes) bring(ctx context.Context, object *LocalControlPlane, owner cluster) error {
	name := id(object)
	switch r.machine.look(ctx, name) {
	case absent:
		if err := r.machine.start(ctx, name, owner.name(), owner.serviceCIDR()); err != nil {
			return err
		}
	case silent:
		return silentError("the control plane runs and does not answer")
	}
	if err := r.machine.startNode(ctx, name, owner.name()+"-node"); err != nil {
		return err
	}
	kubeconfig, err := r.machine.kubeconfig(name)
	if err != nil {
		return err
	}
	if err := r.keepSecret(ctx, object, owner, kubeconfig); err != nil {
		return err
	}
	port, err := r.machine.port(name)
	if err != nil {
		return err
	}
	before := object.deepCopy()
	object.Spec.ControlPlaneEndpoint = Endpoint{Host: "127.0.0.1", Port: int32(port)}
	if err := patchObject(ctx, r.client, object, before); err != nil {
		return err
	}
	if object.Status.Version == "" {
		version, err := serverVersion(kubeconfig)
		if err != nil {
			return err
		}
		object.Status.Version = version
	}
	return nil
}

func serverVersion(kubeconfig []byte) (string, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return "", fmt.Errorf("cannot load kubeconfig: %w", err)
	}
	config.Timeout = 10 * time.Second
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", fmt.Errorf("cannot make client: %w", err)
	}
	version, err := discoveryClient.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("cannot read version of control plane: %w", err)
	}
	return version.GitVersion, nil
}

// keepSecret keeps the Secret that Cluster API's contract asks for: <cluster>-kubeconfig, of its type, with its label (core
// does not see it without), owned by the control plane so that it goes with it.
func (r *controlPlanes) keepSecret(ctx context.Context, object *LocalControlPlane, owner cluster, kubeconfig []byte) error {
	isController := true
	wanted := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: owner.name() + "-kubeconfig", Namespace: object.Namespace,
			Labels: map[string]string{clusterNameLabel: owner.name()},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: controlPlaneVersion().String(), Kind: "LocalControlPlane",
				Name: object.Name, UID: object.UID, Controller: &isController,
			}},
		},
		Type: "cluster.x-k8s.io/secret",
		Data: map[string][]byte{"value": kubeconfig},
	}
	found := &corev1.Secret{}
	err := r.secrets.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	if apierrors.IsNotFound(err) {
		if err := r.client.Create(ctx, wanted, client.FieldOwner(fieldManager)); err != nil {
			return fmt.Errorf("cannot create Secret %s: %w", wanted.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read Secret %s: %w", wanted.Name, err)
	}
	changed := found.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	maps.Copy(changed.Labels, wanted.Labels)
	changed.OwnerReferences = wanted.OwnerReferences
	if !bytes.Equal(changed.Data["value"], kubeconfig) {
		changed.Data = wanted.Data
	}
	if equality.Semantic.DeepEqual(found, changed) {
		return nil
	}
	if err := r.client.Update(ctx, changed, client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("cannot update Secret %s: %w", wanted.Name, err)
	}
	return nil
}

// report writes what became of the control plane: the failure, or that there is none. The status is compared with the one
// that was read.
func (r *controlPlanes) report(ctx context.Context, object *LocalControlPlane, read LocalControlPlaneStatus, reason string, failure error) error {
	before := object.deepCopy()
	before.Status = read
	object.Status = controlPlaneStatus(object, reason, failure)
	return patchStatus(ctx, r.client, object, before, object.Status, read)
}

func controlPlaneStatus(object *LocalControlPlane, reason string, failure error) LocalControlPlaneStatus {
	status := object.deepCopy().Status
	status.ObservedGeneration = object.Generation
	status.ExternalManagedControlPlane = true // no Machine of Cluster API stands for it
	status.Directory = id(object)
	condition := metav1.Condition{Status: metav1.ConditionTrue, Reason: "Running", ObservedGeneration: object.Generation}
	if failure == nil {
		status.Initialization.ControlPlaneInitialized = true
	} else {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reason, failure.Error()
	}
	for _, kind := range []string{"Ready", "Available"} {
		condition.Type = kind
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	return status
}

// remove takes the control plane down, and then lets the object go.
func (r *controlPlanes) remove(ctx context.Context, object *LocalControlPlane) error {
	if !controllerutil.ContainsFinalizer(object, controlPlaneFinalizer) {
		return nil
	}
	if err := r.machine.remove(ctx, id(object)); err != nil {
		return err
	}
	before := object.deepCopy()
	controllerutil.RemoveFinalizer(object, controlPlaneFinalizer)
	return client.IgnoreNotFound(patchObject(ctx, r.client, object, before))
}

// patchObject writes what changed in metadata and spec, if anything did, and refreshes the object.
func patchObject(ctx context.Context, writer client.Client, object, before client.Object) error {
	if equality.Semantic.DeepEqual(object, before) {
		return nil
	}
	if err := writer.Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(fieldManager)); err != nil {
		return fmt.Errorf("cannot update %s: %w", object.GetName(), err)
	}
	return nil
}

// patchStatus writes the status if it changed.
func patchStatus(ctx context.Context, writer client.Client, object, before client.Object, now, then any) error {
	if equality.Semantic.DeepEqual(now, then) {
		return nil
	}
	err := writer.Status().Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(fieldManager))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot update status of %s: %w", object.GetName(), err)
	}
	return nil
}
