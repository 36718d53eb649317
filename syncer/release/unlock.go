package release

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
)

func (n *run) unlock(ctx context.Context) error {
	defer n.summarize()
	h := n.helm(ctx, func(rel *helmrelease.Release) { replace(n.obj, rel, same) })
	was, rel, err := h.unlock()
	if errors.Is(err, driver.ErrReleaseNotFound) || err == nil && was == "" {
		return nil // whatever it is now, the next look tells
	}
	if rel == nil {
		return err
	}
	ociDigest := ""
	if s := recordOf(n.obj, rel); s != nil {
		ociDigest = s.OCIDigest
	}
	latest := snapshotOf(rel, ociDigest, "")
	what := fmt.Sprintf("Helm release %s with chart %s in %s state", latest.FullReleaseName(), latest.VersionedChartName(), was)
	if err != nil {
		n.obj.Status.Failures++
		message := fmt.Sprintf("Unlock of %s failed: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(n.obj, v2.ReleasedCondition, reasonPendingRelease, "%s", message)
		n.event(about(latest), corev1.EventTypeWarning, reasonPendingRelease, message)
		return err
	}
	message := "Unlocked " + what
	conditions.MarkFalse(n.obj, v2.ReleasedCondition, reasonPendingRelease, "%s", message)
	n.event(about(latest), corev1.EventTypeNormal, reasonPendingRelease, message)
	return nil
}
