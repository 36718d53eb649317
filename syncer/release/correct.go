package release

import (
	"context"
	"fmt"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	corev1 "k8s.io/api/core/v1"
)

// tellDrift records that objects are not as they were applied.
func (n *run) tellDrift(diff jsondiff.DiffSet) {
	message := fmt.Sprintf("Cluster state of release %s has drifted from the desired state:\n%s",
		n.obj.Status.History.Latest().FullReleaseName(), summary(diff))
	n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.DriftDetectedReason, "%s", message)
	conditions.MarkTrue(n.obj, v2.DriftedCondition, v2.DriftDetectedReason, "%s", message)
}

func (n *run) correct(ctx context.Context, diff jsondiff.DiffSet) {
	ctx, cancel := context.WithTimeout(ctx, n.obj.GetTimeout().Duration)
	defer cancel()
	conditions.MarkUnknown(n.obj, meta.ReadyCondition, meta.ProgressingReason, "correcting cluster drift")
	changes, err := n.drifts.correct(ctx, diff)
	latest := n.obj.Status.History.Latest()
	switch {
	case err != nil:
		partly, done := "", ""
		if len(changes.Entries) > 0 {
			partly, done = "partially ", "\n\nSuccessful corrections:\n"+changes.String()
		}
		n.event(about(latest), corev1.EventTypeWarning, reasonDriftCorrectionFailed,
			fmt.Sprintf("Failed to %scorrect cluster state of release %s:\n%s%s", partly, latest.FullReleaseName(), n.text(err), done))
	case len(changes.Entries) > 0:
		n.event(about(latest), corev1.EventTypeNormal, reasonDriftCorrected,
			fmt.Sprintf("Cluster state of release %s has been corrected:\n%s", latest.FullReleaseName(), changes))
	}
}
