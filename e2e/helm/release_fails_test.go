package helm

import (
	"fmt"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// refused is an object that the API server takes nobody from.
const refused = "objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: Not_A_Name}}]"

// installFails: without retries that is the end, until something changes.
func (h *releaseSpec) installFails(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {"+refused+"}")
	r.ReleaseTells(t, "web", "Released", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/web with chart app@1.0.0: ")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/web with chart app@1.0.0: ")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool {
		return s.InstallFailures == 1 && s.Failures == 1 && s.LastAttemptedReleaseAction == "install"
	})
	r.History(t, "web", r.Namespace+"/web.v1 failed app@1.0.0")
	if diff := cmp.Diff([]string{"v1 failed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.Event(t, "HelmRelease", "web", "InstallFailed", "Helm install failed for release "+r.Namespace+"/web")
	r.Release(t, "web", "{}")
	r.Released(t, "web", 2)
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.InstallFailures == 0 && s.Failures == 0 })
	r.ReleaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// installRetries: between two attempts what is there of the first goes.
func (h *releaseSpec) installRetries(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{install: {remediation: {retries: 1}}, values: {"+refused+"}}")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 2 attempt(s)")
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.InstallFailures == 2 })
	r.Event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall remediation for release "+r.Namespace+"/web.v1 with chart app@1.0.0 succeeded")
	if diff := cmp.Diff([]string{"v1 failed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

func (h *releaseSpec) installRemediatesLastFailure(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{install: {remediation: {remediateLastFailure: true}}, values: {"+refused+"}}")
	o := r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.ReleaseTells(t, "web", "Remediated", "True", "UninstallSucceeded", "Helm uninstall remediation for release "+r.Namespace+"/web.v1 with chart app@1.0.0 succeeded")
	if c := meta.FindStatusCondition(o.Status.Conditions, "Ready"); c.Status != "False" {
		t.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
	}
	if got := r.Storage(t, r.Namespace, "web"); len(got) != 0 {
		t.Errorf("storage has %v", got)
	}
	if r.Data(t, "web-settings") != nil {
		t.Error("what was installed is there")
	}
}

// installCannotRender: nothing was stored, so there is nothing to remedy, and it
// is tried again.
func (h *releaseSpec) installCannotRender(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {refuse: on purpose}")
	o := r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "...on purpose")
	if meta.IsStatusConditionTrue(o.Status.Conditions, "Stalled") || o.Status.InstallFailures != 0 || len(r.Storage(t, r.Namespace, "web")) != 0 {
		t.Errorf("storage %v, status %+v", r.Storage(t, r.Namespace, "web"), o.Status)
	}
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
}

func (h *releaseSpec) upgradeFails(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "values: {"+refused+"}")
	r.ReleaseTells(t, "web", "Ready", "False", "UpgradeFailed", "Helm upgrade failed for release "+r.Namespace+"/web with chart app@1.0.0: ")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.UpgradeFailures == 1 })
	if diff := cmp.Diff([]string{"v1 deployed", "v2 failed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.History(t, "web", r.Namespace+"/web.v2 failed app@1.0.0", r.Namespace+"/web.v1 deployed app@1.0.0")
	// A request changes nothing about that, ...
	r.Request(t, "web")
	if got := r.Storage(t, r.Namespace, "web"); len(got) != 2 {
		t.Errorf("storage has %v", got)
	}
	// ... one to forget the failures, or to try by force, does.
	o := r.Request(t, "web", "reconcile.fluxcd.io/resetAt")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	if got := r.Storage(t, r.Namespace, "web"); len(got) != 3 || o.Status.LastHandledResetAt == "" {
		t.Errorf("storage has %v, status %+v", got, o.Status)
	}
	o = r.Request(t, "web", "reconcile.fluxcd.io/forceAt")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 2 attempt(s)")
	if got := r.Storage(t, r.Namespace, "web"); len(got) != 4 || o.Status.LastHandledForceAt == "" {
		t.Errorf("storage has %v, status %+v", got, o.Status)
	}
}

func (h *releaseSpec) upgradeRollsBack(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{upgrade: {remediation: {remediateLastFailure: true}}, values: {settings: {color: blue}, "+refused+"}}")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	message := "Helm rollback to previous release " + r.Namespace + "/web.v1 with chart app@1.0.0 succeeded"
	r.ReleaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", message)
	r.ReleaseTells(t, "web", "Ready", "False", "RollbackSucceeded", message)
	r.ReleaseTells(t, "web", "Released", "False", "UpgradeFailed", "Helm upgrade failed for release ")
	r.Event(t, "HelmRelease", "web", "RollbackSucceeded", message)
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.History(t, "web", r.Namespace+"/web.v3 deployed app@1.0.0", r.Namespace+"/web.v2 failed app@1.0.0", r.Namespace+"/web.v1 superseded app@1.0.0")
	r.Has(t, "web-settings", "color", "red")
	// What is wanted now is what is there.
	r.Release(t, "web", "{}")
	r.Released(t, "web", 3)
	r.ReleaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "Helm upgrade succeeded for release "+r.Namespace+"/web.v3 with chart app@1.0.0")
}

func (h *releaseSpec) upgradeRetries(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{upgrade: {remediation: {retries: 1}}, values: {"+refused+"}}")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 2 attempt(s)")
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.UpgradeFailures == 2 })
	r.ReleaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", "")
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 superseded", "v4 failed", "v5 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// upgradeUninstalls: what cannot be upgraded goes, and is installed anew.
func (h *releaseSpec) upgradeUninstalls(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{upgrade: {remediation: {retries: 1, strategy: uninstall}}, values: {"+refused+"}}")
	r.Event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall remediation for release "+r.Namespace+"/web.v2 with chart app@1.0.0 succeeded")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/web with chart app@1.0.0: ")
	r.Release(t, "web", "{}")
	r.Tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// retryOnFailure tries again after an interval, and leaves what failed.
func (h *releaseSpec) retryOnFailure(t *testing.T) {
	r := h.Row(t)
	// It cannot be changed; once it is gone it can be created.
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web-settings, namespace: $ns}\nimmutable: true\ndata: {color: black}\n"))
	r.Release(t, "web", "{install: {strategy: {name: RetryOnFailure, retryInterval: 2s}}, upgrade: {strategy: {name: RetryOnFailure, retryInterval: 2s}}}")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/web with chart app@1.0.0: ")
	r.ReleaseTells(t, "web", "Reconciling", "True", "ProgressingWithRetry", "retrying after 2s")
	r.Delete(t, &corev1.ConfigMap{}, "web-settings")
	o := &helmv2.HelmRelease{}
	r.Tells(t, o, "web", "Ready", "True", "UpgradeSucceeded", "")
	for _, s := range r.Storage(t, r.Namespace, "web") {
		if strings.Contains(s, "uninstall") {
			t.Errorf("storage has %v", r.Storage(t, r.Namespace, "web"))
		}
	}
}

// hook is a pod that ends at once, as an object of values.
func hook(name, event, command, more string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, annotations: {helm.sh/hook: %s%s}}, spec: {restartPolicy: Never, hostNetwork: true, containers: [{name: run, image: 'cascade.local/e2e:dev', command: [%s]}]}}", name, event, more, command)
}

func (h *releaseSpec) testsPass(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"true"`, "")+"]}}")
	o := r.Released(t, "web", 1)
	r.ReleaseTells(t, "web", "TestSuccess", "True", "TestSucceeded", "Helm test succeeded for release "+r.Namespace+"/web.v1 with chart app@1.0.0: 1 test hook completed successfully")
	r.ReleaseTells(t, "web", "Ready", "True", "TestSucceeded", "Helm test succeeded for release "+r.Namespace+"/web.v1 with chart app@1.0.0: 1 test hook completed successfully")
	r.Event(t, "HelmRelease", "web", "TestSucceeded", "1 test hook completed successfully")
	hooks := o.Status.History.Latest().GetTestHooks()
	if h := hooks["check"]; len(hooks) != 1 || h.Phase != "Succeeded" || h.LastStarted.IsZero() || h.LastCompleted.IsZero() {
		t.Errorf("test hooks are %+v", hooks)
	}
	if diff := cmp.Diff([]string{r.Namespace + "_web-settings__ConfigMap v1"}, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("hooks are in no inventory: -want, +got:\n%s", diff)
	}
}

// testsFail: what failed is what counts as not installed.
func (h *releaseSpec) testsFail(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"false"`, "")+", "+hook("other", "test", `"true"`, "")+"]}}")
	r.ReleaseTells(t, "web", "TestSuccess", "False", "TestFailed", "Helm test failed for release "+r.Namespace+"/web.v1 with chart app@1.0.0: ")
	r.ReleaseTells(t, "web", "Ready", "False", "TestFailed", "Helm test failed for release ")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.ReleaseTells(t, "web", "Released", "True", "InstallSucceeded", "")
	r.Status(t, "web", func(s helmv2.HelmReleaseStatus) bool {
		hooks := s.History.Latest().GetTestHooks()
		return hooks["check"] != nil && hooks["check"].Phase == "Failed" && s.InstallFailures == 1
	})
	// With a filter the failing one is not run.
	r.Release(t, "web", "{test: {enable: true, filters: [{name: check, exclude: true}]}, values: {objects: ["+hook("check", "test", `"false"`, "")+", "+hook("other", "test", `"true"`, "")+"]}}")
	o := r.Released(t, "web", 2)
	if hooks := o.Status.History.Latest().GetTestHooks(); hooks["check"] != nil && hooks["check"].Phase != "" || hooks["other"] == nil || hooks["other"].Phase != "Succeeded" {
		t.Errorf("test hooks are %+v", hooks)
	}
}

func (h *releaseSpec) testsAreIgnored(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{test: {enable: true, ignoreFailures: true}, values: {objects: ["+hook("check", "test", `"false"`, "")+"]}}")
	r.ReleaseTells(t, "web", "TestSuccess", "False", "TestFailed", "Helm test failed for release ")
	o := r.Released(t, "web", 1)
	r.ReleaseTells(t, "web", "Ready", "True", "InstallSucceeded", "")
	if o.Status.InstallFailures != 0 {
		t.Errorf("status is %+v", o.Status)
	}
}

func (h *releaseSpec) testsRollBack(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"true"`, "")+"]}}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{test: {enable: true}, upgrade: {remediation: {remediateLastFailure: true}}, values: {settings: {color: blue}, objects: ["+hook("check", "test", `"false"`, `, helm.sh/hook-delete-policy: before-hook-creation`)+"]}}")
	r.ReleaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", "Helm rollback to previous release "+r.Namespace+"/web.v1 with chart app@1.0.0 succeeded")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.Has(t, "web-settings", "color", "red")
}

// cleanupOnFail: what a failed upgrade added goes, and what a failed rollback did.
func (h *releaseSpec) cleanupOnFail(t *testing.T) {
	r := h.Row(t)
	added := "values: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: added-%s}}, " + scenario.SlowDeployment + "]}"
	for _, name := range []string{"kept", "cleaned"} {
		r.Release(t, name, "{}")
		r.Released(t, name, 1)
	}
	r.Release(t, "kept", "{timeout: 3s, "+fmt.Sprintf(added, "kept")+"}")
	r.ReleaseTells(t, "kept", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.Object(t, "v1", "ConfigMap", "added-kept")
	r.Release(t, "cleaned", "{timeout: 3s, upgrade: {cleanupOnFail: true}, "+strings.ReplaceAll(fmt.Sprintf(added, "cleaned"), "name: slow}", "name: slower}")+"}")
	r.ReleaseTells(t, "cleaned", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "added-cleaned")
}
