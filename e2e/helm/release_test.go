package helm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestHelmReleaseSpec tries what Flux says of a HelmRelease, row by row, as
// docs/flux-compatibility.md lists them. Every row was seen to pass with Flux's own
// helm-controller v1.6.4 and source-controller v1.9.5 as well, but for ReleaseMoves:
// it looks for what the release had in the namespace that it moves to.
func TestHelmReleaseSpec(t *testing.T) {
	scenario.Alongside(t)
	h := &releaseSpec{scenario.StartHelmTier(t)}
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*releaseSpec, *testing.T)
		}{
			{"Install", (*releaseSpec).install},
			{"Upgrade", (*releaseSpec).upgrade},
			{"InstallFails", (*releaseSpec).installFails},
			{"InstallRetries", (*releaseSpec).installRetries},
			{"InstallRemediatesLastFailure", (*releaseSpec).installRemediatesLastFailure},
			{"InstallCannotRender", (*releaseSpec).installCannotRender},
			{"UpgradeFails", (*releaseSpec).upgradeFails},
			{"UpgradeRollsBack", (*releaseSpec).upgradeRollsBack},
			{"UpgradeRetries", (*releaseSpec).upgradeRetries},
			{"UpgradeUninstalls", (*releaseSpec).upgradeUninstalls},
			{"RetryOnFailure", (*releaseSpec).retryOnFailure},
			{"TestsPass", (*releaseSpec).testsPass},
			{"TestsFail", (*releaseSpec).testsFail},
			{"TestsAreIgnored", (*releaseSpec).testsAreIgnored},
			{"TestsRollBack", (*releaseSpec).testsRollBack},
			{"DriftWarns", (*releaseSpec).driftWarns},
			{"DriftIsCorrected", (*releaseSpec).driftIsCorrected},
			{"DriftIsIgnored", (*releaseSpec).driftIsIgnored},
			{"DriftForbidden", (*releaseSpec).driftForbidden},
			{"Uninstall", (*releaseSpec).uninstall},
			{"UninstallKeepsHistory", (*releaseSpec).uninstallKeepsHistory},
			{"UninstallSuspended", (*releaseSpec).uninstallSuspended},
			{"UninstallPropagation", (*releaseSpec).uninstallPropagation},
			{"CRDs", (*releaseSpec).crds},
			{"CRDsAreReplaced", (*releaseSpec).crdsAreReplaced},
			{"ValuesFrom", (*releaseSpec).valuesFrom},
			{"ValuesFromMissing", (*releaseSpec).valuesFromMissing},
			{"ValuesWatched", (*releaseSpec).valuesWatched},
			{"PostRenderers", (*releaseSpec).postRenderers},
			{"PostRenderStrategies", (*releaseSpec).postRenderStrategies},
			{"CommonMetadata", (*releaseSpec).commonMetadata},
			{"DependsOn", (*releaseSpec).dependsOnReleases},
			{"DependsOnReadyExpr", (*releaseSpec).dependsOnReadyExpr},
			{"KubeConfig", (*releaseSpec).kubeConfig},
			{"ServiceAccount", (*releaseSpec).serviceAccount},
			{"ServiceAccountGone", (*releaseSpec).serviceAccountGone},
			{"Namespaces", (*releaseSpec).namespaces},
			{"LongName", (*releaseSpec).longName},
			{"ReleaseName", (*releaseSpec).releaseName},
			{"MaxHistory", (*releaseSpec).maxHistory},
			{"PersistentClient", (*releaseSpec).persistentClient},
			{"WaitTimeout", (*releaseSpec).waitTimeout},
			{"DisableWait", (*releaseSpec).disableWait},
			{"HealthCheckExprs", (*releaseSpec).healthCheckExprs},
			{"HealthCheckExprsInvalid", (*releaseSpec).healthCheckExprsInvalid},
			{"WaitStrategyLegacy", (*releaseSpec).waitStrategyLegacy},
			{"Hooks", (*releaseSpec).hooks},
			{"Suspend", (*releaseSpec).suspendRelease},
			{"ForceAt", (*releaseSpec).forceAt},
			{"ChartNameChanges", (*releaseSpec).chartNameChanges},
			{"ChartNameChangesInPlace", (*releaseSpec).chartNameChangesInPlace},
			{"ReleaseMoves", (*releaseSpec).releaseMoves},
			{"Adopts", (*releaseSpec).adopts},
			{"Unlocks", (*releaseSpec).unlocks},
			{"SchemaValidation", (*releaseSpec).schemaValidation},
			{"PreserveValues", (*releaseSpec).preserveValues},
			{"ForceUpgrade", (*releaseSpec).forceUpgrade},
			{"CleanupOnFail", (*releaseSpec).cleanupOnFail},
			{"WaitForJobs", (*releaseSpec).waitForJobs},
			{"Inventory", (*releaseSpec).inventory},
			{"ClusterScoped", (*releaseSpec).clusterScoped},
			{"WaitingHoldsNoWorker", (*releaseSpec).waitingHoldsNoWorker},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(h, t)
			})
		}
	})
	// It starts the agent anew, with other flags.
	t.Run("Lockdown", h.lockdownReleases)
}

// releaseSpec is the tier that all rows share.
type releaseSpec struct{ *scenario.HelmTier }

// lockdownReleases: the flags of Flux's multi-tenancy lockdown.
func (h *releaseSpec) lockdownReleases(t *testing.T) {
	r := h.RowIn("lockdown-release")
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-owner}\n---\n"+
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts, namespace: $ns-owner}\nspec: {url: \""+h.Charts.URL()+"\", interval: 10m}\n---\n"+
		"apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmChart\nmetadata: {name: app, namespace: $ns-owner}\nspec: {chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}\n"))
	r.MakeSource(t, "HelmRepository", "charts", "{url: \""+h.Charts.URL()+"\", interval: 10m}")
	r.Release(t, "web", "{chart: null, chartRef: {kind: HelmChart, name: app, namespace: $ns-owner}}")
	r.Released(t, "web", 1)
	h.RestartAgent(t, "--no-cross-namespace-refs=true", "--default-service-account=nobody")
	r.Ask(t, &helmv2.HelmRelease{}, "web")
	message := "cross-namespace references are not allowed: cannot access HelmChart " + r.Namespace + "-owner/app"
	r.ReleaseTells(t, "web", "Stalled", "True", "AccessDenied", message)
	r.ReleaseTells(t, "web", "Ready", "False", "AccessDenied", message)
	r.Has(t, "web-settings", "color", "red")
	r.Release(t, "own", "{}")
	r.ReleaseTells(t, "own", "Ready", "False", "", "...system:serviceaccount:"+r.Namespace+":nobody")
}

func (h *releaseSpec) install(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	o := r.Released(t, "web", 1)
	message := "Helm install succeeded for release " + r.Namespace + "/web.v1 with chart app@1.0.0"
	r.ReleaseTells(t, "web", "Ready", "True", "InstallSucceeded", message)
	r.ReleaseTells(t, "web", "Released", "True", "InstallSucceeded", message)
	r.Event(t, "HelmRelease", "web", "InstallSucceeded", message)

	s := o.Status.History.Latest()
	if s.Name != "web" || s.Namespace != r.Namespace || s.Version != 1 || s.Status != "deployed" || s.ChartName != "app" || s.ChartVersion != "1.0.0" || s.AppVersion != "7" ||
		!strings.HasPrefix(s.Digest, "sha256:") || !strings.HasPrefix(s.ConfigDigest, "sha256:") || s.Action != "install" || s.FirstDeployed.IsZero() || s.LastDeployed.IsZero() {
		t.Errorf("the snapshot is %+v", s)
	}
	st := o.Status
	if len(st.History) != 1 || st.StorageNamespace != r.Namespace || st.HelmChart != r.Namespace+"/"+r.Namespace+"-web" || st.LastAttemptedRevision != "1.0.0" || st.LastAttemptedGeneration != o.Generation ||
		st.LastAttemptedConfigDigest != s.ConfigDigest || st.LastAttemptedReleaseAction != "install" || st.LastAttemptedReleaseActionDuration == nil || st.Failures != 0 {
		t.Errorf("status is %+v", st)
	}
	if diff := cmp.Diff([]string{r.Namespace + "_web-settings__ConfigMap v1"}, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"v1 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	secret := &corev1.Secret{}
	if err := r.Load(t.Context(), secret, r.Namespace, "sh.helm.release.v1.web.v1"); err != nil || secret.Type != "helm.sh/release.v1" {
		t.Errorf("Helm's Secret has type %q, %v", secret.Type, err)
	}
	u := r.Object(t, "v1", "ConfigMap", "web-settings")
	labels := map[string]string{"app.kubernetes.io/managed-by": "Helm", "helm.toolkit.fluxcd.io/name": "web", "helm.toolkit.fluxcd.io/namespace": r.Namespace}
	if diff := cmp.Diff(labels, u.GetLabels()); diff != "" {
		t.Errorf("labels: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"meta.helm.sh/release-name": "web", "meta.helm.sh/release-namespace": r.Namespace}, u.GetAnnotations()); diff != "" {
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
	r.Artifact(t, c, r.Namespace+"-web", "1.0.0")
	if c.Labels["helm.toolkit.fluxcd.io/name"] != "web" || c.Labels["helm.toolkit.fluxcd.io/namespace"] != r.Namespace || !slices.ContainsFunc(c.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "helm-controller" && m.Operation == metav1.ManagedFieldsOperationApply
	}) {
		t.Errorf("labels %v, managers %v", c.Labels, c.ManagedFields)
	}
	// With nothing new nothing happens.
	r.Request(t, "web")
	r.Released(t, "web", 1)
	if got := r.Object(t, "v1", "ConfigMap", "web-settings"); got.GetResourceVersion() != u.GetResourceVersion() {
		t.Error("the object was written without a reason")
	}
}

func (h *releaseSpec) upgrade(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "chart: {spec: {version: 1.1.0}}")
	o := r.Released(t, "web", 2)
	r.ReleaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "Helm upgrade succeeded for release "+r.Namespace+"/web.v2 with chart app@1.1.0")
	r.History(t, "web", r.Namespace+"/web.v2 deployed app@1.1.0", r.Namespace+"/web.v1 superseded app@1.0.0")
	if o.Status.History.Latest().Action != "upgrade" || o.Status.LastAttemptedReleaseAction != "upgrade" || o.Status.LastAttemptedRevision != "1.1.0" {
		t.Errorf("status is %+v", o.Status)
	}
	// Values count as much as the chart.
	r.Release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {settings: {color: blue}}}")
	o = r.Released(t, "web", 3)
	r.Has(t, "web-settings", "color", "blue")
	if diff := cmp.Diff([]string{"v1 superseded", "v2 superseded", "v3 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if o.Status.History[0].ConfigDigest == o.Status.History[1].ConfigDigest {
		t.Error("other values have the same digest")
	}
	// The order of values does not.
	r.Release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {objects: [], settings: {color: blue}}}")
	r.Released(t, "web", 4)
	r.Release(t, "web", "{chart: {spec: {version: 1.1.0}}, values: {settings: {color: blue}, objects: []}}")
	r.Request(t, "web")
	r.Released(t, "web", 4)
}

func (h *releaseSpec) dependsOnReleases(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "second", "dependsOn: [{name: first}]")
	r.ReleaseTells(t, "second", "Ready", "False", "DependencyNotReady", "unable to get '"+r.Namespace+"/first' dependency: ")
	r.Event(t, "HelmRelease", "second", "DependencyNotReady", "unable to get '"+r.Namespace+"/first' dependency: ")
	r.Release(t, "first", "values: {refuse: on purpose}")
	r.ReleaseTells(t, "second", "Ready", "False", "DependencyNotReady", "dependency '"+r.Namespace+"/first' is not ready")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "second-settings")
	r.Release(t, "first", "{}")
	r.Released(t, "second", 1)
}

func (h *releaseSpec) dependsOnReadyExpr(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "first", "values: {refuse: on purpose}")
	r.Release(t, "second", `dependsOn: [{name: first, readyExpr: "dep.metadata.annotations['go'] == self.metadata.name"}]`)
	r.Patch(t, &helmv2.HelmRelease{}, "first", `{"metadata":{"annotations":{"go":"nobody"}}}`)
	r.Request(t, "second")
	r.ReleaseTells(t, "second", "Ready", "False", "DependencyNotReady", "dependency '"+r.Namespace+"/first' is not ready according to readyExpr eval")
	// It says nothing of the dependency's own readiness.
	r.Patch(t, &helmv2.HelmRelease{}, "first", `{"metadata":{"annotations":{"go":"second"}}}`)
	r.Released(t, "second", 1)
	r.Release(t, "third", `dependsOn: [{name: first, readyExpr: "not CEL at all"}]`)
	r.ReleaseTells(t, "third", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.ReleaseTells(t, "third", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
}

// persistentClient: without one a chart may bring a kind and, from a hook on, its
// objects.
func (h *releaseSpec) persistentClient(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "persistentClient: false")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{persistentClient: false, values: {settings: {color: blue}}}")
	r.Released(t, "web", 2)
}

func (h *releaseSpec) waitTimeout(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{timeout: 20s, values: {objects: ["+scenario.SlowDeployment+"]}}")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "...Deployment/"+r.Namespace+"/slow status: 'InProgress'")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "Failed to install after 1 attempt(s)")
}

func (h *releaseSpec) disableWait(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{timeout: 10m, install: {disableWait: true}, upgrade: {disableWait: true}, values: {objects: ["+scenario.SlowDeployment+"]}}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{timeout: 10m, install: {disableWait: true}, upgrade: {disableWait: true}, values: {settings: {color: blue}, objects: ["+scenario.SlowDeployment+"]}}")
	r.Released(t, "web", 2)
}

func (h *releaseSpec) healthCheckExprs(t *testing.T) {
	r := h.Row(t, scenario.WithFiles(scenario.AppChart("$ns", "1.0.0"), map[string]string{"crds/crd.yaml": scenario.ThingCRD}))
	r.Release(t, "web", `{timeout: 10m, chart: {spec: {chart: $ns}}, values: {objects: [{apiVersion: $ns.example.com/v1, kind: Thing, metadata: {name: thing}}]},
healthCheckExprs: [{apiVersion: $ns.example.com/v1, kind: Thing, inProgress: "!has(status.phase)", failed: "status.phase == 'Bad'", current: "status.phase == 'Good'"}]}`)
	r.ReleaseTells(t, "web", "Ready", "Unknown", "Progressing", "Running 'install' action with timeout of 10m0s")
	r.ReleaseTells(t, "web", "Reconciling", "True", "Progressing", "Running 'install' action with timeout of 10m0s")
	u := stage.Object(r.Namespace+".example.com/v1", "Thing")
	scenario.Eventually(t, scenario.Converge, "the thing is there", func(ctx context.Context) error { return r.Load(ctx, u, r.Namespace, "thing") })
	if err := r.Client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Good"}}`))); err != nil {
		t.Fatal(err)
	}
	r.Released(t, "web", 1)
}

func (h *releaseSpec) healthCheckExprsInvalid(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: 'not CEL at all'}]")
	r.ReleaseTells(t, "web", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.ReleaseTells(t, "web", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "web-settings")
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
}

func (h *releaseSpec) waitStrategyLegacy(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "slow", "{timeout: 3s, waitStrategy: {name: legacy}, values: {objects: ["+scenario.SlowDeployment+"]}}")
	r.Release(t, "web", "waitStrategy: {name: legacy}")
	r.Released(t, "web", 1)
	r.ReleaseTells(t, "slow", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/slow with chart app@1.0.0: ")
}

// hooks run around what they are for, and not if they are not wanted.
func (h *releaseSpec) hooks(t *testing.T) {
	r := h.Row(t)
	objects := "values: {objects: [" + hook("before", "pre-install", `"true"`, "") + ", " + hook("after", "post-install", `"true"`, `, helm.sh/hook-delete-policy: hook-succeeded`) + "]}"
	r.Release(t, "without", "{install: {disableHooks: true}, "+objects+"}")
	r.Released(t, "without", 1)
	r.Absent(t, &corev1.Pod{}, r.Namespace, "before")
	r.Release(t, "web", "{"+objects+"}")
	r.Released(t, "web", 1)
	r.Object(t, "v1", "Pod", "before")
	r.Gone(t, &corev1.Pod{}, "after")
	r.Release(t, "failing", "{values: {objects: ["+hook("failing", "pre-install", `"false"`, "")+"]}}")
	r.ReleaseTells(t, "failing", "Ready", "False", "InstallFailed", "Helm install failed for release "+r.Namespace+"/failing with chart app@1.0.0: ")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "failing-settings")
}

func (h *releaseSpec) suspendRelease(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{suspend: true, chart: {spec: {version: 1.1.0}}}")
	r.Request(t, "web")
	r.History(t, "web", r.Namespace+"/web.v1 deployed app@1.0.0")
	c := &sourcev1.HelmChart{}
	if err := r.Load(t.Context(), c, r.Namespace, r.Namespace+"-web"); err != nil || c.Spec.Version != "1.0.0" {
		t.Errorf("the chart's version is %s, %v", c.Spec.Version, err)
	}
	r.Release(t, "web", "{chart: {spec: {version: 1.1.0}}}")
	r.Released(t, "web", 2)
}

// waitForJobs: a Job that does not end is waited for, or not.
func (h *releaseSpec) waitForJobs(t *testing.T) {
	r := h.Row(t)
	job := "values: {objects: [{apiVersion: batch/v1, kind: Job, metadata: {name: %s}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: 'cascade.local/e2e:dev', command: [sleep, '1000000']}]}}}}]}"
	r.Release(t, "waiting", "{timeout: 3s, "+fmt.Sprintf(job, "waiting")+"}")
	r.ReleaseTells(t, "waiting", "Ready", "False", "InstallFailed", "...Job/"+r.Namespace+"/waiting status: 'InProgress'")
	r.Release(t, "free", "{timeout: 1m, install: {disableWaitForJobs: true}, waitStrategy: {name: legacy}, "+fmt.Sprintf(job, "free")+"}")
	r.Released(t, "free", 1)
}

// waitingHoldsNoWorker: more releases than are reconciled at the same time never become
// ready, and another one is not delayed.
func (h *releaseSpec) waitingHoldsNoWorker(t *testing.T) {
	r := h.Row(t)
	const hung = 12
	for i := range hung {
		name := fmt.Sprint("hung-", i)
		r.Release(t, name, fmt.Sprintf("{timeout: 10m, values: {objects: [{apiVersion: batch/v1, kind: Job, metadata: {name: %s}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: run, image: 'cascade.local/e2e:dev', command: [sleep, '1000000']}]}}}}]}}", name))
	}
	for i := range hung {
		r.ReleaseTells(t, fmt.Sprint("hung-", i), "Reconciling", "True", "Progressing", "Running 'install' action with timeout of 10m0s")
	}
	r.Release(t, "good", "{}")
	r.Released(t, "good", 1)
	for i := range hung {
		r.ReleaseTells(t, fmt.Sprint("hung-", i), "Ready", "Unknown", "Progressing", "Running 'install' action with timeout of 10m0s")
	}
}

// clusterScoped: a namespace in the manifest of a cluster-scoped object does not make it
// another object. Helm alone would delete it when the namespace changes.
func (h *releaseSpec) clusterScoped(t *testing.T) {
	r := h.Row(t)
	role := func(namespace string) string {
		return `values: {objects: [{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "$ns"` + namespace + `}, rules: []}]}`
	}
	r.Release(t, "web", role(", namespace: one"))
	r.Released(t, "web", 1)
	uid := r.Object(t, "rbac.authorization.k8s.io/v1", "ClusterRole", r.Namespace).GetUID()
	for i, namespace := range []string{", namespace: two", "", ", namespace: one"} {
		r.Release(t, "web", role(namespace))
		o := r.Released(t, "web", i+2)
		if want := "_" + r.Namespace + "_rbac.authorization.k8s.io_ClusterRole v1"; !slices.Contains(scenario.ReleaseInventory(o), want) {
			t.Errorf("inventory %v has no %s", scenario.ReleaseInventory(o), want)
		}
		if r.Object(t, "rbac.authorization.k8s.io/v1", "ClusterRole", r.Namespace).GetUID() != uid {
			t.Fatalf("metadata%q: the object is another one", namespace)
		}
	}
}

// inventory is what the last release made, and what is in it no more goes.
func (h *releaseSpec) inventory(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", `values: {objects: [
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web}}, {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "$ns:reader"}, rules: []},
{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, annotations: {helm.sh/resource-policy: keep}}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: elsewhere, namespace: default}}]}`)
	o := r.Released(t, "web", 1)
	want := []string{
		"_" + r.Namespace + "__reader_rbac.authorization.k8s.io_ClusterRole v1", "default_elsewhere__ConfigMap v1",
		r.Namespace + "_kept__ConfigMap v1", r.Namespace + "_web-settings__ConfigMap v1", r.Namespace + "_web__ServiceAccount v1",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.Release(t, "web", "{}")
	o = r.Released(t, "web", 2)
	if diff := cmp.Diff([]string{r.Namespace + "_web-settings__ConfigMap v1"}, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.Absent(t, &corev1.ServiceAccount{}, r.Namespace, "web")
	r.Absent(t, &corev1.ConfigMap{}, "default", "elsewhere")
	r.Object(t, "v1", "ConfigMap", "kept")
}
