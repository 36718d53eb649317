package installation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Owner is in whose name `cascade install` applies.
func Owner(namespace string) apply.Owner {
	return apply.Owner{FieldManager: "cascade-install", LabelGroup: v1alpha1.InstallLabelGroup, Name: v1alpha1.AgentName, Namespace: namespace}
}

func ownerLabels(namespace string) map[string]string {
	return map[string]string{
		v1alpha1.InstallLabelGroup + "/name": v1alpha1.AgentName, v1alpha1.InstallLabelGroup + "/namespace": namespace,
	}
}

// Action is what an installation does to an object.
type Action string

// Actions.
const (
	Create Action = "create"
	Change Action = "change"
	Leave  Action = "unchanged"
	// Keep: a definition of Flux is of a later release, and stays as it is.
	Keep   Action = "keep"
	Delete Action = "delete"
)

// Step is an object of a plan: as it is, and as it would be. One of them may be nil.
type Step struct {
	Action     Action
	Live, Then *unstructured.Unstructured
}

// Object is one of the two.
func (s Step) Object() *unstructured.Unstructured {
	if s.Then != nil {
		return s.Then
	}
	return s.Live
}

// Plan tells what applying the objects would do, by dry runs, and what would be deleted.
func Plan(ctx context.Context, c client.Client, namespace string, objects []*unstructured.Unstructured) ([]Step, error) {
	var steps []Step
	for _, u := range objects {
		s, err := plan(ctx, c, namespace, u)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	gone, err := Outdated(ctx, c, namespace, objects)
	if err != nil {
		return nil, err
	}
	for _, u := range gone {
		steps = append(steps, Step{Action: Delete, Live: u})
	}
	return steps, nil
}

func plan(ctx context.Context, c client.Client, namespace string, u *unstructured.Unstructured) (Step, error) {
	name := inventory.Of(u).String()
	then := u.DeepCopy()
	labels := then.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range ownerLabels(namespace) {
		labels[key] = value
	}
	then.SetLabels(labels)
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(u.GroupVersionKind())
	err := c.Get(ctx, client.ObjectKeyFromObject(u), live)
	switch {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return Step{}, fmt.Errorf("cannot read %s: %w", name, err)
	case u.GetKind() == "CustomResourceDefinition" && apply.Later(live.GetLabels()["app.kubernetes.io/version"], u.GetLabels()["app.kubernetes.io/version"]):
		return Step{Action: Keep, Live: live, Then: live}, nil
	}
	body, err := json.Marshal(then.Object)
	if err != nil {
		return Step{}, fmt.Errorf("cannot encode %s: %w", name, err)
	}
	err = c.Patch(ctx, then, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(Owner(namespace).FieldManager), client.ForceOwnership, client.DryRunAll)
	switch {
	case apierrors.IsNotFound(err) && live == nil && u.GetNamespace() == namespace:
		// Its Namespace is to be made first.
		return Step{Action: Create, Then: then}, nil
	case err != nil:
		return Step{}, fmt.Errorf("cannot try to apply %s: %w", name, err)
	case live == nil:
		return Step{Action: Create, Then: then}, nil
	case live.GetResourceVersion() == then.GetResourceVersion() && equalButManagers(live, then):
		return Step{Action: Leave, Live: live, Then: then}, nil
	}
	return Step{Action: Change, Live: live, Then: then}, nil
}

// equalButManagers: a dry run moves no version, so what is in the objects counts.
func equalButManagers(a, b *unstructured.Unstructured) bool {
	x, errX := json.Marshal(stripped(a).Object)
	y, errY := json.Marshal(stripped(b).Object)
	return errX == nil && errY == nil && string(x) == string(y)
}

// stripped is an object without what the API server and controllers write.
func stripped(u *unstructured.Unstructured) *unstructured.Unstructured {
	u = u.DeepCopy()
	for _, field := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(u.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations", "deployment.kubernetes.io/revision")
	if len(u.GetAnnotations()) == 0 {
		unstructured.RemoveNestedField(u.Object, "metadata", "annotations")
	}
	unstructured.RemoveNestedField(u.Object, "status")
	return u
}

// ours are the kinds of which an installation deletes what it does not have any more. They
// hold nothing of anybody else. Admission policies are not among them: a wall that a version
// does not know is for a person to take down.
func ours() []schema.GroupVersionKind {
	return append([]schema.GroupVersionKind{deployments(), {Version: "v1", Kind: "ConfigMap"}}, rights()...)
}

func deployments() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
}

// rights are the kinds of what an agent may do, who may reach it, and where its pods may be. Whoever is given
// a role goes before it.
func rights() []schema.GroupVersionKind {
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	core := schema.GroupVersion{Version: "v1"}
	return []schema.GroupVersionKind{
		{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
		{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
		core.WithKind("Service"),
		rbac.WithKind("RoleBinding"), rbac.WithKind("ClusterRoleBinding"), rbac.WithKind("Role"), rbac.WithKind("ClusterRole"),
		core.WithKind("ServiceAccount"), core.WithKind("ResourceQuota"),
	}
}

// Outdated are the objects that an installation applied and that these do not have.
func Outdated(ctx context.Context, c client.Client, namespace string, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	var gone []*unstructured.Unstructured
	for _, gvk := range ours() {
		list, err := labelled(ctx, c, gvk, ownerLabels(namespace))
		if err != nil {
			return nil, err
		}
		for i := range list {
			u := &list[i]
			stays := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool { return inventory.Of(o).ID() == inventory.Of(u).ID() })
			if !stays && u.GetDeletionTimestamp() == nil {
				gone = append(gone, u)
			}
		}
	}
	return gone, nil
}

// labelled lists the objects of a kind that have labels, of all namespaces.
func labelled(ctx context.Context, c client.Client, gvk schema.GroupVersionKind, labels map[string]string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := c.List(ctx, list, client.MatchingLabels(labels)); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("cannot list objects of kind %s that were installed: %w", gvk.Kind, err)
	}
	return list.Items, nil
}

// Remove deletes an object as it was seen.
func Remove(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	return remove(ctx, c, u, metav1.DeletePropagationBackground)
}

// Stop deletes a workload as it was seen. Its object goes after its pods: an agent that
// syncs itself from Git would make it anew while it still runs, if the object went first.
func Stop(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	return remove(ctx, c, u, metav1.DeletePropagationForeground)
}

func remove(ctx context.Context, c client.Client, u *unstructured.Unstructured, policy metav1.DeletionPropagation) error {
	uid := u.GetUID()
	err := c.Delete(ctx, u, client.Preconditions{UID: &uid}, client.PropagationPolicy(policy))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot delete %s: %w", inventory.Of(u), err)
	}
	return nil
}
