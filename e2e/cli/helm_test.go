package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestHelmCLI runs the flux and the helm CLI as their projects release them on what
// the agent makes of HelmReleases and their sources, and compares what they print
// with what they print for Flux's own controllers. The parts share one tier, so
// each leaves it as it was.
func TestHelmCLI(t *testing.T) {
	scenario.Alongside(t)
	c := startHelmCLI(t)
	for _, part := range []struct {
		name string
		run  func(*helmCLI, *testing.T)
	}{
		{"FluxGet", (*helmCLI).fluxGet},
		{"FluxTree", (*helmCLI).fluxTree},
		{"FluxTrace", (*helmCLI).fluxTrace},
		{"FluxExport", (*helmCLI).fluxExport},
		{"FluxDebug", (*helmCLI).fluxDebug},
		{"FluxReconcileSources", (*helmCLI).fluxReconcileSources},
		{"FluxReconcileRelease", (*helmCLI).fluxReconcileRelease},
		{"FluxReconcileForced", (*helmCLI).fluxReconcileForced},
		{"FluxReconcileReset", (*helmCLI).fluxReconcileReset},
		{"FluxSuspendAndResume", (*helmCLI).fluxSuspendAndResume},
		{"FluxCreateAndDelete", (*helmCLI).fluxCreateAndDelete},
		{"HelmList", (*helmCLI).helmList},
		{"HelmHistory", (*helmCLI).helmHistory},
		{"HelmGet", (*helmCLI).helmGet},
		{"HelmStatus", (*helmCLI).helmStatus},
		{"HelmRollback", (*helmCLI).helmRollback},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(c, t) })
	}
}

// helmCLI is a tier with releases in the agent's namespace, and the CLIs of the
// person who looks after it.
type helmCLI struct {
	fluxCLI
	*scenario.HelmRow
	helm string
}

// webRelease is applied from Git, so it is below a Kustomization.
const webRelease = `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: cascade-system}
spec:
  interval: 10m
  timeout: 1m
  targetNamespace: default
  releaseName: web
  chart: {spec: {chart: app, version: 1.x, sourceRef: {kind: HelmRepository, name: charts}}}
  valuesFrom: [{kind: Secret, name: web-values}]
  values: {settings: {color: blue}}
`

func startHelmCLI(t *testing.T) *helmCLI {
	t.Helper()
	h := scenario.StartHelmTier(t)
	c := &helmCLI{HelmRow: h.RowIn(stage.Namespace)}
	c.fluxCLI.Tier, c.home = h.Tier, t.TempDir()
	var err error
	if c.program, err = h.Program("flux"); err != nil {
		t.Fatal(err)
	}
	if c.helm, err = h.Program("helm"); err != nil {
		t.Fatal(err)
	}
	if err := h.Git.Create(t.Context(), "apps"); err != nil {
		t.Fatal(err)
	}
	c.Put(t, "apps", map[string]string{"apps/web.yaml": webRelease})
	h.Push(t, "manifests", "latest", scenario.ArtifactFiles(), map[string]string{"org.opencontainers.image.revision": "main@sha1:0123456789012345678901234567890123456789"})
	if _, err := h.Registry.PushChart("charts", scenario.AppChart("app", "1.0.0")); err != nil {
		t.Fatal(err)
	}
	c.Bucket(t, "bucket", scenario.ArtifactFiles())
	c.HelmRow.Apply(t, `apiVersion: v1
kind: Secret
metadata: {name: web-values, namespace: cascade-system}
stringData: {values.yaml: "settings: {color: green, secret: hunter2hunter2}"}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: apps, namespace: cascade-system}
spec: {url: "`+h.Git.HTTPURL("apps")+`", ref: {branch: main}, secretRef: {name: git-auth}, interval: 10m}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: apps, namespace: cascade-system}
spec: {sourceRef: {kind: GitRepository, name: apps}, path: ./apps, prune: true, interval: 10m}
`)
	c.MakeSource(t, "HelmRepository", "charts", "{url: \""+h.Charts.URL()+"\", interval: 10m}")
	c.MakeSource(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.Registry.URL("charts")+"\"}")
	c.MakeSource(t, "OCIRepository", "manifests", "{insecure: true, url: \""+h.Registry.URL("manifests")+"\", interval: 10m}")
	c.MakeSource(t, "HelmChart", "app", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}}")
	c.Release(t, "pinned", "{targetNamespace: default, releaseName: pinned, chart: null, chartRef: {kind: HelmChart, name: app}}")
	c.Released(t, "web", 1)
	c.Released(t, "pinned", 1)
	c.Reason(t, "apps", "ReconciliationSucceeded")
	return c
}

// helmMasks are what differs from run to run in what helm prints, and in what flux
// prints of sources besides Git.
var helmMasks = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{regexp.MustCompile(`(oci|http|https)://127\.0\.0\.1:\d+`), "$1://origin"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<address>"},
	{regexp.MustCompile(`127\.\d+\.\d+\.1:9090`), "<artifacts>"},
	{regexp.MustCompile(`sha256:[0-9a-f]{8}\b`), "sha256:<short>"},
	{regexp.MustCompile(`\b[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}`), "<time>"},
	{regexp.MustCompile(`[\d.]+m?s\b`), "<duration>"},
	{regexp.MustCompile(`modifiedAt=\d+`), "modifiedAt=<time>"},
}

// printed compares what a CLI printed with testdata/flux/helm-<name>.txt.
func (c *helmCLI) printed(t *testing.T, name, got string) {
	t.Helper()
	for _, m := range helmMasks {
		got = m.pattern.ReplaceAllString(got, m.mask)
	}
	c.golden(t, "helm-"+name, got)
}

// runHelm runs the helm CLI as a person would, whose HOME is empty.
func (c *helmCLI) runHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.helm, append([]string{"--kubeconfig", c.MoM().Kubeconfig(), "-n", stage.Namespace}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.home, "TMPDIR=" + c.home, "NO_COLOR=1", "TERM=dumb"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return out.String(), err
}

// MoM is the tier; both the CLI and the row have it.
func (c *helmCLI) MoM() *stage.Tier { return c.fluxCLI.Stage.MoM }

func (c *helmCLI) helmSucceeds(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.runHelm(t, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *helmCLI) fluxGet(t *testing.T) {
	for name, args := range map[string][]string{
		"get-helmreleases":     {"helmreleases"},
		"get-helmrelease":      {"hr", "web", "--show-source"},
		"get-sources-all":      {"sources", "all"},
		"get-sources-helm":     {"sources", "helm"},
		"get-sources-chart":    {"sources", "chart"},
		"get-sources-oci":      {"sources", "oci"},
		"get-sources-bucket":   {"sources", "bucket"},
		"get-all":              {"all"},
		"get-helmreleases-all": {"hr", "-A", "--status-selector", "ready=true"},
	} {
		c.printed(t, name, c.succeeds(t, append([]string{"get"}, args...)...))
	}
}

// fluxTree goes through the HelmRelease to what Helm's storage says it made.
func (c *helmCLI) fluxTree(t *testing.T) {
	c.printed(t, "tree", c.succeeds(t, "tree", "kustomization", "apps"))
}

func (c *helmCLI) fluxTrace(t *testing.T) {
	out, err := c.run(t, "trace", "configmap", "web-settings", "-n", "default")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.printed(t, "trace", out)
}

func (c *helmCLI) fluxExport(t *testing.T) {
	c.printed(t, "export-helmrelease", c.succeeds(t, "export", "helmrelease", "web"))
	c.printed(t, "export-source-helm", c.succeeds(t, "export", "source", "helm", "--all"))
	c.printed(t, "export-source-oci", c.succeeds(t, "export", "source", "oci", "manifests"))
	c.printed(t, "export-source-bucket", c.succeeds(t, "export", "source", "bucket", "bucket"))
	c.printed(t, "export-source-chart", c.succeeds(t, "export", "source", "chart", "app"))
}

func (c *helmCLI) fluxDebug(t *testing.T) {
	c.printed(t, "debug-values", c.succeeds(t, "debug", "hr", "web", "--show-values"))
	c.printed(t, "debug-status", c.succeeds(t, "debug", "hr", "pinned", "--show-status"))
	c.printed(t, "debug-history", c.succeeds(t, "debug", "hr", "pinned", "--show-history"))
}

func (c *helmCLI) fluxReconcileSources(t *testing.T) {
	c.printed(t, "reconcile-source-helm", c.succeeds(t, "reconcile", "source", "helm", "charts"))
	c.printed(t, "reconcile-source-chart", c.succeeds(t, "reconcile", "source", "chart", "app"))
	c.printed(t, "reconcile-source-oci", c.succeeds(t, "reconcile", "source", "oci", "manifests"))
	c.printed(t, "reconcile-source-bucket", c.succeeds(t, "reconcile", "source", "bucket", "bucket"))
}

// fluxReconcileRelease brings a chart that no interval would bring in this test.
func (c *helmCLI) fluxReconcileRelease(t *testing.T) {
	c.printed(t, "reconcile-helmrelease", c.succeeds(t, "reconcile", "hr", "web"))
	c.Helm.Charts.Add(scenario.AppChart("app", "1.2.0"))
	c.printed(t, "reconcile-with-source", c.succeeds(t, "reconcile", "hr", "web", "--with-source"))
	o := c.Released(t, "web", 2)
	if got := o.Status.History.Latest().ChartVersion; got != "1.2.0" {
		t.Errorf("after reconcile --with-source the chart is of version %s", got)
	}
}

func (c *helmCLI) fluxReconcileForced(t *testing.T) {
	c.printed(t, "reconcile-force", c.succeeds(t, "reconcile", "hr", "pinned", "--force"))
	c.Released(t, "pinned", 2)
}

// fluxReconcileReset: what has no retries left is tried again.
func (c *helmCLI) fluxReconcileReset(t *testing.T) {
	c.HelmRow.Apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: stuck-settings, namespace: default}\nimmutable: true\ndata: {color: black}\n")
	c.Release(t, "stuck", "{targetNamespace: default, releaseName: stuck}")
	c.ReleaseTells(t, "stuck", "Stalled", "True", "RetriesExceeded", "")
	c.printed(t, "reconcile-stalled", c.fails(t, 1, "reconcile", "hr", "stuck"))
	if err := c.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stuck-settings"}}); err != nil {
		t.Fatal(err)
	}
	c.printed(t, "reconcile-reset", c.succeeds(t, "reconcile", "hr", "stuck", "--reset"))
	c.printed(t, "delete-helmrelease", c.succeeds(t, "delete", "hr", "stuck", "--silent"))
	c.HelmRow.Gone(t, &helmv2.HelmRelease{}, "stuck")
	c.Absent(t, &corev1.ConfigMap{}, "default", "stuck-settings")
}

func (c *helmCLI) fluxSuspendAndResume(t *testing.T) {
	c.printed(t, "suspend", c.succeeds(t, "suspend", "hr", "pinned"))
	c.printed(t, "suspend-get", c.succeeds(t, "get", "hr", "pinned"))
	if out := c.fails(t, 1, "reconcile", "hr", "pinned"); !strings.Contains(out, "resource is suspended") {
		t.Errorf("the CLI says:\n%s", out)
	}
	c.printed(t, "resume", c.succeeds(t, "resume", "hr", "pinned"))
	for _, kind := range []struct{ kind, name string }{{"helm", "charts"}, {"oci", "manifests"}, {"bucket", "bucket"}, {"chart", "app"}} {
		c.printed(t, "suspend-"+kind.kind, c.succeeds(t, "suspend", "source", kind.kind, kind.name))
		c.printed(t, "resume-"+kind.kind, c.succeeds(t, "resume", "source", kind.kind, kind.name))
	}
}

func (c *helmCLI) fluxCreateAndDelete(t *testing.T) {
	c.printed(t, "create-source-helm", c.succeeds(t, "create", "source", "helm", "made", "--url", c.Helm.Charts.URL(), "--interval", "10m"))
	c.printed(t, "create-helmrelease", c.succeeds(t, "create", "hr", "made", "--source", "HelmRepository/made", "--chart", "app", "--chart-version", "1.0.0",
		"--interval", "10m", "--target-namespace", "kube-public", "--release-name", "made"))
	c.printed(t, "delete-created", c.succeeds(t, "delete", "hr", "made", "--silent"))
	c.HelmRow.Gone(t, &helmv2.HelmRelease{}, "made")
	c.printed(t, "delete-source-helm", c.succeeds(t, "delete", "source", "helm", "made", "--silent"))
}

func (c *helmCLI) helmList(t *testing.T) {
	c.printed(t, "cli-list", c.helmSucceeds(t, "list", "-A", "--filter", "^(web|pinned)$"))
	if out := c.helmSucceeds(t, "list", "-A", "-o", "json"); !strings.Contains(out, `"name":"web"`) || !strings.Contains(out, `"status":"deployed"`) {
		t.Errorf("helm list printed:\n%s", out)
	}
}

func (c *helmCLI) helmHistory(t *testing.T) {
	c.printed(t, "cli-history", c.helmSucceeds(t, "history", "web"))
}

func (c *helmCLI) helmGet(t *testing.T) {
	c.printed(t, "cli-get-values", c.helmSucceeds(t, "get", "values", "web"))
	c.printed(t, "cli-get-values-all", c.helmSucceeds(t, "get", "values", "web", "--all", "--revision", "1"))
	c.printed(t, "cli-get-manifest", c.helmSucceeds(t, "get", "manifest", "web"))
	c.printed(t, "cli-get-metadata", c.helmSucceeds(t, "get", "metadata", "pinned"))
}

func (c *helmCLI) helmStatus(t *testing.T) {
	c.printed(t, "cli-status", c.helmSucceeds(t, "status", "pinned"))
}

// helmRollback: what a person rolled back is what Git says again after the next
// reconcile.
func (c *helmCLI) helmRollback(t *testing.T) {
	c.printed(t, "cli-rollback", c.helmSucceeds(t, "rollback", "web", "1"))
	o := c.Request(t, "web")
	c.ReleaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
	scenario.Eventually(t, scenario.Converge, "the release is the chart that is wanted", func(ctx context.Context) error {
		if err := c.Load(ctx, o, stage.Namespace, "web"); err != nil {
			return err
		}
		if s := o.Status.History.Latest(); s == nil || s.ChartVersion != "1.2.0" || s.Version < 4 {
			return fmt.Errorf("history is %s", scenario.Snapshots(o))
		}
		return nil
	})
	c.printed(t, "cli-history-after", c.helmSucceeds(t, "history", "web"))
}
