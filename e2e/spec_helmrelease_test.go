package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestHelmReleaseSpec tries what Flux says of a HelmRelease, row by row, as
// docs/flux-compatibility.md lists them. Every row was seen to pass with Flux's own
// helm-controller v1.6.4 and source-controller v1.9.5 as well, but for ReleaseMoves:
// it looks for what the release had in the namespace that it moves to.
func TestHelmReleaseSpec(t *testing.T) {
	alongside(t)
	h := startHelmSpec(t)
	t.Run("Rows", func(t *testing.T) {
		for _, r := range []struct {
			name string
			run  func(*helmSpec, *testing.T)
		}{
			{"Install", (*helmSpec).install},
			{"Upgrade", (*helmSpec).upgrade},
			{"InstallFails", (*helmSpec).installFails},
			{"InstallRetries", (*helmSpec).installRetries},
			{"InstallRemediatesLastFailure", (*helmSpec).installRemediatesLastFailure},
			{"InstallCannotRender", (*helmSpec).installCannotRender},
			{"UpgradeFails", (*helmSpec).upgradeFails},
			{"UpgradeRollsBack", (*helmSpec).upgradeRollsBack},
			{"UpgradeRetries", (*helmSpec).upgradeRetries},
			{"UpgradeUninstalls", (*helmSpec).upgradeUninstalls},
			{"RetryOnFailure", (*helmSpec).retryOnFailure},
			{"TestsPass", (*helmSpec).testsPass},
			{"TestsFail", (*helmSpec).testsFail},
			{"TestsAreIgnored", (*helmSpec).testsAreIgnored},
			{"TestsRollBack", (*helmSpec).testsRollBack},
			{"DriftWarns", (*helmSpec).driftWarns},
			{"DriftIsCorrected", (*helmSpec).driftIsCorrected},
			{"DriftIsIgnored", (*helmSpec).driftIsIgnored},
			{"Uninstall", (*helmSpec).uninstall},
			{"UninstallKeepsHistory", (*helmSpec).uninstallKeepsHistory},
			{"UninstallSuspended", (*helmSpec).uninstallSuspended},
			{"UninstallPropagation", (*helmSpec).uninstallPropagation},
			{"CRDs", (*helmSpec).crds},
			{"CRDsAreReplaced", (*helmSpec).crdsAreReplaced},
			{"ValuesFrom", (*helmSpec).valuesFrom},
			{"ValuesFromMissing", (*helmSpec).valuesFromMissing},
			{"ValuesWatched", (*helmSpec).valuesWatched},
			{"PostRenderers", (*helmSpec).postRenderers},
			{"PostRenderStrategies", (*helmSpec).postRenderStrategies},
			{"CommonMetadata", (*helmSpec).commonMetadata},
			{"DependsOn", (*helmSpec).dependsOnReleases},
			{"DependsOnReadyExpr", (*helmSpec).dependsOnReadyExpr},
			{"KubeConfig", (*helmSpec).kubeConfig},
			{"ServiceAccount", (*helmSpec).serviceAccount},
			{"ServiceAccountGone", (*helmSpec).serviceAccountGone},
			{"Namespaces", (*helmSpec).namespaces},
			{"LongName", (*helmSpec).longName},
			{"ReleaseName", (*helmSpec).releaseName},
			{"MaxHistory", (*helmSpec).maxHistory},
			{"PersistentClient", (*helmSpec).persistentClient},
			{"WaitTimeout", (*helmSpec).waitTimeout},
			{"DisableWait", (*helmSpec).disableWait},
			{"HealthCheckExprs", (*helmSpec).healthCheckExprs},
			{"HealthCheckExprsInvalid", (*helmSpec).healthCheckExprsInvalid},
			{"WaitStrategyLegacy", (*helmSpec).waitStrategyLegacy},
			{"Hooks", (*helmSpec).hooks},
			{"Suspend", (*helmSpec).suspendRelease},
			{"ForceAt", (*helmSpec).forceAt},
			{"ChartNameChanges", (*helmSpec).chartNameChanges},
			{"ChartNameChangesInPlace", (*helmSpec).chartNameChangesInPlace},
			{"ReleaseMoves", (*helmSpec).releaseMoves},
			{"Adopts", (*helmSpec).adopts},
			{"Unlocks", (*helmSpec).unlocks},
			{"SchemaValidation", (*helmSpec).schemaValidation},
			{"PreserveValues", (*helmSpec).preserveValues},
			{"ForceUpgrade", (*helmSpec).forceUpgrade},
			{"CleanupOnFail", (*helmSpec).cleanupOnFail},
			{"WaitForJobs", (*helmSpec).waitForJobs},
			{"Inventory", (*helmSpec).inventory},
		} {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.run(h, t)
			})
		}
	})
	// It starts the agent anew, with other flags.
	t.Run("Lockdown", h.lockdownReleases)
}

// lockdownReleases: the flags of Flux's multi-tenancy lockdown.
func (h *helmSpec) lockdownReleases(t *testing.T) {
	r := &helmRow{row: &row{spec: h.spec, ns: "lockdown-release"}, h: h}
	r.apply(t, r.fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-owner}\n---\n"+
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts, namespace: $ns-owner}\nspec: {url: \""+h.charts.URL()+"\", interval: 10m}\n---\n"+
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmChart\nmetadata: {name: app, namespace: $ns-owner}\nspec: {chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}\n"))
	r.make(t, "HelmRepository", "charts", "{url: \""+h.charts.URL()+"\", interval: 10m}")
	r.release(t, "web", "{chart: null, chartRef: {kind: HelmChart, name: app, namespace: $ns-owner}}")
	r.released(t, "web", 1)
	h.restart(t, "--no-cross-namespace-refs=true", "--default-service-account=nobody")
	r.ask(t, &helmv2.HelmRelease{}, "web")
	message := "cross-namespace references are not allowed: cannot access HelmChart " + r.ns + "-owner/app"
	r.releaseTells(t, "web", "Stalled", "True", "AccessDenied", message)
	r.releaseTells(t, "web", "Ready", "False", "AccessDenied", message)
	r.has(t, "web-settings", "color", "red")
	r.release(t, "own", "{}")
	r.releaseTells(t, "own", "Ready", "False", "", "...system:serviceaccount:"+r.ns+":nobody")
}

// refused is an object that the API server takes nobody from.
const refused = "objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: Not_A_Name}}]"

func (h *helmSpec) install(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	o := r.released(t, "web", 1)
	message := "Helm install succeeded for release " + r.ns + "/web.v1 with chart app@1.0.0"
	r.releaseTells(t, "web", "Ready", "True", "InstallSucceeded", message)
	r.releaseTells(t, "web", "Released", "True", "InstallSucceeded", message)
	r.event(t, "HelmRelease", "web", "InstallSucceeded", message)

	s := o.Status.History.Latest()
	if s.Name != "web" || s.Namespace != r.ns || s.Version != 1 || s.Status != "deployed" || s.ChartName != "app" || s.ChartVersion != "1.0.0" || s.AppVersion != "7" ||
		!strings.HasPrefix(s.Digest, "sha256:") || !strings.HasPrefix(s.ConfigDigest, "sha256:") || s.Action != "install" || s.FirstDeployed.IsZero() || s.LastDeployed.IsZero() {
		t.Errorf("the snapshot is %+v", s)
	}
	st := o.Status
	if len(st.History) != 1 || st.StorageNamespace != r.ns || st.HelmChart != r.ns+"/"+r.ns+"-web" || st.LastAttemptedRevision != "1.0.0" || st.LastAttemptedGeneration != o.Generation ||
		st.LastAttemptedConfigDigest != s.ConfigDigest || st.LastAttemptedReleaseAction != "install" || st.LastAttemptedReleaseActionDuration == nil || st.Failures != 0 {
		t.Errorf("status is %+v", st)
	}
	if diff := cmp.Diff([]string{r.ns + "_web-settings__ConfigMap v1"}, inventoryOf(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"v1 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	secret := &corev1.Secret{}
	if err := r.load(t.Context(), secret, r.ns, "sh.helm.release.v1.web.v1"); err != nil || secret.Type != "helm.sh/release.v1" {
		t.Errorf("Helm's Secret has type %q, %v", secret.Type, err)
	}
	u := r.object(t, "v1", "ConfigMap", "web-settings")
	labels := map[string]string{"app.kubernetes.io/managed-by": "Helm", "helm.toolkit.fluxcd.io/name": "web", "helm.toolkit.fluxcd.io/namespace": r.ns}
	if diff := cmp.Diff(labels, u.GetLabels()); diff != "" {
		t.Errorf("labels: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": r.ns}, u.GetAnnotations()); diff != "" {
		t.Errorf("annotations: -want, +got:\n%s", diff)
	}
	for _, m := range u.GetManagedFields() {
		if m.Manager != "helm-controller" || m.Operation != metav1.ManagedFieldsOperationApply {
			t.Errorf("the object is managed by %s %s", m.Manager, m.Operation)
		}
	}
	if !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") || !slices.ContainsFunc(o.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "helm-controller" && m.Operation == metav1.ManagedFieldsOperationUpdate && m.Subresource == "status"
	}) {
		t.Errorf("finalizers %v, managers %v", o.Finalizers, o.ManagedFields)
	}

	c := &sourcev1.HelmChart{}
	r.artifact(t, c, r.ns+"-web", "1.0.0")
	if c.Labels["helm.toolkit.fluxcd.io/name"] != "web" || c.Labels["helm.toolkit.fluxcd.io/namespace"] != r.ns || !slices.ContainsFunc(c.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "helm-controller" && m.Operation == metav1.ManagedFieldsOperationApply
	}) {
		t.Errorf("labels %v, managers %v", c.Labels, c.ManagedFields)
	}
	// With nothing new nothing happens.
	r.request(t, "web")
	r.released(t, "web", 1)
	if got := r.object(t, "v1", "ConfigMap", "web-settings"); got.GetResourceVersion() != u.GetResourceVersion() {
		t.Error("the object was written without a reason")
	}
}

func (h *helmSpec) upgrade(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "chart: {spec: {version: 1.1.0}}")
	o := r.released(t, "web", 2)
	r.releaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "Helm upgrade succeeded for release "+r.ns+"/web.v2 with chart app@1.1.0")
	r.history(t, "web", r.ns+"/web.v2 deployed app@1.1.0", r.ns+"/web.v1 superseded app@1.0.0")
	if o.Status.History.Latest().Action != "upgrade" || o.Status.LastAttemptedReleaseAction != "upgrade" || o.Status.LastAttemptedRevision != "1.1.0" {
		t.Errorf("status is %+v", o.Status)
	}
	// Values count as much as the chart.
	r.release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {settings: {color: blue}}}")
	o = r.released(t, "web", 3)
	r.has(t, "web-settings", "color", "blue")
	if diff := cmp.Diff([]string{"v1 superseded", "v2 superseded", "v3 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if o.Status.History[0].ConfigDigest == o.Status.History[1].ConfigDigest {
		t.Error("other values have the same digest")
	}
	// The order of values does not.
	r.release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {objects: [], settings: {color: blue}}}")
	r.released(t, "web", 4)
	r.release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {settings: {color: blue}, objects: []}}")
	r.request(t, "web")
	r.released(t, "web", 4)
}

// installFails: without retries that is the end, until something changes.
func (h *helmSpec) installFails(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {"+refused+"}")
	r.releaseTells(t, "web", "Released", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool {
		return s.InstallFailures == 1 && s.Failures == 1 && s.LastAttemptedReleaseAction == "install"
	})
	r.history(t, "web", r.ns+"/web.v1 failed app@1.0.0")
	if diff := cmp.Diff([]string{"v1 failed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.event(t, "HelmRelease", "web", "InstallFailed", "Helm install failed for release "+r.ns+"/web")
	r.release(t, "web", "{}")
	r.released(t, "web", 2)
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.InstallFailures == 0 && s.Failures == 0 })
	r.releaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// installRetries: between two attempts what is there of the first goes.
func (h *helmSpec) installRetries(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{install: {remediation: {retries: 1}}, values: {"+refused+"}}")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 2 attempt(s)")
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.InstallFailures == 2 })
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall remediation for release "+r.ns+"/web.v1 with chart app@1.0.0 succeeded")
	if diff := cmp.Diff([]string{"v1 failed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

func (h *helmSpec) installRemediatesLastFailure(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{install: {remediation: {remediateLastFailure: true}}, values: {"+refused+"}}")
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.releaseTells(t, "web", "Remediated", "True", "UninstallSucceeded", "Helm uninstall remediation for release "+r.ns+"/web.v1 with chart app@1.0.0 succeeded")
	if c := meta.FindStatusCondition(o.Status.Conditions, "Ready"); c.Status != "False" {
		t.Errorf("conditions are %s", summary(o.Status.Conditions))
	}
	if got := r.storage(t, r.ns, "web"); len(got) != 0 {
		t.Errorf("storage has %v", got)
	}
	if r.data(t, "web-settings") != nil {
		t.Error("what was installed is there")
	}
}

// installCannotRender: nothing was stored, so there is nothing to remedy, and it
// is tried again.
func (h *helmSpec) installCannotRender(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {refuse: on purpose}")
	o := r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "...on purpose")
	if meta.IsStatusConditionTrue(o.Status.Conditions, "Stalled") || o.Status.InstallFailures != 0 || len(r.storage(t, r.ns, "web")) != 0 {
		t.Errorf("storage %v, status %+v", r.storage(t, r.ns, "web"), o.Status)
	}
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
}

func (h *helmSpec) upgradeFails(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "values: {"+refused+"}")
	r.releaseTells(t, "web", "Ready", "False", "UpgradeFailed", "Helm upgrade failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.UpgradeFailures == 1 })
	if diff := cmp.Diff([]string{"v1 deployed", "v2 failed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.history(t, "web", r.ns+"/web.v2 failed app@1.0.0", r.ns+"/web.v1 deployed app@1.0.0")
	// A request changes nothing about that, ...
	r.request(t, "web")
	if got := r.storage(t, r.ns, "web"); len(got) != 2 {
		t.Errorf("storage has %v", got)
	}
	// ... one to forget the failures, or to try by force, does.
	o := r.request(t, "web", "reconcile.fluxcd.io/resetAt")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	if got := r.storage(t, r.ns, "web"); len(got) != 3 || o.Status.LastHandledResetAt == "" {
		t.Errorf("storage has %v, status %+v", got, o.Status)
	}
	o = r.request(t, "web", "reconcile.fluxcd.io/forceAt")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 2 attempt(s)")
	if got := r.storage(t, r.ns, "web"); len(got) != 4 || o.Status.LastHandledForceAt == "" {
		t.Errorf("storage has %v, status %+v", got, o.Status)
	}
}

func (h *helmSpec) upgradeRollsBack(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "{upgrade: {remediation: {remediateLastFailure: true}}, values: {settings: {color: blue}, "+refused+"}}")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	message := "Helm rollback to previous release " + r.ns + "/web.v1 with chart app@1.0.0 succeeded"
	r.releaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", message)
	r.releaseTells(t, "web", "Ready", "False", "RollbackSucceeded", message)
	r.releaseTells(t, "web", "Released", "False", "UpgradeFailed", "Helm upgrade failed for release ")
	r.event(t, "HelmRelease", "web", "RollbackSucceeded", message)
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.history(t, "web", r.ns+"/web.v3 deployed app@1.0.0", r.ns+"/web.v2 failed app@1.0.0", r.ns+"/web.v1 superseded app@1.0.0")
	r.has(t, "web-settings", "color", "red")
	// What is wanted now is what is there.
	r.release(t, "web", "{}")
	r.released(t, "web", 3)
	r.releaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "Helm upgrade succeeded for release "+r.ns+"/web.v3 with chart app@1.0.0")
}

func (h *helmSpec) upgradeRetries(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "{upgrade: {remediation: {retries: 1}}, values: {"+refused+"}}")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 2 attempt(s)")
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool { return s.UpgradeFailures == 2 })
	r.releaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", "")
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 superseded", "v4 failed", "v5 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// upgradeUninstalls: what cannot be upgraded goes, and is installed anew.
func (h *helmSpec) upgradeUninstalls(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "{upgrade: {remediation: {retries: 1, strategy: uninstall}}, values: {"+refused+"}}")
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall remediation for release "+r.ns+"/web.v2 with chart app@1.0.0 succeeded")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.release(t, "web", "{}")
	r.tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// retryOnFailure tries again after an interval, and leaves what failed.
func (h *helmSpec) retryOnFailure(t *testing.T) {
	r := h.row(t)
	// It cannot be changed; once it is gone it can be created.
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web-settings, namespace: $ns}\nimmutable: true\ndata: {color: black}\n"))
	r.release(t, "web", "{install: {strategy: {name: RetryOnFailure, retryInterval: 2s}}, upgrade: {strategy: {name: RetryOnFailure, retryInterval: 2s}}}")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.releaseTells(t, "web", "Reconciling", "True", "ProgressingWithRetry", "retrying after 2s")
	r.delete(t, &corev1.ConfigMap{}, "web-settings")
	o := &helmv2.HelmRelease{}
	r.tells(t, o, "web", "Ready", "True", "UpgradeSucceeded", "")
	for _, s := range r.storage(t, r.ns, "web") {
		if strings.Contains(s, "uninstall") {
			t.Errorf("storage has %v", r.storage(t, r.ns, "web"))
		}
	}
}

// hook is a pod that ends at once, as an object of values.
func hook(name, event, command, more string) string {
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s, annotations: {helm.sh/hook: %s%s}}, spec: {restartPolicy: Never, hostNetwork: true, containers: [{name: run, image: 'cascade.local/e2e:dev', command: [%s]}]}}", name, event, more, command)
}

func (h *helmSpec) testsPass(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"true"`, "")+"]}}")
	o := r.released(t, "web", 1)
	r.releaseTells(t, "web", "TestSuccess", "True", "TestSucceeded", "Helm test succeeded for release "+r.ns+"/web.v1 with chart app@1.0.0: 1 test hook completed successfully")
	r.releaseTells(t, "web", "Ready", "True", "TestSucceeded", "Helm test succeeded for release "+r.ns+"/web.v1 with chart app@1.0.0: 1 test hook completed successfully")
	r.event(t, "HelmRelease", "web", "TestSucceeded", "1 test hook completed successfully")
	hooks := o.Status.History.Latest().GetTestHooks()
	if h := hooks["check"]; len(hooks) != 1 || h.Phase != "Succeeded" || h.LastStarted.IsZero() || h.LastCompleted.IsZero() {
		t.Errorf("test hooks are %+v", hooks)
	}
	if diff := cmp.Diff([]string{r.ns + "_web-settings__ConfigMap v1"}, inventoryOf(o)); diff != "" {
		t.Errorf("hooks are in no inventory: -want, +got:\n%s", diff)
	}
}

// testsFail: what failed is what counts as not installed.
func (h *helmSpec) testsFail(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"false"`, "")+", "+hook("other", "test", `"true"`, "")+"]}}")
	r.releaseTells(t, "web", "TestSuccess", "False", "TestFailed", "Helm test failed for release "+r.ns+"/web.v1 with chart app@1.0.0: ")
	r.releaseTells(t, "web", "Ready", "False", "TestFailed", "Helm test failed for release ")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	r.releaseTells(t, "web", "Released", "True", "InstallSucceeded", "")
	r.status(t, "web", func(s helmv2.HelmReleaseStatus) bool {
		hooks := s.History.Latest().GetTestHooks()
		return hooks["check"] != nil && hooks["check"].Phase == "Failed" && s.InstallFailures == 1
	})
	// With a filter the failing one is not run.
	r.release(t, "web", "{test: {enable: true, filters: [{name: check, exclude: true}]}, values: {objects: ["+hook("check", "test", `"false"`, "")+", "+hook("other", "test", `"true"`, "")+"]}}")
	o := r.released(t, "web", 2)
	if hooks := o.Status.History.Latest().GetTestHooks(); hooks["check"] != nil && hooks["check"].Phase != "" || hooks["other"] == nil || hooks["other"].Phase != "Succeeded" {
		t.Errorf("test hooks are %+v", hooks)
	}
}

func (h *helmSpec) testsAreIgnored(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{test: {enable: true, ignoreFailures: true}, values: {objects: ["+hook("check", "test", `"false"`, "")+"]}}")
	r.releaseTells(t, "web", "TestSuccess", "False", "TestFailed", "Helm test failed for release ")
	o := r.released(t, "web", 1)
	r.releaseTells(t, "web", "Ready", "True", "InstallSucceeded", "")
	if o.Status.InstallFailures != 0 {
		t.Errorf("status is %+v", o.Status)
	}
}

func (h *helmSpec) testsRollBack(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{test: {enable: true}, values: {objects: ["+hook("check", "test", `"true"`, "")+"]}}")
	r.released(t, "web", 1)
	r.release(t, "web", "{test: {enable: true}, upgrade: {remediation: {remediateLastFailure: true}}, values: {settings: {color: blue}, objects: ["+hook("check", "test", `"false"`, `, helm.sh/hook-delete-policy: before-hook-creation`)+"]}}")
	r.releaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", "Helm rollback to previous release "+r.ns+"/web.v1 with chart app@1.0.0 succeeded")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.has(t, "web-settings", "color", "red")
}

// recolor changes by hand what a release made.
func (r *helmRow) recolor(t *testing.T, color string) {
	t.Helper()
	r.patch(t, &corev1.ConfigMap{}, "web-settings", fmt.Sprintf(`{"data":{"color":%q}}`, color))
}

func (h *helmSpec) driftWarns(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "driftDetection: {mode: warn}")
	r.released(t, "web", 1)
	r.releaseTells(t, "web", "Drifted", "False", "NoDriftDetected", "No drift detected against the cluster state")
	r.recolor(t, "green")
	r.request(t, "web")
	message := "Cluster state of release " + r.ns + "/web.v1 has drifted from the desired state:\nConfigMap/" + r.ns + "/web-settings changed (0 additions, 1 changes, 0 removals)"
	r.releaseTells(t, "web", "Drifted", "True", "DriftDetected", message)
	r.event(t, "HelmRelease", "web", "DriftDetected", message)
	r.released(t, "web", 1)
	r.has(t, "web-settings", "color", "green")
	r.delete(t, &corev1.ConfigMap{}, "web-settings")
	r.request(t, "web")
	r.releaseTells(t, "web", "Drifted", "True", "DriftDetected", "...ConfigMap/"+r.ns+"/web-settings removed")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "web-settings")
}

func (h *helmSpec) driftIsCorrected(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "driftDetection: {mode: enabled}")
	r.released(t, "web", 1)
	r.recolor(t, "green")
	r.request(t, "web")
	r.has(t, "web-settings", "color", "red")
	r.event(t, "HelmRelease", "web", "DriftDetected", "ConfigMap/"+r.ns+"/web-settings changed (0 additions, 1 changes, 0 removals)")
	r.event(t, "HelmRelease", "web", "DriftCorrected", "Cluster state of release "+r.ns+"/web.v1 has been corrected:\nConfigMap/"+r.ns+"/web-settings configured")
	r.releaseTells(t, "web", "Drifted", "False", "NoDriftDetected", "")
	r.delete(t, &corev1.ConfigMap{}, "web-settings")
	r.request(t, "web")
	r.has(t, "web-settings", "color", "red")
	r.event(t, "HelmRelease", "web", "DriftCorrected", "ConfigMap/"+r.ns+"/web-settings created")
	r.released(t, "web", 1)
	if diff := cmp.Diff([]string{"v1 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// driftIsIgnored: by a rule, and by an annotation.
func (h *helmSpec) driftIsIgnored(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", `{driftDetection: {mode: enabled, ignore: [{paths: [/data/color], target: {kind: ConfigMap, name: web-settings}}]}, values: {objects: [
{apiVersion: v1, kind: ConfigMap, metadata: {name: marked, annotations: {helm.toolkit.fluxcd.io/driftDetection: disabled}}, data: {k: v}},
{apiVersion: v1, kind: ConfigMap, metadata: {name: plain}, data: {k: v, color: red}}]}}`)
	r.released(t, "web", 1)
	for _, name := range []string{"web-settings", "marked", "plain"} {
		r.patch(t, &corev1.ConfigMap{}, name, `{"data":{"k":"changed","color":"green"}}`)
	}
	r.request(t, "web")
	r.has(t, "plain", "k", "v")
	r.has(t, "plain", "color", "red")
	r.has(t, "marked", "k", "changed")
	r.has(t, "web-settings", "color", "green")
	r.released(t, "web", 1)
}

func (h *helmSpec) uninstall(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{values: {objects: ["+hook("goodbye", "pre-delete", `"true"`, "")+"]}}")
	r.released(t, "web", 1)
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "web-settings")
	r.gone(t, &sourcev1.HelmChart{}, r.ns+"-web")
	if got := r.storage(t, r.ns, "web"); len(got) != 0 {
		t.Errorf("storage has %v", got)
	}
	if r.object(t, "v1", "Pod", "goodbye").GetName() == "" {
		t.Error("the hook did not run")
	}
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.ns+"/web.v1 with chart app@1.0.0")
}

func (h *helmSpec) uninstallKeepsHistory(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "uninstall: {keepHistory: true, disableHooks: true}")
	r.released(t, "web", 1)
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "web-settings")
	if diff := cmp.Diff([]string{"v1 uninstalled"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.release(t, "web", "{}")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "...cannot reuse a name that is still in use")
	r.release(t, "web", "install: {replace: true}")
	r.released(t, "web", 2)
	r.releaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.ns+"/web.v2 with chart app@1.0.0")
}

func (h *helmSpec) uninstallSuspended(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "suspend: true")
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	if diff := cmp.Diff([]string{"v1 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.has(t, "web-settings", "color", "red")
}

// uninstallPropagation: with orphan what a Deployment made stays.
func (h *helmSpec) uninstallPropagation(t *testing.T) {
	r := h.row(t)
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: 0, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: web, image: 'cascade.local/e2e:dev'}]}}}}"
	for _, policy := range []string{"background", "foreground", "orphan"} {
		r.release(t, policy, "{uninstall: {deletionPropagation: "+policy+"}, values: {objects: ["+fmt.Sprintf(deployment, policy)+"]}}")
	}
	for _, policy := range []string{"background", "foreground", "orphan"} {
		r.released(t, policy, 1)
		r.delete(t, &helmv2.HelmRelease{}, policy)
	}
	sets := func(app string) int {
		list := &appsv1.ReplicaSetList{}
		if err := r.client.List(t.Context(), list, client.InNamespace(r.ns), client.MatchingLabels{"app": app}); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for policy, want := range map[string]int{"background": 0, "foreground": 0, "orphan": 1} {
		r.gone(t, &helmv2.HelmRelease{}, policy)
		eventually(t, converge, fmt.Sprintf("%s leaves %d", policy, want), func(context.Context) error {
			if got := sets(policy); got != want {
				return fmt.Errorf("%d ReplicaSets", got)
			}
			return nil
		})
	}
}

// chartCRD is the row's kind, with a mark in its description.
func chartCRD(mark string) string {
	return strings.Replace(crd, "schema: {openAPIV3Schema: {type: object,", "schema: {openAPIV3Schema: {type: object, description: "+mark+",", 1)
}

func (h *helmSpec) crds(t *testing.T) {
	r := h.row(t, with(app("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": chartCRD("one")}), with(app("$ns", "2.0.0"), map[string]string{"crds/crd.yaml": chartCRD("two")}))
	kind := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, install: {crds: Skip}}")
	r.released(t, "web", 1)
	r.absent(t, kind, "", r.fill("things.$ns.example.com"))
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")

	// Create is the default on installation, together with objects of the kind.
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, values: {objects: [{apiVersion: $ns.example.com/v1, kind: Thing, metadata: {name: thing}}]}}")
	o := r.released(t, "web", 1)
	if got := r.marked(t); got != "one" {
		t.Errorf("the definition is of version %s", got)
	}
	if err := r.load(t.Context(), kind, "", r.fill("things.$ns.example.com")); err != nil || kind.GetLabels()["helm.toolkit.fluxcd.io/name"] != "web" {
		t.Errorf("labels %v, %v", kind.GetLabels(), err)
	}
	want := []string{r.fill("_things.$ns.example.com_apiextensions.k8s.io_CustomResourceDefinition v1"), r.fill("$ns_thing_$ns.example.com_Thing v1"), r.ns + "_web-settings__ConfigMap v1"}
	slices.Sort(want)
	if diff := cmp.Diff(want, inventoryOf(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.release(t, "web", "{chart: {spec: {chart: $ns, version: 2.0.0}}, upgrade: {crds: Skip}}")
	r.released(t, "web", 2)
	if got := r.marked(t); got != "one" {
		t.Errorf("the definition is of version %s", got)
	}
	// Definitions stay when the release goes.
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.marked(t)
}

// marked says which chart's definition is there.
func (r *helmRow) marked(t *testing.T) string {
	t.Helper()
	kind := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	if err := r.load(t.Context(), kind, "", r.fill("things.$ns.example.com")); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(kind.Object, "spec", "versions")
	mark, _, _ := unstructured.NestedString(versions[0].(map[string]any), "schema", "openAPIV3Schema", "description")
	return mark
}

func (h *helmSpec) crdsAreReplaced(t *testing.T) {
	r := h.row(t, with(app("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": chartCRD("one")}), with(app("$ns", "2.0.0"), map[string]string{"crds/crd.yaml": chartCRD("two")}),
		with(app("$ns", "3.0.0"), map[string]string{"crds/crd.yaml": chartCRD("three")}))
	r.release(t, "web", "{chart: {spec: {chart: $ns}}}")
	r.released(t, "web", 1)
	r.release(t, "web", "{chart: {spec: {chart: $ns, version: 2.0.0}}, upgrade: {crds: Create}}")
	r.released(t, "web", 2)
	// By server-side apply, to create what is there is to bring it up to date.
	if got := r.marked(t); got != "two" {
		t.Errorf("with Create the definition is of version %s", got)
	}
	r.release(t, "web", "{chart: {spec: {chart: $ns, version: 3.0.0}}, upgrade: {crds: CreateReplace}}")
	r.released(t, "web", 3)
	if got := r.marked(t); got != "three" {
		t.Errorf("with CreateReplace the definition is of version %s", got)
	}
	// And on installation, over one that is there.
	r.release(t, "other", "{chart: {spec: {chart: $ns, version: 2.0.0}}, install: {crds: CreateReplace}}")
	r.released(t, "other", 1)
	if got := r.marked(t); got != "two" {
		t.Errorf("with CreateReplace the definition is of version %s", got)
	}
}

// valuesFrom: later ones win over earlier ones, spec.values over all.
func (h *helmSpec) valuesFrom(t *testing.T) {
	r := h.row(t)
	r.apply(t, r.fill(`apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: $ns}
data:
  values.yaml: "settings: {a: first, b: first, c: first, d: first}"
  other.yaml: "settings: {e: other}"
---
apiVersion: v1
kind: Secret
metadata: {name: second, namespace: $ns}
stringData:
  values.yaml: "settings: {b: second, c: second}"
  plain: "with, a comma=and more"
  quoted: "'7'"
  list: "{one,two}"
`))
	r.release(t, "web", `
values: {settings: {c: inline, g: inline}}
valuesFrom:
- {kind: ConfigMap, name: first}
- {kind: Secret, name: second}
- {kind: ConfigMap, name: first, valuesKey: other.yaml}
- {kind: Secret, name: second, valuesKey: plain, targetPath: settings.f, literal: true}
- {kind: Secret, name: second, valuesKey: quoted, targetPath: settings.g}
- {kind: Secret, name: second, valuesKey: quoted, targetPath: settings.n}
- {kind: Secret, name: second, valuesKey: list, targetPath: settings.h, literal: true}
- {kind: Secret, name: nowhere, optional: true}
- {kind: ConfigMap, name: first, valuesKey: nothing, optional: true}
- {kind: ConfigMap, name: nowhere, valuesKey: x, targetPath: settings.a, optional: true}
`)
	r.released(t, "web", 1)
	want := map[string]string{
		"a": "first", "b": "second", "c": "inline", "d": "first", "e": "other", "f": "with, a comma=and more", "g": "inline", "n": "7", "h": "{one,two}", "color": "red",
	}
	if diff := cmp.Diff(want, r.data(t, "web-settings")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

func (h *helmSpec) valuesFromMissing(t *testing.T) {
	r := h.row(t)
	r.apply(t, r.fill("apiVersion: v1\nkind: Secret\nmetadata: {name: there, namespace: $ns}\nstringData: {broken: 'hunter2: [', path: hunter2}\n"))
	for _, c := range []struct{ name, from, message, reason string }{
		{"resource", "{kind: ConfigMap, name: nowhere}", "could not resolve ConfigMap chart values reference '" + r.ns + "/nowhere' with key 'values.yaml': configmaps \"nowhere\" not found", "the ConfigMap is not there"},
		{"key", "{kind: Secret, name: there}", "could not resolve Secret chart values reference '" + r.ns + "/there' with key 'values.yaml': key not found", "the key is not there"},
		{"yaml", "{kind: Secret, name: there, valuesKey: broken}", "could not resolve Secret chart values reference '" + r.ns + "/there' with key 'broken'", "it is no YAML"},
	} {
		r.release(t, c.name, "valuesFrom: ["+c.from+"]")
		o := r.releaseTells(t, c.name, "Ready", "False", "ValuesError", c.message)
		if got := meta.FindStatusCondition(o.Status.Conditions, "Ready").Message; strings.Contains(got, "hunter2") {
			t.Errorf("%s: the message has a Secret's value: %s", c.reason, got)
		}
	}
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nowhere, namespace: $ns}\ndata: {values.yaml: 'settings: {color: blue}'}\n"))
	r.request(t, "resource")
	r.released(t, "resource", 1)
	r.has(t, "resource-settings", "color", "blue")
}

// valuesWatched: a labelled ConfigMap is an event for those who read it.
func (h *helmSpec) valuesWatched(t *testing.T) {
	r := h.row(t)
	values := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: values, namespace: $ns, labels: {reconcile.fluxcd.io/watch: Enabled}}\ndata: {values.yaml: 'settings: {color: %s}'}\n"
	r.apply(t, r.fill(fmt.Sprintf(values, "blue")))
	r.release(t, "web", "valuesFrom: [{kind: ConfigMap, name: values}]")
	r.released(t, "web", 1)
	r.apply(t, r.fill(fmt.Sprintf(values, "green")))
	r.has(t, "web-settings", "color", "green")
	r.released(t, "web", 2)
}

func (h *helmSpec) postRenderers(t *testing.T) {
	r := h.row(t)
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: 'cascade.local/e2e:dev'}]}}}}"
	render := `postRenderers:
- kustomize:
    patches: [{target: {kind: ConfigMap, name: web-settings}, patch: '[{"op": "add", "path": "/data/patched", "value": "%s"}]'}]
    images: [{name: cascade.local/e2e, newName: example.com/web, newTag: v2}]
- kustomize: {patches: [{patch: '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web-settings"}, "data": {"second": "here"}}'}]}
values: {objects: [` + deployment + `]}
`
	r.release(t, "web", fmt.Sprintf(render, "one"))
	o := r.released(t, "web", 1)
	if diff := cmp.Diff(map[string]string{"color": "red", "patched": "one", "second": "here"}, r.data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	web := &appsv1.Deployment{}
	if err := r.load(t.Context(), web, r.ns, "web"); err != nil || web.Spec.Template.Spec.Containers[0].Image != "example.com/web:v2" {
		t.Errorf("containers %+v, %v", web.Spec.Template.Spec.Containers, err)
	}
	// What changes a rendering is a change, as what changes values is.
	r.release(t, "web", fmt.Sprintf(render, "two"))
	after := r.released(t, "web", 2)
	r.has(t, "web-settings", "patched", "two")
	if o.Status.ObservedPostRenderersDigest == "" || after.Status.ObservedPostRenderersDigest == o.Status.ObservedPostRenderersDigest {
		t.Errorf("digests are %q, %q", o.Status.ObservedPostRenderersDigest, after.Status.ObservedPostRenderersDigest)
	}
	r.release(t, "web", "values: {objects: ["+deployment+"]}")
	o = r.released(t, "web", 3)
	if o.Status.ObservedPostRenderersDigest != "" {
		t.Errorf("the digest is %q", o.Status.ObservedPostRenderersDigest)
	}
	if diff := cmp.Diff(map[string]string{"color": "red"}, r.data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
}

// postRenderStrategies: whether hooks are rendered as well, and as one with the
// rest or each by itself.
func (h *helmSpec) postRenderStrategies(t *testing.T) {
	r := h.row(t)
	hooked := "{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-hooked, annotations: {helm.sh/hook: pre-install}}, data: {k: v}}"
	for strategy, want := range map[string]string{"nohooks": "", "combined": "here", "separate": "here"} {
		r.release(t, strategy, "{postRenderStrategy: "+strategy+", values: {objects: ["+fmt.Sprintf(hooked, strategy)+"]}, postRenderers: [{kustomize: {patches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/data/patched\", \"value\": \"here\"}]'}]}}]}")
		r.released(t, strategy, 1)
		r.has(t, strategy+"-settings", "patched", "here")
		r.has(t, strategy+"-hooked", "patched", want)
	}
}

func (h *helmSpec) commonMetadata(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "commonMetadata: {labels: {team: a}, annotations: {note: b}}")
	o := r.released(t, "web", 1)
	u := r.object(t, "v1", "ConfigMap", "web-settings")
	if u.GetLabels()["team"] != "a" || u.GetAnnotations()["note"] != "b" || o.Status.ObservedCommonMetadataDigest == "" {
		t.Errorf("labels %v, annotations %v, digest %q", u.GetLabels(), u.GetAnnotations(), o.Status.ObservedCommonMetadataDigest)
	}
	r.release(t, "web", "commonMetadata: {labels: {team: b}}")
	r.released(t, "web", 2)
	u = r.object(t, "v1", "ConfigMap", "web-settings")
	if u.GetLabels()["team"] != "b" || u.GetAnnotations()["note"] != "" {
		t.Errorf("labels %v, annotations %v", u.GetLabels(), u.GetAnnotations())
	}
}

func (h *helmSpec) dependsOnReleases(t *testing.T) {
	r := h.row(t)
	r.release(t, "second", "dependsOn: [{name: first}]")
	r.releaseTells(t, "second", "Ready", "False", "DependencyNotReady", "unable to get '"+r.ns+"/first' dependency: ")
	r.event(t, "HelmRelease", "second", "DependencyNotReady", "unable to get '"+r.ns+"/first' dependency: ")
	r.release(t, "first", "values: {refuse: on purpose}")
	r.releaseTells(t, "second", "Ready", "False", "DependencyNotReady", "dependency '"+r.ns+"/first' is not ready")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "second-settings")
	r.release(t, "first", "{}")
	r.released(t, "second", 1)
}

func (h *helmSpec) dependsOnReadyExpr(t *testing.T) {
	r := h.row(t)
	r.release(t, "first", "values: {refuse: on purpose}")
	r.release(t, "second", `dependsOn: [{name: first, readyExpr: "dep.metadata.annotations['go'] == self.metadata.name"}]`)
	r.patch(t, &helmv2.HelmRelease{}, "first", `{"metadata":{"annotations":{"go":"nobody"}}}`)
	r.request(t, "second")
	r.releaseTells(t, "second", "Ready", "False", "DependencyNotReady", "dependency '"+r.ns+"/first' is not ready according to readyExpr eval")
	// It says nothing of the dependency's own readiness.
	r.patch(t, &helmv2.HelmRelease{}, "first", `{"metadata":{"annotations":{"go":"second"}}}`)
	r.released(t, "second", 1)
	r.release(t, "third", `dependsOn: [{name: first, readyExpr: "not CEL at all"}]`)
	r.releaseTells(t, "third", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.releaseTells(t, "third", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
}

// kubeConfig: objects and storage are in another cluster.
func (h *helmSpec) kubeConfig(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.releaseTells(t, "web", "Ready", "False", "RESTClientError", "...other")
	other, err := r.Cluster(t.Context(), "other-release")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "other"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := r.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	r.request(t, "web")
	o := r.released(t, "web", 1)
	if diff := cmp.Diff([]string{"default_default-web-settings__ConfigMap v1"}, inventoryOf(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	there := &corev1.ConfigMap{}
	if err := get(t.Context(), other, there, "default", "default-web-settings"); err != nil || there.Labels["helm.toolkit.fluxcd.io/namespace"] != r.ns {
		t.Errorf("labels %v, %v", there.Labels, err)
	}
	if err := get(t.Context(), other, &corev1.Secret{}, "default", "sh.helm.release.v1.default-web.v1"); err != nil {
		t.Errorf("Helm's storage is not in the other cluster: %v", err)
	}
	r.absent(t, &corev1.ConfigMap{}, "default", "default-web-settings")
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "default-web-settings"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still in the other cluster: %v", err)
	}
	// Without the Secret nothing can be uninstalled, so it stays and the
	// HelmRelease goes.
	r.release(t, "web", "{targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.released(t, "web", 1)
	r.delete(t, &corev1.Secret{}, "other")
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "default-web-settings"); err != nil {
		t.Errorf("it is not in the other cluster: %v", err)
	}
}

const deployer = `apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $ns}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`

func (h *helmSpec) serviceAccount(t *testing.T) {
	r := h.row(t)
	account, binding, _ := strings.Cut(r.fill(deployer), "---\n")
	r.apply(t, account)
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.release(t, "web", "serviceAccountName: deployer")
	o := r.releaseTells(t, "web", "Ready", "False", "StateError", `...User "system:serviceaccount:`+r.ns+`:deployer" cannot list resource "secrets"`)
	if len(o.Status.History) != 0 {
		t.Errorf("history is %v", snapshots(o))
	}
	r.apply(t, binding)
	r.request(t, "web")
	r.released(t, "web", 1)
	impersonated := 0
	for _, e := range r.writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" || e.ObjectRef.Resource == "secrets" {
			if e.ImpersonatedUser.Username != "system:serviceaccount:"+r.ns+":deployer" {
				t.Errorf("%s %s as %q", e.Verb, e.RequestURI, e.ImpersonatedUser.Username)
			}
			impersonated++
		}
	}
	if impersonated < 2 {
		t.Errorf("the audit log has %d writes", impersonated)
	}
}

// serviceAccountGone: without the account nothing can be uninstalled with its
// rights, so it stays, and the HelmRelease goes.
func (h *helmSpec) serviceAccountGone(t *testing.T) {
	r := h.row(t)
	r.apply(t, r.fill(deployer))
	r.release(t, "web", "serviceAccountName: deployer")
	r.released(t, "web", 1)
	r.delete(t, &corev1.ServiceAccount{}, "deployer")
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.has(t, "web-settings", "color", "red")
}

// namespaces: where the objects are and where Helm keeps its storage are two
// things, and a namespace is created when that is said.
func (h *helmSpec) namespaces(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{targetNamespace: $ns-target, storageNamespace: $ns}")
	o := r.releaseTells(t, "web", "Ready", "False", "InstallFailed", `...namespaces "`+r.ns+`-target" not found`)
	if o.Status.StorageNamespace != r.ns {
		t.Errorf("the storage namespace is %q", o.Status.StorageNamespace)
	}
	r.release(t, "made", "{targetNamespace: $ns-made, install: {createNamespace: true}}")
	r.released(t, "made", 1)
	r.history(t, "made", r.ns+"-made/"+r.ns+"-made-made.v1 deployed app@1.0.0")
	if diff := cmp.Diff([]string{"v1 deployed"}, r.storage(t, r.ns, r.ns+"-made-made")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if err := r.load(t.Context(), &corev1.ConfigMap{}, r.ns+"-made", r.ns+"-made-made-settings"); err != nil {
		t.Error(err)
	}
	r.release(t, "stored", "{storageNamespace: $ns-made, releaseName: stored}")
	r.released(t, "stored", 1)
	if diff := cmp.Diff([]string{"v1 deployed"}, r.storage(t, r.ns+"-made", "stored")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.has(t, "stored-settings", "color", "red")
}

// longName: a name that Helm does not take is shortened.
func (h *helmSpec) longName(t *testing.T) {
	r := h.row(t)
	name := strings.Repeat("long", 15)
	r.release(t, name, "{}")
	o := r.released(t, name, 1)
	want := regexp.MustCompile(`^(long){10}-[0-9a-f]{12}$`)
	if s := o.Status.History.Latest(); !want.MatchString(s.Name) || len(r.storage(t, r.ns, s.Name)) != 1 {
		t.Errorf("the release is %q", s.Name)
	}
	r.request(t, name)
	r.released(t, name, 1)
}

func (h *helmSpec) releaseName(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "releaseName: other")
	r.released(t, "web", 1)
	r.has(t, "other-settings", "color", "red")
	// With another name it is another release: the first goes.
	r.release(t, "web", "releaseName: third")
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.ns+"/other.v1 with chart app@1.0.0")
	r.has(t, "third-settings", "color", "red")
	r.released(t, "web", 1)
	r.absent(t, &corev1.ConfigMap{}, r.ns, "other-settings")
	r.history(t, "web", r.ns+"/third.v1 deployed app@1.0.0")
}

// releaseMoves: a release in another namespace is another release.
func (h *helmSpec) releaseMoves(t *testing.T) {
	r := h.row(t)
	r.apply(t, r.fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-target}\n"))
	r.release(t, "web", "releaseName: web")
	r.released(t, "web", 1)
	r.release(t, "web", "{releaseName: web, targetNamespace: $ns-target}")
	eventually(t, converge, "it has moved", func(ctx context.Context) error {
		return r.load(ctx, &corev1.ConfigMap{}, r.ns+"-target", "web-settings")
	})
	r.released(t, "web", 1)
	r.absent(t, &corev1.ConfigMap{}, r.ns, "web-settings")
	// So is one whose storage is elsewhere.
	r.release(t, "web", "{releaseName: web, targetNamespace: $ns-target, storageNamespace: $ns-target}")
	eventually(t, converge, "its storage has moved", func(context.Context) error {
		if here, there := r.storage(t, r.ns, "web"), r.storage(t, r.ns+"-target", "web"); len(here) != 0 || len(there) != 1 {
			return fmt.Errorf("storage has %v, %v", here, there)
		}
		return nil
	})
	o := r.released(t, "web", 1)
	if o.Status.StorageNamespace != r.ns+"-target" {
		t.Errorf("the storage namespace is %q", o.Status.StorageNamespace)
	}
}

func (h *helmSpec) maxHistory(t *testing.T) {
	r := h.row(t)
	for i := range 3 {
		r.release(t, "web", fmt.Sprintf("{maxHistory: 2, values: {settings: {color: c%d}}}", i))
		r.released(t, "web", i+1)
	}
	if diff := cmp.Diff([]string{"v2 superseded", "v3 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// persistentClient: without one a chart may bring a kind and, from a hook on, its
// objects.
func (h *helmSpec) persistentClient(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "persistentClient: false")
	r.released(t, "web", 1)
	r.release(t, "web", "{persistentClient: false, values: {settings: {color: blue}}}")
	r.released(t, "web", 2)
}

const slowDeployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: slow}, spec: {replicas: 1, selector: {matchLabels: {app: $ns}}, template: {metadata: {labels: {app: $ns}}, spec: {containers: [{name: slow, image: 'cascade.local/e2e:dev', command: [sleep, '1000000'], readinessProbe: {exec: {command: ['false']}, periodSeconds: 1}}]}}}}"

func (h *helmSpec) waitTimeout(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{timeout: 20s, values: {objects: ["+slowDeployment+"]}}")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "...Deployment/"+r.ns+"/slow status: 'InProgress'")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
}

func (h *helmSpec) disableWait(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{timeout: 10m, install: {disableWait: true}, upgrade: {disableWait: true}, values: {objects: ["+slowDeployment+"]}}")
	r.released(t, "web", 1)
	r.release(t, "web", "{timeout: 10m, install: {disableWait: true}, upgrade: {disableWait: true}, values: {settings: {color: blue}, objects: ["+slowDeployment+"]}}")
	r.released(t, "web", 2)
}

func (h *helmSpec) healthCheckExprs(t *testing.T) {
	r := h.row(t, with(app("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": crd}))
	r.release(t, "web", `{timeout: 10m, chart: {spec: {chart: $ns}}, values: {objects: [{apiVersion: $ns.example.com/v1, kind: Thing, metadata: {name: thing}}]},
healthCheckExprs: [{apiVersion: $ns.example.com/v1, kind: Thing, inProgress: "!has(status.phase)", failed: "status.phase == 'Bad'", current: "status.phase == 'Good'"}]}`)
	r.releaseTells(t, "web", "Ready", "Unknown", "Progressing", "Running 'install' action with timeout of 10m0s")
	r.releaseTells(t, "web", "Reconciling", "True", "Progressing", "Running 'install' action with timeout of 10m0s")
	u := stage.Object(r.ns+".example.com/v1", "Thing")
	eventually(t, converge, "the thing is there", func(ctx context.Context) error { return r.load(ctx, u, r.ns, "thing") })
	if err := r.client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Good"}}`))); err != nil {
		t.Fatal(err)
	}
	r.released(t, "web", 1)
}

func (h *helmSpec) healthCheckExprsInvalid(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: 'not CEL at all'}]")
	r.releaseTells(t, "web", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.releaseTells(t, "web", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "web-settings")
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
}

func (h *helmSpec) waitStrategyLegacy(t *testing.T) {
	r := h.row(t)
	r.release(t, "slow", "{timeout: 3s, waitStrategy: {name: legacy}, values: {objects: ["+slowDeployment+"]}}")
	r.release(t, "web", "waitStrategy: {name: legacy}")
	r.released(t, "web", 1)
	r.releaseTells(t, "slow", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/slow with chart app@1.0.0: ")
}

// hooks run around what they are for, and not if they are not wanted.
func (h *helmSpec) hooks(t *testing.T) {
	r := h.row(t)
	objects := "values: {objects: [" + hook("before", "pre-install", `"true"`, "") + ", " + hook("after", "post-install", `"true"`, `, helm.sh/hook-delete-policy: hook-succeeded`) + "]}"
	r.release(t, "without", "{install: {disableHooks: true}, "+objects+"}")
	r.released(t, "without", 1)
	r.absent(t, &corev1.Pod{}, r.ns, "before")
	r.release(t, "web", "{"+objects+"}")
	r.released(t, "web", 1)
	r.object(t, "v1", "Pod", "before")
	r.gone(t, &corev1.Pod{}, "after")
	r.release(t, "failing", "{values: {objects: ["+hook("failing", "pre-install", `"false"`, "")+"]}}")
	r.releaseTells(t, "failing", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/failing with chart app@1.0.0: ")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "failing-settings")
}

func (h *helmSpec) suspendRelease(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "{suspend: true, chart: {spec: {version: 1.1.0}}}")
	r.request(t, "web")
	r.history(t, "web", r.ns+"/web.v1 deployed app@1.0.0")
	c := &sourcev1.HelmChart{}
	if err := r.load(t.Context(), c, r.ns, r.ns+"-web"); err != nil || c.Spec.Version != "1.0.0" {
		t.Errorf("the chart's version is %s, %v", c.Spec.Version, err)
	}
	r.release(t, "web", "{chart: {spec: {version: 1.1.0}}}")
	r.released(t, "web", 2)
}

// forceAt is an upgrade though nothing has changed, once.
func (h *helmSpec) forceAt(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	o := r.request(t, "web", "reconcile.fluxcd.io/forceAt")
	r.released(t, "web", 2)
	if o.Status.LastHandledForceAt == "" {
		t.Errorf("status is %+v", o.Status)
	}
	r.request(t, "web")
	r.released(t, "web", 2)
	// Alone, without a request to reconcile at the same time, it says nothing.
	r.patch(t, o, "web", `{"metadata":{"annotations":{"reconcile.fluxcd.io/forceAt":"alone"}}}`)
	r.request(t, "web")
	r.released(t, "web", 2)
}

// chartNameChanges: another chart is another release.
func (h *helmSpec) chartNameChanges(t *testing.T) {
	r := h.row(t, app("$ns", "1.0.0"))
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	before := r.object(t, "v1", "ConfigMap", "web-settings").GetUID()
	r.release(t, "web", "chart: {spec: {chart: $ns}}")
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.ns+"/web.v1 with chart app@1.0.0")
	r.releaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.ns+"/web.v1 with chart "+r.ns+"@1.0.0")
	if r.object(t, "v1", "ConfigMap", "web-settings").GetUID() == before {
		t.Error("the object is the one that the other chart made")
	}
}

func (h *helmSpec) chartNameChangesInPlace(t *testing.T) {
	r := h.row(t, app("$ns", "1.0.0"))
	r.release(t, "web", "upgrade: {chartNameChangeStrategy: InPlaceUpdate}")
	r.released(t, "web", 1)
	before := r.object(t, "v1", "ConfigMap", "web-settings").GetUID()
	r.release(t, "web", "{upgrade: {chartNameChangeStrategy: InPlaceUpdate}, chart: {spec: {chart: $ns}}}")
	r.released(t, "web", 2)
	if r.object(t, "v1", "ConfigMap", "web-settings").GetUID() != before {
		t.Error("the object was created anew")
	}
	r.history(t, "web", r.ns+"/web.v2 deployed "+r.ns+"@1.0.0", r.ns+"/web.v1 superseded app@1.0.0")
}

// adopts: what somebody else installed, or changed in Helm's storage, is brought
// to what is wanted by an upgrade. So are objects that no release has.
func (h *helmSpec) adopts(t *testing.T) {
	r := h.row(t)
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web-settings, namespace: $ns}\ndata: {color: black}\n"))
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.has(t, "web-settings", "color", "red")
	// Left by a HelmRelease that is no more.
	r.release(t, "web", "suspend: true")
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.release(t, "web", "{}")
	r.released(t, "web", 2)
	r.history(t, "web", r.ns+"/web.v2 deployed app@1.0.0")
	// Deleted from the storage by somebody.
	r.delete(t, &corev1.Secret{}, "sh.helm.release.v1.web.v2")
	r.request(t, "web")
	r.releaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
	r.release(t, "strict", "{install: {disableTakeOwnership: true}, values: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: web-settings}}]}}")
	r.releaseTells(t, "strict", "Ready", "False", "InstallFailed", "...invalid ownership metadata")
}

// unlocks: what a killed process left in the middle of an action goes on.
func (h *helmSpec) unlocks(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{}")
	r.released(t, "web", 1)
	r.release(t, "web", "suspend: true")
	secret := &corev1.Secret{}
	if err := r.load(t.Context(), secret, r.ns, "sh.helm.release.v1.web.v1"); err != nil {
		t.Fatal(err)
	}
	pending, err := rewritten(secret.Data["release"], func(release map[string]any) {
		release["info"].(map[string]any)["status"] = "pending-upgrade"
		release["version"] = 2
	})
	if err != nil {
		t.Fatal(err)
	}
	second := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "sh.helm.release.v1.web.v2", Labels: map[string]string{}}, Type: secret.Type, Data: map[string][]byte{"release": pending}}
	maps.Copy(second.Labels, secret.Labels)
	second.Labels["version"], second.Labels["status"] = "2", "pending-upgrade"
	if err := r.client.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	r.release(t, "web", "{}")
	r.event(t, "HelmRelease", "web", "PendingRelease", "Unlocked Helm release "+r.ns+"/web.v2 with chart app@1.0.0 in pending-upgrade state")
	r.released(t, "web", 3)
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// rewritten changes a release as Helm stores it.
func rewritten(stored []byte, change func(map[string]any)) ([]byte, error) {
	zipped, err := base64.StdEncoding.DecodeString(string(stored))
	if err != nil {
		return nil, err
	}
	reader, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return nil, err
	}
	release := map[string]any{}
	if err := json.NewDecoder(reader).Decode(&release); err != nil {
		return nil, err
	}
	change(release)
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	if err := errors.Join(json.NewEncoder(writer).Encode(release), writer.Close()); err != nil {
		return nil, err
	}
	return []byte(base64.StdEncoding.EncodeToString(out.Bytes())), nil
}

func (h *helmSpec) schemaValidation(t *testing.T) {
	schema := map[string]string{"values.schema.json": `{"type": "object", "properties": {"settings": {"properties": {"color": {"enum": ["red"]}}}}}`}
	r := h.row(t, with(app("$ns", "1.0.0"), schema))
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, values: {settings: {color: blue}}}")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "...values don't meet the specifications of the schema(s)")
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, install: {disableSchemaValidation: true}, values: {settings: {color: blue}}}")
	r.released(t, "web", 1)
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, values: {settings: {color: green}}}")
	r.releaseTells(t, "web", "Ready", "False", "UpgradeFailed", "...values don't meet the specifications of the schema(s)")
	r.release(t, "web", "{chart: {spec: {chart: $ns}}, upgrade: {disableSchemaValidation: true}, values: {settings: {color: green}}}")
	r.released(t, "web", 2)
}

// preserveValues: what a release before was given counts as well.
func (h *helmSpec) preserveValues(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {settings: {color: blue, more: yes}}")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "")
	r.release(t, "web", "values: {settings: {color: blue, more: \"yes\"}}")
	r.tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
	r.release(t, "web", "{upgrade: {preserveValues: true}, values: {settings: {color: green}}}")
	r.has(t, "web-settings", "color", "green")
	r.has(t, "web-settings", "more", "yes")
	r.release(t, "web", "{values: {settings: {color: white}}}")
	r.has(t, "web-settings", "color", "white")
	r.has(t, "web-settings", "more", "")
}

// forceUpgrade puts objects as they are, and what others added to them goes.
func (h *helmSpec) forceUpgrade(t *testing.T) {
	r := h.row(t)
	by := func() string {
		t.Helper()
		for _, m := range r.object(t, "v1", "ConfigMap", "web-settings").GetManagedFields() {
			if m.Manager == "helm-controller" {
				return string(m.Operation)
			}
		}
		return ""
	}
	r.release(t, "web", "install: {serverSideApply: false}")
	r.released(t, "web", 1)
	if got := by(); got != "Update" {
		t.Errorf("the object was written by %q", got)
	}
	r.patch(t, &corev1.ConfigMap{}, "web-settings", `{"data":{"theirs":"yes"}}`)
	r.release(t, "web", "values: {settings: {color: blue}}")
	r.released(t, "web", 2)
	if diff := cmp.Diff(map[string]string{"color": "blue", "theirs": "yes"}, r.data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	if got := by(); got != "Update" {
		t.Errorf("the object was written by %q: how it was installed is how it is upgraded", got)
	}
	r.release(t, "web", "{upgrade: {force: true}, values: {settings: {color: green}}}")
	r.released(t, "web", 3)
	if diff := cmp.Diff(map[string]string{"color": "green"}, r.data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	r.release(t, "web", "{upgrade: {serverSideApply: enabled}, values: {settings: {color: white}}}")
	r.released(t, "web", 4)
	if got := by(); got != "Apply" {
		t.Errorf("the object was written by %q", got)
	}
}

// cleanupOnFail: what a failed upgrade added goes, and what a failed rollback did.
func (h *helmSpec) cleanupOnFail(t *testing.T) {
	r := h.row(t)
	added := "values: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: added-%s}}, " + slowDeployment + "]}"
	for _, name := range []string{"kept", "cleaned"} {
		r.release(t, name, "{}")
		r.released(t, name, 1)
	}
	r.release(t, "kept", "{timeout: 3s, "+fmt.Sprintf(added, "kept")+"}")
	r.releaseTells(t, "kept", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.object(t, "v1", "ConfigMap", "added-kept")
	r.release(t, "cleaned", "{timeout: 3s, upgrade: {cleanupOnFail: true}, "+strings.ReplaceAll(fmt.Sprintf(added, "cleaned"), "name: slow}", "name: slower}")+"}")
	r.releaseTells(t, "cleaned", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	r.absent(t, &corev1.ConfigMap{}, r.ns, "added-cleaned")
}

// waitForJobs: a Job that does not end is waited for, or not.
func (h *helmSpec) waitForJobs(t *testing.T) {
	r := h.row(t)
	job := "values: {objects: [{apiVersion: batch/v1, kind: Job, metadata: {name: %s}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: 'cascade.local/e2e:dev', command: [sleep, '1000000']}]}}}}]}"
	r.release(t, "waiting", "{timeout: 3s, "+fmt.Sprintf(job, "waiting")+"}")
	r.releaseTells(t, "waiting", "Ready", "False", "InstallFailed", "...Job/"+r.ns+"/waiting status: 'InProgress'")
	r.release(t, "free", "{timeout: 1m, install: {disableWaitForJobs: true}, waitStrategy: {name: legacy}, "+fmt.Sprintf(job, "free")+"}")
	r.released(t, "free", 1)
}

// inventory is what the last release made, and what is in it no more goes.
func (h *helmSpec) inventory(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", `values: {objects: [
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web}}, {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "$ns:reader"}, rules: []},
{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: {helm.sh/resource-policy: keep}}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: elsewhere, namespace: default}}]}`)
	o := r.released(t, "web", 1)
	want := []string{
		"_" + r.ns + "__reader_rbac.authorization.k8s.io_ClusterRole v1", "default_elsewhere__ConfigMap v1",
		r.ns + "_kept__ConfigMap v1", r.ns + "_web-settings__ConfigMap v1", r.ns + "_web__ServiceAccount v1",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, inventoryOf(o)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.release(t, "web", "{}")
	o = r.released(t, "web", 2)
	if diff := cmp.Diff([]string{r.ns + "_web-settings__ConfigMap v1"}, inventoryOf(o)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.absent(t, &corev1.ServiceAccount{}, r.ns, "web")
	r.absent(t, &corev1.ConfigMap{}, "default", "elsewhere")
	r.object(t, "v1", "ConfigMap", "kept")
}
