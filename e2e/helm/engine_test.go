package helm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	releasecommon "helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/syncer/release"
)

// TestReleaseEngine is what syncer/release promises beyond Flux's behaviour, on a
// real API server without controllers: what is never deleted, what an interval
// costs, and what hostile charts come to.
func TestReleaseEngine(t *testing.T) {
	scenario.Alongside(t)
	e := startEngine(t)
	parts := scenario.PartsOf(t)
	defer parts.Wait()
	for name, run := range map[string]func(*testing.T, *engineRow){
		"InSyncCostsOneList":           inSyncCostsOneList,
		"StoredChartIsTheOriginal":     storedChartIsTheOriginal,
		"UpgradeHoldsCluster":          upgradeHoldsCluster,
		"TemplatesStayWithTheCluster":  templatesStayWithTheCluster,
		"UninstallHoldsCluster":        uninstallHoldsCluster,
		"FailureUninstallsNoCluster":   failureUninstallsNoCluster,
		"FailureUninstallsTheRest":     failureUninstallsTheRest,
		"RollbackHoldsCluster":         rollbackHoldsCluster,
		"TargetChangeHoldsCluster":     targetChangeHoldsCluster,
		"UninstallSparesForeign":       uninstallSparesForeign,
		"NamespaceInUseIsHeld":         namespaceInUseIsHeld,
		"HostileTemplate":              hostileTemplate,
		"HostileSchema":                hostileSchema,
		"HostilePostRenderer":          hostilePostRenderer,
		"HostileStorage":               hostileStorage,
		"SecretsAreNotTold":            secretsAreNotTold,
		"LockIsTakenAway":              lockIsTakenAway,
		"CancelledActionLeavesNoLock":  cancelledActionLeavesNoLock,
		"ChangedByHelmIsUpgraded":      changedByHelmIsUpgraded,
		"DriftIsCorrected":             driftIsCorrected,
		"DriftIsToldOf":                driftIsToldOf,
		"DefinitionsThenTheirObjects":  definitionsThenTheirObjects,
		"DefinitionsAreNeverLeftovers": definitionsAreNeverLeftovers,
		"KeptByThePolicyOfTheChart":    keptByThePolicyOfTheChart,
		"ManyReleasesShareDiscovery":   manyReleasesShareDiscovery,
		"EditedStorageDeletesNothing":  editedStorageDeletesNothing,
		"HookDeletesNothingElse":       hookDeletesNothingElse,
		"HookEndsNoNamespace":          hookEndsNoNamespace,
		"FailureForgetsNothing":        failureForgetsNothing,
		"UninstallLeavesKept":          uninstallLeavesKept,
		"ChangedTargetMovesTheRelease": changedTargetMovesTheRelease,
	} {
		parts.Run(name, func(t *testing.T) {
			run(t, e.row(t))
		})
	}
}

const (
	settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: '{{ .Values.a }}'}\n"
	prod     = "apiVersion: cluster.x-k8s.io/v1\nkind: Cluster\nmetadata: {name: prod}\nspec: {a: '{{ .Values.a }}'}\n"
	// never is a Deployment that never gets ready, where nothing runs it.
	never = `apiVersion: apps/v1
kind: Deployment
metadata: {name: never}
spec:
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: "i:{{ .Values.a }}"}]}}
`
)

func inSyncCostsOneList(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.values["a"] = "1"
	r.mustSync(t)
	installing := r.taken()
	if cm := r.there(t, "", "ConfigMap", "settings"); cm == nil || cm.GetLabels()["helm.toolkit.fluxcd.io/name"] != "web" {
		t.Fatalf("the ConfigMap is %v", cm)
	}
	if got, want := r.inventory(), []string{r.ns + "_settings__ConfigMap"}; !slices.Equal(got, want) {
		t.Errorf("inventory is %v, want %v", got, want)
	}
	saves := r.saves
	loads := 0
	request := r.request()
	load := request.Chart.Load
	request.Chart.Load = func(ctx context.Context) (*chart.Chart, error) { loads++; return load(ctx) }
	for range 3 {
		if out, err := r.releases.Sync(t.Context(), request); err != nil || out != (release.Outcome{}) {
			t.Fatalf("Sync() = %+v, %v\n%s", out, err, r.tell())
		}
	}
	want := []string{"GET /api/v1/namespaces/" + r.ns + "/secrets"}
	want = append(want, want[0], want[0])
	if got := r.taken(); !slices.Equal(got, want) {
		t.Errorf("three intervals take %v, want one list of metadata each", got)
	}
	if loads != 0 || r.saves != saves {
		t.Errorf("three intervals load the chart %d times and save %d times, want never", loads, r.saves-saves)
	}
	t.Logf("an install takes %d requests: %v", len(installing), installing)
	for _, q := range installing {
		if strings.Contains(q, "/openapi/") {
			t.Errorf("an install asks for OpenAPI: %s", q)
		}
	}
	// Another process, or one that was restarted, reads the release once.
	r.releases = newReleases(t, r.events)
	r.mustSync(t)
	if got := r.taken(); len(got) != 2 {
		t.Errorf("after a start it takes %v, want a list and one Secret", got)
	}
	if latest := r.obj.Status.History.Latest(); len(r.obj.Status.History) != 1 || latest.Version != 1 {
		t.Errorf("history is %+v, want one revision", r.obj.Status.History)
	}
}

func storedChartIsTheOriginal(t *testing.T, r *engineRow) {
	text := "{{ range until 2 }}# {{ . }}\n{{ end }}" + settings
	r.use("1.0.0", map[string]string{"settings": text})
	r.mustSync(t)
	rel := r.last(t)
	if got := string(rel.Chart.Templates[0].Data); got != text {
		t.Errorf("the storage has template %q, want %q", got, text)
	}
	if rel.Info.Status != releasecommon.StatusDeployed || rel.ApplyMethod != "ssa" {
		t.Errorf("the storage has status %s and method %s", rel.Info.Status, rel.ApplyMethod)
	}
}

func upgradeHoldsCluster(t *testing.T, r *engineRow) {
	r.values["a"] = "1"
	r.use("1.0.0", map[string]string{"settings": settings, "prod": prod})
	r.mustSync(t)
	uid := r.there(t, "cluster.x-k8s.io", "Cluster", "prod").GetUID()
	r.values["a"] = "2"
	r.use("1.1.0", map[string]string{"settings": settings})
	out, err := r.sync(t)
	if err != nil || !out.Held {
		t.Fatalf("Sync() = %+v, %v, want it held\n%s", out, err, r.tell())
	}
	held := func(when string) {
		t.Helper()
		if c := r.there(t, "cluster.x-k8s.io", "Cluster", "prod"); c == nil || c.GetUID() != uid || c.GetDeletionTimestamp() != nil {
			t.Fatalf("%s the Cluster is %v", when, c)
		}
		ready := conditions.Get(r.obj, meta.ReadyCondition)
		if ready.Reason != v1alpha1.ReasonPruneBlocked || !strings.Contains(ready.Message, "Cluster/"+r.ns+"/prod") || !conditions.IsTrue(r.obj, v1alpha1.PruneBlockedCondition) {
			t.Errorf("%s Ready is %+v", when, ready)
		}
		if !slices.Contains(r.inventory(), r.ns+"_prod_cluster.x-k8s.io_Cluster") {
			t.Errorf("%s nobody answers for the Cluster: %v", when, r.inventory())
		}
	}
	held("after the upgrade")
	if cm := r.there(t, "", "ConfigMap", "settings"); cm.Object["data"].(map[string]any)["a"] != "2" {
		t.Errorf("the rest was not applied: %v", cm.Object["data"])
	}
	since := conditions.Get(r.obj, meta.ReadyCondition).LastTransitionTime
	events := r.events.String()
	if out, err := r.sync(t); err != nil || !out.Held {
		t.Fatalf("the next interval: %+v, %v", out, err)
	}
	held("at the next interval")
	if now := conditions.Get(r.obj, meta.ReadyCondition).LastTransitionTime; now != since || r.events.String() != events {
		t.Errorf("an interval with no news changes Ready (%s, %s) or tells more", since, now)
	}
	r.values["a"] = "3"
	if out, err := r.sync(t); err != nil || !out.Held {
		t.Fatalf("another upgrade: %+v, %v\n%s", out, err, r.tell())
	}
	held("after another upgrade")
	r.annotate(t, r.there(t, "cluster.x-k8s.io", "Cluster", "prod"))
	r.mustSync(t)
	if c := r.there(t, "cluster.x-k8s.io", "Cluster", "prod"); c != nil {
		t.Errorf("the confirmed Cluster is still there")
	}
	if slices.Contains(r.inventory(), r.ns+"_prod_cluster.x-k8s.io_Cluster") || conditions.Has(r.obj, v1alpha1.PruneBlockedCondition) || conditions.IsStalled(r.obj) {
		t.Errorf("something is left of it: %v\n%s", r.inventory(), r.tell())
	}
}

func templatesStayWithTheCluster(t *testing.T, r *engineRow) {
	machines := `apiVersion: infrastructure.cluster.x-k8s.io/v1
kind: AWSMachineTemplate
metadata: {name: 'workers-{{ .Values.a }}', labels: {cluster.x-k8s.io/cluster-name: prod}}
`
	r.use("1.0.0", map[string]string{"prod": prod, "machines": machines})
	r.values["a"] = "1"
	r.mustSync(t)
	r.values["a"] = "2"
	r.mustSync(t)
	if r.there(t, "infrastructure.cluster.x-k8s.io", "AWSMachineTemplate", "workers-1") == nil || r.there(t, "infrastructure.cluster.x-k8s.io", "AWSMachineTemplate", "workers-2") == nil {
		t.Error("a template went before its Cluster")
	}
	if id := r.ns + "_workers-1_infrastructure.cluster.x-k8s.io_AWSMachineTemplate"; !slices.Contains(r.inventory(), id) {
		t.Errorf("nobody answers for the template of before: %v", r.inventory())
	}
}

func uninstallHoldsCluster(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings, "prod": prod})
	r.mustSync(t)
	out, err := r.releases.Uninstall(t.Context(), r.request())
	if err != nil || !out.Held || conditions.GetReason(r.obj, meta.ReadyCondition) != v1alpha1.ReasonPruneBlocked {
		t.Fatalf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "", "ConfigMap", "settings") == nil || r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil || r.last(t).Info.Status != releasecommon.StatusDeployed {
		t.Fatal("a part of the release is gone")
	}
	// A person confirms on the HelmRelease. Something holds the Cluster for a while.
	cluster := r.there(t, "cluster.x-k8s.io", "Cluster", "prod")
	cluster.SetFinalizers([]string{"example.com/teardown"})
	if err := r.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	r.obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
	for range 2 {
		if out, err = r.releases.Uninstall(t.Context(), r.request()); err != nil || out.After == 0 {
			t.Fatalf("Uninstall() = %+v, %v, want it to wait for the Cluster\n%s", out, err, r.tell())
		}
	}
	cluster = r.there(t, "cluster.x-k8s.io", "Cluster", "prod")
	if cluster == nil || cluster.GetDeletionTimestamp() == nil || r.there(t, "", "ConfigMap", "settings") == nil {
		t.Fatal("the Cluster has to go first, and the rest after it")
	}
	cluster.SetFinalizers(nil)
	if err := r.client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for out = (release.Outcome{Again: true}); out.Again; {
		if out, err = r.releases.Uninstall(t.Context(), r.request()); err != nil {
			t.Fatalf("Uninstall(): %v\n%s", err, r.tell())
		}
	}
	if _, err := r.storage().Last("web"); out != (release.Outcome{}) || r.there(t, "", "ConfigMap", "settings") != nil || err == nil || r.obj.Status.StorageNamespace != "" {
		t.Errorf("Uninstall() = %+v, and something is left: %v\n%s", out, err, r.tell())
	}
}

func failureUninstallsNoCluster(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"prod": prod, "never": never})
	r.obj.Spec.Install = &v2.Install{Timeout: &metav1.Duration{Duration: 2 * time.Second}, Remediation: &v2.InstallRemediation{Retries: 2}}
	r.obj.Spec.Upgrade = &v2.Upgrade{Timeout: &metav1.Duration{Duration: 2 * time.Second}}
	out, err := r.sync(t)
	if err != nil || !out.Stalled || conditions.GetReason(r.obj, meta.StalledCondition) != "RetriesExceeded" {
		t.Fatalf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil || strings.Contains(r.events.String(), "Uninstall") {
		t.Errorf("a failed release with a Cluster was uninstalled\n%s", r.tell())
	}
	// Each retry is one more revision in its place (read 585).
	if rel := r.last(t); rel.Version != 3 || rel.Info.Status != releasecommon.StatusFailed {
		t.Errorf("the storage has revision %d, %s, want two retries in place", rel.Version, rel.Info.Status)
	}
}

func failureUninstallsTheRest(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings, "never": never})
	r.obj.Spec.Install = &v2.Install{Timeout: &metav1.Duration{Duration: 2 * time.Second}, Remediation: &v2.InstallRemediation{Retries: 1, RemediateLastFailure: new(true)}}
	out, err := r.sync(t)
	if err != nil || !out.Stalled || r.obj.Status.InstallFailures != 2 {
		t.Fatalf("Sync() = %+v, %v after %d failures\n%s", out, err, r.obj.Status.InstallFailures, r.tell())
	}
	if r.there(t, "", "ConfigMap", "settings") != nil || conditions.GetReason(r.obj, v2.RemediatedCondition) != v2.UninstallSucceededReason {
		t.Errorf("an ordinary release is uninstalled to start over, as with Flux\n%s", r.tell())
	}
	if !strings.Contains(r.events.String(), "Last Helm logs:") {
		t.Errorf("events do not have what Helm said:\n%s", r.events)
	}
}

func rollbackHoldsCluster(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.mustSync(t)
	r.obj.Spec.Upgrade = &v2.Upgrade{Timeout: &metav1.Duration{Duration: 2 * time.Second}, Remediation: &v2.UpgradeRemediation{RemediateLastFailure: new(true)}}
	r.obj.Generation++
	r.use("1.1.0", map[string]string{"settings": settings, "prod": prod, "never": never})
	out, err := r.sync(t)
	if err != nil || !out.Stalled || conditions.GetReason(r.obj, v2.RemediatedCondition) != v2.RollbackSucceededReason {
		t.Fatalf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "apps", "Deployment", "never") != nil {
		t.Error("the rollback did not take back what the upgrade made")
	}
	if r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil || !slices.Contains(r.inventory(), r.ns+"_prod_cluster.x-k8s.io_Cluster") {
		t.Errorf("the rollback deleted the Cluster, or nobody answers for it: %v", r.inventory())
	}
}

func targetChangeHoldsCluster(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"prod": prod})
	r.mustSync(t)
	r.obj.Spec.ReleaseName = "other"
	out, err := r.sync(t)
	if err != nil || !out.Held || r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil {
		t.Fatalf("Sync() = %+v, %v, want nothing uninstalled\n%s", out, err, r.tell())
	}
}

func changedTargetMovesTheRelease(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.mustSync(t)
	r.obj.Spec.ReleaseName = "other"
	r.obj.Generation++
	r.mustSync(t)
	if _, err := r.storage().Last("web"); err == nil {
		t.Error("the release under the name of before is still there")
	}
	if cm := r.there(t, "", "ConfigMap", "settings"); cm == nil || cm.GetAnnotations()["meta.helm.sh/release-name"] != "other" {
		t.Errorf("the ConfigMap is %v", cm)
	}
}

func uninstallSparesForeign(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings, "mine": strings.ReplaceAll(settings, "settings", "mine")})
	r.mustSync(t)
	cm := r.there(t, "", "ConfigMap", "settings")
	cm.SetLabels(map[string]string{"helm.toolkit.fluxcd.io/name": "api", "helm.toolkit.fluxcd.io/namespace": r.ns})
	cm.SetAnnotations(map[string]string{"meta.helm.sh/release-name": "api", "meta.helm.sh/release-namespace": r.ns})
	if err := r.client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || out != (release.Outcome{}) {
		t.Fatalf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
	if r.there(t, "", "ConfigMap", "settings") == nil || r.there(t, "", "ConfigMap", "mine") != nil {
		t.Error("what another release took over has to stay, and the rest to go")
	}
}

func namespaceInUseIsHeld(t *testing.T, r *engineRow) {
	name := r.ns + "-inner"
	r.use("1.0.0", map[string]string{"inner": "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"})
	r.mustSync(t)
	guest := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "guest", Namespace: name}}
	if err := r.client.Create(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || !out.Held {
		t.Fatalf("Uninstall() = %+v, %v, want the Namespace held\n%s", out, err, r.tell())
	}
}

func lockIsTakenAway(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.mustSync(t)
	rel := r.last(t)
	rel.Info.Status = releasecommon.StatusPendingUpgrade
	rel.Version = 2
	if err := r.storage().Create(rel); err != nil {
		t.Fatal(err)
	}
	r.mustSync(t)
	if rel := r.last(t); rel.Info.Status != releasecommon.StatusDeployed || rel.Version != 3 {
		t.Errorf("the storage has revision %d, %s", rel.Version, rel.Info.Status)
	}
	if !strings.Contains(r.events.String(), "Unlocked Helm release "+r.ns+"/web.v2 with chart web@1.0.0 in pending-upgrade state") {
		t.Errorf("nobody told of the lock:\n%s", r.events)
	}
}

func cancelledActionLeavesNoLock(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"never": never})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request := r.request()
	ended := make(chan error, 1)
	go func() {
		_, err := r.releases.Sync(ctx, request)
		ended <- err
	}()
	soon(t, func() error {
		_, err := r.storage().Last("web")
		return err
	})
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Sync() was cancelled and knows of nothing")
		}
	case <-time.After(scenario.Converge):
		t.Fatal("Sync() does not end with its context")
	}
	if s := r.last(t).Info.Status; s != releasecommon.StatusFailed {
		t.Errorf("the storage has %s, want no lock", s)
	}
}

func changedByHelmIsUpgraded(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.mustSync(t)
	rel := r.last(t)
	rel.Version, rel.Config = 2, map[string]any{"a": "by hand"}
	if err := r.storage().Create(rel); err != nil {
		t.Fatal(err)
	}
	r.mustSync(t)
	if rel := r.last(t); rel.Version != 3 || len(rel.Config) != 0 {
		t.Errorf("the storage has revision %d with %v, want it upgraded again", rel.Version, rel.Config)
	}
}

func driftIsCorrected(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings, "other": strings.ReplaceAll(settings, "settings", "other")})
	r.obj.Spec.DriftDetection = &v2.DriftDetection{Mode: v2.DriftDetectionEnabled}
	r.values["a"] = "1"
	r.mustSync(t)
	cm := r.there(t, "", "ConfigMap", "settings")
	cm.Object["data"] = map[string]any{"a": "changed"}
	if err := r.client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Delete(t.Context(), r.there(t, "", "ConfigMap", "other")); err != nil {
		t.Fatal(err)
	}
	r.mustSync(t)
	if cm := r.there(t, "", "ConfigMap", "settings"); cm.Object["data"].(map[string]any)["a"] != "1" || r.there(t, "", "ConfigMap", "other") == nil {
		t.Errorf("drift was not corrected\n%s", r.tell())
	}
	for _, want := range []string{"DriftDetected", "ConfigMap/" + r.ns + "/settings changed (0 additions, 1 changes, 0 removals)", "DriftCorrected"} {
		if !strings.Contains(r.events.String(), want) {
			t.Errorf("events do not have %q:\n%s", want, r.events)
		}
	}
	if c := conditions.Get(r.obj, v2.DriftedCondition); c == nil || c.Reason != v2.NoDriftDetectedReason {
		t.Errorf("Drifted is %+v", c)
	}
}

func driftIsToldOf(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.obj.Spec.DriftDetection = &v2.DriftDetection{Mode: v2.DriftDetectionWarn}
	r.mustSync(t)
	cm := r.there(t, "", "ConfigMap", "settings")
	cm.Object["data"] = map[string]any{"a": "changed"}
	if err := r.client.Update(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
	r.mustSync(t)
	if cm := r.there(t, "", "ConfigMap", "settings"); cm.Object["data"].(map[string]any)["a"] != "changed" || !conditions.IsTrue(r.obj, v2.DriftedCondition) {
		t.Errorf("drift is to be told of, not corrected\n%s", r.tell())
	}
}

func definitionsThenTheirObjects(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"thing": "apiVersion: first.example.com/v1\nkind: Thing\nmetadata: {name: one}\n"})
	r.chart.Files = append(r.chart.Files, &common.File{Name: "crds/things.yaml", Data: []byte(definition("first.example.com", "Thing", "things"))})
	r.mustSync(t)
	if r.there(t, "first.example.com", "Thing", "one") == nil {
		t.Error("an object of the new kind is not there")
	}
	if id := "_things.first.example.com_apiextensions.k8s.io_CustomResourceDefinition"; !slices.Contains(r.inventory(), id) {
		t.Errorf("inventory is %v, want the definition in it", r.inventory())
	}
}

func definitionsAreNeverLeftovers(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.chart.Files = append(r.chart.Files, &common.File{Name: "crds/things.yaml", Data: []byte(definition("second.example.com", "Thing", "things"))})
	r.mustSync(t)
	r.use("1.1.0", map[string]string{"settings": settings})
	r.mustSync(t)
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || out != (release.Outcome{}) {
		t.Fatalf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := r.client.Get(t.Context(), client.ObjectKey{Name: "things.second.example.com"}, crd); err != nil {
		t.Errorf("the definition is gone with the release: %v", err)
	}
}

func keptByThePolicyOfTheChart(t *testing.T, r *engineRow) {
	kept := strings.Replace(prod, "{name: prod}", "{name: prod, annotations: {helm.sh/resource-policy: keep}}", 1)
	r.use("1.0.0", map[string]string{"settings": settings, "prod": kept})
	r.mustSync(t)
	r.use("1.1.0", map[string]string{"settings": settings})
	r.mustSync(t)
	if r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil || conditions.Has(r.obj, v1alpha1.PruneBlockedCondition) {
		t.Errorf("what the chart leaves behind is no question\n%s", r.tell())
	}
	r.use("1.2.0", map[string]string{"settings": settings, "prod": kept})
	r.mustSync(t)
	if out, err := r.releases.Uninstall(t.Context(), r.request()); err != nil || out != (release.Outcome{}) || r.there(t, "cluster.x-k8s.io", "Cluster", "prod") == nil {
		t.Errorf("Uninstall() = %+v, %v\n%s", out, err, r.tell())
	}
}

func manyReleasesShareDiscovery(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}'}\n"})
	begin := time.Now()
	r.mustSync(t)
	first := r.taken()
	for i := range 5 {
		obj := r.obj.DeepCopy()
		obj.Status = v2.HelmReleaseStatus{}
		obj.Name, obj.UID = fmt.Sprint("web-", i), types.UID(fmt.Sprint(r.ns, i))
		r.obj = obj
		r.mustSync(t)
	}
	// That the API server is there holds for a quarter of a minute.
	ready := int(time.Since(begin) / (15 * time.Second))
	for _, q := range r.taken() {
		path := strings.TrimPrefix(q, "GET ")
		if path == "/readyz" && ready > 0 {
			ready--
			continue
		}
		if path == "/version" || path == "/api" || path == "/apis" || strings.HasPrefix(path, "/openapi") || path == "/readyz" {
			t.Errorf("another release on the same cluster asks %s again; the first asked %v", q, first)
		}
	}
}

func patches(text string) []kustomize.Patch {
	return []kustomize.Patch{{Patch: text, Target: &kustomize.Selector{Kind: "ConfigMap"}}}
}
