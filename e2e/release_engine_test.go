package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	releasecommon "helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/release"
)

// TestReleaseEngine is what syncer/release promises beyond Flux's behaviour, on a
// real API server without controllers: what is never deleted, what an interval
// costs, and what hostile charts come to.
func TestReleaseEngine(t *testing.T) {
	alongside(t)
	e := startEngine(t)
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
		"ChangedTargetMovesTheRelease": changedTargetMovesTheRelease,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, e.row(t))
		})
	}
}

// engine is an API server, and a connection that is counted.
type engine struct {
	config *rest.Config
	client client.Client
}

func startEngine(t *testing.T) *engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "cascade-engine-")
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs(filepath.Join("..", "bin", "controlplane"))
	if err != nil {
		t.Fatal(err)
	}
	plane := filepath.Join(dir, "plane")
	start := exec.CommandContext(t.Context(), program, "start", "--dir", plane, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid()))
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("cannot start API server: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(program, "stop", "--dir", plane).CombinedOutput(); err != nil {
			t.Errorf("cannot stop API server: %v: %s", err, out)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	e := &engine{}
	if e.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(plane, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	e.config.QPS = -1
	if e.client, err = client.New(e.config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct{ group, kind, plural string }{
		{"cluster.x-k8s.io", "Cluster", "clusters"},
		{"infrastructure.cluster.x-k8s.io", "AWSMachineTemplate", "awsmachinetemplates"},
	} {
		if err := stage.Apply(t.Context(), e.client, definition(kind.group, kind.kind, kind.plural)); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, func() error {
		return e.client.List(t.Context(), listOf("infrastructure.cluster.x-k8s.io", "AWSMachineTemplate"))
	})
	return e
}

func definition(group, kind, plural string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[2]s, plural: %[3]s, singular: %[4]s, listKind: %[2]sList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, kind, plural, strings.ToLower(kind))
}

func listOf(group, kind string) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind + "List"})
	return l
}

// soon waits until a check passes; the API server takes a moment to serve
// what is new.
func soon(t *testing.T, check func() error) {
	t.Helper()
	eventually(t, converge, "what is new is served", func(context.Context) error { return check() })
}

// engineRow is one HelmRelease in a namespace, with a connection of its own.
type engineRow struct {
	*engine
	releases *release.Releases
	cluster  *apply.Cluster
	obj      *v2.HelmRelease
	chart    *chart.Chart
	values   map[string]any
	ns       string
	events   *recorded
	saves    int

	mu       sync.Mutex
	requests []string
}

// RoundTrip counts.
type counting struct {
	row  *engineRow
	next http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.row.mu.Lock()
	c.row.requests = append(c.row.requests, r.Method+" "+r.URL.Path)
	c.row.mu.Unlock()
	return c.next.RoundTrip(r)
}

// taken are the requests since the last time.
func (r *engineRow) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.requests
	r.requests = nil
	return taken
}

// recorded are events.
type recorded struct {
	mu   sync.Mutex
	list []string
}

func (r *recorded) Event(_ runtime.Object, kind, reason, message string) {
	r.add(nil, kind, reason, message)
}

func (r *recorded) add(meta map[string]string, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprintf("%s %s %s %v", kind, reason, message, meta))
}

func (r *recorded) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	r.add(nil, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorded) AnnotatedEventf(_ runtime.Object, meta map[string]string, kind, reason, format string, args ...any) {
	r.add(meta, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorded) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.list, "\n")
}

func (e *engine) row(t *testing.T) *engineRow {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	r := &engineRow{engine: e, ns: strings.ToLower(name), events: &recorded{}, values: map[string]any{}}
	if err := e.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}); err != nil {
		t.Fatal(err)
	}
	r.connect(t)
	r.releases = &release.Releases{Events: r.events, Now: time.Now}
	r.obj = &v2.HelmRelease{TypeMeta: metav1.TypeMeta{APIVersion: v2.GroupVersion.String(), Kind: v2.HelmReleaseKind}}
	r.obj.Name, r.obj.Namespace, r.obj.UID, r.obj.Generation = "web", r.ns, types.UID(name), 1
	r.obj.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second}
	r.obj.Spec.MaxHistory = new(5)
	return r
}

func (r *engineRow) connect(t *testing.T) {
	t.Helper()
	config := rest.CopyConfig(r.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{r, next} })
	var err error
	if r.cluster, err = apply.Connect(config, clientgoscheme.Scheme); err != nil {
		t.Fatal(err)
	}
}

// use sets the chart, of a version and templates.
func (r *engineRow) use(version string, templates map[string]string) {
	r.chart = &chart.Chart{Metadata: &chart.Metadata{Name: "web", Version: version, AppVersion: "2.0", APIVersion: "v2"}, Values: map[string]any{}}
	for name, text := range templates {
		r.chart.Templates = append(r.chart.Templates, &common.File{Name: "templates/" + name + ".yaml", Data: []byte(text)})
	}
	slices.SortFunc(r.chart.Templates, func(a, b *common.File) int { return strings.Compare(a.Name, b.Name) })
}

func (r *engineRow) request() release.Request {
	c := r.chart
	return release.Request{
		Object: r.obj, Values: r.values, Cluster: r.cluster,
		Chart: release.Chart{
			Name: c.Name(), Version: c.Metadata.Version, AppVersion: c.AppVersion(),
			Load: func(context.Context) (*chart.Chart, error) { return c, nil },
		},
		Save: func(context.Context) error { r.saves++; return nil },
	}
}

// sync goes on until the engine has nothing more to do at once.
func (r *engineRow) sync(t *testing.T) (release.Outcome, error) {
	t.Helper()
	for range 10 {
		out, err := r.releases.Sync(t.Context(), r.request())
		if err == nil && !out.Again && !out.Stalled && !out.Held && out.After == 0 {
			r.obj.Status.ObservedGeneration = r.obj.Generation
		}
		if err != nil || !out.Again {
			return out, err
		}
	}
	t.Fatalf("it never ends: %s", r.tell())
	return release.Outcome{}, nil
}

// mustSync ends with the release as declared.
func (r *engineRow) mustSync(t *testing.T) {
	t.Helper()
	if out, err := r.sync(t); err != nil || out != (release.Outcome{}) || !conditions.IsReady(r.obj) {
		t.Fatalf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
}

func (r *engineRow) tell() string {
	var b strings.Builder
	for _, c := range r.obj.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	fmt.Fprintf(&b, "events:\n%s\n", r.events)
	return b.String()
}

// there reports whether an object is.
func (r *engineRow) there(t *testing.T, group, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	err := r.client.Get(t.Context(), client.ObjectKey{Namespace: r.ns, Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (r *engineRow) storage() *storage.Storage {
	return storage.Init(driver.NewSecrets(kubernetes.NewForConfigOrDie(r.config).CoreV1().Secrets(r.ns)))
}

func (r *engineRow) last(t *testing.T) *helmrelease.Release {
	t.Helper()
	rel, err := r.storage().Last("web")
	if err != nil {
		t.Fatal(err)
	}
	return rel.(*helmrelease.Release)
}

func (r *engineRow) annotate(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
	if err := r.client.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// inventory has the ids.
func (r *engineRow) inventory() []string {
	var ids []string
	if r.obj.Status.Inventory != nil {
		for _, e := range r.obj.Status.Inventory.Entries {
			ids = append(ids, e.ID)
		}
	}
	return ids
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
	r.releases = &release.Releases{Events: r.events, Now: time.Now}
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
	if rel := r.last(t); rel.Version != 2 || rel.Info.Status != releasecommon.StatusFailed {
		t.Errorf("the storage has revision %d, %s, want one more in place", rel.Version, rel.Info.Status)
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

func hostileTemplate(t *testing.T, r *engineRow) {
	for name, text := range map[string]string{
		"endless":  settings + "{{ range 9000000000000 }}{{ end }}",
		"itself":   settings + "{{ $d := dict }}{{ $_ := set $d \"d\" $d }}# {{ $d }}",
		"alias":    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: &a {k: *a}\n",
		"laughs":   "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n" + settings,
		"no-map":   "- a\n- b\n",
		"no-kind":  "metadata: {name: x}\n",
		"null":     "apiVersion: v1\nkind: ConfigMap\nmetadata: null\n",
		"badnames": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: [1], labels: 3, annotations: [x]}\n",
	} {
		r.use("1.0.0", map[string]string{"x": text})
		out, err := r.releases.Sync(t.Context(), r.request())
		if err == nil || !conditions.IsFalse(r.obj, v2.ReleasedCondition) || conditions.GetReason(r.obj, v2.ReleasedCondition) != v2.InstallFailedReason {
			t.Errorf("%s: Sync() = %+v, %v\n%s", name, out, err, r.tell())
		}
	}
	if _, err := r.storage().Last("web"); err == nil {
		t.Error("something was stored")
	}
}

func hostileSchema(t *testing.T, r *engineRow) {
	for name, schema := range map[string]string{
		"file":   `{"$ref": "file:///etc/hostname"}`,
		"remote": `{"properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json#/x"}}}`,
		"laughs": `{"definitions": {"a": {"allOf": [{"$ref": "#/definitions/b"}, {"$ref": "#/definitions/b"}]}` + laughing(40) + `}, "$ref": "#/definitions/a"}`,
	} {
		r.use("1.0.0", map[string]string{"settings": settings})
		r.chart.Schema = []byte(schema)
		if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "values.schema.json") {
			t.Errorf("%s: Sync() = %+v, %v", name, out, err)
		}
	}
	// What is a schema stays one: of itself too, and of values that do not fit.
	r.chart.Schema = []byte(`{"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}, "tree": {"$ref": "#/definitions/t"}}, "definitions": {"t": {"properties": {"sub": {"$ref": "#/definitions/t"}}}}}`)
	r.values = map[string]any{"a": "x", "tree": map[string]any{"sub": map[string]any{}}}
	r.mustSync(t)
	r.values = map[string]any{"a": 1}
	if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "want string") {
		t.Errorf("values that do not fit: %+v, %v", out, err)
	}
}

func laughing(n int) string {
	var b strings.Builder
	for i := range n {
		name, next := string(rune('b'+i%25))+strings.Repeat("x", i/25), string(rune('b'+(i+1)%25))+strings.Repeat("x", (i+1)/25)
		fmt.Fprintf(&b, `, %q: {"allOf": [{"$ref": "#/definitions/%s"}, {"$ref": "#/definitions/%s"}]}`, name, next, next)
	}
	return b.String()
}

func hostilePostRenderer(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	r.obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{Patches: patches("data: &a {k: *a}")}}}
	if out, err := r.releases.Sync(t.Context(), r.request()); err == nil || !strings.Contains(err.Error(), "contains itself") {
		t.Fatalf("Sync() = %+v, %v", out, err)
	}
	r.obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{Patches: patches(`[{"op": "add", "path": "/data/b", "value": "2"}]`)}}}
	r.obj.Spec.CommonMetadata = &v2.CommonMetadata{Labels: map[string]string{"team": "a"}}
	r.mustSync(t)
	if cm := r.there(t, "", "ConfigMap", "settings"); cm.Object["data"].(map[string]any)["b"] != "2" || cm.GetLabels()["team"] != "a" {
		t.Errorf("the ConfigMap is %v", cm)
	}
}

func hostileStorage(t *testing.T, r *engineRow) {
	r.use("1.0.0", map[string]string{"settings": settings})
	bomb := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "sh.helm.release.v1.web.v1", Namespace: r.ns, Labels: map[string]string{"owner": "helm", "name": "web", "version": "1", "status": "deployed"}},
		Type:       "helm.sh/release.v1", Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(zeros(t, 200<<20)))},
	}
	if err := r.client.Create(t.Context(), bomb); err != nil {
		t.Fatal(err)
	}
	out, err := r.sync(t)
	if err == nil || !strings.Contains(err.Error(), "expands to more than 64 MiB") || conditions.GetReason(r.obj, meta.ReadyCondition) != "StateError" {
		t.Errorf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
}

func secretsAreNotTold(t *testing.T, r *engineRow) {
	const secret = "hunter2-is-my-password"
	r.use("1.0.0", map[string]string{"s": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {p: '" + secret + "'}\nstringData: {q: {" + secret + ": 12345678}}\n"})
	out, err := r.sync(t)
	if err == nil && !out.Stalled && !out.Again {
		t.Fatalf("Sync() = %+v: an invalid Secret was applied", out)
	}
	if told := r.tell() + fmt.Sprint(err); strings.Contains(told, secret) || strings.Contains(told, "12345678") {
		t.Errorf("the value of a Secret is told:\n%s", told)
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
	case <-time.After(converge):
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

// zeros is much of nothing, compressed.
func zeros(t *testing.T, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.CopyN(z, nothing{}, n); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
