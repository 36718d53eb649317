package flux

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

const neverReady = `apiVersion: apps/v1
kind: Deployment
metadata: {name: slow}
spec:
  replicas: 1
  selector: {matchLabels: {app: $ns}}
  template:
    metadata: {labels: {app: $ns}}
    spec:
      containers: [{name: slow, image: "cascade.local/e2e:dev", command: ["sleep", "1000000"], readinessProbe: {exec: {command: ["false"]}, periodSeconds: 1}}]
`

func (s *kustomizationSpec) timeout(t *testing.T) {
	r := s.Row(t, map[string]string{"app/slow.yaml": neverReady})
	r.Kustomization(t, "app", "{wait: true, timeout: 3s, retryInterval: 1h}") // 30 s is the least
	c := r.Says(t, "app", "Ready", "False", "HealthCheckFailed", "health check failed after ")
	want := regexp.MustCompile(`^health check failed after \S+: timeout waiting for: \[Deployment/` + r.Namespace + `/slow status: 'InProgress'.*\]$`)
	if !want.MatchString(c.Message) {
		t.Errorf("the message is %q", c.Message)
	}
	r.Says(t, "app", "Healthy", "False", "HealthCheckFailed", "timeout waiting for: [Deployment/"+r.Namespace+"/slow status: 'InProgress'")
	r.Says(t, "app", "Reconciling", "True", "ProgressingWithRetry", "Running health checks for revision main@sha1:"+r.Head+" with a timeout of ")
	k, err := r.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	if k.Status.LastAttemptedRevision != "main@sha1:"+r.Head || k.Status.LastAppliedRevision != "" || len(scenario.Inventory(k)) != 1 {
		t.Errorf("attempted %q, applied %q, inventory %v", k.Status.LastAttemptedRevision, k.Status.LastAppliedRevision, scenario.Inventory(k))
	}
	if h := k.Status.History.Latest(); h == nil || h.LastReconciledStatus != "HealthCheckFailed" {
		t.Errorf("history is %+v", k.Status.History)
	}
}

// healthCheckCanceled: a commit ends the wait for what the one before never becomes.
func (s *kustomizationSpec) healthCheckCanceled(t *testing.T) {
	r := s.Row(t, map[string]string{"app/slow.yaml": neverReady})
	r.Kustomization(t, "app", "{wait: true, timeout: 10m}")
	r.Says(t, "app", "Reconciling", "True", "Progressing", "Running health checks for revision main@sha1:"+r.Head+" with a timeout of 10m0s")
	r.Commit(t, map[string]string{"app/slow.yaml": "", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Ready(t, "app")
	r.Event(t, "Kustomization", "app", "HealthCheckCanceled", "Health checks canceled due to new reconciliation triggered by GitRepository/"+r.Namespace+"/git")
}

// waitForTermination: an object that somebody holds back holds the Kustomization,
// until the time-out.
func (s *kustomizationSpec) waitForTermination(t *testing.T) {
	held := scenario.ConfigMapWith("held", ", finalizers: [example.com/held]", "{}")
	r := s.Row(t, map[string]string{"app/a.yaml": held, "impatient/b.yaml": strings.ReplaceAll(held, "held", "forever")})
	r.Kustomization(t, "app", "{deletionPolicy: WaitForTermination, timeout: 1h}")
	r.Kustomization(t, "impatient", "{deletionPolicy: WaitForTermination, timeout: 3s}")
	for _, name := range []string{"app", "impatient"} {
		r.Ready(t, name)
		r.Delete(t, &kustomizev1.Kustomization{}, name)
	}
	r.Gone(t, &kustomizev1.Kustomization{}, "impatient")
	if r.Object(t, "v1", "ConfigMap", "forever").GetDeletionTimestamp() == nil {
		t.Error("the object was not deleted")
	}
	if _, err := r.Read(t.Context(), "app"); err != nil {
		t.Errorf("the Kustomization did not wait: %v", err)
	}
	r.Patch(t, &corev1.ConfigMap{}, "held", `{"metadata":{"finalizers":null}}`)
	r.Gone(t, &kustomizev1.Kustomization{}, "app")
	r.Patch(t, &corev1.ConfigMap{}, "forever", `{"metadata":{"finalizers":null}}`)
}

// waitFailsEarly: what cannot become healthy is not waited for.
func (s *kustomizationSpec) waitFailsEarly(t *testing.T) {
	r := s.Row(t, map[string]string{"app/job.yaml": `apiVersion: batch/v1
kind: Job
metadata: {name: failing}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: failing, image: "cascade.local/e2e:dev", command: ["false"]}]
`})
	r.Kustomization(t, "app", "{wait: true, timeout: 10m, retryInterval: 1h}")
	r.Says(t, "app", "Ready", "False", "HealthCheckFailed", "...failed early due to stalled resources: [Job/"+r.Namespace+"/failing status: 'Failed'")
}

// healthChecks name what somebody else makes; with them wait has no say over what
// the Kustomization applies itself.
func (s *kustomizationSpec) healthChecks(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{}"), "app/slow.yaml": neverReady, "late/a.yaml": scenario.ConfigMapWith("b", "", "{}")})
	r.Kustomization(t, "app", "{timeout: 10m, healthChecks: [{apiVersion: v1, kind: ConfigMap, name: foreign, namespace: $ns}]}")
	r.Says(t, "app", "Healthy", "Unknown", "Progressing", "Running health checks for revision main@sha1:"+r.Head+" with a timeout of 10m0s")
	r.Says(t, "app", "Ready", "Unknown", "Progressing", "Reconciliation in progress")
	r.Says(t, "app", "Reconciling", "True", "Progressing", "Running health checks for revision main@sha1:"+r.Head+" with a timeout of 10m0s")
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: foreign, namespace: $ns}\n"))
	r.Ready(t, "app")
	r.Says(t, "app", "Healthy", "True", "Succeeded", "Health check passed in ")

	r.Kustomization(t, "late", "{timeout: 2s, retryInterval: 1h, healthChecks: [{kind: Deployment, name: nowhere, namespace: $ns}]}")
	r.Says(t, "late", "Ready", "False", "HealthCheckFailed", "...timeout waiting for: [Deployment/"+r.Namespace+"/nowhere status: 'NotFound'")
	// The condition goes with what it is about.
	r.Kustomization(t, "late", "")
	if k := r.Ready(t, "late"); meta.FindStatusCondition(k.Status.Conditions, "Healthy") != nil {
		t.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
	}
}

func (s *kustomizationSpec) healthCheckExprs(t *testing.T) {
	r := s.Row(t, map[string]string{"kinds/crd.yaml": scenario.ThingCRD, "app/thing.yaml": thing})
	r.Kustomization(t, "kinds", "")
	r.Ready(t, "kinds")
	exprs := "healthCheckExprs: [{apiVersion: $ns.example.com/v1, kind: Thing, inProgress: \"!has(status.phase)\", failed: \"status.phase == 'Bad'\", current: \"status.phase == 'Good'\"}]"
	r.Kustomization(t, "app", "{wait: true, timeout: 10m, "+exprs+"}")
	r.Says(t, "app", "Healthy", "Unknown", "Progressing", "")
	phase := func(value string) {
		t.Helper()
		u := r.Object(t, r.Namespace+".example.com/v1", "Thing", "thing")
		if err := r.Client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q}}`, value))); err != nil {
			t.Fatal(err)
		}
	}
	phase("Bad")
	r.Says(t, "app", "Ready", "False", "HealthCheckFailed", "...failed early due to stalled resources: [Thing/"+r.Namespace+"/thing status: 'Failed'")
	phase("Good")
	r.Ready(t, "app")
}

func (s *kustomizationSpec) healthCheckExprsInvalid(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{}")})
	r.Kustomization(t, "app", "{wait: true, healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: 'not CEL at all'}]}")
	r.Says(t, "app", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.Says(t, "app", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	if k, err := r.Read(t.Context(), "app"); err != nil || k.Status.ObservedGeneration != k.Generation || r.Data(t, "a") != nil {
		t.Errorf("observed generation %d, data %v, %v", k.Status.ObservedGeneration, r.Data(t, "a"), err)
	}
	r.Kustomization(t, "app", "wait: true")
	r.Ready(t, "app")
}

// dependsOnChain: six in a row become ready one by one. By looking every 30
// seconds, as Flux does, that takes longer than this test waits.
func (s *kustomizationSpec) dependsOnChain(t *testing.T) {
	const links = 6
	files := map[string]string{}
	for i := range links {
		files[fmt.Sprintf("link-%d/a.yaml", i)] = scenario.ConfigMapWith(fmt.Sprintf("link-%d", i), "", "{}")
	}
	r := s.Row(t, files)
	for i := links - 1; i > 0; i-- {
		r.Kustomization(t, fmt.Sprintf("link-%d", i), fmt.Sprintf("dependsOn: [{name: link-%d}]", i-1))
	}
	r.Says(t, "link-1", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/link-0' not found: ", r.Namespace))
	r.Kustomization(t, "link-0", "{timeout: 10m, healthChecks: [{apiVersion: v1, kind: ConfigMap, name: go, namespace: $ns}]}")
	r.Says(t, "link-1", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/link-0' is not ready", r.Namespace))
	if r.Data(t, "link-1") != nil {
		t.Error("a dependant was applied")
	}
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: go, namespace: $ns}\n"))
	r.Ready(t, fmt.Sprintf("link-%d", links-1))
	// And again with a commit, in the same order: each waits for the revision.
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		files[name] = strings.ReplaceAll(files[name], "{}", "{k: v}")
	}
	r.Commit(t, files)
	r.Ready(t, fmt.Sprintf("link-%d", links-1))
	var order []string
	for _, e := range r.Writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" {
			order = append(order, e.ObjectRef.Name)
		}
	}
	if diff := cmp.Diff([]string{"link-0", "link-1", "link-2", "link-3", "link-4", "link-5"}, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

func (s *kustomizationSpec) dependsOnNotFound(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{}")})
	r.Kustomization(t, "app", "dependsOn: [{name: nobody, namespace: elsewhere}]")
	r.Says(t, "app", "Ready", "False", "DependencyNotReady", "dependency 'elsewhere/nobody' not found: ")
}

func (s *kustomizationSpec) dependsOnReadyExpr(t *testing.T) {
	r := s.Row(t, map[string]string{"first/slow.yaml": neverReady, "second/a.yaml": scenario.ConfigMapWith("second", "", "{}"), "third/a.yaml": scenario.ConfigMapWith("third", "", "{}")})
	r.Kustomization(t, "first", "{wait: true, timeout: 10m}")
	r.Kustomization(t, "second", `dependsOn: [{name: first, readyExpr: "dep.metadata.annotations['go'] == self.metadata.name"}]`)
	r.Patch(t, &kustomizev1.Kustomization{}, "first", `{"metadata":{"annotations":{"go":"nobody"}}}`)
	at := r.Ask(t, &kustomizev1.Kustomization{}, "second")
	r.Handled(t, "second", at)
	r.Says(t, "second", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/first' is not ready according to readyExpr eval", r.Namespace))
	// It says nothing of the dependency's own readiness.
	r.Patch(t, &kustomizev1.Kustomization{}, "first", `{"metadata":{"annotations":{"go":"second"}}}`)
	r.Ask(t, &kustomizev1.Kustomization{}, "second")
	r.Ready(t, "second")

	r.Kustomization(t, "third", `dependsOn: [{name: first, readyExpr: "not CEL at all"}]`)
	r.Says(t, "third", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.Says(t, "third", "Stalled", "True", "InvalidCELExpression", "")
}

func (s *kustomizationSpec) dependsOnRevision(t *testing.T) {
	r := s.Row(t, map[string]string{"first/a.yaml": scenario.ConfigMapWith("first", "", "{}"), "second/a.yaml": scenario.ConfigMapWith("second", "", "{}")})
	r.Kustomization(t, "first", "")
	r.Kustomization(t, "second", "dependsOn: [{name: first}]")
	r.Ask(t, &kustomizev1.Kustomization{}, "second")
	r.Ready(t, "second")
	r.Kustomization(t, "first", "suspend: true")
	r.Commit(t, map[string]string{"second/a.yaml": scenario.ConfigMapWith("second", "", "{k: v}")})
	r.Says(t, "second", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/first' revision is not up to date", r.Namespace))
	r.Kustomization(t, "first", "")
	r.Ready(t, "first")
	r.Ask(t, &kustomizev1.Kustomization{}, "second")
	r.Ready(t, "second")
}
