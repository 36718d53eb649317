package release

import (
	"fmt"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// markInSync makes the conditions say that the release is as declared.
func (n *run) markInSync() {
	n.acceptRemedy()
	obj := n.obj
	latest := obj.Status.History.Latest()
	if !conditions.IsReady(obj) || !conditions.IsTrue(obj, v2.ReleasedCondition) {
		reason, format := "", ""
		switch conditions.GetReason(obj, v2.ReleasedCondition) {
		case v2.InstallFailedReason:
			reason, format = v2.InstallSucceededReason, installed
		case v2.UpgradeFailedReason:
			reason, format = v2.UpgradeSucceededReason, upgraded
		}
		if reason != "" {
			conditions.MarkTrue(obj, v2.ReleasedCondition, reason, format, latest.FullReleaseName(), latest.VersionedChartName())
		}
	}
	if obj.GetDriftDetection().MustDetectChanges() {
		conditions.MarkFalse(obj, v2.DriftedCondition, v2.NoDriftDetectedReason, "No drift detected against the cluster state")
	}
}

// acceptRemedy records a rollback as a success, because the release was rolled
// back to what is declared now.
func (n *run) acceptRemedy() {
	if latest := n.obj.Status.History.Latest(); conditions.IsTrue(n.obj, v2.RemediatedCondition) {
		renameCondition(n.obj, v2.RemediatedCondition, v2.ReleasedCondition, v2.UpgradeSucceededReason,
			fmt.Sprintf(upgraded, latest.FullReleaseName(), latest.VersionedChartName()))
	}
}

// renameCondition replaces one condition by another with the same transition
// time.
func renameCondition(obj *v2.HelmRelease, from, to, reason, message string) {
	c := conditions.Get(obj, from)
	if c == nil {
		return
	}
	conditions.Delete(obj, to)
	conditions.Delete(obj, from)
	c.Type, c.Status, c.Reason, c.Message = to, metav1.ConditionTrue, reason, message
	conditions.Set(obj, c)
}

// unhold takes away what hold set.
func (n *run) unhold() {
	conditions.Delete(n.obj, v1alpha1.PruneBlockedCondition)
	if conditions.GetReason(n.obj, meta.StalledCondition) == v1alpha1.ReasonPruneBlocked {
		conditions.Delete(n.obj, meta.StalledCondition)
	}
}

// hold records that deletions wait for a person.
func (n *run) hold(message string) {
	obj := n.obj
	isNew := conditions.GetMessage(obj, v1alpha1.PruneBlockedCondition) != message
	conditions.MarkTrue(obj, v1alpha1.PruneBlockedCondition, v1alpha1.ReasonPruneBlocked, "%s", message)
	conditions.MarkFalse(obj, meta.ReadyCondition, v1alpha1.ReasonPruneBlocked, "%s", message)
	conditions.MarkStalled(obj, v1alpha1.ReasonPruneBlocked, "%s", message)
	if isNew {
		n.Events.Eventf(obj, corev1.EventTypeWarning, v1alpha1.ReasonPruneBlocked, "%s", message)
	}
}

// Pauses between two looks at objects that are kept for others, and at those that are overdue,
// go with a Cluster or hold up an uninstall, which may be kept for as long as nobody decides about them or it.
const (
	handOverPoll = 5 * time.Second
	overduePoll  = 30 * time.Second
)

// handOverPause is when to look again for a record of hand-overs.
func (n *run) handOverPause(record *v1alpha1.HandOver) time.Duration {
	switch {
	case record == nil:
		return 0
	case inventory.Overdue(record, n.Now()):
		return overduePoll
	}
	return handOverPoll
}

// handsOver records what is kept for other owners, if anything is.
func (n *run) handsOver(s *verdicts, record *v1alpha1.HandOver) {
	if record == nil || len(s.awaited) == 0 {
		conditions.Delete(n.obj, v1alpha1.HandOverPendingCondition)
		return
	}
	message := inventory.HandOverMessage(s.awaited, s.candidates[0].NewOwner, s.candidates[0].Unsure, *record)
	isNew := !conditions.Has(n.obj, v1alpha1.HandOverPendingCondition)
	conditions.MarkTrue(n.obj, v1alpha1.HandOverPendingCondition, v1alpha1.ReasonHandOverPending, "%s", message)
	if isNew {
		n.Events.Eventf(n.obj, corev1.EventTypeNormal, v1alpha1.ReasonHandOverPending, "%s", message)
	}
}

// keeps records what goes later without a person.
func (n *run) keeps(entries []inventory.Entry) {
	if n.req.Keep != nil {
		n.req.Keep(inventory.Kept(entries))
	}
}

// summarize derives Ready from Remediated, TestSuccess and Released: the one of
// the highest generation counts, and of several the first in this order. The
// generation of the object plays no part, so that a generation that does not
// change the release is as ready as the one before.
func (n *run) summarize() {
	if ready := n.ready(); ready != nil {
		conditions.Set(n.obj, ready)
	}
}

// ready takes away what does not hold any more, and returns Ready as summarize sets it, nil if nothing is
// known. Who has more to say does so before it is set: a condition that is something else in between
// counts as one that has just changed.
func (n *run) ready() *metav1.Condition {
	obj := n.obj
	tests := obj.GetTest()
	if !tests.Enable {
		conditions.Delete(obj, v2.TestSuccessCondition)
	}
	if !obj.GetDriftDetection().MustDetectChanges() {
		conditions.Delete(obj, v2.DriftedCondition)
	}
	if len(obj.Status.Conditions) == 0 {
		return nil
	}
	best := conditions.Get(obj, v2.ReleasedCondition)
	remediated := conditions.Get(obj, v2.RemediatedCondition)
	if tested := conditions.Get(obj, v2.TestSuccessCondition); tested != nil && remediated == nil && tests.Enable && !tests.IgnoreFailures {
		if best == nil || tested.ObservedGeneration >= best.ObservedGeneration {
			best = tested
		}
	}
	if remediated != nil && (best == nil || remediated.ObservedGeneration >= best.ObservedGeneration) {
		best = remediated
	}
	if best == nil {
		return nil
	}
	status := best.Status
	if best.Type == v2.RemediatedCondition {
		status = metav1.ConditionFalse // a failure that was remedied is a failure
	}
	if status == metav1.ConditionTrue {
		conditions.Delete(obj, meta.StalledCondition)
	}
	return &metav1.Condition{
		Type: meta.ReadyCondition, Status: status, Reason: best.Reason, Message: best.Message, ObservedGeneration: obj.Generation,
	}
}
