package release

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (n *run) rollback(ctx context.Context) error {
	obj := n.obj
	defer n.summarize()
	before := obj.Status.History.Latest().DeepCopy()
	to := obj.Status.History.Previous(obj.GetUpgrade().GetRemediation().MustIgnoreTestFailures(obj.GetTest().IgnoreFailures))
	switch {
	case to == nil:
		return errors.New("missing target release for rollback: required to rollback")
	case to.Name != before.Name || to.Namespace != before.Namespace:
		return fmt.Errorf("%w: previous release name or namespace %s does not match current %s", errMismatch, to.FullReleaseName(), before.FullReleaseName())
	}
	to = to.DeepCopy() // the record changes while the rollback writes
	deployed := deployedVersion(obj)
	var newest *helmrelease.Release
	h := n.helm(ctx, func(rel *helmrelease.Release) {
		if newest == nil || rel.Version >= newest.Version {
			newest = rel
		}
		if !replace(obj, rel, always(v2.ReleaseActionRollback)) {
			obj.Status.History = append(v2.Snapshots{snapshotOf(rel, "", "")}, obj.Status.History...)
		}
	})
	err := h.rollback(to)
	n.inventory(Rollback, newest, h.spared(), err != nil)
	token := n.token(to)
	what := fmt.Sprintf("Helm rollback to previous release %s with chart %s", to.FullReleaseName(), to.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("%s failed: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(obj, v2.RemediatedCondition, v2.RollbackFailedReason, "%s", message)
		n.event(token, corev1.EventTypeWarning, v2.RollbackFailedReason, h.withLogs(message))
		if latest := obj.Status.History.Latest(); latest == nil || latest.Digest == before.Digest {
			return err
		}
		return nil
	}
	switch to.Version {
	case deployed:
		// An upgrade that failed left the record as it was.
	case n.beforeVersion:
		n.before.record(obj)
	default:
		unknownMade.record(obj)
	}
	message := what + " succeeded"
	conditions.MarkTrue(obj, v2.RemediatedCondition, v2.RollbackSucceededReason, "%s", message)
	n.event(token, corev1.EventTypeNormal, v2.RollbackSucceededReason, message)
	return nil
}

// uninstallFailed uninstalls a failed release in which no object must stay.
func (n *run) uninstallFailed(ctx context.Context) error {
	before := n.obj.Status.History.Latest().DeepCopy()
	if before == nil {
		return fmt.Errorf("%w: required to uninstall", errNoLatest)
	}
	if err := n.remedyByUninstall(ctx, before); err != nil && n.obj.Status.History.Latest().Digest == before.Digest {
		return err
	}
	return nil
}

// holdRemedy has the Kustomizations and HelmReleases of a failed release take down what they applied before it is
// uninstalled: Helm deletes accounts before these. What has to stay the uninstall itself tells. The outcome is nil if
// nothing is waited for.
func (n *run) holdRemedy(ctx context.Context, next Action) (*Outcome, error) {
	if next != Uninstall {
		return nil, nil
	}
	_, rel, err := n.newest(ctx)
	if err != nil || rel == nil {
		return nil, err
	}
	objects, _, err := objectsOf(rel, n.mapper)
	if err != nil {
		return nil, err
	}
	s := n.guard.judgeAll(ctx, goingOf(objects), nil)
	if len(s.kept()) > 0 {
		return nil, nil
	}
	if len(n.guard.judgeAll(ctx, n.found.leftovers, nil).kept()) > 0 {
		rel = nil // what the chart dropped before would hold the end of an uninstall that began
	}
	failed := conditions.Get(n.obj, meta.ReadyCondition)
	out, err := n.dismantle(ctx, s, rel)
	switch {
	case err != nil:
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v2.UninstallFailedReason, "%s", n.text(err))
		return nil, err
	case out == (Outcome{}):
		return nil, nil
	case failed != nil:
		conditions.Set(n.obj, failed) // why it is uninstalled
	}
	return &out, nil
}

// holdFinish holds the end of an uninstall as a deletion is held: what has to stay now
// may not have been there when it began. The outcome is nil if nothing is held.
func (n *run) holdFinish(ctx context.Context, next Action) (*Outcome, error) {
	if next != Finish {
		return nil, nil
	}
	out, err := n.clear(ctx)
	switch {
	case err != nil:
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v2.UninstallFailedReason, "%s", err)
		return nil, err
	case out == (Outcome{}):
		return nil, nil
	case n.obj.Status.Failures > 0 && !out.Held:
		// Nothing was changed since the failure that it is uninstalled for.
		if ready := n.ready(); ready != nil && ready.Status == metav1.ConditionFalse {
			conditions.Set(n.obj, ready)
		}
	}
	return &out, nil
}

// finishUninstall ends an uninstall that began before. Until it has, nothing else can
// be done.
func (n *run) finishUninstall(ctx context.Context) error {
	obj := n.obj
	_, rel, err := n.newest(ctx)
	if err != nil || rel == nil {
		return err
	}
	if latest := obj.Status.History.Latest(); latest == nil || !latest.Targets(rel.Name, rel.Namespace, rel.Version) {
		// The process ended before the history had it.
		obj.Status.History = append(v2.Snapshots{snapshotOf(rel, "", v2.ReleaseActionUninstallRemediation)}, obj.Status.History...)
	}
	return n.remedyByUninstall(ctx, obj.Status.History.Latest().DeepCopy())
}

// remedyByUninstall uninstalls the newest revision, which before is the record of.
func (n *run) remedyByUninstall(ctx context.Context, before *v2.Snapshot) error {
	obj := n.obj
	defer n.summarize()
	h := n.helm(ctx, func(rel *helmrelease.Release) { replace(obj, rel, always(v2.ReleaseActionUninstallRemediation)) })
	rel, err := h.uninstall(before.Name)
	err = outcomeOf(rel, err, before, obj)
	latest := obj.Status.History.Latest()
	what := fmt.Sprintf("Helm uninstall remediation for release %s with chart %s", latest.FullReleaseName(), latest.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("%s failed: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(obj, v2.RemediatedCondition, v2.UninstallFailedReason, "%s", message)
		n.event(about(latest), corev1.EventTypeWarning, v2.UninstallFailedReason, h.withLogs(message))
		return err
	}
	message := what + " succeeded"
	conditions.MarkTrue(obj, v2.RemediatedCondition, v2.UninstallSucceededReason, "%s", message)
	n.event(about(latest), corev1.EventTypeNormal, v2.UninstallSucceededReason, message)
	return nil
}

// outcomeOf returns an error if an uninstall did not remove the recorded
// release. Helm uninstalls whichever revision is the newest, and hides failures
// of its storage.
func outcomeOf(rel *helmrelease.Release, err error, before *v2.Snapshot, obj *v2.HelmRelease) error {
	switch {
	case rel != nil && !before.Targets(rel.Name, rel.Namespace, rel.Version):
		return fmt.Errorf("%w: uninstalled release %s/%s.v%d != current release %s", errMismatch, rel.Namespace, rel.Name, rel.Version, before.FullReleaseName())
	case err == nil && before.Digest == obj.Status.History.Latest().Digest && common.Status(before.Status) != common.StatusUninstalled:
		return errors.New("uninstall completed with error: release not updated in Helm storage")
	}
	return err
}
