package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// moved is what a Rollout moves, and of where.
type moved struct {
	spec *v1alpha1.RolloutSpec
	// layers of the namespace, and the one that is moved, if one is.
	layers []v1alpha1.Layer
	layer  *v1alpha1.Layer
	// composed is what Clusters the Kustomization declares, if one is moved.
	composed Composition
	from     source.Key
	image    string
	// again is when to look again although nothing changes; zero for never.
	again time.Duration
	// unread: nobody could look yet whether there is a newer revision than the candidate of before.
	unread bool
	// barriers are those of the revisions that this decision asked for.
	barriers map[string]barrier
}

// moved finds what a Rollout moves.
func (r *Rollouts) moved(ctx context.Context, o *v1alpha1.Rollout) (*moved, error) {
	m := &moved{spec: &o.Spec}
	switch moves := &o.Spec.Moves; {
	case moves.KustomizationRef != nil:
		return m, r.movedClusters(ctx, o, m)
	case moves.Source != nil:
		ref := o.Spec.SourceRef
		m.from = source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(ref.Namespace, o.Namespace), Name: ref.Name}}
		if m.from.Namespace != o.Namespace && r.NoCrossNamespaceRefs {
			return nil, reason.Because(v1alpha1.ReasonAccessDenied, fmt.Errorf("cannot use %s %s of another namespace: the agent has --no-cross-namespace-refs", ref.Kind, m.from.NamespacedName))
		}
		if kind := kindOfRevisions(moves.Source.Kind); kind != ref.Kind {
			return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("the revisions of a %s cannot pin a %s: name a %s in spec.sourceRef", ref.Kind, moves.Source.Kind, kind))
		}
	}
	list := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, list, client.InNamespace(o.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Layers: %w", err)
	}
	m.layers = list.Items
	if ref := o.Spec.Moves.LayerRef; ref != nil {
		i := slices.IndexFunc(m.layers, func(l v1alpha1.Layer) bool { return l.Name == ref.Name })
		if i < 0 {
			return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("there is no Layer %s: correct spec.moves.layerRef, or create the Layer", ref.Name))
		}
		m.layer = &m.layers[i]
		if _, err := selectorOf(m.layer); err != nil {
			return nil, err
		}
		var err error
		if m.image, err = imageOf(m.layer); err != nil {
			return nil, err
		}
		if m.layer.Spec.SourceRef != nil {
			m.from = layerSource(m.layer)
			if m.from.Kind == sourcev1.BucketKind {
				return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("the Layer's source is a Bucket, which keeps no older revisions: move it to a GitRepository or an OCIRepository"))
			}
		}
	}
	return m, nil
}

// kindOfRevisions is the kind of a source that tells the revisions for an object.
func kindOfRevisions(pinned string) string {
	if pinned == "HelmRelease" {
		return sourcev1.HelmChartKind
	}
	return pinned
}

// selectors are those of the layers that bring what the Rollout moves.
func (m *moved) selectors() []*metav1.LabelSelector {
	if m.layer != nil {
		return []*metav1.LabelSelector{&m.layer.Spec.ClusterSelector}
	}
	var all []*metav1.LabelSelector
	for i := range m.layers {
		all = append(all, &m.layers[i].Spec.ClusterSelector)
	}
	return all
}

// takes reports whether a child has what the Rollout moves. Which objects a layer brings is
// not known before it is rendered: a source is in all children that any layer selects.
func (m *moved) takes(child *v1alpha1.Child) bool {
	switch {
	case m.layer != nil:
		return Concerns(m.layer, child, child.Labels)
	case m.composed != nil:
		return child.Spec.ClusterRef != nil && m.composed.Declares(clusterOf(child))
	}
	return slices.ContainsFunc(m.layers, func(l v1alpha1.Layer) bool { return Concerns(&l, child, child.Labels) })
}

// cluster are the facts about one child.
func (r *Rollouts) cluster(ctx context.Context, o *v1alpha1.Rollout, m *moved, child *v1alpha1.Child, pin *v1alpha1.ChildRollout) rollout.Cluster {
	c := m.cluster(o, child, pin)
	rolling, replaces := r.rolling(child)
	if c.Rolling = rolling; m.composed != nil {
		counts := pin
		if pin != nil && wasProven(pin) && !replaces {
			c.Rolling = "" // what is in place counts as it did
			if rolling == v1alpha1.ReasonPaused {
				// All of it was in effect, and what says that it is not says only that nobody acts, as the topology of a paused Cluster does.
				counts = pin.DeepCopy()
				counts.Result = v1alpha1.ResultSucceeded
			}
		}
		m.ofComposition(ctx, child, counts, &c)
		switch c.Rolling = rolling; {
		case c.Withheld == "":
		case rolling == "", rolling == v1alpha1.ReasonRollingOut:
			c.Rolling = v1alpha1.ReasonSuspended // nothing of what it was given is released
		default:
			c.Withheld = ""
		}
		c.Ready = c.Ready && asWell(o, pin, c.Below)
		return c
	}
	if child.Spec.Suspend {
		c.Rolling = v1alpha1.ReasonSuspended // no layer is sent to it
	}
	if m.layer != nil && pin != nil && (pin.Result == v1alpha1.ResultUpdating || pin.Result == v1alpha1.ResultDegraded) {
		// Nor does anybody look how the layer is meanwhile.
		b := r.barrier(o, m, pin.Revision)
		c.Blocked, c.Outstanding, c.Reached = b.why != "", b.why, b.over
	}
	return c
}

// cluster are the facts about one child that its Child tells.
func (m *moved) cluster(o *v1alpha1.Rollout, child *v1alpha1.Child, pin *v1alpha1.ChildRollout) rollout.Cluster {
	c := rollout.Cluster{
		Name: child.Name, UID: child.UID, Labels: child.Labels, Pin: pin, Skip: rollout.Skip(child.Annotations, o.Name),
		Unreachable: lostSince(child), Healthy: (meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) || pausedAlone(child)) && child.Status.HeardAt == nil,
		Elsewhere: managedElsewhere(child) != nil,
	}
	c.Below, c.Underway = below(child)
	switch {
	case m.layer != nil:
		m.ofLayer(child, pin, &c)
	case m.spec.Moves.Source != nil:
		m.ofSource(child, pin, &c)
	}
	// A tier is done when its own are as well as they were, with what it has for them.
	if c.Ready = c.Ready && asWell(o, pin, c.Below); c.Ready {
		c.Busy = busy(child, pin)
		c.Ready = c.Busy == ""
	}
	return c
}

// proven says of each revision that the child was given, and is ready at by now, that it
// succeeded: with the write that says so of the layer, rather than with one of its own. The
// reconciler of Rollouts finds the same, should nothing else be written.
func (r *run) proven(selected []*v1alpha1.Layer) {
	for _, o := range r.governing {
		pin := rollout.OnRecord(r.child, rollout.MoverOf(o))
		if pin == nil || pin.Result != v1alpha1.ResultUpdating || o.Spec.Moves.KustomizationRef != nil {
			continue
		}
		m := &moved{spec: &o.Spec}
		if ref := o.Spec.Moves.LayerRef; ref != nil {
			i := slices.IndexFunc(selected, func(l *v1alpha1.Layer) bool { return l.Name == ref.Name })
			if i < 0 {
				continue
			}
			m.layer = selected[i]
		}
		if c := m.cluster(o, r.child, pin); c.Ready && c.Unreachable.IsZero() {
			pin.Result, pin.Reason, pin.Since = v1alpha1.ResultSucceeded, "", metav1.NewTime(r.Now())
		}
	}
}

// asWell reports whether no more clusters below a child are ill than were. How many were when it got what it has says
// nothing of a run that has yet to take it over.
func asWell(o *v1alpha1.Rollout, pin *v1alpha1.ChildRollout, below int32) bool {
	run := o.Status.Run
	return below <= pin.Below || run != nil && pin.Run < run.Number && pin.Result == v1alpha1.ResultSucceeded
}

// below counts the clusters below a child that are not ready, though they can be reached, and its Rollouts
// that are on their way.
func below(child *v1alpha1.Child) (notReady, underway int32) {
	if counts := report.CountsBelow(child); counts != nil {
		notReady = max(counts.Total-counts.Ready-counts.Suspended-counts.Stale, 0)
	}
	if said := child.Status.Report; said != nil && said.Rollouts != nil {
		underway = said.Rollouts.Pending
	}
	return notReady, underway
}

// busy says what is on its way in a child that is a tier: Rollouts of its own, more than when it was given what it
// has, or layers to clusters below it which are ready with what they had before.
func busy(child *v1alpha1.Child, pin *v1alpha1.ChildRollout) string {
	if _, underway := below(child); underway > pin.Underway {
		return fmt.Sprintf("%d of its own Rollouts are on their way", underway)
	}
	if counts := report.CountsBelow(child); counts != nil && counts.Updating > 0 {
		return fmt.Sprintf("%d layers are on their way to clusters below it", counts.Updating)
	}
	return ""
}

// lostSince is since when a child cannot be reached; zero if it can. One whose API server
// answers can be, though its agent may be silent: then it is not ready, and gets what mends that.
func lostSince(child *v1alpha1.Child) time.Time {
	switch c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); {
	case c == nil:
		return child.CreationTimestamp.Time
	case c.Status != metav1.ConditionTrue:
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// rolling is why the cluster of a child is changing by itself, empty if it is not, and whether more of it changes than the
// number of its machines.
func (r *Rollouts) rolling(child *v1alpha1.Child) (reason string, replaces bool) {
	if child.Spec.ClusterRef == nil {
		return "", false
	}
	u, ok := r.Clusters.Get(types.NamespacedName{Namespace: child.Namespace, Name: child.Spec.ClusterRef.Name})
	if !ok {
		return "", false
	}
	c := capibridge.FromObject(u)
	_, reason, _ = c.Rolling(capibridge.Facts{})
	return reason, c.Replaces()
}

// pausedAlone reports whether nothing but the pause of its Cluster keeps a child from being ready.
func pausedAlone(child *v1alpha1.Child) bool {
	ready, said := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition), child.Status.Report
	return ready != nil && ready.Reason == v1alpha1.ReasonPaused && (said == nil || said.Ready) &&
		!slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return !l.Ready && !isPaused(&l) })
}

// isPaused reports whether nothing but the pause of its Cluster keeps a layer from being ready: what was not healthy is told
// for that instead.
func isPaused(entry *v1alpha1.ChildLayer) bool {
	return entry.Reason == v1alpha1.ReasonPaused && isApplied(entry)
}

// ofLayer are the facts about a layer on a child.
func (m *moved) ofLayer(child *v1alpha1.Child, pin *v1alpha1.ChildRollout, c *rollout.Cluster) {
	entry := entryOf(child, m.layer.Name)
	if entry == nil {
		return
	}
	// What an entry says of a child that this process has not asked yet is on record there.
	sent := entry.Revision != "" || entry.Digest != "" || entry.LastAttemptedDigest != ""
	c.Known = sent || entry.Reason == v1alpha1.ReasonRolloutPending
	if sent {
		c.Has = &v1alpha1.RolloutRevision{Revision: sentOf(entry), Image: entry.AgentImage}
		switch {
		case entry.AgentImage != "" || m.image == "":
		case pin != nil:
			c.Has.Image = pin.Image
		default:
			// The layer's own may be newer, and would be in all of them at once. Who waits for the Rollout looks.
			c.Known, c.Has = false, nil
		}
	}
	c.New, c.Unpinned = c.Known && c.Has == nil, pin != nil && entry.Past == pin.Name
	// What was ready when it was suspended is so until its child says otherwise: nothing of it changes.
	asked := !entry.Suspended || pin != nil && wasProven(pin)
	ready := entry.Ready || pin != nil && wasProven(pin) && isPaused(entry)
	c.Ready = isBrought(pin) && c.Healthy && ready && asked && !sentInPart(entry) && entry.Revision == pin.Revision && entry.AgentImage == pin.Image
}

// ofSource are the facts about a source in a child.
func (m *moved) ofSource(child *v1alpha1.Child, pin *v1alpha1.ChildRollout, c *rollout.Cluster) {
	said := child.Status.Report
	if said == nil {
		// A child without a report is new if nothing of its layers is in place.
		c.Known = len(child.Status.Layers) > 0 && !slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Digest != "" })
		c.New = c.Known
		// One without an agent never says anything. Whether a layer brings the source its run finds out, once it may have a revision;
		// one that has something in place, nobody knows of what, is given none before it tells.
		c.Idle = pin != nil && pin.Idle || pin == nil && !c.Known && !m.hasTeller(child)
		return
	}
	// One of which nothing is told may have something, and gets its first revision in its wave: to
	// wait would keep the whole layer from it, with what has the child tell more. Another layer may have
	// brought the agent before the nodes were ready, which may need what the revision brings.
	has, perhaps := report.BroughtRevision(said, *m.spec.Moves.Source)
	c.Known, c.New = true, report.HasNothing(said, *m.spec.Moves.Source)
	c.Idle = pin != nil && pin.Idle && has == ""
	if has != "" {
		c.Has = &v1alpha1.RolloutRevision{Revision: has}
		c.Unpinned = pin != nil && !isContent(m.spec.Moves.Source.Kind, has, pin.Revision) && slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Past == pin.Name })
	}
	c.Ready = isBrought(pin) && c.Healthy && said.Ready && isContent(m.spec.Moves.Source.Kind, cmp.Or(has, perhaps), pin.Revision)
}

// hasTeller reports whether a layer brings a child an agent, which tells what it has.
func (m *moved) hasTeller(child *v1alpha1.Child) bool {
	return slices.ContainsFunc(m.layers, func(l v1alpha1.Layer) bool { return hasAgent(&l) && Concerns(&l, child, child.Labels) })
}

// isBrought reports whether a run of the child found in place what it may have, since it may have it.
func isBrought(pin *v1alpha1.ChildRollout) bool { return pin != nil && (pin.Brought || wasProven(pin)) }

// wasProven reports whether the child was ready at its pin, and nothing put it off since.
func wasProven(pin *v1alpha1.ChildRollout) bool {
	return pin.Result == v1alpha1.ResultSucceeded || pin.Result == v1alpha1.ResultDegraded
}

// isContent reports whether a revision of a kind is the commit or digest of a pin, however a
// source found it, or the version of a chart that the pin asks for.
func isContent(kind, revision, pin string) bool {
	if kindOfRevisions(kind) == sourcev1.HelmChartKind {
		return rollout.IsChart(revision, pin)
	}
	return revision != "" && rollout.Content(revision) == rollout.Content(pin)
}
