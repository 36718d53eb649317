package remote

import (
	"cmp"
	"fmt"
	"slices"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/plan"
)

// Events of Children and Layers are found by comparing the status that was written with the
// one before. A reconcile that writes no status tells nothing, and one that changes counts,
// messages or ages tells nothing either.

// transition is what became of an object, for an event. docs/events.md has all reasons.
type transition struct{ kind, reason, message string }

// Reasons of events that no condition has.
const (
	eventConnected       = "Connected"
	eventSeeded          = "Seeded"
	eventReady           = "Ready"
	eventHeardAgain      = "HeardAgain"
	eventResumed         = "Resumed"
	eventSupersededEnded = "SupersededEnded"
	eventPruneApproved   = "PruneApproved"
	eventRemovalApproved = "RemovalApproved"
	// eventCredentialsRenewed ends what CredentialsExpiring and CredentialsLapsed began, eventKubeconfigRenewed what
	// KubeconfigNotRenewed did, and eventProfileRecovered what ProfileNotOurs did.
	eventCredentialsRenewed = "CredentialsRenewed"
	eventKubeconfigRenewed  = "KubeconfigRenewed"
	eventProfileRecovered   = "ProfileRecovered"
)

// calm reports whether a reason says that something takes its time, or that a person wants
// it so; every other one is a fault.
func calm(reason string) bool {
	switch reason {
	case v1alpha1.ReasonSucceeded, v1alpha1.ReasonProgressing, v1alpha1.ReasonSuspended, v1alpha1.ReasonPaused, v1alpha1.ReasonClusterNotReady,
		v1alpha1.ReasonClusterDeleting, v1alpha1.ReasonNoLayer, v1alpha1.ReasonNoChildren, v1alpha1.ReasonDependencyNotReady, v1alpha1.ReasonRolloutPending,
		v1alpha1.ReasonAwaitingApproval, v1alpha1.ReasonHandOverPending, v1alpha1.ReasonProviderNotReady,
		v1alpha1.ReasonManagedElsewhere:
		return true
	}
	return false
}

func kindOfEvent(reason string) string {
	if calm(reason) {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// childTransitions are the events of a change of a child's status. What is on its way is no
// news: each commit would be some, for each child. Faults come last, and what fails still is told again after
// what is well again: whoever closes incidents goes by the last event of an object.
func childTransitions(before, after *v1alpha1.Child) []transition {
	var all []transition
	told := map[string]bool{v1alpha1.ReasonProgressing: true}
	tell := func(reason, format string, args ...any) {
		if !told[reason] {
			told[reason] = true
			all = append(all, transition{kindOfEvent(reason), reason, fmt.Sprintf(format, args...)})
		}
	}
	for _, of := range []struct{ condition, reached, message string }{
		{v1alpha1.ConnectedCondition, eventConnected, "the API server answers, and is the cluster that is on record"},
		{v1alpha1.SeededCondition, eventSeeded, "all layers are in place"},
		{v1alpha1.ReadyCondition, eventReady, "connected, seeded, and its agent reports ready"},
	} {
		was, is := meta.FindStatusCondition(before.Status.Conditions, of.condition), meta.FindStatusCondition(after.Status.Conditions, of.condition)
		switch {
		case is == nil, was != nil && was.Status == is.Status && was.Reason == is.Reason:
		case is.Status == metav1.ConditionTrue && (was == nil || was.Status != metav1.ConditionTrue):
			all = append(all, transition{corev1.EventTypeNormal, of.reached, of.message})
		case is.Status != metav1.ConditionTrue:
			tell(is.Reason, "%s", is.Message)
		}
	}
	unrenewed := func(c *metav1.Condition) bool { return c != nil && c.Reason == v1alpha1.ReasonKubeconfigNotRenewed }
	switch was, is := managedElsewhere(before), managedElsewhere(after); {
	case unrenewed(is) && !unrenewed(was):
		tell(is.Reason, "%s", is.Message)
	case unrenewed(was) && !unrenewed(is):
		all = append(all, transition{corev1.EventTypeNormal, eventKubeconfigRenewed, "the kubeconfig follows the one that the cluster renews, or the Cluster is here again"})
	}
	for i := range after.Status.Layers {
		is := &after.Status.Layers[i]
		was := entryOf(before, is.Name)
		if !is.Ready && (was == nil || was.Reason != is.Reason || was.Ready) {
			tell(is.Reason, "layer %s: %s", is.Name, is.Message)
		}
		if hash := heldPrune(was); hash != "" && heldPrune(is) != hash && after.Annotations[v1alpha1.ApprovePruneAnnotation] == hash {
			all = append(all, transition{corev1.EventTypeNormal, eventPruneApproved, fmt.Sprintf("%s approved prune plan %s of layer %s", approver(after), hash, is.Name)})
		}
	}
	switch was, is := before.Status.HeardAt, after.Status.HeardAt; {
	case was == nil && is != nil:
		tell(v1alpha1.ReasonStale, "not heard of for more than three intervals: what is known of it is old")
	case was != nil && is == nil && meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConnectedCondition):
		all = append(all, transition{corev1.EventTypeNormal, eventHeardAgain, "heard of again"})
	}
	switch was, is := before.Status.SupersededBy, after.Status.SupersededBy; {
	case was == nil && is != nil:
		tell(v1alpha1.ReasonSuperseded, "another process, %s, took the child over", is.Holder)
	case was != nil && is == nil && after.Status.Identity != nil:
		all = append(all, transition{corev1.EventTypeNormal, eventSupersededEnded, "this tier writes to the child again"})
	}
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition)
	if is != nil && is.Status != metav1.ConditionTrue && !calm(is.Reason) && slices.ContainsFunc(all, transition.mends) {
		tell(is.Reason, "%s", is.Message)
	}
	slices.SortStableFunc(all, func(a, b transition) int { return cmp.Compare(a.kind, b.kind) })
	return all
}

// mends reports whether an event says that something of a child is well again.
func (t transition) mends() bool {
	switch t.reason {
	case eventConnected, eventHeardAgain, eventSupersededEnded, eventPruneApproved:
		return true
	}
	return false
}

func heldPrune(entry *v1alpha1.ChildLayer) string {
	if entry == nil || entry.Held == nil || entry.Held.Prune == nil {
		return ""
	}
	return entry.Held.Prune.Hash
}

// approver is who approved, as the command line found out.
func approver(o metav1.Object) string {
	return cmp.Or(o.GetAnnotations()[v1alpha1.ApprovedByAnnotation], "somebody")
}

// kindOfLayer is kindOfEvent for a layer: children that only wait, such as for their cluster, are
// no fault of it.
func kindOfLayer(layer *v1alpha1.Layer, reason string) string {
	if n := layer.Status.Children; reason == v1alpha1.ReasonChildrenNotReady && n.Failed+n.Unreachable == 0 {
		return corev1.EventTypeNormal
	}
	return kindOfEvent(reason)
}

// layerTransitions are the events of a change of a layer's status.
func layerTransitions(before, after *v1alpha1.Layer) []transition {
	var all []transition
	was, is := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ReadyCondition), meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition)
	// A removal that is held is told below, with what would be removed.
	if is != nil && is.Reason != v1alpha1.ReasonRemovalHeld && (was == nil || was.Status != is.Status || was.Reason != is.Reason || kindOfLayer(before, was.Reason) != kindOfLayer(after, is.Reason)) {
		message := is.Message
		if after.Status.Revision != "" {
			message = after.Status.Revision + ": " + message
		}
		reason := is.Reason
		if is.Status == metav1.ConditionTrue && reason == v1alpha1.ReasonSucceeded {
			reason = eventReady
		}
		if was != nil && was.Reason == v1alpha1.ReasonSuspended {
			all = append(all, transition{corev1.EventTypeNormal, eventResumed, "it is pushed again"})
		}
		all = append(all, transition{kindOfLayer(after, is.Reason), reason, message})
	}
	old, now := before.Status.Removal, after.Status.Removal
	held := func(r *v1alpha1.Removal) bool { return r != nil && r.Held }
	switch {
	case held(now) && !held(old):
		// Once, however many join it.
		all = append(all, transition{corev1.EventTypeWarning, v1alpha1.ReasonRemovalHeld, plan.RemovalMessage(after)})
	case held(old) && !held(now) && old.Hash != "" && after.Annotations[v1alpha1.ApproveRemovalAnnotation] == old.Hash:
		all = append(all, transition{corev1.EventTypeNormal, eventRemovalApproved, fmt.Sprintf("%s approved the removal %s", approver(after), old.Hash)})
	}
	// What fails is told last: what is told after it ends it.
	slices.SortStableFunc(all, func(a, b transition) int { return cmp.Compare(a.kind, b.kind) })
	return all
}

// recordAll writes events of an object, with metadata.
func recordAll(events record.EventRecorder, o runtime.Object, metadata map[string]string, all []transition) {
	for _, t := range all {
		events.AnnotatedEventf(o, metadata, t.kind, t.reason, "%s", short(t.message))
	}
}

// layerMetadata says which revision an event of a layer is about, and how far it is: what a
// commit status tells.
func layerMetadata(layer *v1alpha1.Layer) map[string]string {
	n := layer.Status.Children
	return metadataOf(layer.Status.Revision, "children", n.Total, n.Current, n.Failed+n.Unreachable)
}

// rolloutMetadata is layerMetadata for a run of a Rollout.
func rolloutMetadata(o *v1alpha1.Rollout) map[string]string {
	revision := ""
	if run := o.Status.Run; run != nil {
		revision = run.Revision
	}
	n := o.Status.Clusters
	return metadataOf(revision, "clusters", n.Total, n.Updated, n.Failed)
}

func metadataOf(revision, what string, total, current, failed int32) map[string]string {
	if revision == "" {
		return nil
	}
	return map[string]string{
		v1alpha1.Group + "/" + eventv1.MetaRevisionKey: revision,
		v1alpha1.Group + "/" + what:                    fmt.Sprint(total),
		v1alpha1.Group + "/current":                    fmt.Sprint(current),
		v1alpha1.Group + "/failed":                     fmt.Sprint(failed),
	}
}
