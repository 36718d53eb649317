package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// TestHelmReleaseSpec tries what Flux says of a HelmRelease, row by row, as
// docs/flux-compatibility.md lists them. Every row was seen to pass with Flux's own
// helm-controller v1.6.4 and source-controller v1.9.5 as well.
func TestHelmReleaseSpec(t *testing.T) {
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
		} {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.run(h, t)
			})
		}
	})
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
	if diff := cmp.Diff([]string{r.ns + "/web.v2 deployed app@1.1.0", r.ns + "/web.v1 superseded app@1.0.0"}, snapshots(o)); diff != "" {
		t.Errorf("history: -want, +got:\n%s", diff)
	}
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
	o = r.released(t, "web", 4)
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
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
	if o.Status.InstallFailures != 1 || o.Status.Failures != 1 || o.Status.LastAttemptedReleaseAction != "install" {
		t.Errorf("status is %+v", o.Status)
	}
	if diff := cmp.Diff([]string{r.ns + "/web.v1 failed app@1.0.0"}, snapshots(o)); diff != "" {
		t.Errorf("history: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"v1 failed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.event(t, "HelmRelease", "web", "InstallFailed", "Helm install failed for release "+r.ns+"/web")
	r.release(t, "web", "{}")
	o = r.released(t, "web", 2)
	if o.Status.InstallFailures != 0 || o.Status.Failures != 0 {
		t.Errorf("status is %+v", o.Status)
	}
	r.releaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// installRetries: between two attempts what is there of the first goes.
func (h *helmSpec) installRetries(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{install: {remediation: {retries: 1}}, values: {"+refused+"}}")
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 2 attempt(s)")
	if o.Status.InstallFailures != 2 {
		t.Errorf("status is %+v", o.Status)
	}
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
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	if o.Status.UpgradeFailures != 1 {
		t.Errorf("status is %+v", o.Status)
	}
	if diff := cmp.Diff([]string{"v1 deployed", "v2 failed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{r.ns + "/web.v2 failed app@1.0.0", r.ns + "/web.v1 deployed app@1.0.0"}, snapshots(o)); diff != "" {
		t.Errorf("history: -want, +got:\n%s", diff)
	}
	// A request changes nothing about that, ...
	r.request(t, "web")
	if got := r.storage(t, r.ns, "web"); len(got) != 2 {
		t.Errorf("storage has %v", got)
	}
	// ... one to forget the failures, or to try by force, does.
	o = r.request(t, "web", "reconcile.fluxcd.io/resetAt")
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
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 1 attempt(s)")
	message := "Helm rollback to previous release " + r.ns + "/web.v1 with chart app@1.0.0 succeeded"
	r.releaseTells(t, "web", "Remediated", "True", "RollbackSucceeded", message)
	r.releaseTells(t, "web", "Ready", "False", "RollbackSucceeded", message)
	r.releaseTells(t, "web", "Released", "False", "UpgradeFailed", "Helm upgrade failed for release ")
	r.event(t, "HelmRelease", "web", "RollbackSucceeded", message)
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 deployed"}, r.storage(t, r.ns, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{r.ns + "/web.v3 deployed app@1.0.0", r.ns + "/web.v2 failed app@1.0.0", r.ns + "/web.v1 superseded app@1.0.0"}, snapshots(o)); diff != "" {
		t.Errorf("history: -want, +got:\n%s", diff)
	}
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
	o := r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to upgrade after 2 attempt(s)")
	if o.Status.UpgradeFailures != 2 {
		t.Errorf("status is %+v", o.Status)
	}
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
	before := r.object(t, "v1", "ConfigMap", "web-settings").GetUID()
	r.release(t, "web", "{upgrade: {remediation: {retries: 1, strategy: uninstall}}, values: {"+refused+"}}")
	r.event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall remediation for release "+r.ns+"/web.v2 with chart app@1.0.0 succeeded")
	r.releaseTells(t, "web", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.ns+"/web with chart app@1.0.0: ")
	r.release(t, "web", "{}")
	_ = before
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

var (
	_ = fmt.Sprint
	_ = os.ReadFile
	_ = regexp.MustCompile
	_ = appsv1.Deployment{}
	_ = fluxmeta.ReadyCondition
	_ client.Object
	_ origins.Chart
)
