package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Reasons that have no name in Flux's API.
const (
	reasonAwaitingTests         = "AwaitingTests"
	reasonPendingRelease        = "PendingRelease"
	reasonDriftCorrected        = "DriftCorrected"
	reasonDriftCorrectionFailed = "DriftCorrectionFailed"
)

// Messages, as tools and people know them.
const (
	installed = "Helm install succeeded for release %s with chart %s"
	upgraded  = "Helm upgrade succeeded for release %s with chart %s"
)

// take carries an action out and records what became of it. An error means that
// nothing changed in the storage, so that there is nothing to remedy.
func (n *run) take(ctx context.Context, a Action, diff jsondiff.DiffSet) error {
	switch a {
	case Install, Upgrade:
		return n.release(ctx, a)
	case Unlock:
		return n.unlock(ctx)
	case Test:
		return n.test(ctx)
	case Correct:
		n.correct(ctx, diff)
		return nil
	case Rollback:
		return n.rollback(ctx)
	case Uninstall:
		return n.uninstallFailed(ctx)
	}
	return fmt.Errorf("cannot take unknown action %q", a)
}

// written are the revisions that an action wrote, with their last state.
type written struct {
	snapshots map[int]*v2.Snapshot
	newest    *helmrelease.Release
}

// see records a revision.
func (w *written) see(obj *v2.HelmRelease, rel *helmrelease.Release) {
	ociDigest := obj.Status.LastAttemptedRevisionDigest
	if s := recordOf(obj, rel); s != nil {
		ociDigest = s.OCIDigest
	}
	if w.snapshots == nil {
		w.snapshots = map[int]*v2.Snapshot{}
	}
	w.snapshots[rel.Version] = snapshotOf(rel, ociDigest, "")
	if w.newest == nil || rel.Version >= w.newest.Version {
		w.newest = rel
	}
}

// record puts the newest revision in front of the history, and what became of an
// earlier one in its place.
func (w *written) record(obj *v2.HelmRelease, action v2.ReleaseAction) {
	if w.newest == nil {
		return
	}
	newest := w.snapshots[w.newest.Version]
	newest.Action = action
	for i, s := range obj.Status.History {
		now := w.snapshots[s.Version]
		if s.Version == newest.Version || now == nil || !s.Targets(now.Name, now.Namespace, now.Version) {
			continue
		}
		now.SetTestHooks(s.GetTestHooks())
		obj.Status.History[i] = now
	}
	obj.Status.History = append(v2.Snapshots{newest}, obj.Status.History...)
}

// recordOf is the record of a revision in the history.
func recordOf(obj *v2.HelmRelease, rel *helmrelease.Release) *v2.Snapshot {
	for _, s := range obj.Status.History {
		if s.Targets(rel.Name, rel.Namespace, rel.Version) {
			return s
		}
	}
	return nil
}

// replace writes a revision over its record, if there is one.
func replace(obj *v2.HelmRelease, rel *helmrelease.Release, action func(*v2.Snapshot) v2.ReleaseAction) bool {
	for i, s := range obj.Status.History {
		if s.Targets(rel.Name, rel.Namespace, rel.Version) {
			now := snapshotOf(rel, s.OCIDigest, action(s))
			now.SetTestHooks(s.GetTestHooks())
			obj.Status.History[i] = now
			return true
		}
	}
	return false
}

func always(a v2.ReleaseAction) func(*v2.Snapshot) v2.ReleaseAction {
	return func(*v2.Snapshot) v2.ReleaseAction { return a }
}

func same(s *v2.Snapshot) v2.ReleaseAction { return s.GetAction() }

// release installs or upgrades.
func (n *run) release(ctx context.Context, a Action) error {
	obj := n.obj
	defer n.summarize()
	var wrote written
	h := n.helm(ctx, func(rel *helmrelease.Release) { wrote.see(obj, rel) })
	start := n.Now()
	action, run := v2.ReleaseActionUpgrade, h.upgrade
	if a == Install {
		action, run = v2.ReleaseActionInstall, h.install
		// A new life begins: nothing before it is rolled back to.
		obj.Status.ClearHistory()
	}
	obj.Status.LastAttemptedReleaseAction = action
	conditions.Delete(obj, v2.TestSuccessCondition)
	conditions.Delete(obj, v2.RemediatedCondition)
	err := h.logs.redact(run(ctx))
	obj.Status.LastAttemptedReleaseActionDuration = &metav1.Duration{Duration: n.Now().Sub(start)}
	wrote.record(obj, action)
	n.inventory(wrote.newest, h.client.spared, err != nil)
	if err != nil {
		n.releaseFailed(a, h, err)
		if wrote.newest == nil {
			return err
		}
		if a == Install {
			obj.GetInstall().GetRemediation().IncrementFailureCount(obj)
		} else {
			obj.GetUpgrade().GetRemediation().IncrementFailureCount(obj)
		}
		return nil
	}
	n.released(a)
	return nil
}

func (n *run) releaseFailed(a Action, h *helm, err error) {
	reason := v2.UpgradeFailedReason
	if a == Install {
		reason = v2.InstallFailedReason
	}
	message := fmt.Sprintf("Helm %s failed for release %s/%s with chart %s@%s: %s",
		a, n.obj.GetReleaseNamespace(), n.obj.GetReleaseName(), n.req.Chart.Name, n.req.Chart.Version, strings.TrimSpace(n.text(err)))
	n.obj.Status.Failures++
	conditions.MarkFalse(n.obj, v2.ReleasedCondition, reason, "%s", message)
	n.event(n.attempt(), corev1.EventTypeWarning, reason, h.logs.after(message))
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
		// With retries that never end a count means something while it fails only.
		obj.Status.ClearFailures()
	}
	n.event(about(latest), corev1.EventTypeNormal, reason, message)
}

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

// tellDrift records that objects are not as they were made.
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
	changes, err := correct(ctx, n.session.cluster, diff)
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
	var newest *helmrelease.Release
	h := n.helm(ctx, func(rel *helmrelease.Release) {
		if newest == nil || rel.Version >= newest.Version {
			newest = rel
		}
		if !replace(obj, rel, always(v2.ReleaseActionRollback)) {
			obj.Status.History = append(v2.Snapshots{snapshotOf(rel, "", "")}, obj.Status.History...)
		}
	})
	err := h.logs.redact(h.rollback(to))
	n.inventory(newest, h.client.spared, err != nil)
	meta := n.token(to)
	what := fmt.Sprintf("Helm rollback to previous release %s with chart %s", to.FullReleaseName(), to.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("%s failed: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(obj, v2.RemediatedCondition, v2.RollbackFailedReason, "%s", message)
		n.event(meta, corev1.EventTypeWarning, v2.RollbackFailedReason, h.logs.after(message))
		if latest := obj.Status.History.Latest(); latest == nil || latest.Digest == before.Digest {
			return err
		}
		return nil
	}
	message := what + " succeeded"
	conditions.MarkTrue(obj, v2.RemediatedCondition, v2.RollbackSucceededReason, "%s", message)
	n.event(meta, corev1.EventTypeNormal, v2.RollbackSucceededReason, message)
	return nil
}

// uninstallFailed remedies a failed release that has nothing that must stay.
func (n *run) uninstallFailed(ctx context.Context) error {
	obj := n.obj
	defer n.summarize()
	before := obj.Status.History.Latest().DeepCopy()
	if before == nil {
		return fmt.Errorf("%w: required to uninstall", errNoLatest)
	}
	h := n.helm(ctx, func(rel *helmrelease.Release) { replace(obj, rel, always(v2.ReleaseActionUninstallRemediation)) })
	rel, err := h.uninstall(before.Name)
	err = outcomeOf(rel, h.logs.redact(err), before, obj)
	latest := obj.Status.History.Latest()
	what := fmt.Sprintf("Helm uninstall remediation for release %s with chart %s", latest.FullReleaseName(), latest.VersionedChartName())
	if err != nil {
		obj.Status.Failures++
		message := fmt.Sprintf("%s failed: %s", what, strings.TrimSpace(n.text(err)))
		conditions.MarkFalse(obj, v2.RemediatedCondition, v2.UninstallFailedReason, "%s", message)
		n.event(about(latest), corev1.EventTypeWarning, v2.UninstallFailedReason, h.logs.after(message))
		if latest.Digest == before.Digest {
			return err
		}
		return nil
	}
	message := what + " succeeded"
	conditions.MarkTrue(obj, v2.RemediatedCondition, v2.UninstallSucceededReason, "%s", message)
	n.event(about(latest), corev1.EventTypeNormal, v2.UninstallSucceededReason, message)
	return nil
}

// outcomeOf is whether an uninstall did what it was for: Helm takes whichever
// revision is the newest, and hides failures of its storage.
func outcomeOf(rel *helmrelease.Release, err error, before *v2.Snapshot, obj *v2.HelmRelease) error {
	switch {
	case rel != nil && !before.Targets(rel.Name, rel.Namespace, rel.Version):
		return fmt.Errorf("%w: uninstalled release %s/%s.v%d != current release %s", errMismatch, rel.Namespace, rel.Name, rel.Version, before.FullReleaseName())
	case err == nil && before.Digest == obj.Status.History.Latest().Digest && common.Status(before.Status) != common.StatusUninstalled:
		return errors.New("uninstall completed with error: release not updated in Helm storage")
	}
	return err
}

// inventory records what the release answers for, after an action wrote it. One
// that failed may not have come to its deletions.
func (n *run) inventory(rel *helmrelease.Release, spared *sentence, failed bool) {
	if rel == nil {
		return
	}
	has, warnings, err := n.contents(rel)
	if err != nil {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.InventoryBuildFailedReason, "failed to build inventory for %s/%s: %s", n.obj.Namespace, n.obj.Name, err)
		return
	}
	if len(warnings) > 0 {
		n.Events.Eventf(n.obj, corev1.EventTypeWarning, v2.NamespaceCheckSkippedReason, "%s", strings.Join(warnings, "; "))
	}
	left := inventory.Union(n.found.leftovers, spared.kept())
	if failed {
		left = inventory.Union(left, undeleted(entriesOf(n.obj.Status.Inventory)))
	}
	n.obj.Status.Inventory = refsOf(append(has, dropped(left, has)...))
}

// undeleted are the recorded objects that a failed action may have left behind.
// Definitions are not among them: those of a chart are never deleted, and one of
// a manifest is recorded when it is spared.
func undeleted(recorded []inventory.Entry) []inventory.Entry {
	return slices.DeleteFunc(slices.Clone(recorded), func(e inventory.Entry) bool {
		return e.Group == "apiextensions.k8s.io" && e.Kind == "CustomResourceDefinition"
	})
}

// settle makes the conditions say that the release is as declared.
func (n *run) settle() {
	n.forgive()
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

// forgive takes a remedy to be a success: what the release was rolled back to is
// what is declared now.
func (n *run) forgive() {
	if latest := n.obj.Status.History.Latest(); conditions.IsTrue(n.obj, v2.RemediatedCondition) {
		renameCondition(n.obj, v2.RemediatedCondition, v2.ReleasedCondition, v2.UpgradeSucceededReason,
			fmt.Sprintf(upgraded, latest.FullReleaseName(), latest.VersionedChartName()))
	}
}

// renameCondition makes one condition another, of the same time.
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

// finish ends a call that left nothing undone, but for deletions.
func (n *run) finish(ctx context.Context) (Outcome, error) {
	conditions.Delete(n.obj, meta.ReconcilingCondition)
	held, err := n.collect(ctx)
	if err != nil {
		n.summarize()
		conditions.MarkFalse(n.obj, meta.ReadyCondition, v1alpha1.ReasonPruneFailed, "%s", err)
		return Outcome{}, err
	}
	if held != "" {
		n.digests()
		n.hold(held)
		return Outcome{Held: true}, nil
	}
	n.unhold()
	n.summarize()
	return Outcome{}, nil
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

// collect deletes what earlier revisions left behind and what may go by now.
// held says what may not.
func (n *run) collect(ctx context.Context) (held string, err error) {
	if len(n.found.leftovers) == 0 {
		return "", nil
	}
	s := n.guard.judgeAll(ctx, n.found.leftovers)
	kept := s.kept()
	var problems []error
	for _, e := range s.deletable {
		if err := n.guard.delete(ctx, e); err != nil {
			problems = append(problems, err)
			kept = append(kept, e)
		}
	}
	gone := inventory.Difference(n.found.leftovers, kept)
	n.obj.Status.Inventory = refsOf(without(entriesOf(n.obj.Status.Inventory), gone))
	n.found.leftovers = inventory.Union(nil, kept)
	n.mu.Lock()
	n.known[n.obj.UID] = n.found
	n.mu.Unlock()
	if len(s.deletable) > len(problems) {
		n.Events.Eventf(n.obj, corev1.EventTypeNormal, meta.ProgressingReason, "%s deleted", names(inventory.Difference(s.deletable, kept)))
	}
	return s.message(), errors.Join(problems...)
}

// without keeps the order.
func without(entries, gone []inventory.Entry) []inventory.Entry {
	ids := map[string]bool{}
	for _, e := range gone {
		ids[e.ID()] = true
	}
	var left []inventory.Entry
	for _, e := range entries {
		if !ids[e.ID()] {
			left = append(left, e)
		}
	}
	return left
}

// summarize makes Ready of Remediated, TestSuccess and Released: of the highest
// generation, and in this order. The generation of the object plays no part, so
// that one that makes no release is as ready as the one before.
func (n *run) summarize() {
	obj := n.obj
	tests := obj.GetTest()
	if !tests.Enable {
		conditions.Delete(obj, v2.TestSuccessCondition)
	}
	if len(obj.Status.Conditions) == 0 {
		return
	}
	n.digests()
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
		return
	}
	status := best.Status
	if best.Type == v2.RemediatedCondition {
		status = metav1.ConditionFalse // a failure that was remedied is a failure
	}
	if status == metav1.ConditionTrue {
		conditions.Delete(obj, meta.StalledCondition)
	}
	conditions.Set(obj, &metav1.Condition{
		Type: meta.ReadyCondition, Status: status, Reason: best.Reason, Message: best.Message, ObservedGeneration: obj.Generation,
	})
}

// digests records how the release was made.
func (n *run) digests() {
	n.obj.Status.ObservedPostRenderersDigest = postRenderersDigest(n.obj)
	n.obj.Status.ObservedCommonMetadataDigest = commonMetadataDigest(n.obj)
}

// Keys of event metadata, with the group of the kind in front as Flux has them.
const (
	metaRevision   = "helm.toolkit.fluxcd.io/revision"
	metaToken      = "helm.toolkit.fluxcd.io/token"
	metaAppVersion = "helm.toolkit.fluxcd.io/app-version"
	metaOCIDigest  = "helm.toolkit.fluxcd.io/oci-digest"
)

func metadata(revision, token, appVersion, ociDigest string) map[string]string {
	m := map[string]string{}
	for key, value := range map[string]string{metaRevision: revision, metaToken: token, metaAppVersion: appVersion, metaOCIDigest: ociDigest} {
		if value != "" {
			m[key] = value
		}
	}
	return m
}

// about is the metadata of events about a revision.
func about(s *v2.Snapshot) map[string]string {
	return metadata(s.ChartVersion, s.ConfigDigest, s.AppVersion, s.OCIDigest)
}

// attempt is that of events about what was to be made.
func (n *run) attempt() map[string]string {
	return metadata(n.req.Chart.Version, n.obj.Status.LastAttemptedConfigDigest, n.req.Chart.AppVersion, n.obj.Status.LastAttemptedRevisionDigest)
}

// token is that of events about going back to a revision: a part of the attempt.
func (n *run) token(to *v2.Snapshot) map[string]string {
	return metadata(to.ChartVersion, n.obj.Status.LastAttemptedConfigDigest, to.AppVersion, to.OCIDigest)
}

func (n *run) event(meta map[string]string, kind, reason, message string) {
	n.Events.AnnotatedEventf(n.obj, meta, kind, reason, "%s", message)
}
