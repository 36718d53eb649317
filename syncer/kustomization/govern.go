package kustomization

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/remote/selection"
	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Clusters are those of the tier, as they were last seen. Package clusters has them.
type Clusters interface {
	Get(types.NamespacedName) (*unstructured.Unstructured, bool)
	Each(func(types.NamespacedName))
	// Known returns a channel that is closed when all of them were seen.
	Known() <-chan struct{}
}

// errClustersUnknown: the agent has started and has not seen the Clusters of its tier yet.
var errClustersUnknown = errors.New("the Clusters of the tier have not been listed yet")

// governed is what Rollouts say about the Clusters that a Kustomization declares. It is nil
// where there is no Rollout, which is what most of the code below relies on.
type governed struct {
	pins map[types.NamespacedName]compose.Pin
	// held Clusters keep what is in place.
	held map[types.NamespacedName]hold
	// unpinned are those among them that have what was applied past their Rollout, with its revision. cutOff: another
	// process was applying that, and ended.
	unpinned map[types.NamespacedName]string
	cutOff   bool
	// whole is what was applied completely last by who heeded no Rollouts: what a Cluster has that was given nothing yet.
	whole    string
	releases compose.Releases
	// marks of HelmReleases say which revision a Rollout let them have.
	marks map[types.NamespacedName]string
	// good is the revision that passed all waves of each Rollout last.
	good map[string]string
	// brought are the revisions of the runs that are under way.
	brought []string
	// id identifies all of it.
	id string
}

// hold is why a Cluster keeps what is in place.
type hold struct {
	reason, why string
}

// unrendered reports whether it is not known what the revision declares that the Cluster may have.
func (h hold) unrendered() bool {
	switch h.reason {
	case meta.BuildFailedReason, v1alpha1.ReasonRevisionMissing, v1alpha1.ReasonSourceNotReady:
		return true
	}
	return false
}

// version identifies what a governed Kustomization applies besides its files and inputs.
func (g *governed) version() string {
	if g == nil {
		return ""
	}
	return g.id
}

// waits reports whether Clusters have not been told yet which revision they may have. What
// was applied last is the revision that they have.
func (g *governed) waits() bool {
	if g == nil {
		return false
	}
	for _, h := range g.held {
		if h.reason == v1alpha1.ReasonRolloutPending {
			return true
		}
	}
	return false
}

// holdsBack reports whether some Cluster may not have a revision.
func (g *governed) holdsBack(revision string) bool {
	if g == nil {
		return false
	}
	for _, pin := range g.pins {
		if !sameRevision(pin.Revision, revision) {
			return true
		}
	}
	return len(g.held) > 0
}

// govern finds the Rollouts that move a Kustomization, and what they let its Clusters have.
// It reads the cache alone.
func (r *Reconciler) govern(ctx context.Context, obj *kustomizev1.Kustomization) (*governed, error) {
	rollouts, err := r.rollouts.of(ctx, r.Client, obj)
	if err != nil || len(rollouts) == 0 {
		return nil, err
	}
	children := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, children, client.InNamespace(obj.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Children: %w", err)
	}
	g := &governed{pins: map[types.NamespacedName]compose.Pin{}, held: map[types.NamespacedName]hold{}, unpinned: map[types.NamespacedName]string{}, good: map[string]string{}}
	if g.releases, g.marks, err = r.releasesIn(ctx, obj.Namespace); err != nil {
		return nil, err
	}
	for i := range rollouts {
		if good := rollouts[i].Status.LastGood; good != nil {
			g.good[rollouts[i].Name] = good.Revision
		}
		if run := rollouts[i].Status.Run; run != nil && rollout.Active(run) {
			g.brought = append(g.brought, run.Revision)
		}
	}
	known := r.known.sofar(client.ObjectKeyFromObject(obj))
	g.cutOff, g.whole = cutOff(obj) && !known.hasAttempted(obj.Status.LastAttemptedRevision), cmp.Or(known.wholly(), wholly(&obj.Status))
	for i := range children.Items {
		child := &children.Items[i]
		if child.Spec.ClusterRef == nil {
			continue // another cluster's, to which nobody gives a revision of this; one of its name has no Child
		}
		name := types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name}
		g.releases.Known[name] = true
		labels, err := r.labelsOf(name, child)
		if err != nil {
			return nil, err
		}
		mover := rollout.Of(rollouts, labels).Kustomization(obj.Name)
		g.take(name, mover, child)
		if g.pins[name].Revision == "" {
			continue
		}
		pin := rollout.OnRecord(child, mover)
		if has := g.unheeded(obj, pin); has != "" && r.unpinned(name, pin, has, g) {
			delete(g.pins, name)
			g.unpinned[name] = has
			g.held[name] = hold{v1alpha1.ReasonRolloutPending, fmt.Sprintf("revision %s was applied of it, and not %s, which Rollout %s let it have: by an agent of an earlier version, or before the Rollout came; it stays there until the Rollout goes on from that",
				has, pin.Revision, mover.Name)}
		}
	}
	if err := r.childless(obj, rollouts, g); err != nil {
		return nil, err
	}
	g.identify()
	return g, nil
}

// past reports whether Clusters have what was applied past their Rollout. What the status says of its
// attempts stays until their Rollout has taken that for what they have: it is all that tells.
func (g *governed) past() bool { return g != nil && len(g.unpinned) > 0 }

// unheeded is the revision that was applied last of all Clusters, perhaps in part, by who heeded no Rollouts;
// empty if Rollouts were heeded. Before a run gave a Cluster its pin, what was applied without them is no
// older version's: of that all counts that was applied completely, which is what the Cluster was taken in with.
func (g *governed) unheeded(obj *kustomizev1.Kustomization, pin *v1alpha1.ChildRollout) string {
	s := &obj.Status
	latest := s.History.Latest()
	switch {
	case latest == nil || pin.Run == 0:
		if status.HeededRollouts(s.History) {
			return ""
		}
		return g.whole
	case g.cutOff && !pin.Past:
		return s.LastAttemptedRevision
	case status.HeededRollouts(s.History):
		return ""
	}
	return status.RevisionOf(latest)
}

// wholly is the revision that was applied completely last by who heeded no Rollouts, as the status has it.
// Whether it became healthy, for which lastAppliedRevision waits, is no matter: Clusters have it.
func wholly(s *kustomizev1.KustomizationStatus) string {
	h := s.History
	for ; status.HeededRollouts(h); h = h[1:] {
		if status.RevisionOf(&h[0]) == s.LastAppliedRevision {
			return s.LastAppliedRevision // nobody waited any more for what a Rollout gives it
		}
	}
	for ; len(h) > 0 && !status.HeededRollouts(h); h = h[1:] {
		switch h[0].LastReconciledStatus {
		case meta.ReconciliationFailedReason, meta.BuildFailedReason, meta.ProgressingReason:
		default:
			return status.RevisionOf(&h[0])
		}
	}
	return s.LastAppliedRevision
}

// cutOff reports whether nothing is recorded of an attempt that has begun, while objects of another revision than that of
// the last one are applied, or waited for: it ended with its process, unless that is this one. The last one was complete, if Rollouts were heeded in it:
// each Cluster that had its pin has it since.
func cutOff(obj *kustomizev1.Kustomization) bool {
	s := &obj.Status
	ready, latest := apimeta.FindStatusCondition(s.Conditions, meta.ReadyCondition), s.History.Latest()
	return ready != nil && ready.Reason == meta.ProgressingReason && latest != nil && s.LastAttemptedRevision != status.RevisionOf(latest) &&
		(!status.HeededRollouts(s.History) || s.LastAppliedRevision == status.RevisionOf(latest))
}

// unpinned reports whether a Cluster has a revision that came past its Rollout: a version that
// knows no Rollouts was here, and applied the newest one of all Clusters. To compose them at their
// pins would change all of them back at once. What a Rollout let a Cluster have is marked on it,
// which that version takes away. A HelmRelease of several Clusters has no mark if they differ, and
// tells nothing.
func (r *Reconciler) unpinned(cluster types.NamespacedName, pin *v1alpha1.ChildRollout, has string, g *governed) bool {
	if !rollout.IsPast(pin, v1alpha1.RolloutRevision{Revision: has, Image: pin.Image}) {
		return false
	}
	mark, tells := r.markOf(cluster, g)
	return tells && mark == ""
}

// markOf is the revision that is marked on a Cluster, or on the HelmRelease that makes it, as what a Rollout let it
// have. tells is false where neither would say so.
func (r *Reconciler) markOf(cluster types.NamespacedName, g *governed) (mark string, tells bool) {
	if r.Clusters == nil {
		return "", false
	}
	for release, made := range g.releases.Made {
		if slices.Contains(made, cluster) {
			return g.marks[release], len(made) == 1
		}
	}
	u, ok := r.Clusters.Get(cluster)
	if !ok {
		return "", false
	}
	return u.GetAnnotations()[v1alpha1.RolloutRevisionAnnotation], true
}

// labelsOf are the labels by which Rollouts select a Child, which is how they take clusters for their own. What
// it has of its Cluster is as old as its last reconcile: where the Cluster is seen, that counts.
func (r *Reconciler) labelsOf(cluster types.NamespacedName, child *v1alpha1.Child) (map[string]string, error) {
	if r.Clusters != nil {
		if u, ok := r.Clusters.Get(cluster); ok {
			return selection.Of(child, u.GetLabels())
		}
	}
	return child.Labels, nil
}

// take finds out what Rollouts let one Cluster have. child is nil for a Cluster that has
// none.
func (g *governed) take(cluster types.NamespacedName, mover rollout.Mover, child *v1alpha1.Child) {
	switch {
	case !mover.Moves():
		return
	case len(mover.Conflict) > 0:
		g.held[cluster] = hold{v1alpha1.ReasonRolloutConflict, "Rollouts " + strings.Join(mover.Conflict, " and ") + " both move it; delete one, or give them other clusterSelectors"}
		return
	case child == nil:
		g.held[cluster] = hold{v1alpha1.ReasonRolloutPending, "it has no Child yet that Rollout " + mover.Name + " could give a revision"}
		return
	}
	if r := rollout.OnRecord(child, mover); r != nil && r.Revision != "" {
		g.pins[cluster] = compose.PinOf(r)
		return
	}
	g.held[cluster] = hold{v1alpha1.ReasonRolloutPending, "Rollout " + mover.Name + " has not let it have a revision yet"}
}

// childless holds Clusters that exist and have no Child, to which nobody could have
// given a revision. A Cluster that does not exist yet is created from the newest one.
func (r *Reconciler) childless(obj *kustomizev1.Kustomization, rollouts []v1alpha1.Rollout, g *governed) error {
	if r.Clusters == nil {
		return nil
	}
	select {
	case <-r.Clusters.Known():
	default:
		return errClustersUnknown
	}
	r.Clusters.Each(func(name types.NamespacedName) {
		if name.Namespace != obj.Namespace || g.releases.Known[name] {
			return
		}
		u, ok := r.Clusters.Get(name)
		if !ok || u.GetDeletionTimestamp() != nil {
			return
		}
		g.releases.Known[name] = true
		g.take(name, rollout.Of(rollouts, u.GetLabels()).Kustomization(obj.Name), nil)
	})
	return nil
}

// releasesIn are the Clusters that the HelmReleases of a namespace make here. marks say which revision a
// Rollout let them have.
func (r *Reconciler) releasesIn(ctx context.Context, namespace string) (releases compose.Releases, marks map[types.NamespacedName]string, err error) {
	releases = compose.Releases{Made: map[types.NamespacedName][]types.NamespacedName{}, Known: map[types.NamespacedName]bool{}}
	marks = map[types.NamespacedName]string{}
	list := &helmv2.HelmReleaseList{}
	if err := r.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		if apimeta.IsNoMatchError(err) {
			return releases, marks, nil
		}
		return releases, marks, fmt.Errorf("cannot list HelmReleases: %w", err)
	}
	for i := range list.Items {
		h := &list.Items[i]
		releases.Add(h)
		marks[client.ObjectKeyFromObject(h)] = h.Annotations[v1alpha1.RolloutRevisionAnnotation]
	}
	return releases, marks, nil
}

func byName(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// besides are the revisions that Clusters may be given next, and the one that those count as having which were given
// none yet.
func (g *governed) besides() []string {
	list := append(slices.Collect(maps.Values(g.good)), g.brought...)
	if g.waits() && g.whole != "" {
		list = append(list, g.whole)
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// needs are the revisions that some Cluster may have, or is about to, and others that are kept.
func (g *governed) needs(key source.Key, also ...string) []source.Pinned {
	if g == nil {
		return nil
	}
	set := map[string]bool{}
	for _, revision := range append(g.besides(), also...) {
		set[revision] = true
	}
	delete(set, "")
	for _, pin := range g.pins {
		set[pin.Revision] = true
	}
	var list []source.Pinned
	for _, revision := range slices.Sorted(maps.Keys(set)) {
		list = append(list, source.Pinned{Key: key, Revision: revision})
	}
	return list
}

// identify sets the id.
func (g *governed) identify() {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(g.good)) {
		parts = append(parts, "good", name, g.good[name])
	}
	for _, name := range slices.SortedFunc(maps.Keys(g.pins), byName) {
		parts = append(parts, "pin", name.String(), g.pins[name].Revision, fmt.Sprint(g.pins[name].Run), g.pins[name].Rollout)
	}
	for _, name := range slices.SortedFunc(maps.Keys(g.held), byName) {
		parts = append(parts, "held", name.String(), g.held[name].reason, g.held[name].why)
	}
	for _, name := range slices.SortedFunc(maps.Keys(g.releases.Made), byName) {
		parts = append(parts, "made", name.String(), fmt.Sprint(g.releases.Made[name]))
	}
	for _, name := range slices.SortedFunc(maps.Keys(g.releases.Known), byName) {
		parts = append(parts, "known", name.String())
	}
	g.id = digest.Of(parts...).Hex()
}
