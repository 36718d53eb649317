package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// awaiting is the wait of a layer for a Kustomization; nobody is waited for if by is nil. What is overdue
// was kept for as long as it is.
type awaiting struct {
	by      *types.NamespacedName
	overdue []inventory.Entry
}

// awaitsDeclarer is an error while the Kustomization that declares the layer has not applied the revision
// that the layer is rendered from. The same commit may give what the layer no longer declares to
// another Layer, which is not there before that. So is it while one that applies to the child has not: that may be the
// new owner. A Kustomization that does not get so far is waited for
// as long as one that is to take an object over from another: for each object, whatever else is dropped
// meanwhile. Once one may go, it is no error, and the rest has a claim.
func (s *seeding) awaitsDeclarer(ctx context.Context) error {
	by := s.declarer(ctx)
	if by == nil {
		by = s.applier(ctx)
	}
	s.awaiting = awaiting{by: by}
	if by == nil {
		s.notes.awaiting = nil
		return nil
	}
	s.notes.awaiting = s.notes.awaiting.Still(s.notes.left, s.Now())
	for _, e := range s.notes.left {
		if s.notes.awaiting.Overdue(e, s.Now()) {
			s.awaiting.overdue = append(s.awaiting.overdue, e)
		}
	}
	if len(s.awaiting.overdue) > 0 {
		return nil
	}
	return reason.Because(v1alpha1.ReasonHandOverPending, fmt.Errorf(
		"what the layer no longer declares stays until Kustomization %s has applied revision %s: it may take it over, or a Layer that it declares; after %d minutes it is deleted all the same",
		by, s.revision(), int(inventory.HandOverBound.Minutes())))
}

// claims are those of other layers, and of the Kustomization that is waited for.
func (a awaiting) claims(others apply.Claims) apply.Claims {
	return func(ctx context.Context, e, except inventory.Entry) (apply.Claim, error) {
		claim, err := others(ctx, e, except)
		isOverdue := slices.ContainsFunc(a.overdue, func(o inventory.Entry) bool { return o.ID() == e.ID() })
		if err == nil && claim.Owner == "" && a.by != nil && !isOverdue {
			claim = apply.Claim{Owner: "Kustomization/" + a.by.String(), Kind: apply.Declared}
		}
		return claim, err
	}
}

// declarer names the Kustomization that declares the layer, if it is of the same source and has applied
// neither what the layer is rendered from nor what is newest; else nil.
func (s *seeding) declarer(ctx context.Context) *types.NamespacedName {
	name := appliedBy(s.layer)
	if name.Name == "" || s.layer.Spec.SourceRef == nil {
		return nil
	}
	k := &kustomizev1.Kustomization{}
	if err := s.Client.Get(ctx, name, k); err != nil {
		return nil // gone, or not watched by this agent, which tells nothing of it then
	}
	if !s.isBehind(k) {
		return nil
	}
	return &name
}

// applier names a Kustomization of the layer's source that applies to the child and has applied neither
// what the layer is rendered from nor what is newest; nil without one.
func (s *seeding) applier(ctx context.Context) *types.NamespacedName {
	if s.layer.Spec.SourceRef == nil {
		return nil
	}
	all := &kustomizev1.KustomizationList{}
	if err := s.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil // not watched either
	}
	for i := range all.Items {
		if k := &all.Items[i]; k.DeletionTimestamp.IsZero() && !k.Spec.Suspend && s.isBehind(k) && s.isFor(k) && !s.isHeldUp(k, all.Items, map[types.NamespacedName]bool{}) {
			name := client.ObjectKeyFromObject(k)
			return &name
		}
	}
	return nil
}

// isBehind reports whether a Kustomization is of the layer's source and has applied neither what the layer is
// rendered from nor what is newest.
func (s *seeding) isBehind(k *kustomizev1.Kustomization) bool {
	key, from := layerSource(s.layer), k.Spec.SourceRef
	if from.Kind != key.Kind || from.Name != key.Name || cmp.Or(from.Namespace, k.Namespace) != key.Namespace {
		return false
	}
	newest := s.Snapshots.Get(key)
	return !appliedAll(k, s.revision()) && (newest == nil || !appliedAll(k, newest.Revision))
}

// isFor reports whether a Kustomization applies to the child, as far as it has that on record. One that has
// not applied anything yet may name the kubeconfig of the child.
func (s *seeding) isFor(k *kustomizev1.Kustomization) bool {
	at := target.Of(k, "")
	if at.Local() {
		return s.ownCluster()
	}
	if on, err := target.Decode(k.Annotations[target.Annotation]); err == nil {
		at = at.Record(&on)
	}
	if id := s.child.Status.Identity; at.Cluster != "" && id != nil {
		return at.Cluster == id.KubeSystemUID
	}
	ref := s.kubeconfigRef(s.cluster)
	return k.Namespace == s.child.Namespace && at.Kind == ref.kind && at.Name == ref.name
}

// isHeldUp reports whether a Kustomization waits, by its dependencies, for the health of what declares the layer or its
// Child: that may be this very layer, and each would wait for the other.
func (s *seeding) isHeldUp(k *kustomizev1.Kustomization, all []kustomizev1.Kustomization, seen map[types.NamespacedName]bool) bool {
	for _, d := range k.Spec.DependsOn {
		on := types.NamespacedName{Namespace: cmp.Or(d.Namespace, k.Namespace), Name: d.Name}
		at := slices.IndexFunc(all, func(k kustomizev1.Kustomization) bool { return client.ObjectKeyFromObject(&k) == on })
		if at < 0 || seen[on] {
			continue
		}
		seen[on] = true
		waits := all[at].Spec.Wait || len(all[at].Spec.HealthChecks) > 0
		if waits && (on == appliedBy(s.layer) || on == appliedBy(s.child)) || s.isHeldUp(&all[at], all, seen) {
			return true
		}
	}
	return false
}

// appliedBy names the Kustomization that applied an object, by its labels.
func appliedBy(o client.Object) types.NamespacedName {
	labels, group := o.GetLabels(), kustomizev1.GroupVersion.Group
	return types.NamespacedName{Namespace: labels[group+"/namespace"], Name: labels[group+"/name"]}
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
