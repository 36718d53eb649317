package release

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Messages, as tools and people know them.
const (
	installed = "Helm install succeeded for release %s with chart %s"
	upgraded  = "Helm upgrade succeeded for release %s with chart %s"
)

// release installs or upgrades.
func (n *run) release(ctx context.Context, a Action) error {
	obj := n.obj
	defer n.summarize()
	var wrote written
	h := n.helm(ctx, func(rel *helmrelease.Release) {
		wrote.see(obj, rel)
		if rel.Info.Status == common.StatusPendingInstall && obj.Status.History.Latest() == nil {
			// Helm creates objects next. If the agent is killed before the end, the next one
			// knows what to uninstall, whatever the object points at by then, and what to
			// delete of it that later revisions do not have.
			wrote.record(obj, v2.ReleaseActionInstall)
			_, err := n.recordContents(a, wrote.newest, &verdicts{}, true)
			if err = errors.Join(err, n.req.Save(ctx)); err != nil {
				n.log.Error(n.redacted(err), "cannot record the release before its objects are created")
			}
		}
	})
	start := n.Now()
	action, run := v2.ReleaseActionUpgrade, h.upgrade
	if a == Install {
		action, run = v2.ReleaseActionInstall, h.install
		// An install starts a new history: no rollback goes back behind it.
		obj.Status.ClearHistory()
	}
	deployed := deployedVersion(obj)
	// onTop: Helm deletes what the newest revision has and the next one has not.
	onTop := n.found.stored != nil && n.found.stored.Status == common.StatusDeployed
	obj.Status.LastAttemptedReleaseAction = n.countsAs(a)
	conditions.Delete(obj, v2.TestSuccessCondition)
	conditions.Delete(obj, v2.RemediatedCondition)
	err := run(ctx)
	if errors.Is(err, ErrNoRoom) && wrote.newest == nil {
		return err // nothing was begun
	}
	obj.Status.LastAttemptedReleaseActionDuration = &metav1.Duration{Duration: n.Now().Sub(start)}
	wrote.record(obj, action)
	n.inventory(a, wrote.newest, h.spared(), err != nil || !onTop)
	if err != nil {
		n.releaseFailed(a, h, err)
		if wrote.newest == nil {
			return err
		}
		obj.GetActiveRemediation().IncrementFailureCount(obj)
		return nil
	}
	n.before, n.beforeVersion = recordedMade(obj), deployed
	declaredMade(obj).record(obj)
	n.released(a)
	return nil
}

// countsAs is which action an attempt is, for what the spec says of installs and of upgrades.
func (n *run) countsAs(a Action) v2.ReleaseAction {
	if a == Install || n.inPlace {
		return v2.ReleaseActionInstall
	}
	return v2.ReleaseActionUpgrade
}

func (n *run) releaseFailed(a Action, h actor, err error) {
	reason := v2.UpgradeFailedReason
	if a == Install {
		reason = v2.InstallFailedReason
	}
	message := fmt.Sprintf("Helm %s failed for release %s/%s with chart %s@%s: %s",
		a, n.obj.GetReleaseNamespace(), n.obj.GetReleaseName(), n.req.Chart.Name, n.req.Chart.Version, strings.TrimSpace(n.text(err)))
	n.obj.Status.Failures++
	conditions.MarkFalse(n.obj, v2.ReleasedCondition, reason, "%s", message)
	n.event(n.attempt(), corev1.EventTypeWarning, reason, h.withLogs(message))
}

func (n *run) released(a Action) {
	obj := n.obj
	reason, format, retry := v2.UpgradeSucceededReason, upgraded, obj.GetUpgrade().GetRetry(n.DefaultToRetryOnFailure)
	if a == Install {
		reason, format, retry = v2.InstallSucceededReason, installed, obj.GetInstall().GetRetry(n.DefaultToRetryOnFailure)
	}
	latest := obj.Status.History.Latest()
	message := fmt.Sprintf(format, latest.FullReleaseName(), latest.VersionedChartName())
	conditions.MarkTrue(obj, v2.ReleasedCondition, reason, "%s", message)
	if obj.GetTest().Enable && !latest.HasBeenTested() {
		conditions.MarkUnknown(obj, v2.TestSuccessCondition, reasonAwaitingTests, "Helm release %s with chart %s is awaiting tests",
			latest.FullReleaseName(), latest.VersionedChartName())
	}
	if retry != nil {
		// Where retries never end, the count matters only as long as the action fails.
		obj.Status.ClearFailures()
	}
	n.event(about(latest), corev1.EventTypeNormal, reason, message)
}
