package remote

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Compositions tell what Kustomizations declare of Clusters.
type Compositions interface {
	// Of is what a Kustomization declares; nil while that is not known.
	Of(kustomization types.NamespacedName) Composition
	// OnComposed registers a function that is called when that changed. It must not block.
	OnComposed(f func(kustomization types.NamespacedName))
}

// Composition is what a Kustomization declares of Clusters, each at a revision of its own.
type Composition interface {
	// Source of the Kustomization, and the paths of it that are read.
	Source() source.Key
	Paths() []string
	// Declares reports whether the Kustomization declares a Cluster, at whichever revision.
	Declares(cluster types.NamespacedName) bool
	// Applied is the revision that all of a Cluster was applied at last; empty if that is not
	// known.
	Applied(cluster types.NamespacedName) string
	// Idle is why nothing is applied of what Clusters may have at the moment; empty if it is.
	Idle() string
	// Reached reports whether a Cluster is composed at a revision, and since when if nothing was composed for a while
	// before that.
	Reached(cluster types.NamespacedName, revision string) (is bool, since time.Time)
	// Unapplied is why not all of a Cluster is applied as it is declared, as a clause for people; empty if it is, or if
	// that is not known.
	Unapplied(cluster types.NamespacedName) string
	// Unread is why a Cluster keeps what is in place where its control plane cannot be read, as a clause for people; empty if
	// nothing was to be read, or it was.
	Unread(cluster types.NamespacedName) string
	// Untold reports whether nobody knows what a Cluster has: it waited for its first revision while all else
	// was applied, and nothing says what it was made from.
	Untold(cluster types.NamespacedName) bool
	// Unpinned reports whether that was applied past the Cluster's pin, as by a version that knows no
	// Rollouts. Nothing else is applied of such a Cluster before its Rollout has taken it for what it has.
	Unpinned(cluster types.NamespacedName) bool
	// Built reports whether it is known what a revision declares.
	Built(revision string) bool
	// Awaited reports whether a revision is being fetched, so that it will be known in a moment what it declares.
	Awaited(revision string) bool
	// Lacks reports whether a revision is known not to have a Cluster that the newest one has.
	Lacks(cluster types.NamespacedName, revision string) bool
	// Removes reports whether a revision is known not to have a Cluster that the newest one does not have either.
	Removes(cluster types.NamespacedName, revision string) bool
	// Held is why what makes a Cluster does not take what was applied, by its reason and as a clause for people:
	// UnsupportedVersionStep, which waiting does not mend, Suspended, or ControlPlaneUnreadable, while it cannot begin with
	// that; empty if it is none of these. since is when the last of the latter ended, zero if nobody saw that.
	Held(ctx context.Context, cluster types.NamespacedName) (reason, why string, since time.Time)
	// Outstanding is why what was applied of a Cluster is not in effect yet, as a clause for
	// people; empty if it is.
	Outstanding(ctx context.Context, cluster types.NamespacedName) string
	// Refused is why a Cluster cannot be declared as a revision has it; nil if it can, or if
	// that is not known.
	Refused(ctx context.Context, cluster types.NamespacedName, revision string) error
}

// askTimeout is for all that is asked of clusters for one decision. What was not answered by
// then counts as outstanding, or as not refused: nobody waits for an API server that hangs.
const askTimeout = 15 * time.Second

// heldAgain is between two looks at what makes a Cluster and does not take what was applied: nothing tells when that ends.
const heldAgain = 15 * time.Second

// movedClusters finds what a Rollout of a Kustomization moves.
func (r *Rollouts) movedClusters(_ context.Context, o *v1alpha1.Rollout, m *moved) error {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.Moves.KustomizationRef.Name}
	if r.Compositions == nil {
		return reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("cannot move Kustomization %s: this agent does not reconcile Kustomizations (--controllers)", key))
	}
	if m.composed = r.Compositions.Of(key); m.composed == nil {
		return reason.Because(v1alpha1.ReasonSourceNotReady, fmt.Errorf("there is no Kustomization %s that was built: see its status, or correct spec.moves.kustomizationRef", key))
	}
	m.from = m.composed.Source()
	return nil
}

// ofComposition are the facts about what is declared of a Cluster.
func (m *moved) ofComposition(ctx context.Context, child *v1alpha1.Child, pin *v1alpha1.ChildRollout, c *rollout.Cluster) {
	c.Local = true
	applied := m.composed.Applied(clusterOf(child))
	if applied != "" {
		c.Known, c.Has, c.Unpinned = true, &v1alpha1.RolloutRevision{Revision: applied}, m.composed.Unpinned(clusterOf(child))
	} else if pin == nil {
		// It exists, and nothing says what it has, as after a restore: it gets its first revision in its wave.
		c.Known = m.composed.Untold(clusterOf(child))
	}
	if unseeded(child) {
		// No layer selects the Cluster, so nobody connects to it: Cluster API is all there is to
		// say how it is.
		c.Unreachable, c.Healthy = time.Time{}, c.Rolling == ""
	}
	if pin == nil {
		return
	}
	var reached bool
	reached, c.Reached = m.composed.Reached(clusterOf(child), pin.Revision)
	if applied == "" && (pin.Result == v1alpha1.ResultSucceeded || pin.Result == v1alpha1.ResultDegraded) && !m.composed.Unpinned(clusterOf(child)) {
		// A process that began a moment ago, or in which something else cannot be applied, does not know. It was ready at
		// its pin, with all of that, and is composed at no other one since.
		applied = pin.Revision
	}
	if applied != pin.Revision {
		// That the Kustomization holds what it was given was perhaps not known before it was.
		if pin.Result == v1alpha1.ResultUpdating {
			switch c.Outstanding = m.composed.Unapplied(clusterOf(child)); {
			case reached:
			case m.idle() != "":
				c.Blocked, c.Outstanding = true, m.idle()
			case m.composed.Unread(clusterOf(child)) != "":
				c.Blocked, c.Outstanding = true, m.composed.Unread(clusterOf(child))
			case m.composed.Awaited(pin.Revision):
				c.Blocked, c.Outstanding = true, unfetched(m.from, pin.Revision)
			}
			if err := m.composed.Refused(ctx, clusterOf(child), pin.Revision); err != nil {
				c.Refusal = &rollout.Hold{Reason: v1alpha1.ReasonUnsupportedVersionStep, Message: err.Error()}
			}
		}
		return
	}
	well := c.Healthy && c.Rolling == ""
	// That it is well is of before the change until all who carry that out say otherwise. One
	// that succeeded was asked then, and one that failed has to be well first.
	if pin.Result != v1alpha1.ResultSucceeded && (well || pin.Result == v1alpha1.ResultUpdating || pin.Reason == v1alpha1.ReasonSuspended) {
		held, why, since := m.composed.Held(ctx, clusterOf(child))
		if since.After(c.Reached) {
			c.Reached = since
		}
		switch {
		case held == v1alpha1.ReasonUnsupportedVersionStep:
			c.Refusal = &rollout.Hold{Reason: held, Message: why}
			return
		case held == v1alpha1.ReasonSuspended && (pin.Result == v1alpha1.ResultUpdating || pin.Reason == held):
			c.Withheld, m.again = why, heldAgain
			return
		case held == v1alpha1.ReasonSuspended && wasProven(pin):
			// All of it was in effect.
		case held == v1alpha1.ReasonControlPlaneUnreadable && pin.Result == v1alpha1.ResultUpdating:
			c.Blocked, c.Outstanding, m.again = true, why, heldAgain
			return
		case well:
			c.Outstanding = m.composed.Outstanding(ctx, clusterOf(child))
		}
	}
	c.Ready = well && c.Outstanding == ""
}

// idle is why what clusters may have does not reach them, as a clause for people; empty if it does.
func (m *moved) idle() string {
	if m.composed == nil || m.composed.Idle() == "" {
		return ""
	}
	return "Kustomization " + m.spec.Moves.KustomizationRef.Name + " applies nothing of what clusters may have: " + m.composed.Idle()
}

// unseeded reports whether no layer selects the Cluster of a Child.
func unseeded(child *v1alpha1.Child) bool {
	c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
	return c != nil && c.Reason == v1alpha1.ReasonNoLayer
}

// refusals are why Clusters cannot get the revisions that they could be given now, or do without them.
func (f *rolloutFacts) refusals(ctx context.Context, o *v1alpha1.Rollout, m *moved) {
	if m.composed == nil {
		return
	}
	var revisions []string
	if run := o.Status.Run; run != nil && rollout.Active(run) {
		revisions = append(revisions, run.Revision)
	}
	if f.Candidate != nil {
		revisions = append(revisions, f.Candidate.Revision)
	}
	if run, good := o.Status.Run, o.Status.LastGood; run != nil && good != nil && (rollout.Active(run) || run.Phase == v1alpha1.RolloutReverted || rollout.Reverts(&o.Status, f.Requests)) {
		// Many take that back: at once, should this be the decision in which the run turns back.
		revisions = append(revisions, good.Revision)
	}
	given := givenNext(o, f.Candidate)
	f.Unbuilt = map[string]bool{}
	for _, r := range given {
		f.Unbuilt[r.Revision] = m.composed.Awaited(r.Revision)
	}
	for i := range f.Clusters {
		c := &f.Clusters[i]
		c.Lacks, c.Gone = map[string]bool{}, map[string]bool{}
		for _, r := range given {
			c.Lacks[r.Revision] = m.composed.Lacks(clusterOf(f.children[c.Name]), r.Revision)
			c.Gone[r.Revision] = m.composed.Removes(clusterOf(f.children[c.Name]), r.Revision)
		}
		for _, revision := range slices.Compact(slices.Sorted(slices.Values(revisions))) {
			if c.Pin != nil && c.Pin.Revision == revision {
				continue // its versions are those that it has, or is about to have
			}
			if err := m.composed.Refused(ctx, clusterOf(f.children[c.Name]), revision); err != nil {
				if c.Refused == nil {
					c.Refused = map[string]string{}
				}
				c.Refused[revision] = err.Error()
			}
		}
	}
}

// givenNext are the revisions that clusters could be given now.
func givenNext(o *v1alpha1.Rollout, candidate *v1alpha1.RolloutRevision) []v1alpha1.RolloutRevision {
	var given []v1alpha1.RolloutRevision
	if candidate != nil {
		given = append(given, *candidate)
	}
	if run := o.Status.Run; run != nil {
		given = append(given, run.RolloutRevision)
	}
	if good := o.Status.LastGood; good != nil {
		given = append(given, good.RolloutRevision)
	}
	return given
}

// clusterOf names the Cluster of a Child that has one.
func clusterOf(child *v1alpha1.Child) types.NamespacedName {
	return types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name}
}
