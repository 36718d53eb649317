package state

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge/graph"
)

var bindingKind = schema.GroupKind{Group: clusterapi.AddonsGroup, Kind: clusterapi.ClusterResourceSetBinding}

// bind has what the state says of which ClusterResourceSets were applied to the Clusters that are about to go on.
// Their controller does not go by the pause of a Cluster: as soon as there is one, it writes an empty record of
// it, or deletes a record whose Cluster is not there yet. Nothing was applied to a Cluster that was paused from
// its first moment, so the saved record is right, and without it everything would be applied once more.
func (r *restorer) bind(ctx context.Context) error {
	for _, s := range r.plan.steps {
		if s.key.GroupKind != bindingKind || !slices.Contains([]Action{Create, Keep, Differ}, s.Action) ||
			!slices.ContainsFunc(s.node.Clusters, func(name types.NamespacedName) bool { return slices.Contains(r.plan.resume, name) }) {
			continue
		}
		err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }, func() error {
			return r.rebind(ctx, s)
		})
		if err != nil {
			return fmt.Errorf("cannot restore %s: %w", s.Object, err)
		}
	}
	return nil
}

// rebind makes one such record what was saved, held to what is read of it and of its Cluster.
func (r *restorer) rebind(ctx context.Context, s *Step) error {
	for _, name := range s.node.Clusters {
		saved, owner := r.saved(name), &unstructured.Unstructured{}
		if saved == nil {
			continue // the record names one that the state does not have
		}
		owner.SetGroupVersionKind(saved.GroupVersionKind())
		if err := r.client.Get(ctx, name, owner); kube.IgnoreNotFound(err) != nil {
			return err
		} else if err != nil || restoringFrom(owner) != r.plan.id {
			return nil // it goes on already
		}
	}
	u := graph.Portable(s.saved)
	u.SetOwnerReferences(slices.DeleteFunc(u.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return r.uids[ref.UID] == "" }))
	if err := graph.Rebase(u, r.uids); err != nil {
		return err
	}
	there := &unstructured.Unstructured{}
	there.SetGroupVersionKind(u.GroupVersionKind())
	err := r.client.Get(ctx, s.key.NamespacedName, there)
	switch {
	case apierrors.IsNotFound(err):
		err = r.client.Create(ctx, u, kube.FieldOwner(manager))
	case err != nil || equality.Semantic.DeepEqual(there.Object["spec"], u.Object["spec"]):
		return err
	default:
		there.Object["spec"] = u.Object["spec"]
		there.SetOwnerReferences(u.GetOwnerReferences())
		if err = r.client.Update(ctx, there, kube.FieldOwner(manager)); err == nil && s.Action != Create {
			s.Action = Update
		}
	}
	return err
}
