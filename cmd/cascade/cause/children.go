package cause

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/remote/report"
)

// layers adds those that are not in place everywhere, or hold their removal.
func (b *builder) layers() {
	for i := range b.facts.Layers {
		l := &b.facts.Layers[i]
		o := of(layerKind, l)
		b.known[o] = true
		b.byLayer[o] = l
		if r := l.Status.Removal; r != nil && r.Held && !l.Spec.Suspend {
			c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.RemovalHeldCondition)
			n := b.node(o, v1alpha1.RemovalHeldCondition, Held, v1alpha1.ReasonRemovalHeld, "", metav1.Time{})
			if c != nil {
				n = b.node(o, v1alpha1.RemovalHeldCondition, Held, v1alpha1.ReasonRemovalHeld, c.Message, c.LastTransitionTime)
			}
			n.link.Command = plain("cascade approve removal " + l.Name + " -n " + l.Namespace + " --hash " + r.Hash)
			b.add(n)
		}
		if l.Spec.Suspend {
			n := b.node(o, "", Suspended, v1alpha1.ReasonSuspended, "nothing of it is pushed to any child", metav1.Time{})
			b.add(n)
			continue
		}
		c := ready(l.Status.Conditions, true)
		if c == nil {
			b.add(b.node(o, "", Progressing, v1alpha1.ReasonProgressing, "waiting to be reconciled", l.CreationTimestamp))
			continue
		}
		if c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonRemovalHeld {
			continue
		}
		n := b.node(o, "", stateOf(c.Reason), c.Reason, c.Message, c.LastTransitionTime)
		n.link.Revision = plain(l.Status.Revision)
		b.ofLayer(n, l)
		b.add(n)
	}
}

// ofLayer adds the children on which a layer is not in place as its causes.
func (b *builder) ofLayer(n *node, l *v1alpha1.Layer) {
	selector, err := metav1.LabelSelectorAsSelector(&l.Spec.ClusterSelector)
	if err != nil {
		selector = labels.Nothing()
	}
	if len(l.Spec.ClusterSelector.MatchLabels)+len(l.Spec.ClusterSelector.MatchExpressions) == 0 {
		selector = labels.Nothing()
	}
	for i := range b.facts.Children {
		c := &b.facts.Children[i]
		if c.Namespace != l.Namespace {
			continue
		}
		child := of(childKind, c)
		if !connected(c) && selector.Matches(labels.Set(c.Labels)) {
			n.because = append(n.because, key{child, ""})
		}
		for i := range c.Status.Layers {
			if e := &c.Status.Layers[i]; e.Name == l.Name {
				// What is wrong with the layer itself is nearer than a child on which it is.
				n.because = append(n.because, key{n.Object, content + " " + e.Reason})
			}
		}
		n.because = append(n.because, key{child, onChild + l.Name})
	}
	if n.link.Reason == v1alpha1.ReasonRolloutPending {
		b.rolloutsOf(n, l.Namespace, l.Name, nil)
	}
}

// rolloutsOf adds the Rollouts that move a layer, or something else of a child.
func (b *builder) rolloutsOf(n *node, namespace, layer string, child *v1alpha1.Child) {
	for i := range b.facts.Rollouts {
		r := &b.facts.Rollouts[i]
		if r.Namespace != namespace {
			continue
		}
		moves := r.Spec.Moves.LayerRef != nil && r.Spec.Moves.LayerRef.Name == layer
		governs := child != nil && slices.ContainsFunc(child.Status.Rollouts, func(at v1alpha1.ChildRollout) bool { return at.Name == r.Name })
		if moves || governs || r.Spec.Moves.Source != nil {
			n.because = append(n.because, key{rolloutOf(r), ""})
		}
	}
}

func connected(c *v1alpha1.Child) bool {
	cond := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConnectedCondition)
	return cond == nil || cond.Status == metav1.ConditionTrue
}

// children adds clusters of this tier, what layers do not do there, and the tiers below.
func (b *builder) children() {
	for i := range b.facts.Children {
		c := &b.facts.Children[i]
		o := of(childKind, c)
		b.known[o] = true
		if cond := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CredentialsExpiringCondition); cond != nil && cond.Status == metav1.ConditionTrue {
			n := b.node(o, cond.Type, stateOf(cond.Reason), cond.Reason, cond.Message, cond.LastTransitionTime)
			b.handedOver(n, c)
			b.add(n)
		}
		var layers []key
		if connected(c) {
			layers = b.onChildren(c)
		}
		below := b.below(c)
		row := report.Row(c)
		if row.Ready {
			continue
		}
		n := b.node(o, "", stateOf(row.Reason), row.Reason, row.Message, row.Since)
		n.link.Heard = row.Heard
		if c.Status.Report != nil {
			n.link.Revision = plain(row.Revision)
		}
		switch {
		case row.Reason == v1alpha1.ReasonSuperseded:
			n.link.Command = "cascade approve take-over " + c.Name + " -n " + c.Namespace
		case !connected(c):
			if c.Spec.ClusterRef != nil {
				n.because = append(n.because, key{Object{Kind: clusterKind, Namespace: c.Namespace, Name: c.Spec.ClusterRef.Name}, ""})
			}
		default:
			n.because = append(n.because, layers...)
			if said := c.Status.Report; said != nil && !said.Ready && row.Reason == said.Reason {
				n.because = append(n.because, below...)
			}
		}
		if counts := report.CountsBelow(c); counts != nil && c.Status.HeardAt != nil {
			n.uncounted = max(0, int(counts.Total)-len(report.RowsBelow(c)))
		}
		b.add(n)
	}
}

// onChildren adds the layers that are not in place on a child, and returns them.
func (b *builder) onChildren(c *v1alpha1.Child) []key {
	var found []key
	o := of(childKind, c)
	for i := range c.Status.Layers {
		e := &c.Status.Layers[i]
		if plan := held.Beside(e); plan != nil {
			n := b.node(o, onChild+e.Name+" "+v1alpha1.PruneBlockedCondition, Held, v1alpha1.ReasonPruneBlocked, held.Deletes(e), metav1.Time{})
			n.link.Layer, n.link.Command = e.Name, plain(pruneCommand(o, plan))
			b.add(n)
			found = append(found, n.key)
		}
		if e.Ready && !e.Suspended {
			continue
		}
		layer := Object{Kind: layerKind, Namespace: c.Namespace, Name: e.Name}
		reason := e.Reason
		if e.Suspended {
			reason = v1alpha1.ReasonSuspended
		}
		n := b.node(o, onChild+e.Name, stateOf(reason), reason, aboutLayer(e.Name, e.Message), e.Since)
		n.link.Layer, n.link.Revision = e.Name, plain(e.LastAttemptedRevision)
		switch reason {
		case v1alpha1.ReasonSuspended:
			n.because = []key{{layer, ""}}
		case v1alpha1.ReasonRemovalHeld:
			n.because = []key{{layer, v1alpha1.RemovalHeldCondition}}
		case v1alpha1.ReasonDependencyNotReady:
			if l := b.byLayer[layer]; l != nil {
				for _, d := range l.Spec.DependsOn {
					n.because = append(n.because, key{o, onChild + d.Name})
				}
			}
		case v1alpha1.ReasonRolloutPending, v1alpha1.ReasonRolloutConflict:
			b.rolloutsOf(n, c.Namespace, e.Name, c)
		case v1alpha1.ReasonPruneBlocked:
			if e.Held != nil {
				n.link.Command = plain(pruneCommand(o, e.Held.Prune))
			} else {
				n.link.Command = pruneCommand(o, nil)
			}
		case v1alpha1.ReasonClusterNotReady, v1alpha1.ReasonPaused, v1alpha1.ReasonClusterDeleting:
			if c.Spec.ClusterRef != nil {
				n.because = []key{{Object{Kind: clusterKind, Namespace: c.Namespace, Name: c.Spec.ClusterRef.Name}, ""}}
			}
		case v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonBuildFailed, v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonCredentialMissing, v1alpha1.ReasonAccessDenied,
			v1alpha1.ReasonContractMismatch, v1alpha1.ReasonHandOverPending:
			n.because = []key{b.contentOf(layer, e)}
		case v1alpha1.ReasonHealthCheckFailed, v1alpha1.ReasonProviderNotReady, v1alpha1.ReasonProgressing:
			n.because = keptThere(c, e.Name)
		}
		b.add(n)
		found = append(found, n.key)
	}
	return found
}

// contentOf adds what is wrong with a layer, whatever the child is, once for all children.
func (b *builder) contentOf(layer Object, e *v1alpha1.ChildLayer) key {
	k := key{layer, content + " " + e.Reason}
	if n := b.nodes[k]; n != nil {
		if since := n.link.Since; since == nil || e.Since.Before(since) {
			n.link.Since = &e.Since
		}
		return k
	}
	n := b.node(layer, k.part, stateOf(e.Reason), e.Reason, e.Message, e.Since)
	n.link.Revision = plain(e.LastAttemptedRevision)
	if l := b.byLayer[layer]; l != nil && e.Reason == v1alpha1.ReasonSourceNotReady && l.Spec.SourceRef != nil {
		b.refer(n, in(l.Spec.SourceRef.Kind, l.Spec.SourceRef.Namespace, l.Spec.SourceRef.Name, l.Namespace))
	}
	if l := b.byLayer[layer]; l != nil && e.Reason == v1alpha1.ReasonCredentialMissing {
		b.without(n, secretsOf(l))
	}
	b.add(n)
	return k
}

// below adds what the agent of a child says of its tier and of those below, and returns
// what fails in its own tier.
func (b *builder) below(c *v1alpha1.Child) []key {
	tier := of(childKind, c).Path()
	var failing []key
	if said := c.Status.Report; said != nil && c.Status.HeardAt == nil {
		var nodes []*node
		for i := range said.Failing {
			f := &said.Failing[i]
			o, ok := object(tier, f.Name)
			if !ok {
				continue
			}
			b.known[o] = true
			n := b.node(o, "", stateOf(f.Reason), word(f.Reason), f.Message, metav1.Time{})
			n.link.Revision = plain(said.Revision)
			if o.Kind == credentialKind || o.Kind == backupKind {
				// The tier does not wait for these, and nothing says what else does.
				b.add(n)
				continue
			}
			nodes = append(nodes, n)
		}
		for _, n := range nodes {
			if report.Follows(n.link.Reason) {
				for _, m := range nodes {
					if !report.Follows(m.link.Reason) {
						n.because = append(n.because, m.key)
					}
				}
			}
			b.add(n)
			failing = append(failing, n.key)
		}
	}
	b.unnamed(c)
	b.rows(c, tier)
	return failing
}

// rows adds the clusters below a child.
func (b *builder) rows(c *v1alpha1.Child, tier string) {
	rows := report.RowsBelow(c)
	bad := map[string]bool{}
	for _, row := range rows {
		bad[tier+">"+row.Path] = !row.Ready
	}
	for _, row := range rows {
		path := tier + ">" + row.Path
		o := ClusterAt(path)
		b.known[o] = true
		b.faults(o, row.Faults, row.Heard)
		if row.Ready {
			continue
		}
		state := stateOf(row.Reason)
		if row.Suspended && row.Reason == v1alpha1.ReasonSuspended {
			state = Suspended
		}
		n := b.node(o, "", state, row.Reason, row.Message, row.Since)
		n.link.Heard, n.link.Revision = row.Heard, plain(row.Revision)
		if row.Reason == v1alpha1.ReasonStale {
			// It is as old as what is known of the tier above it.
			for above := o.Tier; above != ""; above = ClusterAt(above).Tier {
				if bad[above] || above == tier {
					n.because = append(n.because, key{ClusterAt(above), ""})
					break
				}
			}
		}
		if row.Cause != nil {
			n.because = append(n.because, b.namedBy(o, &row))
		}
		b.add(n)
	}
}

// namedBy adds the object for which a cluster further down is not ready, as its row names it:
// once, if it is a Layer that several clusters of one tier are not ready for.
func (b *builder) namedBy(cluster Object, row *v1alpha1.TierRow) key {
	o := Object{Tier: cluster.Path(), Kind: row.Cause.Kind, Namespace: row.Cause.Namespace, Name: row.Cause.Name}
	if o.Kind == layerKind {
		o.Tier = cluster.Tier
	}
	k := key{o, ""}
	if b.nodes[k] != nil {
		return k
	}
	b.known[o] = true
	n := b.node(o, "", stateOf(row.Cause.Reason), row.Cause.Reason, row.Message, row.Since)
	n.link.Heard, n.link.Revision = row.Heard, plain(row.Revision)
	b.add(n)
	return k
}

// ClusterAt is the Child that a path names, from this tier down.
func ClusterAt(path string) Object {
	o := Object{Kind: childKind}
	segment := path
	if at := strings.LastIndexByte(path, '>'); at >= 0 {
		o.Tier, segment = path[:at], path[at+1:]
	}
	o.Namespace, o.Name, _ = strings.Cut(segment, "/")
	return o
}

// word is a reason as a condition may have it.
func word(reason string) string {
	if reason == "" || len(reason) > 256 || !isKind(strings.Map(func(r rune) rune {
		if strings.ContainsRune("_,:", r) {
			return 'a'
		}
		return r
	}, reason[:min(len(reason), 63)])) {
		return v1alpha1.ReasonReportInvalid
	}
	return reason
}
