package helm

import (
	"fmt"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// recolor changes by hand what a release made.
func recolor(t *testing.T, r *scenario.HelmRow, color string) {
	t.Helper()
	r.Patch(t, &corev1.ConfigMap{}, "web-settings", fmt.Sprintf(`{"data":{"color":%q}}`, color))
}

func (h *releaseSpec) driftWarns(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "driftDetection: {mode: warn}")
	r.Released(t, "web", 1)
	r.ReleaseTells(t, "web", "Drifted", "False", "NoDriftDetected", "No drift detected against the cluster state")
	recolor(t, r, "green")
	r.Request(t, "web")
	message := "Cluster state of release " + r.Namespace + "/web.v1 has drifted from the desired state:\nConfigMap/" + r.Namespace + "/web-settings changed (0 additions, 1 changes, 0 removals)"
	r.ReleaseTells(t, "web", "Drifted", "True", "DriftDetected", message)
	r.Event(t, "HelmRelease", "web", "DriftDetected", message)
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "color", "green")
	r.Delete(t, &corev1.ConfigMap{}, "web-settings")
	r.Request(t, "web")
	r.ReleaseTells(t, "web", "Drifted", "True", "DriftDetected", "...ConfigMap/"+r.Namespace+"/web-settings removed")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "web-settings")
}

func (h *releaseSpec) driftIsCorrected(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "driftDetection: {mode: enabled}")
	r.Released(t, "web", 1)
	recolor(t, r, "green")
	r.Request(t, "web")
	r.Has(t, "web-settings", "color", "red")
	r.Event(t, "HelmRelease", "web", "DriftDetected", "ConfigMap/"+r.Namespace+"/web-settings changed (0 additions, 1 changes, 0 removals)")
	r.Event(t, "HelmRelease", "web", "DriftCorrected", "Cluster state of release "+r.Namespace+"/web.v1 has been corrected:\nConfigMap/"+r.Namespace+"/web-settings configured")
	r.ReleaseTells(t, "web", "Drifted", "False", "NoDriftDetected", "")
	r.Delete(t, &corev1.ConfigMap{}, "web-settings")
	r.Request(t, "web")
	r.Has(t, "web-settings", "color", "red")
	r.Event(t, "HelmRelease", "web", "DriftCorrected", "ConfigMap/"+r.Namespace+"/web-settings created")
	r.Released(t, "web", 1)
	if diff := cmp.Diff([]string{"v1 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// driftForbidden: a right to write that the account lost is told at the next look for
// drift, although nothing drifted, and so is its return.
func (h *releaseSpec) driftForbidden(t *testing.T) {
	r := h.Row(t)
	account, _, _ := strings.Cut(deployer, "---\n")
	role := func(verbs string) string {
		return r.Fill(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: deployer, namespace: $ns}
rules:
- {apiGroups: [""], resources: [secrets], verbs: ["*"]}
- {apiGroups: ["*"], resources: ["*"], verbs: ` + verbs + `}
`)
	}
	r.Apply(t, r.Fill(account+`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: deployer}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`)+"---\n"+role(`["*"]`))
	r.Release(t, "web", "{serviceAccountName: deployer, driftDetection: {mode: enabled}}")
	r.Released(t, "web", 1)
	r.Request(t, "web")
	r.ReleaseTells(t, "web", "Drifted", "False", "NoDriftDetected", "")
	r.Apply(t, role("[get, list, watch]"))
	r.Request(t, "web")
	r.ReleaseTells(t, "web", "Ready", "False", "StateError", `...User "system:serviceaccount:`+r.Namespace+`:deployer" cannot patch resource`)
	r.Apply(t, role(`["*"]`))
	r.Request(t, "web")
	r.Released(t, "web", 1)
}

// driftIsIgnored: by a rule, and by an annotation.
func (h *releaseSpec) driftIsIgnored(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", `{driftDetection: {mode: enabled, ignore: [{paths: [/data/color], target: {kind: ConfigMap, name: web-settings}}]}, values: {objects: [
{apiVersion: v1, kind: ConfigMap, metadata: {name: marked, annotations: {helm.toolkit.fluxcd.io/driftDetection: disabled}}, data: {k: v}},
{apiVersion: v1, kind: ConfigMap, metadata: {name: plain}, data: {k: v, color: red}}]}}`)
	r.Released(t, "web", 1)
	for _, name := range []string{"web-settings", "marked", "plain"} {
		r.Patch(t, &corev1.ConfigMap{}, name, `{"data":{"k":"changed","color":"green"}}`)
	}
	r.Request(t, "web")
	r.Has(t, "plain", "k", "v")
	r.Has(t, "plain", "color", "red")
	r.Has(t, "marked", "k", "changed")
	r.Has(t, "web-settings", "color", "green")
	r.Released(t, "web", 1)
}

// forceAt is an upgrade though nothing has changed, once.
func (h *releaseSpec) forceAt(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	o := r.Request(t, "web", "reconcile.fluxcd.io/forceAt")
	r.Released(t, "web", 2)
	if o.Status.LastHandledForceAt == "" {
		t.Errorf("status is %+v", o.Status)
	}
	r.Request(t, "web")
	r.Released(t, "web", 2)
	// Alone, without a request to reconcile at the same time, it says nothing.
	r.Patch(t, o, "web", `{"metadata":{"annotations":{"reconcile.fluxcd.io/forceAt":"alone"}}}`)
	r.Request(t, "web")
	r.Released(t, "web", 2)
}

// preserveValues: what a release before was given counts as well.
func (h *releaseSpec) preserveValues(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {settings: {color: blue, more: yes}}")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "")
	r.Release(t, "web", "values: {settings: {color: blue, more: \"yes\"}}")
	r.Tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
	r.Release(t, "web", "{upgrade: {preserveValues: true}, values: {settings: {color: green}}}")
	r.Has(t, "web-settings", "color", "green")
	r.Has(t, "web-settings", "more", "yes")
	r.Released(t, "web", 3)
	r.Request(t, "web")
	r.Released(t, "web", 3)
	r.Release(t, "web", "{values: {settings: {color: white}}}")
	r.Has(t, "web-settings", "color", "white")
	r.Has(t, "web-settings", "more", "")
}

// forceUpgrade puts objects as they are, and what others added to them goes.
func (h *releaseSpec) forceUpgrade(t *testing.T) {
	r := h.Row(t)
	by := func() string {
		t.Helper()
		for _, m := range r.Object(t, "v1", "ConfigMap", "web-settings").GetManagedFields() {
			if m.Manager == "helm-controller" {
				return string(m.Operation)
			}
		}
		return ""
	}
	r.Release(t, "web", "install: {serverSideApply: false}")
	r.Released(t, "web", 1)
	if got := by(); got != "Update" {
		t.Errorf("the object was written by %q", got)
	}
	r.Patch(t, &corev1.ConfigMap{}, "web-settings", `{"data":{"theirs":"yes"}}`)
	r.Release(t, "web", "values: {settings: {color: blue}}")
	r.Released(t, "web", 2)
	if diff := cmp.Diff(map[string]string{"color": "blue", "theirs": "yes"}, r.Data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	if got := by(); got != "Update" {
		t.Errorf("the object was written by %q: how it was installed is how it is upgraded", got)
	}
	r.Release(t, "web", "{upgrade: {force: true}, values: {settings: {color: green}}}")
	r.Released(t, "web", 3)
	if diff := cmp.Diff(map[string]string{"color": "green"}, r.Data(t, "web-settings")); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	r.Release(t, "web", "{upgrade: {serverSideApply: enabled}, values: {settings: {color: white}}}")
	r.Released(t, "web", 4)
	if got := by(); got != "Apply" {
		t.Errorf("the object was written by %q", got)
	}
}
