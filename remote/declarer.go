package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/selection"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// awaiting is what is known of a wait for the Kustomization that declares a layer.
type awaiting struct {
	// digest of the rendering that it is for, and since when: what another commit drops waits anew.
	digest string
	since  time.Time
}

// awaitsDeclarer is an error while the Kustomization that declares the layer has not applied the revision
// that the layer is rendered from. The same commit may give what the layer no longer declares to
// another Layer, which is not there before that. A Kustomization that does not get so far is waited for
// as long as one that is to take an object over from another.
func (s *seeding) awaitsDeclarer(ctx context.Context) error {
	by := s.declarer(ctx)
	if by == nil {
		s.notes.awaiting = awaiting{}
		return nil
	}
	w := &s.notes.awaiting
	if w.since.IsZero() || w.digest != s.rendered.digest {
		*w = awaiting{digest: s.rendered.digest, since: s.Now()}
	}
	if s.Now().Sub(w.since) >= inventory.HandOverBound {
		return nil
	}
	return reason.Because(v1alpha1.ReasonHandOverPending, fmt.Errorf(
		"what the layer no longer declares stays until Kustomization %s, which declares the Layer, has applied revision %s: another Layer may take it over; after %d minutes it is deleted all the same",
		by, s.revision(), int(inventory.HandOverBound.Minutes())))
}

// declarer names the Kustomization that declares the layer, if it is of the same source and has applied
// neither what the layer is rendered from nor what is newest; else nil.
func (s *seeding) declarer(ctx context.Context) *types.NamespacedName {
	labels, group := s.layer.Labels, kustomizev1.GroupVersion.Group
	name := types.NamespacedName{Namespace: labels[group+"/namespace"], Name: labels[group+"/name"]}
	if name.Name == "" || s.layer.Spec.SourceRef == nil {
		return nil
	}
	k := &kustomizev1.Kustomization{}
	if err := s.Client.Get(ctx, name, k); err != nil {
		return nil // gone, or not watched by this agent, which tells nothing of it then
	}
	key := layerSource(s.layer)
	if from := k.Spec.SourceRef; from.Kind != key.Kind || from.Name != key.Name || from.Namespace != key.Namespace && (from.Namespace != "" || name.Namespace != key.Namespace) {
		return nil
	}
	newest := s.Snapshots.Get(key)
	if appliedAll(k, s.revision()) || newest != nil && appliedAll(k, newest.Revision) {
		return nil
	}
	return &name
}

// appliedAll reports whether a Kustomization has applied all that it declares at a revision, whatever
// became of that: it may wait until these very Layers are ready.
func appliedAll(k *kustomizev1.Kustomization, revision string) bool {
	s := &k.Status
	if s.LastAppliedRevision == revision || s.LastAttemptedRevision != revision {
		return s.LastAppliedRevision == revision
	}
	ready, healthy := apimeta.FindStatusCondition(s.Conditions, meta.ReadyCondition), apimeta.FindStatusCondition(s.Conditions, meta.HealthyCondition)
	switch {
	case ready == nil:
		return false
	case ready.Status == metav1.ConditionTrue, ready.Reason == meta.HealthCheckFailedReason:
		return true // while Clusters wait for their Rollout, the revision before stays on record
	case healthy != nil && ready.Message == healthy.Message:
		return true // both say that health is waited for, and of which revision
	}
	latest := s.History.Latest()
	return latest != nil && status.RevisionOf(latest) == revision && latest.LastReconciledStatus != meta.ReconciliationFailedReason
}

// relabelled is an error if the cluster has other labels by now than those by which this run selects its layers. The
// commit that takes an object out of one layer may have the cluster selected by the one that is to have it,
// while the run is pushing: the next run selects anew. So says the API server, which the cache may not show yet.
func (p *push) relabelled(ctx context.Context) error {
	child := &v1alpha1.Child{}
	err := p.Cluster.Get(ctx, p.run.key(), child)
	labels := child.Labels
	if err == nil && p.object != nil {
		cluster := &unstructured.Unstructured{}
		cluster.SetGroupVersionKind(p.object.GroupVersionKind())
		if err = p.Cluster.Get(ctx, client.ObjectKeyFromObject(p.object), cluster); err == nil {
			labels, err = selection.Of(child, cluster.GetLabels())
		}
	}
	switch {
	case err != nil:
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot read the labels of Child %s to tell which Layers select it: %w", p.run.key(), err))
	case !maps.Equal(labels, p.labels):
		return reason.Because(v1alpha1.ReasonProgressing, errors.New("the labels of the cluster changed while it was pushed to: nothing is deleted before its layers are selected by those"))
	}
	return nil
}
