package release

import (
	"context"
	"fmt"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
)

func (n *run) test(ctx context.Context) error {
	obj := n.obj
	defer n.summarize()
	before := obj.Status.History.Latest().DeepCopy()
	if before == nil {
		return fmt.Errorf("%w: required for test", errNoLatest)
	}
	h := n.helm(ctx, func(rel *helmrelease.Release) {
		if latest := obj.Status.History.Latest(); latest.Targets(rel.Name, rel.Namespace, rel.Version) {
			tested := snapshotOf(rel, latest.OCIDigest, latest.GetAction())
			tested.SetTestHooks(testHooks(rel, obj.GetTest().GetFilters()))
			obj.Status.History[0] = tested
		}
	})
	rel, err := h.test()
	if rel != nil && !before.Targets(rel.Name, rel.Namespace, rel.Version) {
		err = fmt.Errorf("%w: tested release %s/%s.v%d != current release %s/%s.v%d",
			errMismatch, rel.Namespace, rel.Name, rel.Version, before.Namespace, before.Name, before.Version)
	}
	latest := obj.Status.History.Latest()
	what := fmt.Sprintf("for release %s with chart %s", latest.FullReleaseName(), latest.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("Helm test failed %s: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(obj, v2.TestSuccessCondition, v2.TestFailedReason, "%s", message)
		n.event(about(latest), corev1.EventTypeWarning, v2.TestFailedReason, message)
		if !latest.HasBeenTested() {
			return err
		}
		if r := obj.GetActiveRemediation(); r != nil && !r.MustIgnoreTestFailures(obj.GetTest().IgnoreFailures) {
			r.IncrementFailureCount(obj)
		}
		return nil
	}
	result := "no test hooks"
	switch count := len(latest.GetTestHooks()); {
	case count == 1:
		result = "1 test hook completed successfully"
	case count > 1:
		result = fmt.Sprintf("%d test hooks completed successfully", count)
	}
	message := fmt.Sprintf("Helm test succeeded %s: %s", what, result)
	conditions.MarkTrue(obj, v2.TestSuccessCondition, v2.TestSucceededReason, "%s", message)
	n.event(about(latest), corev1.EventTypeNormal, v2.TestSucceededReason, message)
	return nil
}
