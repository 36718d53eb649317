package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestFlux runs the flux CLI as Flux releases it against the agent, verb by verb,
// and compares what it prints with what it prints for Flux's own controllers.
// The verbs share one tier, so each leaves it as it was.
func TestFlux(t *testing.T) {
	scenario.Alongside(t)
	f := startFlux(t)
	for _, verb := range []struct {
		name string
		run  func(*fluxCLI, *testing.T)
	}{
		{"Check", (*fluxCLI).check},
		{"Version", (*fluxCLI).version},
		{"Get", (*fluxCLI).get},
		{"Tree", (*fluxCLI).tree},
		{"Trace", (*fluxCLI).trace},
		{"Export", (*fluxCLI).export},
		{"Debug", (*fluxCLI).debug},
		{"Build", (*fluxCLI).build},
		{"Diff", (*fluxCLI).diff},
		{"Stats", (*fluxCLI).stats},
		{"Events", (*fluxCLI).events},
		{"ReconcileKustomization", (*fluxCLI).reconcileKustomization},
		{"ReconcileSource", (*fluxCLI).reconcileSource},
		{"ReconcileWithSource", (*fluxCLI).reconcileWithSource},
		{"ReconcileFailing", (*fluxCLI).reconcileFailing},
		{"SuspendAndResume", (*fluxCLI).suspendAndResume},
		{"CreateAndDelete", (*fluxCLI).createAndDelete},
		{"Logs", (*fluxCLI).logs},
	} {
		t.Run(verb.name, func(t *testing.T) { verb.run(f, t) })
	}
}

// fluxCLI is a tier with an application, and the CLI of the person who looks
// after it.
type fluxCLI struct {
	*scenario.Tier
	program string
	home    string
	// head is the commit that main is at.
	head string
}

const fluxBootstrap = `apiVersion: v1
kind: ConfigMap
metadata: {name: cluster-vars, namespace: cascade-system}
data: {greeting: overridden, region: north}
---
apiVersion: v1
kind: Secret
metadata: {name: cluster-secrets, namespace: cascade-system}
stringData: {token: hunter2hunter2}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps, namespace: cascade-system, labels: {team: a}}
spec:
  url: ${git_url}/apps.git
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 10m
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: apps, namespace: cascade-system, labels: {team: a}}
spec:
  sourceRef: {kind: GitRepository, name: apps}
  path: ./apps
  prune: true
  wait: true
  timeout: 2m
  interval: 10m
  retryInterval: 1s
  postBuild:
    substitute: {greeting: hello}
    substituteFrom:
    - {kind: ConfigMap, name: cluster-vars}
    - {kind: Secret, name: cluster-secrets}
`

// fluxApps is what Git declares: objects whose defaults the API server fills in,
// a Secret, variables, and a Kustomization below the first.
var fluxApps = map[string]string{
	"apps/settings.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: default}\ndata: {greeting: \"${greeting}\", region: \"${region}\"}\n",
	"apps/login.yaml":    "apiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: default}\nstringData: {token: \"${token}\"}\n",
	"apps/nested.yaml": `apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: nested, namespace: cascade-system}
spec:
  sourceRef: {kind: GitRepository, name: apps}
  path: ./nested
  prune: true
  interval: 10m
  targetNamespace: default
`,
	"apps/web.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      hostNetwork: true
      containers:
      - name: web
        image: cascade.local/e2e:dev
        command: [sleep, "1000000"]
        ports: [{containerPort: 8099}]
`,
	"apps/service.yaml":  "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: default}\nspec: {selector: {app: web}, ports: [{port: 80, targetPort: 8099}]}\n",
	"nested/inner.yaml":  scenario.ConfigMap("inner", "1"),
	"broken/broken.yaml": "apiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: nothing, namespace: default}\n",
}

func startFlux(t *testing.T) *fluxCLI {
	t.Helper()
	repos := t.TempDir()
	for name, text := range fluxApps {
		file := filepath.Join(repos, "apps", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f := &fluxCLI{home: t.TempDir()}
	f.Tier = scenario.StartTierWith(t, repos, fluxBootstrap)
	var err error
	if f.program, err = f.Program("flux"); err != nil {
		t.Fatal(err)
	}
	f.Reason(t, "apps", fluxmeta.ReconciliationSucceededReason)
	f.Reason(t, "nested", fluxmeta.ReconciliationSucceededReason)
	f.head = f.revision(t)
	return f
}

// revision is the commit that the GitRepository has.
func (f *fluxCLI) revision(t *testing.T) string {
	t.Helper()
	repo := &sourcev1.GitRepository{}
	if err := scenario.Get(t.Context(), f.MoM, repo, stage.Namespace, "apps"); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(repo.Status.Artifact.Revision, "main@sha1:")
}

// run runs the CLI as a person would, whose HOME is empty and who has no network
// beyond this machine. It returns everything that a terminal would have shown.
func (f *fluxCLI) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	cmd := exec.CommandContext(ctx, f.program, append([]string{"--kubeconfig", f.MoM.Kubeconfig(), "--timeout", "1m"}, args...)...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + f.home, "TMPDIR=" + f.home, "NO_COLOR=1", "TERM=dumb",
		// The CLI asks for its latest release; nobody answers.
		"HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1,localhost",
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return out.String(), err
}

// succeeds runs the CLI in the agent's namespace.
func (f *fluxCLI) succeeds(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.run(t, append(args, "-n", stage.Namespace)...)
	if err != nil {
		t.Fatalf("flux %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// fails runs the CLI and wants the exit code.
func (f *fluxCLI) fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	out, err := f.run(t, append(args, "-n", stage.Namespace)...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		t.Fatalf("flux %s: %v, want exit code %d\n%s", strings.Join(args, " "), err, code, out)
	}
	return out
}

// masks are what differs from run to run.
var masks = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "<digest>"},
	{regexp.MustCompile(`\b[0-9a-f]{40}\b`), "<commit>"},
	{regexp.MustCompile(`sha1:[0-9a-f]{8}\b`), "sha1:<short>"},
	{regexp.MustCompile(`http://127\.0\.0\.1:\d+`), "http://git"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z| [+-]\d{4} \w+)`), "<time>"},
	{regexp.MustCompile(`((?:lastReconciledDuration|totalReconciliations|size): ).*`), "$1<masked>"},
	// Tables are as wide as what they show.
	{regexp.MustCompile(` *\t *`), " | "},
	{regexp.MustCompile(`(?m) +$| \| $`), ""},
	// Flux's messages of failures end with a line that is empty.
	{regexp.MustCompile(`(?m)^[ |]+\n`), ""},
}

// golden compares what the CLI printed with testdata/flux/<name>.txt.
func (f *fluxCLI) golden(t *testing.T, name, got string) {
	t.Helper()
	for _, m := range masks {
		got = m.pattern.ReplaceAllString(got, m.mask)
	}
	got = strings.TrimSpace(got) + "\n"
	file := filepath.Join("testdata", "flux", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

func (f *fluxCLI) check(t *testing.T) {
	f.golden(t, "check", f.succeeds(t, "check"))
	f.golden(t, "check-pre", f.succeeds(t, "check", "--pre"))
}

func (f *fluxCLI) version(t *testing.T) {
	f.golden(t, "version", f.succeeds(t, "version"))
	f.golden(t, "version-json", f.succeeds(t, "version", "-o", "json"))
}

func (f *fluxCLI) get(t *testing.T) {
	for name, args := range map[string][]string{
		"get-kustomizations":      {"kustomizations"},
		"get-kustomizations-all":  {"kustomizations", "-A", "--show-source"},
		"get-kustomization":       {"kustomization", "nested"},
		"get-kustomizations-team": {"ks", "-l", "team=a", "--no-header"},
		"get-not-ready":           {"ks", "--status-selector", "ready=false"},
		"get-ready":               {"ks", "--status-selector", "ready=true"},
		"get-sources-git":         {"sources", "git"},
		"get-sources-all":         {"sources", "all"},
		"get-all":                 {"all"},
		"get-all-namespaces":      {"all", "-A"},
	} {
		f.golden(t, name, f.succeeds(t, append([]string{"get"}, args...)...))
	}
	f.golden(t, "get-missing", f.fails(t, 1, "get", "ks", "missing"))
}

func (f *fluxCLI) tree(t *testing.T) {
	f.golden(t, "tree", f.succeeds(t, "tree", "kustomization", "apps"))
	f.golden(t, "tree-compact", f.succeeds(t, "tree", "ks", "apps", "--compact"))
	f.golden(t, "tree-yaml", f.succeeds(t, "tree", "ks", "nested", "-o", "yaml"))
}

// trace follows an object of Git, one that a controller made from it, and one
// that nobody declared.
func (f *fluxCLI) trace(t *testing.T) {
	out, err := f.run(t, "trace", "deployment", "web", "-n", "default")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.golden(t, "trace", out)
	pods := &corev1.PodList{}
	c, err := f.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), pods, client.InNamespace("default"), client.MatchingLabels{"app": "web"}); err != nil || len(pods.Items) == 0 {
		t.Fatalf("there is no pod: %v", err)
	}
	if out, err = f.run(t, "trace", "pod", pods.Items[0].Name, "-n", "default"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.golden(t, "trace-pod", strings.ReplaceAll(out, pods.Items[0].Name, "web-pod"))
	if out, err = f.run(t, "trace", "--kind", "ConfigMap", "--api-version", "v1", "inner", "-n", "default"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.golden(t, "trace-kind", out)
	if out, err = f.run(t, "trace", "configmap", "kube-root-ca.crt", "-n", "default"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.golden(t, "trace-unmanaged", out)
}

func (f *fluxCLI) export(t *testing.T) {
	f.golden(t, "export-kustomization", f.succeeds(t, "export", "kustomization", "apps"))
	f.golden(t, "export-kustomizations", f.succeeds(t, "export", "kustomization", "--all"))
	f.golden(t, "export-source", f.succeeds(t, "export", "source", "git", "apps"))
}

func (f *fluxCLI) debug(t *testing.T) {
	f.golden(t, "debug-vars", f.succeeds(t, "debug", "ks", "apps", "--show-vars"))
	f.golden(t, "debug-status", f.succeeds(t, "debug", "ks", "nested", "--show-status"))
	f.golden(t, "debug-history", f.succeeds(t, "debug", "ks", "nested", "--show-history"))
}

// workTree is a checkout of what Git has, with files changed.
func (f *fluxCLI) workTree(t *testing.T, changes map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, files := range []map[string]string{fluxApps, changes} {
		for name, text := range files {
			file := filepath.Join(dir, name)
			if text == "" {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				continue
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func (f *fluxCLI) build(t *testing.T) {
	dir := f.workTree(t, nil)
	f.golden(t, "build", f.succeeds(t, "build", "kustomization", "apps", "--path", filepath.Join(dir, "apps")))
	f.golden(t, "build-recursive", f.succeeds(t, "build", "ks", "apps", "--path", filepath.Join(dir, "apps"),
		"--recursive", "--local-sources", "GitRepository/"+stage.Namespace+"/apps="+dir))
}

// diff finds nothing on a cluster that is as Git says: what it compares with is a
// dry run under Flux's field manager and owner labels, so it would show any other
// that we used. And it finds what a commit that is not pushed yet would change.
func (f *fluxCLI) diff(t *testing.T) {
	clean := f.workTree(t, nil)
	if out := f.succeeds(t, "diff", "kustomization", "apps", "--path", filepath.Join(clean, "apps"), "--progress-bar=false",
		"--recursive", "--local-sources", "GitRepository/"+stage.Namespace+"/apps="+clean); strings.TrimSpace(out) != "" {
		t.Errorf("on a clean cluster the CLI shows:\n%s", out)
	}
	ahead := f.workTree(t, map[string]string{
		"apps/settings.yaml": strings.Replace(fluxApps["apps/settings.yaml"], "region: \"${region}\"", "region: south", 1),
		"apps/more.yaml":     "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: default}\n",
		"apps/service.yaml":  "",
	})
	f.golden(t, "diff", f.fails(t, 1, "diff", "kustomization", "apps", "--path", filepath.Join(ahead, "apps"), "--progress-bar=false"))
	if out := f.succeeds(t, "diff", "kustomization", "apps", "--path", filepath.Join(clean, "apps"), "--progress-bar=false"); strings.TrimSpace(out) != "" {
		t.Errorf("looking changed the cluster:\n%s", out)
	}
}

func (f *fluxCLI) stats(t *testing.T) {
	f.golden(t, "stats", f.succeeds(t, "stats"))
	f.golden(t, "stats-all", f.succeeds(t, "stats", "-A"))
}

// events come from the old API, by the object that they are about, with those of
// its source.
func (f *fluxCLI) events(t *testing.T) {
	for _, want := range []struct{ selector, line string }{
		{"Kustomization/apps", `Normal\s+ReconciliationSucceeded\s+Kustomization/apps\s+Reconciliation finished in \S+, next run in 10m0s`},
		{"Kustomization/apps", `Normal\s+Progressing\s+Kustomization/apps\s+.*ConfigMap/default/settings created`},
		{"Kustomization/apps", `Normal\s+NewArtifact\s+GitRepository/apps\s+stored artifact for commit 'Begin'`},
		{"GitRepository/apps", `Normal\s+NewArtifact\s+GitRepository/apps\s+stored artifact for commit 'Begin'`},
	} {
		scenario.Eventually(t, scenario.Converge, "an event like "+want.line, func(context.Context) error {
			out := f.succeeds(t, "events", "--for", want.selector)
			if !strings.HasPrefix(out, "LAST SEEN") || !regexp.MustCompile(want.line).MatchString(out) {
				return fmt.Errorf("flux events --for %s printed:\n%s", want.selector, out)
			}
			return nil
		})
	}
	if out := f.succeeds(t, "events", "-A"); !strings.HasPrefix(out, "NAMESPACE") || !strings.Contains(out, "Kustomization/nested") {
		t.Errorf("flux events -A printed:\n%s", out)
	}
}

func (f *fluxCLI) reconcileKustomization(t *testing.T) {
	f.golden(t, "reconcile-kustomization", f.succeeds(t, "reconcile", "kustomization", "apps"))
}

func (f *fluxCLI) reconcileSource(t *testing.T) {
	f.golden(t, "reconcile-source", f.succeeds(t, "reconcile", "source", "git", "apps"))
}

// reconcileWithSource brings a commit that no interval would bring in this test.
func (f *fluxCLI) reconcileWithSource(t *testing.T) {
	f.Put(t, "apps", map[string]string{"nested/inner.yaml": scenario.ConfigMap("inner", "2")})
	f.golden(t, "reconcile-with-source", f.succeeds(t, "reconcile", "kustomization", "nested", "--with-source"))
	if got, err := f.ConfigMapValue(t.Context(), "inner"); err != nil || got != "2" {
		t.Errorf("after reconcile --with-source the object has %q, %v", got, err)
	}
}

// reconcileFailing: what goes on failing is still on its way for the CLI, so it
// waits for its time-out; that the attempt was made is recorded all the same. What
// cannot go on is told at once.
func (f *fluxCLI) reconcileFailing(t *testing.T) {
	f.Apply(t, scenario.Kustomization("broken", "apps", "./broken", ""))
	f.Reason(t, "broken", fluxmeta.ReconciliationFailedReason)
	f.golden(t, "reconcile-failing", f.fails(t, 1, "reconcile", "kustomization", "broken", "--timeout", "5s"))
	k := &kustomizev1.Kustomization{}
	if err := scenario.Get(t.Context(), f.MoM, k, stage.Namespace, "broken"); err != nil {
		t.Fatal(err)
	}
	if asked := k.Annotations[fluxmeta.ReconcileRequestAnnotation]; asked == "" || k.Status.LastHandledReconcileAt != asked {
		t.Errorf("asked at %q, handled %q", asked, k.Status.LastHandledReconcileAt)
	}
	f.golden(t, "get-failing", f.succeeds(t, "get", "ks", "--status-selector", "ready=false"))
	f.succeeds(t, "delete", "kustomization", "broken", "-s")
	f.gone(t, &kustomizev1.Kustomization{}, "broken")

	f.Apply(t, scenario.Kustomization("stalled", "apps", "./nested", "  healthCheckExprs: [{apiVersion: v1, kind: ConfigMap, current: 'not CEL at all'}]\n"))
	f.Reason(t, "stalled", fluxmeta.InvalidCELExpressionReason)
	f.golden(t, "reconcile-stalled", f.fails(t, 1, "reconcile", "kustomization", "stalled"))
	f.succeeds(t, "delete", "kustomization", "stalled", "-s")
	f.gone(t, &kustomizev1.Kustomization{}, "stalled")
}

func (f *fluxCLI) suspendAndResume(t *testing.T) {
	f.golden(t, "suspend", f.succeeds(t, "suspend", "kustomization", "nested"))
	f.golden(t, "suspend-get", f.succeeds(t, "get", "ks", "nested"))
	if out := f.fails(t, 1, "reconcile", "ks", "nested"); !strings.Contains(out, "resource is suspended") {
		t.Errorf("the CLI says:\n%s", out)
	}
	f.Put(t, "apps", map[string]string{"nested/inner.yaml": scenario.ConfigMap("inner", "3")})
	f.succeeds(t, "reconcile", "source", "git", "apps")
	f.succeeds(t, "reconcile", "ks", "apps") // on the new commit, and the suspended one had its chance
	if got, err := f.ConfigMapValue(t.Context(), "inner"); err != nil || got != "2" {
		t.Errorf("the suspended Kustomization applied %q, %v", got, err)
	}
	f.golden(t, "resume", f.succeeds(t, "resume", "kustomization", "nested"))
	f.Value(t, "inner", "3")

	f.golden(t, "suspend-source", f.succeeds(t, "suspend", "source", "git", "apps"))
	f.golden(t, "resume-source", f.succeeds(t, "resume", "source", "git", "apps"))
	f.golden(t, "suspend-all", f.succeeds(t, "suspend", "ks", "--all"))
	f.golden(t, "resume-all", f.succeeds(t, "resume", "ks", "--all", "--wait"))
}

// createAndDelete: what the CLI waits for after a create is the generation that
// it wrote.
func (f *fluxCLI) createAndDelete(t *testing.T) {
	username, password := f.Git.Login()
	f.golden(t, "create-secret", f.succeeds(t, "create", "secret", "git", "made-auth", "--url", f.Git.HTTPURL("apps"), "--username", username, "--password", password))
	f.golden(t, "create-source", f.succeeds(t, "create", "source", "git", "made", "--url", f.Git.HTTPURL("apps"), "--branch", "main", "--interval", "10m", "--secret-ref", "made-auth"))
	f.golden(t, "create-kustomization", f.succeeds(t, "create", "kustomization", "made", "--source", "GitRepository/made", "--path", "./nested",
		"--prune", "--interval", "10m", "--target-namespace", "kube-public", "--wait", "--health-check-timeout", "1m"))
	if err := scenario.Get(t.Context(), f.MoM, &corev1.ConfigMap{}, "kube-public", "inner"); err != nil {
		t.Error(err)
	}
	f.golden(t, "delete-kustomization", f.succeeds(t, "delete", "kustomization", "made", "--silent"))
	f.gone(t, &kustomizev1.Kustomization{}, "made")
	if err := scenario.Get(t.Context(), f.MoM, &corev1.ConfigMap{}, "kube-public", "inner"); !apierrors.IsNotFound(err) {
		t.Errorf("the object of the deleted Kustomization is still there: %v", err)
	}
	f.golden(t, "delete-source", f.succeeds(t, "delete", "source", "git", "made", "--silent"))
	f.gone(t, &sourcev1.GitRepository{}, "made")
}

func (f *fluxCLI) gone(t *testing.T, o client.Object, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, name+" is gone", func(ctx context.Context) error {
		if err := scenario.Get(ctx, f.MoM, o, stage.Namespace, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
}

// logs reads the pod of the Deployment that is labelled as Flux's are, and picks
// lines by the keys that Flux's controllers write.
func (f *fluxCLI) logs(t *testing.T) {
	args := []string{"logs", "--flux-namespace", stage.Namespace}
	line := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\S+ info Kustomization/apps\.cascade-system - \S.*$`)
	out := f.succeeds(t, append(args, "--kind", "Kustomization", "--name", "apps")...)
	if !line.MatchString(out) || strings.Contains(out, "Kustomization/nested") || strings.Contains(out, "GitRepository/") {
		t.Errorf("flux logs of one Kustomization printed:\n%s", out)
	}
	out = f.succeeds(t, append(args, "--level", "error", "-A")...)
	if !regexp.MustCompile(`(?m)^\S+ error Kustomization/broken\.cascade-system - .*Nothing/default/nothing`).MatchString(out) || strings.Contains(out, " info ") {
		t.Errorf("flux logs of errors printed:\n%s", out)
	}
	out = f.succeeds(t, append(args, "--kind", "GitRepository", "--tail", "100000", "--since", "1h")...)
	if !strings.Contains(out, " info GitRepository/apps.cascade-system - ") {
		t.Errorf("flux logs of sources printed:\n%s", out)
	}
	if strings.Contains(out, "hunter2") {
		t.Error("a Secret is in the log")
	}
	// What the CLI reads it reads from the Deployment: exactly one is labelled.
	list := &appsv1.DeploymentList{}
	c, err := f.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), list, client.InNamespace(stage.Namespace), client.MatchingLabels{"app.kubernetes.io/part-of": "flux"}); err != nil || len(list.Items) != 1 {
		t.Errorf("%d Deployments are labelled, %v", len(list.Items), err)
	}
}
