package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
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

// TestKustomizationSpec tries what Flux says of a Kustomization, row by row, as
// docs/flux-compatibility.md lists them. Every row was seen to pass with Flux's own
// kustomize-controller v1.9.5 as well, but for three: DependsOnChain, where we are
// sooner on purpose, SecretsAreMasked, which it does from v1.10 on, and NotDecrypted,
// where it loses the marks of encryption before it looks for them.
func TestKustomizationSpec(t *testing.T) {
	alongside(t)
	s := startSpec(t)
	t.Run("Rows", func(t *testing.T) {
		for _, r := range []struct {
			name string
			run  func(*spec, *testing.T)
		}{
			{"RetryInterval", (*spec).retryInterval},
			{"Timeout", (*spec).timeout},
			{"SourceNotFound", (*spec).sourceNotFound},
			{"SourceWithoutArtifact", (*spec).sourceWithoutArtifact},
			{"PathNotFound", (*spec).pathNotFound},
			{"PruneFalse", (*spec).pruneFalse},
			{"DeletionPolicies", (*spec).everyDeletionPolicy},
			{"WaitForTermination", (*spec).waitForTermination},
			{"WaitFailsEarly", (*spec).waitFailsEarly},
			{"HealthChecks", (*spec).healthChecks},
			{"HealthCheckExprs", (*spec).healthCheckExprs},
			{"HealthCheckExprsInvalid", (*spec).healthCheckExprsInvalid},
			{"DependsOnChain", (*spec).dependsOnChain},
			{"DependsOnNotFound", (*spec).dependsOnNotFound},
			{"DependsOnReadyExpr", (*spec).dependsOnReadyExpr},
			{"DependsOnRevision", (*spec).dependsOnRevision},
			{"ServiceAccount", (*spec).serviceAccount},
			{"ServiceAccountGone", (*spec).serviceAccountGone},
			{"KubeConfig", (*spec).kubeConfig},
			{"TargetMoves", (*spec).targetMoves},
			{"Overlay", (*spec).overlay},
			{"PostBuild", (*spec).postBuild},
			{"PostBuildWatched", (*spec).postBuildWatched},
			{"Force", (*spec).force},
			{"Ignore", (*spec).ignore},
			{"Suspend", (*spec).suspend},
			{"LastHandledOnFailure", (*spec).lastHandledOnFailure},
			{"History", (*spec).history},
			{"SecretsAreMasked", (*spec).secretsAreMasked},
			{"NotDecrypted", (*spec).notDecrypted},
			{"ApplyOrder", (*spec).applyOrder},
			{"ServerSideApplyModes", (*spec).serverSideApplyModes},
			{"OwnerLabels", (*spec).ownerLabels},
			{"Inventory", (*spec).inventory},
			{"PruneExceptions", (*spec).pruneExceptions},
			{"PruneOrder", (*spec).pruneOrder},
			{"FailedApplyKeepsInventory", (*spec).failedApplyKeepsInventory},
			{"RevertedCommit", (*spec).revertedCommit},
		} {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.run(s, t)
			})
		}
	})
	// It starts the agent anew, with other flags.
	t.Run("Lockdown", s.lockdown)
}

const thing = "apiVersion: $ns.example.com/v1\nkind: Thing\nmetadata: {name: thing}\n"

// cm is a ConfigMap with more of it, in YAML flow style.
func cm(name, metadata, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s%s}\ndata: %s\n", name, metadata, data)
}

func (s *spec) retryInterval(t *testing.T) {
	r := s.row(t, map[string]string{"app/thing.yaml": thing})
	r.kustomization(t, "app", "")
	r.says(t, "app", "Ready", "False", "ReconciliationFailed", `Thing/`+r.ns+`/thing dry-run failed: no matches for kind "Thing" in version`)
	r.says(t, "app", "Reconciling", "True", "ProgressingWithRetry", "")
	// Nobody asks, and the interval is 10 minutes.
	r.apply(t, r.fill(crd))
	r.ready(t, "app")
}

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

func (s *spec) timeout(t *testing.T) {
	r := s.row(t, map[string]string{"app/slow.yaml": neverReady})
	r.kustomization(t, "app", "{wait: true, timeout: 3s, retryInterval: 1h}") // 30 s is the least
	c := r.says(t, "app", "Ready", "False", "HealthCheckFailed", "health check failed after ")
	want := regexp.MustCompile(`^health check failed after \S+: timeout waiting for: \[Deployment/` + r.ns + `/slow status: 'InProgress'.*\]$`)
	if !want.MatchString(c.Message) {
		t.Errorf("the message is %q", c.Message)
	}
	r.says(t, "app", "Healthy", "False", "HealthCheckFailed", "timeout waiting for: [Deployment/"+r.ns+"/slow status: 'InProgress'")
	r.says(t, "app", "Reconciling", "True", "ProgressingWithRetry", "")
	k, err := r.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	if k.Status.LastAttemptedRevision != "main@sha1:"+r.head || k.Status.LastAppliedRevision != "" || len(ids(k)) != 1 {
		t.Errorf("attempted %q, applied %q, inventory %v", k.Status.LastAttemptedRevision, k.Status.LastAppliedRevision, ids(k))
	}
	if h := k.Status.History.Latest(); h == nil || h.LastReconciledStatus != "HealthCheckFailed" {
		t.Errorf("history is %+v", k.Status.History)
	}
}

func (s *spec) sourceNotFound(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.kustomization(t, "app", "sourceRef: {kind: GitRepository, name: later}")
	r.says(t, "app", "Ready", "False", "ArtifactFailed", "...not found")
	r.apply(t, r.source("later", r.Git.HTTPURL(r.ns)))
	r.ready(t, "app")
}

func (s *spec) sourceWithoutArtifact(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.apply(t, r.source("unreachable", r.Git.HTTPURL("nowhere")))
	r.kustomization(t, "app", "sourceRef: {kind: GitRepository, name: unreachable}")
	r.says(t, "app", "Ready", "False", "ArtifactFailed", "Source artifact not found, retrying in ")
}

// pathNotFound: and nothing that was there goes.
func (s *spec) pathNotFound(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	r.commit(t, map[string]string{"app/a.yaml": "", "elsewhere/a.yaml": cm("a", "", "{k: v}")})
	r.says(t, "app", "Ready", "False", "ArtifactFailed", "kustomization path not found: ")
	if k, err := r.read(t.Context(), "app"); err != nil || len(ids(k)) != 1 || r.data(t, "a") == nil {
		t.Errorf("inventory %v, data %v, %v", ids(k), r.data(t, "a"), err)
	}
	r.kustomization(t, "app", "path: ./elsewhere")
	r.ready(t, "app")
}

func (s *spec) pruneFalse(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}"), "app/b.yaml": cm("b", "", "{k: v}")})
	r.kustomization(t, "app", "prune: false")
	r.ready(t, "app")
	r.commit(t, map[string]string{"app/b.yaml": ""})
	k := r.ready(t, "app")
	if diff := cmp.Diff([]string{r.ns + "_a__ConfigMap v1"}, ids(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	if r.data(t, "b") == nil {
		t.Error("the object is gone")
	}
}

func (s *spec) everyDeletionPolicy(t *testing.T) {
	r := s.row(t, map[string]string{
		"mirror/a.yaml": cm("mirror", "", "{}"), "unpruned/a.yaml": cm("unpruned", "", "{}"),
		"deleted/a.yaml": cm("deleted", "", "{}"), "orphan/a.yaml": cm("orphan", "", "{}"),
	})
	rows := []struct {
		name, spec string
		stays      bool
		reason     string
	}{
		{"mirror", "deletionPolicy: MirrorPrune", false, "it does as prune says"},
		{"unpruned", "prune: false", true, "MirrorPrune is the default"},
		{"deleted", "{deletionPolicy: Delete, prune: false}", false, "whatever prune says"},
		{"orphan", "deletionPolicy: Orphan", true, "whatever prune says"},
	}
	for _, c := range rows {
		r.kustomization(t, c.name, c.spec)
	}
	for _, c := range rows {
		r.ready(t, c.name)
		r.delete(t, &kustomizev1.Kustomization{}, c.name)
		r.gone(t, &kustomizev1.Kustomization{}, c.name)
		if there := r.data(t, c.name) != nil; there != c.stays {
			t.Errorf("%s: the object is there: %t, but %s", c.name, there, c.reason)
		}
	}
}

// waitForTermination: an object that somebody holds back holds the Kustomization,
// until the time-out.
func (s *spec) waitForTermination(t *testing.T) {
	held := cm("held", ", finalizers: [example.com/held]", "{}")
	r := s.row(t, map[string]string{"app/a.yaml": held, "impatient/b.yaml": strings.ReplaceAll(held, "held", "forever")})
	r.kustomization(t, "app", "{deletionPolicy: WaitForTermination, timeout: 1h}")
	r.kustomization(t, "impatient", "{deletionPolicy: WaitForTermination, timeout: 3s}")
	for _, name := range []string{"app", "impatient"} {
		r.ready(t, name)
		r.delete(t, &kustomizev1.Kustomization{}, name)
	}
	r.gone(t, &kustomizev1.Kustomization{}, "impatient")
	if r.object(t, "v1", "ConfigMap", "forever").GetDeletionTimestamp() == nil {
		t.Error("the object was not deleted")
	}
	if _, err := r.read(t.Context(), "app"); err != nil {
		t.Errorf("the Kustomization did not wait: %v", err)
	}
	r.patch(t, &corev1.ConfigMap{}, "held", `{"metadata":{"finalizers":null}}`)
	r.gone(t, &kustomizev1.Kustomization{}, "app")
	r.patch(t, &corev1.ConfigMap{}, "forever", `{"metadata":{"finalizers":null}}`)
}

// waitFailsEarly: what cannot become healthy is not waited for.
func (s *spec) waitFailsEarly(t *testing.T) {
	r := s.row(t, map[string]string{"app/job.yaml": `apiVersion: batch/v1
kind: Job
metadata: {name: failing}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: failing, image: "cascade.local/e2e:dev", command: ["false"]}]
`})
	r.kustomization(t, "app", "{wait: true, timeout: 10m, retryInterval: 1h}")
	r.says(t, "app", "Ready", "False", "HealthCheckFailed", "...failed early due to stalled resources: [Job/"+r.ns+"/failing status: 'Failed'")
}

// healthChecks name what somebody else makes; with them wait has no say over what
// the Kustomization applies itself.
func (s *spec) healthChecks(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{}"), "app/slow.yaml": neverReady, "late/a.yaml": cm("b", "", "{}")})
	r.kustomization(t, "app", "{timeout: 10m, healthChecks: [{apiVersion: v1, kind: ConfigMap, name: foreign, namespace: $ns}]}")
	r.says(t, "app", "Healthy", "Unknown", "Progressing", "Running health checks for revision main@sha1:"+r.head+" with a timeout of 10m0s")
	r.says(t, "app", "Ready", "Unknown", "Progressing", "Reconciliation in progress")
	r.says(t, "app", "Reconciling", "True", "Progressing", "Running health checks for revision main@sha1:"+r.head+" with a timeout of 10m0s")
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: foreign, namespace: $ns}\n"))
	r.ready(t, "app")
	r.says(t, "app", "Healthy", "True", "Succeeded", "Health check passed in ")

	r.kustomization(t, "late", "{timeout: 2s, retryInterval: 1h, healthChecks: [{kind: Deployment, name: nowhere, namespace: $ns}]}")
	r.says(t, "late", "Ready", "False", "HealthCheckFailed", "...timeout waiting for: [Deployment/"+r.ns+"/nowhere status: 'NotFound'")
	// The condition goes with what it is about.
	r.kustomization(t, "late", "")
	if k := r.ready(t, "late"); meta.FindStatusCondition(k.Status.Conditions, "Healthy") != nil {
		t.Errorf("conditions are %s", summary(k.Status.Conditions))
	}
}

func (s *spec) healthCheckExprs(t *testing.T) {
	r := s.row(t, map[string]string{"kinds/crd.yaml": crd, "app/thing.yaml": thing})
	r.kustomization(t, "kinds", "")
	r.ready(t, "kinds")
	exprs := "healthCheckExprs: [{apiVersion: $ns.example.com/v1, kind: Thing, inProgress: \"!has(status.phase)\", failed: \"status.phase == 'Bad'\", current: \"status.phase == 'Good'\"}]"
	r.kustomization(t, "app", "{wait: true, timeout: 10m, "+exprs+"}")
	r.says(t, "app", "Healthy", "Unknown", "Progressing", "")
	phase := func(value string) {
		t.Helper()
		u := r.object(t, r.ns+".example.com/v1", "Thing", "thing")
		if err := r.client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"phase":%q}}`, value))); err != nil {
			t.Fatal(err)
		}
	}
	phase("Bad")
	r.says(t, "app", "Ready", "False", "HealthCheckFailed", "...failed early due to stalled resources: [Thing/"+r.ns+"/thing status: 'Failed'")
	phase("Good")
	r.ready(t, "app")
}

func (s *spec) healthCheckExprsInvalid(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{}")})
	r.kustomization(t, "app", "{wait: true, healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: 'not CEL at all'}]}")
	r.says(t, "app", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.says(t, "app", "Stalled", "True", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	if k, err := r.read(t.Context(), "app"); err != nil || k.Status.ObservedGeneration != k.Generation || r.data(t, "a") != nil {
		t.Errorf("observed generation %d, data %v, %v", k.Status.ObservedGeneration, r.data(t, "a"), err)
	}
	r.kustomization(t, "app", "wait: true")
	r.ready(t, "app")
}

// dependsOnChain: six in a row become ready one by one. By looking every 30
// seconds, as Flux does, that takes longer than this test waits.
func (s *spec) dependsOnChain(t *testing.T) {
	const links = 6
	files := map[string]string{}
	for i := range links {
		files[fmt.Sprintf("link-%d/a.yaml", i)] = cm(fmt.Sprintf("link-%d", i), "", "{}")
	}
	r := s.row(t, files)
	for i := links - 1; i > 0; i-- {
		r.kustomization(t, fmt.Sprintf("link-%d", i), fmt.Sprintf("dependsOn: [{name: link-%d}]", i-1))
	}
	r.says(t, "link-1", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/link-0' not found: ", r.ns))
	r.kustomization(t, "link-0", "{timeout: 10m, healthChecks: [{apiVersion: v1, kind: ConfigMap, name: go, namespace: $ns}]}")
	r.says(t, "link-1", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/link-0' is not ready", r.ns))
	if r.data(t, "link-1") != nil {
		t.Error("a dependant was applied")
	}
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: go, namespace: $ns}\n"))
	r.ready(t, fmt.Sprintf("link-%d", links-1))
	// And again with a commit, in the same order: each waits for the revision.
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		files[name] = strings.ReplaceAll(files[name], "{}", "{k: v}")
	}
	r.commit(t, files)
	r.ready(t, fmt.Sprintf("link-%d", links-1))
	var order []string
	for _, e := range r.writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" {
			order = append(order, e.ObjectRef.Name)
		}
	}
	if diff := cmp.Diff([]string{"link-0", "link-1", "link-2", "link-3", "link-4", "link-5"}, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

// writes of the agent in the row's namespace that were no dry runs and changed
// something, in their order.
func (r *row) writes(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	events, _, err := r.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool {
		return !e.ByAgent() || e.ObjectRef.Namespace != r.ns && !strings.Contains(e.ObjectRef.Name, r.ns) ||
			strings.Contains(e.RequestURI, "dryRun") || e.ResponseStatus.Code >= 300
	})
}

func (s *spec) dependsOnNotFound(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{}")})
	r.kustomization(t, "app", "dependsOn: [{name: nobody, namespace: elsewhere}]")
	r.says(t, "app", "Ready", "False", "DependencyNotReady", "dependency 'elsewhere/nobody' not found: ")
}

func (s *spec) dependsOnReadyExpr(t *testing.T) {
	r := s.row(t, map[string]string{"first/slow.yaml": neverReady, "second/a.yaml": cm("second", "", "{}"), "third/a.yaml": cm("third", "", "{}")})
	r.kustomization(t, "first", "{wait: true, timeout: 10m}")
	r.kustomization(t, "second", `dependsOn: [{name: first, readyExpr: "dep.metadata.annotations['go'] == self.metadata.name"}]`)
	r.patch(t, &kustomizev1.Kustomization{}, "first", `{"metadata":{"annotations":{"go":"nobody"}}}`)
	at := r.ask(t, &kustomizev1.Kustomization{}, "second")
	r.handled(t, "second", at)
	r.says(t, "second", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/first' is not ready according to readyExpr eval", r.ns))
	// It says nothing of the dependency's own readiness.
	r.patch(t, &kustomizev1.Kustomization{}, "first", `{"metadata":{"annotations":{"go":"second"}}}`)
	r.ask(t, &kustomizev1.Kustomization{}, "second")
	r.ready(t, "second")

	r.kustomization(t, "third", `dependsOn: [{name: first, readyExpr: "not CEL at all"}]`)
	r.says(t, "third", "Ready", "False", "InvalidCELExpression", "Reconciliation failed terminally due to configuration error: ")
	r.says(t, "third", "Stalled", "True", "InvalidCELExpression", "")
}

func (s *spec) dependsOnRevision(t *testing.T) {
	r := s.row(t, map[string]string{"first/a.yaml": cm("first", "", "{}"), "second/a.yaml": cm("second", "", "{}")})
	r.kustomization(t, "first", "")
	r.kustomization(t, "second", "dependsOn: [{name: first}]")
	r.ask(t, &kustomizev1.Kustomization{}, "second")
	r.ready(t, "second")
	r.kustomization(t, "first", "suspend: true")
	r.commit(t, map[string]string{"second/a.yaml": cm("second", "", "{k: v}")})
	r.says(t, "second", "Ready", "False", "DependencyNotReady", fmt.Sprintf("dependency '%s/first' revision is not up to date", r.ns))
	r.kustomization(t, "first", "")
	r.ready(t, "first")
	r.ask(t, &kustomizev1.Kustomization{}, "second")
	r.ready(t, "second")
}

func (s *spec) serviceAccount(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.apply(t, r.fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: deployer, namespace: $ns}\n"))
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.kustomization(t, "app", "serviceAccountName: deployer")
	c := r.says(t, "app", "Ready", "False", "ReconciliationFailed", "ConfigMap/"+r.ns+"/a ")
	if !strings.Contains(c.Message, `User "system:serviceaccount:`+r.ns+`:deployer" cannot`) {
		t.Errorf("the message is %q", c.Message)
	}
	r.apply(t, r.fill(`apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`))
	r.ready(t, "app")
	impersonated := 0
	for _, e := range r.writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" {
			if e.ImpersonatedUser.Username != "system:serviceaccount:"+r.ns+":deployer" {
				t.Errorf("%s %s as %q", e.Verb, e.RequestURI, e.ImpersonatedUser.Username)
			}
			impersonated++
		}
	}
	if impersonated == 0 {
		t.Error("the audit log has no write")
	}
}

// serviceAccountGone: without the account nothing can be pruned with its rights,
// so it stays, and the Kustomization goes.
func (s *spec) serviceAccountGone(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.apply(t, r.fill(`apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $ns}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`))
	r.kustomization(t, "app", "serviceAccountName: deployer")
	r.ready(t, "app")
	r.delete(t, &corev1.ServiceAccount{}, "deployer")
	r.delete(t, &kustomizev1.Kustomization{}, "app")
	r.gone(t, &kustomizev1.Kustomization{}, "app")
	if r.data(t, "a") == nil {
		t.Error("the object is gone")
	}
}

// kubeConfig: the objects are those of another cluster.
func (s *spec) kubeConfig(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
	r.kustomization(t, "app", "{targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.says(t, "app", "Ready", "False", "ReconciliationFailed", "...other")
	other, err := r.Cluster(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "other"}, Data: map[string][]byte{"value.yaml": kubeconfig}}
	if err := r.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	k := r.ready(t, "app")
	if diff := cmp.Diff([]string{"default_a__ConfigMap v1"}, ids(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	there := &corev1.ConfigMap{}
	if err := get(t.Context(), other, there, "default", "a"); err != nil || there.Labels["kustomize.toolkit.fluxcd.io/namespace"] != r.ns {
		t.Errorf("labels %v, %v", there.Labels, err)
	}
	if err := r.load(t.Context(), &corev1.ConfigMap{}, "default", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("it is in the first cluster: %v", err)
	}
	r.delete(t, &kustomizev1.Kustomization{}, "app")
	r.gone(t, &kustomizev1.Kustomization{}, "app")
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// targetMoves: what is applied to another cluster from now on is pruned in the
// one before, up to the number that a person has to approve.
func (s *spec) targetMoves(t *testing.T) {
	files := map[string]string{"app/a.yaml": cm("moving", "", "{k: v}")}
	r := s.row(t, files)
	other, err := r.Cluster(t.Context(), "moved-to")
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
	r.kustomization(t, "app", "{targetNamespace: default}")
	r.ready(t, "app")
	// Away, and back.
	r.kustomization(t, "app", "{targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.ready(t, "app")
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving"); err != nil {
		t.Errorf("it is not where it moved to: %v", err)
	}
	if err := r.load(t.Context(), &corev1.ConfigMap{}, "default", "moving"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still where it was: %v", err)
	}
	more := map[string]string{}
	for i := range 12 {
		more[fmt.Sprintf("app/more-%d.yaml", i)] = cm(fmt.Sprintf("moving-%d", i), "", "{k: v}")
	}
	r.commit(t, more)
	r.ready(t, "app")
	r.kustomization(t, "app", "{targetNamespace: default, kubeConfig: null}")
	c := r.says(t, "app", "Ready", "False", "PruneBlocked", "...cascade approve prune")
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving"); err != nil {
		t.Errorf("a removal that nobody approved was carried out: %v", err)
	}
	_, hash, _ := strings.Cut(c.Message, "--hash ")
	r.patch(t, &kustomizev1.Kustomization{}, "app", fmt.Sprintf(`{"metadata":{"annotations":{"cascade.dev/approve-prune":%q}}}`, strings.Fields(hash)[0]))
	k := r.ready(t, "app")
	if len(ids(k)) != 13 || k.Annotations["cascade.dev/target"] != "" {
		t.Errorf("inventory %v, target %q", ids(k), k.Annotations["cascade.dev/target"])
	}
	if err := get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving-3"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still in the other cluster: %v", err)
	}
}

// overlay: every field that a kustomization.yaml has as well, at once.
func (s *spec) overlay(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/a.yaml":                            cm("a", "", "{k: v}"),
		"app/web.yaml":                          strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"),
		"components/extra/kustomization.yaml":   "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches: [{target: {kind: ConfigMap}, patch: '[{\"op\": \"add\", \"path\": \"/data/component\", \"value\": \"here\"}]'}]\n",
		"components/another/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n",
	})
	r.kustomization(t, "app", `
namePrefix: pre-
nameSuffix: -post
commonMetadata: {labels: {team: a}, annotations: {note: b}}
patches: [{target: {kind: ConfigMap}, patch: '[{"op": "add", "path": "/data/patched", "value": "here"}]'}]
images: [{name: cascade.local/e2e, newName: example.com/web, newTag: v2}]
components: [../components/extra, ../components/missing]
ignoreMissingComponents: true
buildMetadata: [originAnnotations]
`)
	k := r.ready(t, "app")
	a := r.object(t, "v1", "ConfigMap", "pre-a-post")
	if diff := cmp.Diff(map[string]any{"k": "v", "component": "here", "patched": "here"}, a.Object["data"]); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
	if a.GetLabels()["team"] != "a" || a.GetAnnotations()["note"] != "b" || !strings.Contains(a.GetAnnotations()["config.kubernetes.io/origin"], "a.yaml") {
		t.Errorf("labels %v, annotations %v", a.GetLabels(), a.GetAnnotations())
	}
	web := &appsv1.Deployment{}
	if err := r.load(t.Context(), web, r.ns, "pre-slow-post"); err != nil || web.Spec.Template.Spec.Containers[0].Image != "example.com/web:v2" {
		t.Errorf("image %v, %v", web.Spec.Template.Spec.Containers, err)
	}
	if diff := cmp.Diff([]string{r.ns + "_pre-a-post__ConfigMap v1", r.ns + "_pre-slow-post_apps_Deployment v1"}, ids(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.kustomization(t, "app", "components: [../components/missing]")
	r.says(t, "app", "Ready", "False", "BuildFailed", "")
}

func (s *spec) postBuild(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/a.yaml":     cm("a", "", `{inline: "${inline}", last: "${last}", default: "${none:=default}", upper: "${last^^}", plain: "$last", escaped: "$${last}", lines: "${lines}"}`),
		"app/raw.yaml":   cm("raw", ", annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}", `{k: "${inline}"}`),
		"strict/a.yaml":  cm("strict", "", `{k: "${nowhere}"}`),
		"absent/a.yaml":  cm("absent", "", `{k: "${k:=v}"}`),
		"without/a.yaml": cm("without", "", `{k: "${k}"}`),
	})
	r.apply(t, r.fill(`apiVersion: v1
kind: ConfigMap
metadata: {name: first, namespace: $ns}
data: {last: first, inline: first, lines: "one\ntwo"}
---
apiVersion: v1
kind: Secret
metadata: {name: second, namespace: $ns}
stringData: {last: second}
`))
	r.kustomization(t, "app", `
postBuild:
  substitute: {inline: inline}
  substituteFrom: [{kind: ConfigMap, name: first}, {kind: Secret, name: second}, {kind: ConfigMap, name: third, optional: true}]
`)
	r.ready(t, "app")
	want := map[string]string{"inline": "inline", "last": "second", "default": "default", "upper": "SECOND", "plain": "$last", "escaped": "${last}", "lines": "onetwo"}
	if diff := cmp.Diff(want, r.data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if got := r.data(t, "raw")["k"]; got != "${inline}" {
		t.Errorf("what says substitute: disabled has %q", got)
	}
	r.kustomization(t, "strict", "postBuild: {substitute: {a: b}}")
	r.says(t, "strict", "Ready", "False", "BuildFailed", "...variable not set (strict mode): \"nowhere\"")
	r.kustomization(t, "absent", "postBuild: {substituteFrom: [{kind: ConfigMap, name: nowhere}]}")
	r.says(t, "absent", "Ready", "False", "BuildFailed", "...nowhere")
	// Without a variable nothing is substituted, but with Always.
	r.kustomization(t, "without", "postBuild: {substitute: {}}")
	r.ready(t, "without")
	if got := r.data(t, "without")["k"]; got != "${k}" {
		t.Errorf("without variables the object has %q", got)
	}
	r.kustomization(t, "absent", "postBuild: {substituteStrategy: Always}")
	r.ready(t, "absent")
	if got := r.data(t, "absent")["k"]; got != "v" {
		t.Errorf("with substituteStrategy Always the object has %q", got)
	}
}

// postBuildWatched: a labelled ConfigMap is an event for those who read it.
func (s *spec) postBuildWatched(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", `{k: "${k}"}`)})
	r.apply(t, r.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: $ns, labels: {reconcile.fluxcd.io/watch: Enabled}}\ndata: {k: one}\n"))
	r.kustomization(t, "app", "postBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}")
	r.has(t, "a", "k", "one")
	r.ready(t, "app")
	r.patch(t, &corev1.ConfigMap{}, "vars", `{"data":{"k":"two"}}`)
	r.has(t, "a", "k", "two")
}

// force creates anew what cannot be changed.
func (s *spec) force(t *testing.T) {
	frozen := func(name, metadata, value string) string {
		return cm(name, metadata, fmt.Sprintf("{k: %q}\nimmutable: true", value))
	}
	marked := ", annotations: {kustomize.toolkit.fluxcd.io/force: enabled}"
	r := s.row(t, map[string]string{"app/a.yaml": frozen("a", "", "1"), "marked/b.yaml": frozen("b", marked, "1")})
	r.kustomization(t, "app", "")
	r.kustomization(t, "marked", "")
	r.ready(t, "app")
	r.ready(t, "marked")
	a, b := r.object(t, "v1", "ConfigMap", "a").GetUID(), r.object(t, "v1", "ConfigMap", "b").GetUID()
	r.commit(t, map[string]string{"app/a.yaml": frozen("a", "", "2"), "marked/b.yaml": frozen("b", marked, "2")})
	r.ready(t, "marked")
	if got := r.object(t, "v1", "ConfigMap", "b"); got.GetUID() == b || r.data(t, "b")["k"] != "2" {
		t.Errorf("what says force: enabled was not created anew: %v", got.Object["data"])
	}
	r.says(t, "app", "Ready", "False", "ReconciliationFailed", "ConfigMap/"+r.ns+"/a dry-run failed (Invalid): ")
	if r.object(t, "v1", "ConfigMap", "a").GetUID() != a {
		t.Error("without force the object was created anew")
	}
	r.kustomization(t, "app", "force: true")
	r.ready(t, "app")
	if r.object(t, "v1", "ConfigMap", "a").GetUID() == a || r.data(t, "a")["k"] != "2" {
		t.Error("with force the object was not created anew")
	}
}

// ignore leaves fields to those who own them.
func (s *spec) ignore(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{ours: a, theirs: a}"), "app/b.yaml": cm("b", "", "{ours: b, theirs: b}")})
	r.kustomization(t, "app", "ignore: [{paths: [/data/theirs], target: {kind: ConfigMap, name: a}}]")
	r.ready(t, "app")
	for _, name := range []string{"a", "b"} {
		u := stage.Object("v1", "ConfigMap")
		u.SetNamespace(r.ns)
		u.SetName(name)
		u.Object["data"] = map[string]any{"theirs": "changed"}
		if err := r.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("autoscaler"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
	}
	r.handled(t, "app", r.ask(t, &kustomizev1.Kustomization{}, "app"))
	r.has(t, "b", "theirs", "b")
	if diff := cmp.Diff(map[string]string{"ours": "a", "theirs": "changed"}, r.data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.commit(t, map[string]string{"app/a.yaml": cm("a", "", "{ours: aa, theirs: aa}")})
	r.ready(t, "app")
	if diff := cmp.Diff(map[string]string{"ours": "aa", "theirs": "changed"}, r.data(t, "a")); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

// suspend: requests are answered, nothing is done, and deletion takes nothing
// along.
func (s *spec) suspend(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: one}")})
	r.kustomization(t, "app", "")
	before := r.ready(t, "app")
	r.kustomization(t, "app", "suspend: true")
	r.commit(t, map[string]string{"app/a.yaml": cm("a", "", "{k: two}")})
	k := r.handled(t, "app", r.ask(t, &kustomizev1.Kustomization{}, "app"))
	if diff := cmp.Diff(before.Status.Conditions, k.Status.Conditions); diff != "" {
		t.Errorf("conditions: -before, +suspended:\n%s", diff)
	}
	if k.Status.ObservedGeneration != k.Generation {
		t.Errorf("observed generation is %d of %d", k.Status.ObservedGeneration, k.Generation)
	}
	if k.Status.LastAppliedRevision != before.Status.LastAppliedRevision || r.data(t, "a")["k"] != "one" {
		t.Error("a suspended Kustomization was reconciled")
	}
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	r.kustomization(t, "app", "suspend: true")
	r.delete(t, &kustomizev1.Kustomization{}, "app")
	r.gone(t, &kustomizev1.Kustomization{}, "app")
	if r.data(t, "a") == nil {
		t.Error("the object is gone")
	}
}

func (s *spec) lastHandledOnFailure(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": "not: Kubernetes\n", "late/a.yaml": cm("a", "", "{}")})
	r.kustomization(t, "app", "retryInterval: 1h")
	r.says(t, "app", "Ready", "False", "BuildFailed", "")
	r.handled(t, "app", r.ask(t, &kustomizev1.Kustomization{}, "app"))
	r.kustomization(t, "late", "dependsOn: [{name: app}]")
	r.says(t, "late", "Ready", "False", "DependencyNotReady", "")
	r.handled(t, "late", r.ask(t, &kustomizev1.Kustomization{}, "late"))
}

// history: newest first, one entry for each (digest, status), at most five.
func (s *spec) history(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: '0'}")})
	r.kustomization(t, "app", "")
	first := r.ready(t, "app").Status.History
	if len(first) != 1 || first[0].LastReconciledStatus != "ReconciliationSucceeded" || first[0].Metadata["revision"] != "main@sha1:"+r.head ||
		!strings.HasPrefix(first[0].Digest, "sha256:") || first[0].TotalReconciliations < 1 {
		t.Fatalf("history is %+v", first)
	}
	// Another revision, the same rendering.
	r.commit(t, map[string]string{"README.md": "not read"})
	if h := r.ready(t, "app").Status.History; len(h) != 1 || h[0].Digest != first[0].Digest || h[0].Metadata["revision"] != "main@sha1:"+r.head {
		t.Errorf("history is %+v", h)
	}
	for i := range 6 {
		r.commit(t, map[string]string{"app/a.yaml": cm("a", "", fmt.Sprintf("{k: '%d'}", i+1))})
		r.ready(t, "app")
	}
	h := r.ready(t, "app").Status.History
	if len(h) != 5 || h[0].Metadata["revision"] != "main@sha1:"+r.head || h[0].Digest == h[1].Digest {
		t.Errorf("history is %+v", h)
	}
	// A failed apply is history as well, a failed build is not.
	r.commit(t, map[string]string{"app/b.yaml": thing})
	r.says(t, "app", "Ready", "False", "ReconciliationFailed", "")
	eventually(t, converge, "the failure is history", func(ctx context.Context) error {
		k, err := r.read(ctx, "app")
		if err != nil {
			return err
		}
		if h := k.Status.History.Latest(); h == nil || h.LastReconciledStatus != "ReconciliationFailed" || h.Metadata["revision"] != "main@sha1:"+r.head {
			return fmt.Errorf("history is %+v", k.Status.History)
		}
		return nil
	})
}

func (s *spec) secretsAreMasked(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80, protocol: \"${protocol}\"}]}\n"})
	r.apply(t, r.fill("apiVersion: v1\nkind: Secret\nmetadata: {name: vars, namespace: $ns}\nstringData: {protocol: hunter2hunter2}\n"))
	r.kustomization(t, "app", "postBuild: {substituteFrom: [{kind: Secret, name: vars}]}")
	c := r.says(t, "app", "Ready", "False", "ReconciliationFailed", "Service/"+r.ns+"/a dry-run failed (Invalid): ")
	if strings.Contains(c.Message, "hunter2") || !strings.Contains(c.Message, "***") {
		t.Errorf("the message is %q", c.Message)
	}
}

func (s *spec) notDecrypted(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {k: RU5DW0FFUzI1Nl9HQ00s}\nsops: {mac: x}\n"})
	r.kustomization(t, "app", "")
	r.says(t, "app", "Ready", "False", "BuildFailed", "...is SOPS encrypted")
}

// applyOrder: what others need comes first, whatever the files are called, and a
// custom resource goes with the definition of its kind.
func (s *spec) applyOrder(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/1.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: $ns}\nwebhooks: []\n",
		"app/2.yaml": strings.ReplaceAll(thing, "{name: thing}", "{name: thing, namespace: $ns}"),
		"app/3.yaml": strings.ReplaceAll(strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"), "{name: slow}", "{name: slow, namespace: $ns}"),
		"app/4.yaml": cm("a", ", namespace: $ns", "{}"),
		"app/5.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: $ns}\n",
		"app/6.yaml": "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: $ns}\nvalue: 1\n",
		"app/7.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: $ns}\nrules: []\n",
		"app/8.yaml": crd,
		"app/9.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: $ns-inner}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-inner}\n",
	})
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.kustomization(t, "app", "targetNamespace: null")
	r.ready(t, "app")
	var order []string
	for _, e := range r.writes(t, from) {
		// A definition that is not served within a moment makes the agent begin again.
		if !strings.HasSuffix(e.ObjectRef.APIGroup, ".toolkit.fluxcd.io") && e.ObjectRef.Resource != "events" &&
			(e.Verb == "patch" || e.Verb == "create") && !slices.Contains(order, e.ObjectRef.Resource) {
			order = append(order, e.ObjectRef.Resource)
		}
	}
	want := []string{"customresourcedefinitions", "namespaces", "clusterroles", "priorityclasses", "serviceaccounts", "configmaps", "deployments", "things", "validatingwebhookconfigurations"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

// serverSideApplyModes: what the annotation kustomize.toolkit.fluxcd.io/ssa says,
// and reconcile: disabled, on the object in Git and in the cluster.
func (s *spec) serverSideApplyModes(t *testing.T) {
	mode := func(name, value string) string {
		return cm(name, ", annotations: {kustomize.toolkit.fluxcd.io/ssa: "+value+"}", "{k: git}")
	}
	r := s.row(t, map[string]string{
		"app/override.yaml": mode("override", "Override"), "app/merge.yaml": mode("merge", "Merge"),
		"app/absent.yaml": mode("absent", "IfNotPresent"), "app/ignored.yaml": mode("ignored", "Ignore"),
		"app/off.yaml":  cm("off", ", labels: {kustomize.toolkit.fluxcd.io/reconcile: disabled}", "{k: git}"),
		"app/live.yaml": cm("live", "", "{k: git}"), "app/plain.yaml": cm("plain", "", "{k: git}"),
	})
	r.kustomization(t, "app", "")
	k := r.ready(t, "app")
	for _, name := range []string{"ignored", "off"} {
		if r.data(t, name) != nil {
			t.Errorf("%s was created", name)
		}
	}
	// What is skipped is in the inventory all the same.
	if got := ids(k); len(got) != 7 {
		t.Errorf("inventory is %v", got)
	}
	r.patch(t, &corev1.ConfigMap{}, "live", `{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/reconcile":"Disabled"}}}`)
	for _, name := range []string{"override", "merge", "absent", "live", "plain"} {
		u := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}}
		if err := r.client.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"by hand","extra":"by hand"}}`)), client.FieldOwner("kubectl-edit")); err != nil {
			t.Fatal(err)
		}
	}
	r.handled(t, "app", r.ask(t, &kustomizev1.Kustomization{}, "app"))
	r.ready(t, "app")
	for name, want := range map[string]map[string]string{
		"override": {"k": "git"},
		"plain":    {"k": "git"},
		"merge":    {"k": "git", "extra": "by hand"},
		"absent":   {"k": "by hand", "extra": "by hand"},
		"live":     {"k": "by hand", "extra": "by hand"},
	} {
		if diff := cmp.Diff(want, r.data(t, name)); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", name, diff)
		}
	}
	// None of what is skipped is pruned.
	files := map[string]string{"app/plain.yaml": "", "app/live.yaml": "", "app/absent.yaml": ""}
	r.commit(t, files)
	r.ready(t, "app")
	if r.data(t, "plain") != nil || r.data(t, "live") == nil {
		t.Errorf("plain %v, live %v", r.data(t, "plain"), r.data(t, "live"))
	}
}

func (s *spec) ownerLabels(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", ", labels: {kustomize.toolkit.fluxcd.io/name: forged}", "{k: v}")})
	r.kustomization(t, "app", "")
	k := r.ready(t, "app")
	a := r.object(t, "v1", "ConfigMap", "a")
	if diff := cmp.Diff(map[string]string{"kustomize.toolkit.fluxcd.io/name": "app", "kustomize.toolkit.fluxcd.io/namespace": r.ns}, a.GetLabels()); diff != "" {
		t.Errorf("labels: -want, +got:\n%s", diff)
	}
	for _, m := range a.GetManagedFields() {
		if m.Manager != "kustomize-controller" || m.Operation != metav1.ManagedFieldsOperationApply {
			t.Errorf("the object is managed by %s %s", m.Manager, m.Operation)
		}
	}
	if !slices.ContainsFunc(k.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "gotk-kustomize-controller" && m.Operation == metav1.ManagedFieldsOperationUpdate && m.Subresource == "status"
	}) || !slices.Contains(k.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("finalizers %v, managers %v", k.Finalizers, k.ManagedFields)
	}
}

// inventory: the names that Flux's tools parse.
func (s *spec) inventory(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/a.yaml": cm("a", ", namespace: $ns", "{k: v}"),
		"app/b.yaml": strings.ReplaceAll(strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"), "{name: slow}", "{name: slow, namespace: $ns}"),
		"app/c.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: \"example:reader\", namespace: $ns}\nrules: []\n",
		"app/d.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-inner}\n",
		"app/e.yaml": "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: slow, namespace: $ns}\nspec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: slow}, maxReplicas: 2}\n",
	})
	r.kustomization(t, "app", "targetNamespace: null")
	k := r.ready(t, "app")
	var got []string
	for _, e := range k.Status.Inventory.Entries {
		got = append(got, e.ID+" "+e.Version)
	}
	want := []string{
		"_" + r.ns + "-inner__Namespace v1", r.ns + "_example__reader_rbac.authorization.k8s.io_Role v1", r.ns + "_a__ConfigMap v1",
		r.ns + "_slow_apps_Deployment v1", r.ns + "_slow_autoscaling_HorizontalPodAutoscaler v2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the order in which they were applied: -want, +got:\n%s", diff)
	}
}

// pruneExceptions: what is marked, and what is another's by now, stays.
func (s *spec) pruneExceptions(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/a.yaml": cm("a", "", "{}"), "app/goes.yaml": cm("goes", "", "{}"), "app/marked.yaml": cm("marked", "", "{}"),
		"app/declared.yaml": cm("declared", ", annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", "{}"),
		"app/taken.yaml":    cm("taken", "", "{}"), "app/missing.yaml": cm("missing", "", "{}"),
	})
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	r.kustomization(t, "app", "suspend: true") // or drift would be corrected
	r.patch(t, &corev1.ConfigMap{}, "marked", `{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/prune":"Disabled"}}}`)
	r.patch(t, &corev1.ConfigMap{}, "taken", `{"metadata":{"labels":{"kustomize.toolkit.fluxcd.io/name":"another"}}}`)
	r.delete(t, &corev1.ConfigMap{}, "missing")
	r.commit(t, map[string]string{"app/goes.yaml": "", "app/marked.yaml": "", "app/declared.yaml": "", "app/taken.yaml": "", "app/missing.yaml": ""})
	r.fetched(t) // or what the commit before declares would be corrected first
	r.kustomization(t, "app", "")
	k := r.ready(t, "app")
	r.gone(t, &corev1.ConfigMap{}, "goes")
	for _, name := range []string{"a", "marked", "declared", "taken"} {
		if r.data(t, name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	if diff := cmp.Diff([]string{r.ns + "_a__ConfigMap v1"}, ids(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
}

// pruneOrder is the reverse of the order in which things are applied.
func (s *spec) pruneOrder(t *testing.T) {
	r := s.row(t, map[string]string{
		"app/a.yaml":  cm("a", "", "{}"),
		"app/sa.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa}\n", "app/cm.yaml": cm("cm", "", "{}"),
		"app/svc.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: svc}\nspec: {ports: [{port: 80}]}\n",
		"app/dep.yaml": strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"),
	})
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.commit(t, map[string]string{"app/sa.yaml": "", "app/cm.yaml": "", "app/svc.yaml": "", "app/dep.yaml": ""})
	r.ready(t, "app")
	var order []string
	for _, e := range r.writes(t, from) {
		if e.Verb == "delete" {
			order = append(order, e.ObjectRef.Resource)
		}
	}
	if diff := cmp.Diff([]string{"deployments", "services", "configmaps", "serviceaccounts"}, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

// failedApplyKeepsInventory: while one object cannot be applied nothing is
// pruned, and nothing that was answered for is forgotten.
func (s *spec) failedApplyKeepsInventory(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{}"), "app/b.yaml": cm("b", "", "{}")})
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	r.commit(t, map[string]string{"app/b.yaml": "", "app/thing.yaml": thing})
	r.says(t, "app", "Ready", "False", "ReconciliationFailed", "")
	k, err := r.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{r.ns + "_a__ConfigMap v1", r.ns + "_b__ConfigMap v1"} {
		if !slices.Contains(ids(k), id) {
			t.Errorf("inventory is %v", ids(k))
		}
	}
	if r.data(t, "b") == nil {
		t.Error("the object is gone")
	}
	r.commit(t, map[string]string{"app/thing.yaml": ""})
	r.ready(t, "app")
	r.gone(t, &corev1.ConfigMap{}, "b")
}

// revertedCommit: an older revision is one like any other.
func (s *spec) revertedCommit(t *testing.T) {
	r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: one}")})
	r.kustomization(t, "app", "")
	r.ready(t, "app")
	r.commit(t, map[string]string{"app/a.yaml": cm("a", "", "{k: two}")})
	r.ready(t, "app")
	r.commit(t, map[string]string{"app/a.yaml": cm("a", "", "{k: one}")})
	r.ready(t, "app")
	if got := r.data(t, "a")["k"]; got != "one" {
		t.Errorf("the object has %q", got)
	}
}

// lockdown: the flags of Flux's multi-tenancy lockdown.
func (s *spec) lockdown(t *testing.T) {
	tenant := &row{}
	t.Run("Source", func(t *testing.T) {
		tenant = s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}"), "remote/kustomization.yaml": "resources: [https://127.0.0.1:1/base.yaml]\n"})
	})
	t.Run("Refused", func(t *testing.T) {
		r := s.row(t, map[string]string{"app/a.yaml": cm("a", "", "{k: v}")})
		r.head = tenant.head
		r.kustomization(t, "app", "sourceRef: {kind: GitRepository, name: git, namespace: "+tenant.ns+"}")
		r.ready(t, "app")
		s.restart(t, "--no-cross-namespace-refs=true", "--no-remote-bases=true", "--default-service-account=nobody")
		// What was ready stays as it is until it is reconciled.
		r.ask(t, &kustomizev1.Kustomization{}, "app")
		message := fmt.Sprintf("can't access 'GitRepository/%s/git', cross-namespace references have been blocked", tenant.ns)
		r.says(t, "app", "Ready", "False", "AccessDenied", message)
		r.says(t, "app", "Stalled", "True", "AccessDenied", message)
		if r.data(t, "a") == nil {
			t.Error("the object is gone")
		}
		tenant.kustomization(t, "app", "")
		tenant.says(t, "app", "Ready", "False", "ReconciliationFailed", "...system:serviceaccount:"+tenant.ns+":nobody")
		tenant.kustomization(t, "remote", "")
		tenant.says(t, "remote", "Ready", "False", "BuildFailed", "...remote")
	})
}

// restart runs the agent with more flags.
func (s *spec) restart(t *testing.T, flags ...string) {
	t.Helper()
	d := stage.Object("apps/v1", "Deployment")
	if err := s.load(t.Context(), d, stage.Namespace, "cascade"); err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	container := containers[0].(map[string]any)
	for _, flag := range flags {
		container["args"] = append(container["args"].([]any), flag)
	}
	if err := unstructured.SetNestedSlice(d.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	if err := s.client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	eventually(t, converge, "the agent runs with its new flags", func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := s.load(ctx, d, stage.Namespace, "cascade"); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != 1 || d.Status.ReadyReplicas != 1 || d.Status.Replicas != 1 {
			return fmt.Errorf("status is %+v", d.Status)
		}
		return nil
	})
}
