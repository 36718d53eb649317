package remote

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/record"
)

// leaving are what the Child has of layers that do not select it, as far as it counts for a Cluster that
// has another UID by now. That may be the same cluster, which was moved here or restored, and these layers are
// to be removed from it yet: the first contact tells.
func (r *run) leaving(ctx context.Context) ([]v1alpha1.ChildLayer, error) {
	selected, err := r.selected(ctx)
	if err != nil {
		return nil, err
	}
	var kept []v1alpha1.ChildLayer
	for _, e := range r.child.Status.Layers {
		if objects := max(e.Objects, int32(len(e.Inventory))); objects > 0 && !among(selected, e.Name) {
			kept = append(kept, v1alpha1.ChildLayer{
				Name: e.Name, Objects: objects, DeletionPolicy: e.DeletionPolicy, Reason: e.Reason, Message: e.Message, Since: e.Since, Held: e.Held,
			})
		}
	}
	return kept, nil
}

// recall has the Child say which layers are in place in the cluster that do not select it, by the records that
// are there: what becomes of them is decided by what the Child says. Those of another management
// cluster it answers for if the Child says so already; a layer of the same name may be another one.
func (r *run) recall(ctx context.Context, child client.Reader, records []*record.Record, lineage []epoch.Mark, selected []*v1alpha1.Layer) error {
	there := map[string]bool{}
	for _, found := range records {
		if found.Layer.Namespace != r.child.Namespace || len(found.Inventory) == 0 || among(selected, found.Layer.Name) {
			continue
		}
		there[found.Layer.Name] = true
		if entry := entryOf(r.child, found.Layer.Name); entry != nil {
			entry.Objects = int32(len(found.Inventory))
			continue
		}
		if v := epoch.Judge(lineage, found.Parent); v != epoch.Own && v != epoch.Succeeded && v != epoch.Outrun {
			continue
		}
		switch err := r.Cluster.Get(ctx, found.Layer, &v1alpha1.Layer{}); {
		case apierrors.IsNotFound(err):
			// A tier that was built anew may have its Layers later than its Clusters: the record stays for them.
			r.Events.Eventf(r.child, corev1.EventTypeWarning, "ObjectsLeft",
				"The cluster has a record of layer %s, which is not here: %d objects that it applied stay", found.Layer.Name, len(found.Inventory))
		case err != nil:
			return fmt.Errorf("cannot read Layer %s, of which the cluster has a record: %w", found.Layer, err)
		default:
			r.entry(found.Layer.Name).Objects = int32(len(found.Inventory))
		}
	}
	var kept []v1alpha1.ChildLayer
	for _, e := range r.child.Status.Layers {
		if !there[e.Name] && !among(selected, e.Name) {
			gone, err := r.unrecorded(ctx, child, e.Name)
			if err != nil {
				return err
			}
			if gone {
				continue // it is another cluster
			}
		}
		kept = append(kept, e)
	}
	r.child.Status.Layers = kept
	return nil
}

// unrecorded reports whether a cluster has no record of a layer, not even one that cannot be used.
func (r *run) unrecorded(ctx context.Context, child client.Reader, layer string) (bool, error) {
	key := types.NamespacedName{Namespace: r.child.Namespace, Name: layer}
	if r.notes.earlier[earlierKey(key)] != "" {
		return false, nil
	}
	err := child.Get(ctx, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: record.Name(key)}, &corev1.ConfigMap{})
	if err == nil || apierrors.IsNotFound(err) {
		return err != nil, nil
	}
	return false, cannotReach(err)
}

func among(layers []*v1alpha1.Layer, name string) bool {
	return slices.ContainsFunc(layers, func(l *v1alpha1.Layer) bool { return l.Name == name })
}
