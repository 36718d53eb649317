package remote

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Outstanding are the Layers that select a Child of a cluster, which is this tier's own if it is empty, and have not been
// applied there at the newest revision of their source: what a commit takes out of a Kustomization for one of
// them is not there yet. coming are Layers as they are about to be applied here: those that select such a Child
// and are not here in this form have not been applied there either.
func (r *Children) Outstanding(ctx context.Context, cluster string, coming []*v1alpha1.Layer) ([]*v1alpha1.Layer, error) {
	var err error
	if cluster == "" {
		if cluster, err = r.ownUID(ctx); err != nil {
			return nil, err
		}
	}
	children := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, children, client.MatchingFields{identityIndex: cluster}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list the Children of a cluster: %w", err)
	}
	var outstanding []*v1alpha1.Layer
	for i := range children.Items {
		child := &children.Items[i]
		if !child.DeletionTimestamp.IsZero() || child.Spec.Suspend || managedElsewhere(child) != nil {
			continue
		}
		layers := &v1alpha1.LayerList{}
		if err := r.Client.List(ctx, layers, client.InNamespace(child.Namespace)); err != nil {
			return nil, fmt.Errorf("cannot list Layers: %w", err)
		}
		live := map[string]*v1alpha1.Layer{}
		for j := range layers.Items {
			layer := &layers.Items[j]
			live[layer.Name] = layer
			if !r.mayGet(layer, child) {
				continue
			}
			if newest := r.Snapshots.Get(layerSource(layer)); newest != nil && r.outstanding(layer, entryOf(child, layer.Name), newest) {
				outstanding = append(outstanding, layer)
			}
		}
		for _, layer := range coming {
			if layer.Namespace == child.Namespace && changes(live[layer.Name], layer) && r.mayGet(layer, child) {
				outstanding = append(outstanding, layer)
			}
		}
	}
	return outstanding, nil
}

// mayGet reports whether a child may get something of the source of a layer.
func (r *Children) mayGet(layer *v1alpha1.Layer, child *v1alpha1.Child) bool {
	if !layer.DeletionTimestamp.IsZero() || layer.Spec.Suspend || layer.Spec.SourceRef == nil {
		return false
	}
	// As long as the Clusters are not listed, it may select any.
	of, known := LabelsOf(child, r.Clusters, &layer.Spec.ClusterSelector)
	return !known || Concerns(layer, child, of)
}

// changes reports whether a layer is to select others, or to have something else for them, than now; now is nil if it is
// not there. How and how often it is applied changes nothing of that, and has defaults that a manifest lacks.
func changes(now, next *v1alpha1.Layer) bool {
	if now == nil || !now.DeletionTimestamp.IsZero() {
		return true
	}
	a, b := &now.Spec, &next.Spec
	return a.Suspend != b.Suspend || a.Path != b.Path || !equality.Semantic.DeepEqual(a.SourceRef, b.SourceRef) ||
		!equality.Semantic.DeepEqual(a.ClusterSelector, b.ClusterSelector) || !equality.Semantic.DeepEqual(a.PostBuild, b.PostBuild)
}

// outstanding reports whether a layer may get something of the newest revision that it does not have yet. One that has
// failed for long is not waited for, unless what it is to have is new, which may mend it; nor is one that has all of it, and waits
// for health or for a decision about what goes; nor one that reads nothing else of the newest than of what it has,
// whatever a Rollout lets it have.
func (r *Children) outstanding(layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer, newest *source.Snapshot) bool {
	if entry == nil {
		return true
	}
	revision := newest.Revision
	if has := r.Snapshots.At(layerSource(layer), entry.Revision); has != nil && r.contents.same(layer, has, newest) {
		revision = entry.Revision
	}
	switch {
	case entry.Ready:
		return entry.Revision != revision || entry.ObservedGeneration != layer.Generation
	case entry.Revision == revision && entry.ObservedGeneration == layer.Generation && deletesOrWaits(entry.Reason):
		return false
	}
	now := r.Now()
	return now.Sub(entry.Since.Time) < inventory.HandOverBound || now.Sub(r.contents.since(layer, newest, now)) < inventory.HandOverBound
}

// deletesOrWaits reports whether a layer with this reason, and the revision that it is to have, has been applied.
func deletesOrWaits(why string) bool {
	switch why {
	case v1alpha1.ReasonHandOverPending, v1alpha1.ReasonPruneBlocked, v1alpha1.ReasonPruneFailed, v1alpha1.ReasonHealthCheckFailed, v1alpha1.ReasonProgressing:
		return true
	}
	return false
}
