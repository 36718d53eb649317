package release

import (
	"context"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func (n *run) retry(r v2.Retry) *Outcome {
	conditions.MarkReconciling(n.obj, meta.ProgressingWithRetryReason, "retrying after %s", r.GetRetryInterval())
	return &Outcome{After: r.GetRetryInterval()}
}

// pause ends a call that would carry out an action of the same class again. The
// next call may.
func (n *run) pause() *Outcome {
	if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
		return n.retry(retry)
	}
	if active := n.obj.GetActiveRemediation(); active == nil || !active.RetriesExhausted(n.obj) {
		return n.again()
	}
	conditions.Delete(n.obj, meta.ReconcilingCondition)
	return &Outcome{}
}

func (n *run) again() *Outcome {
	conditions.MarkReconciling(n.obj, meta.ProgressingWithRetryReason, "%s", conditions.GetMessage(n.obj, meta.ReadyCondition))
	return &Outcome{Again: true}
}

// remedied ends a call that remedied a failure.
func (n *run) remedied() *Outcome {
	if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
		return n.retry(retry)
	}
	if conditions.GetReason(n.obj, v2.RemediatedCondition) == v2.UninstallFailedReason {
		return n.again() // half of the release is gone, retries or not
	}
	active := n.obj.GetActiveRemediation()
	if active == nil || !active.RetriesExhausted(n.obj) || active.IsUninstallAfterUpgrade() {
		return n.again()
	}
	return n.stall(ReasonRetriesExceeded)
}

// stall gives up. It is no error: trying again would change nothing. Ready tells why, for as long as that
// lasts, and not of an obstacle since, which is out of the way.
func (n *run) stall(reason string) *Outcome {
	if ready := n.ready(); ready != nil && ready.Status != metav1.ConditionTrue {
		conditions.Set(n.obj, ready)
	}
	switch reason {
	case ReasonMissingRollbackTarget:
		conditions.MarkStalled(n.obj, reason, "Failed to perform remediation: missing target release for rollback: cannot remediate failed release")
	default:
		var failures int64
		if active := n.obj.GetActiveRemediation(); active != nil {
			failures = active.GetFailureCount(n.obj)
		}
		conditions.MarkStalled(n.obj, reason, "Failed to %s after %d attempt(s)", n.obj.Status.LastAttemptedReleaseAction, failures)
	}
	return &Outcome{Stalled: true}
}

// finish ends a call in which only deletions are left to do.
func (n *run) finish(ctx context.Context) (*Outcome, error) {
	conditions.Delete(n.obj, meta.ReconcilingCondition)
	held, after, handOver, err := n.collect(ctx)
	if err != nil {
		n.ready() // for what it takes away
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v1alpha1.ReasonPruneFailed, "%s", err)
		return nil, err
	}
	if handOver != nil {
		after = n.handOverPause(handOver)
	}
	if held != "" {
		n.hold(held)
		return &Outcome{Held: true, After: after, HandOver: handOver}, nil
	}
	n.unhold()
	if ready := n.ready(); ready != nil {
		if handOver == nil && ready.Status == metav1.ConditionTrue && n.awaits != "" {
			ready.Message += "; " + n.awaits
		}
		conditions.Set(n.obj, ready)
	}
	return &Outcome{After: after, HandOver: handOver}, nil
}
