package installation

import (
	"context"
	"encoding/json"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/ssa"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// syncManager is the field manager of every Kustomization.
const syncManager = "kustomize-controller"

// SyncOwner is in whose name the objects of a tier are applied that a Kustomization syncs: in
// its own, so that its first run changes nothing and what leaves Git leaves the cluster.
func SyncOwner(kustomization client.ObjectKey) apply.Owner {
	return apply.Owner{FieldManager: syncManager, LabelGroup: kustomizev1.GroupVersion.Group, Name: kustomization.Name, Namespace: kustomization.Namespace}
}

// Steps splits the objects of a tier: definitions, what has to be there before the workload
// is, the workload, and the objects of these kinds, which say what is synced.
func Steps(objects []*unstructured.Unstructured) (steps [][]*unstructured.Unstructured, synced []*unstructured.Unstructured) {
	steps = make([][]*unstructured.Unstructured, 3)
	for _, u := range objects {
		group := u.GroupVersionKind().Group
		switch kind := u.GetKind(); {
		case kind == "CustomResourceDefinition":
			steps[0] = append(steps[0], u)
		case v1alpha1.IsFluxGroup(group) || group == v1alpha1.Group:
			synced = append(synced, u)
		case kind == "Deployment" || kind == "PersistentVolumeClaim":
			steps[2] = append(steps[2], u)
		default:
			steps[1] = append(steps[1], u)
		}
	}
	return steps, synced
}

// handedOver are the kinds of an installation whose fields a Kustomization takes over.
func handedOver() []schema.GroupVersionKind {
	admission := schema.GroupVersion{Group: "admissionregistration.k8s.io", Version: "v1"}
	return append(ours(),
		schema.GroupVersionKind{Version: "v1", Kind: "Namespace"},
		schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"},
		schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		admission.WithKind("ValidatingAdmissionPolicy"), admission.WithKind("ValidatingAdmissionPolicyBinding"))
}

// HandOver gives the fields that `cascade install` applied to the Kustomization that applies
// the same objects from now on. A field with two owners would stay when Git does not declare
// it any more.
func HandOver(ctx context.Context, c client.Client, namespace string) error {
	for _, gvk := range handedOver() {
		list, err := labelled(ctx, c, gvk, ownerLabels(namespace))
		if err != nil {
			return err
		}
		for i := range list {
			u := &list[i]
			patch, err := ssa.PatchReplaceFieldsManagers(u, []ssa.FieldManager{{
				Name: Owner(namespace).FieldManager, ExactMatch: true, OperationType: metav1.ManagedFieldsOperationApply,
			}}, syncManager)
			if err != nil {
				return fmt.Errorf("cannot hand over %s: %w", inventory.Of(u), err)
			}
			if len(patch) == 0 {
				continue
			}
			body, err := json.Marshal(patch)
			if err != nil {
				return fmt.Errorf("cannot hand over %s: %w", inventory.Of(u), err)
			}
			if err := c.Patch(ctx, u, client.RawPatch(types.JSONPatchType, body), client.FieldOwner(syncManager)); err != nil {
				return fmt.Errorf("cannot hand over %s: %w", inventory.Of(u), err)
			}
		}
	}
	return nil
}
