package remote

import (
	"fmt"
	"slices"
	"strings"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

// standing is how a layer stands on one child.
type standing string

const (
	isCurrent     standing = "current"
	isUpdating    standing = "updating"
	isFailed      standing = "failed"
	isUnreachable standing = "unreachable"
	isWaiting     standing = "waiting"
	isElsewhere   standing = "elsewhere"
)

// maxNamed bounds the children that a Layer names.
const maxNamed = 10

// standingOf tells how a layer stands on a child, and why. is says which revision the child
// is to have.
func standingOf(layer *v1alpha1.Layer, child *v1alpha1.Child, is aim) (standing, v1alpha1.Failure) {
	why := v1alpha1.Failure{Name: child.Name, Reason: v1alpha1.ReasonProgressing}
	connected := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
	if connected != nil && connected.Status != metav1.ConditionTrue {
		why.Reason, why.Message = connected.Reason, connected.Message
		if isOutOfReach(connected.Reason) {
			return isUnreachable, why
		}
		return isWaiting, why
	}
	if child.Spec.Suspend {
		why.Reason, why.Message = v1alpha1.ReasonSuspended, "the Child is suspended: cascade resume child "+child.Name+" -n "+child.Namespace
		return isWaiting, why
	}
	elsewhere := managedElsewhere(child)
	if elsewhere != nil {
		why.Reason, why.Message = v1alpha1.ReasonManagedElsewhere, elsewhere.Message
	} else if is.adrift {
		why.Reason, why.Message = v1alpha1.ReasonStale, "no replica of this tier drives its shard: cascade check says why"
		return isUnreachable, why
	}
	at := slices.IndexFunc(child.Status.Layers, func(e v1alpha1.ChildLayer) bool { return e.Name == layer.Name })
	if at < 0 {
		return isWaiting, why
	}
	entry := &child.Status.Layers[at]
	if elsewhere != nil && entry.Ready {
		return isElsewhere, why
	}
	switch {
	case entry.Ready && len(is.conflict) > 0:
		why.Reason, why.Message = v1alpha1.ReasonRolloutConflict, "Rollouts "+strings.Join(is.conflict, " and ")+" move the layer of this cluster"
		return isFailed, why
	case entry.Ready && is.waits && (is.pinned == "" || entry.Revision == is.pinned):
		why.Reason, why.Message = v1alpha1.ReasonRolloutPending, "it has "+orNothing(entry.Revision)+" and waits for Rollout "+is.rollout
		return isWaiting, why
	case entry.Ready && !is.waits && entry.ObservedGeneration == layer.Generation && (is.revision == "" || entry.Revision == is.revision):
		return isCurrent, why
	case entry.Ready:
		revision := is.revision
		if is.waits {
			revision = is.pinned
		}
		why.Message = "it has " + orNothing(entry.Revision) + " and is to have " + orNothing(revision)
		if entry.Message != "" {
			why.Message += ": " + entry.Message
		}
		return isUpdating, why
	}
	why.Reason, why.Message = entry.Reason, entry.Message
	switch entry.Reason {
	case v1alpha1.ReasonDependencyNotReady, v1alpha1.ReasonClusterNotReady, v1alpha1.ReasonPaused, v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonSuspended,
		v1alpha1.ReasonRolloutPending:
		return isWaiting, why
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonAgentNotReady, v1alpha1.ReasonProviderNotReady, v1alpha1.ReasonHandOverPending:
		return isUpdating, why
	case v1alpha1.ReasonUnreachable:
		return isUnreachable, why
	}
	return isFailed, why
}

// isCalled reports whether a child is one that layers are pushed to, as far as is known: its cluster is connected, and this
// tier's to write to. One without a kubeconfig handles no request before somebody gives it one.
func isCalled(child *v1alpha1.Child) bool {
	connected := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
	return (connected == nil || connected.Status == metav1.ConditionTrue) && managedElsewhere(child) == nil
}

// managedElsewhere is the condition of a child whose Cluster another tier manages, nil if this
// one does.
func managedElsewhere(child *v1alpha1.Child) *metav1.Condition {
	c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ManagedElsewhereCondition)
	if c == nil || c.Status != metav1.ConditionTrue {
		return nil
	}
	return c
}

func orNothing(revision string) string {
	if revision == "" {
		return "none"
	}
	return revision
}

// isOutOfReach reports whether the reason of a child that is not connected says that its
// cluster is there, or was, and cannot be called.
func isOutOfReach(why string) bool {
	switch why {
	case v1alpha1.ReasonUnreachable, v1alpha1.ReasonUnauthorized, v1alpha1.ReasonIdentityChanged, v1alpha1.ReasonIdentityConflict,
		v1alpha1.ReasonKubeconfigRefused, answer.ReasonTooLarge, answer.ReasonRedirect, answer.ReasonAddress:
		return true
	}
	return false
}

// summarize counts how the layer stands on the children that it selects, and names at
// most ten of those on which it is not in place. aims say what each is to have. The children
// are not changed.
func summarize(layer *v1alpha1.Layer, children []v1alpha1.Child, aims aims) {
	status := &layer.Status
	counts := v1alpha1.ChildCounts{}
	var behind []v1alpha1.Failure
	var pending waitingFor
	// handled: every child that this tier calls has seen this generation and this request.
	observed, handled, asked := true, true, layer.Annotations[fluxmeta.ReconcileRequestAnnotation]
	selector, unknown := selectorOf(layer)
	for i := range children {
		child := &children[i]
		if unknown != nil && entryOf(child, layer.Name) == nil || unknown == nil && !selector.Matches(labels.Set(child.Labels)) && !stays(layer, child) {
			continue
		}
		counts.Total++
		is := aims.of(child)
		is.adrift = aims.adrift != nil && aims.adrift(child)
		at, why := standingOf(layer, child, is)
		if layer.Spec.Suspend {
			counts.Suspended++
			continue
		}
		switch at {
		case isCurrent:
			counts.Current++
		case isUpdating:
			counts.Updating++
		case isFailed:
			counts.Failed++
		case isUnreachable:
			counts.Unreachable++
		case isWaiting:
			counts.Waiting++
			if why.Reason == v1alpha1.ReasonRolloutPending && is.rollout != "" {
				pending.add(is.rollout)
			}
		case isElsewhere:
			counts.Elsewhere++
		}
		if entry := entryOf(child, layer.Name); entry != nil && at != isUnreachable && isCalled(child) {
			observed = observed && entry.ObservedGeneration == layer.Generation
			handled = handled && entry.LastHandledReconcileAt == asked
		}
		if at != isCurrent && at != isElsewhere {
			behind = least(behind, why)
		}
	}
	counts.Seeded, counts.Failing = counts.Current, counts.Failed
	status.Children, status.Failing, status.Revision = counts, behind, aims.revision()
	if observed {
		status.ObservedGeneration = layer.Generation
	}
	if handled {
		status.LastHandledReconcileAt = asked
	}
	meta.SetStatusCondition(&status.Conditions, leavers(layer, children, readiness(layer, counts, behind, pending)))
	tellStatic(layer, children)
}

func entryOf(child *v1alpha1.Child, layer string) *v1alpha1.ChildLayer {
	for i := range child.Status.Layers {
		if child.Status.Layers[i].Name == layer {
			return &child.Status.Layers[i]
		}
	}
	return nil
}

// least keeps the first few failures by name, so that the same ones are named each time.
func least(list []v1alpha1.Failure, f v1alpha1.Failure) []v1alpha1.Failure {
	at, _ := slices.BinarySearchFunc(list, f.Name, func(l v1alpha1.Failure, name string) int { return strings.Compare(l.Name, name) })
	if at == maxNamed {
		return list
	}
	f.Message = report.Cut(f.Message, maxLayerMessage)
	list = slices.Insert(list, at, f)
	return list[:min(len(list), maxNamed)]
}

// readiness is the Ready condition of a layer: true only when all that it counts have it
// at the observed revision.
func readiness(layer *v1alpha1.Layer, counts v1alpha1.ChildCounts, behind []v1alpha1.Failure, pending waitingFor) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, ObservedGeneration: layer.Generation}
	if layer.Spec.Suspend {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonSuspended, "suspended"
		return c
	}
	if _, err := selectorOf(layer); err != nil && layer.DeletionTimestamp.IsZero() {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason.Of(err), short(err.Error()+"; children that have the layer keep what it applied, and get nothing new")
		return c
	}
	switch {
	case counts.Total == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoChildren, "no cluster is selected"
		return c
	case counts.Current == counts.Total:
		c.Message = fmt.Sprintf("in place on all %d children", counts.Total)
		return c
	case counts.Current+counts.Elsewhere == counts.Total:
		// Nothing that this tier does changes the others: it is no fault that they stay as they are.
		c.Message = fmt.Sprintf("in place on %d of %d children; another tier manages %d, which keep what they have", counts.Current, counts.Total, counts.Elsewhere)
		return c
	case pending.children > 0 && counts.Failed+counts.Unreachable == 0:
		// The Rollout says what is wrong with it, if anything is.
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonRolloutPending, short(pending.message(counts.Total))
		return c
	case counts.Failed+counts.Unreachable+counts.Waiting == 0:
		// It is on its way to all the others.
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonProgressing
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady
	}
	f := behind[0]
	c.Message = short(fmt.Sprintf("in place on %d of %d children (%d updating, %d failed, %d unreachable, %d waiting); %s: %s: %s",
		counts.Current, counts.Total, counts.Updating, counts.Failed, counts.Unreachable, counts.Waiting, f.Name, f.Reason, f.Message))
	return c
}
