package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestWhy: faults that are planted in a tier with a real agent, all of them at the same time. Of
// each, cascade why names the root first, in the words of the API objects that an agent writes and
// not of those that a test would; and of all of them together it says no less.
//
// The faults of clusters below are in the golden files of cmd/cascade/cause; TestRemote and
// TestFleet show that agents write what these files have.
func TestWhy(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	w := &whys{Tier: s, program: scenario.Path(t, "bin", "cascade")}
	t.Run("Faults", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, f := range whyFaults() {
			parts.Run(f.name, func(t *testing.T) {
				r := s.Row(t, f.files)
				f.plant(t, r)
				w.root(t, r, f)
			})
		}
	})
	t.Run("All", func(t *testing.T) {
		answer, code := w.ask(t.Context(), t)
		if code != 2 {
			t.Errorf("it ends with %d, want 2", code)
		}
		for _, f := range whyFaults() {
			namespace := "faults-" + strings.ToLower(f.name)
			f.root = strings.ReplaceAll(f.root, "$ns", namespace)
			if !slices.ContainsFunc(answer.Groups, func(g whyGroup) bool { return f.is(g.Root) && g.Root.Namespace == namespace }) {
				t.Errorf("%s: no group has the root %s in %s", f.reason, f.root, namespace)
			}
		}
	})
	t.Run("Mended", func(t *testing.T) {
		r := s.Row(t, map[string]string{"app/a.yaml": "kind: [broken"})
		r.Kustomization(t, "app", "")
		f := whyFault{reason: "before it is mended", root: "Kustomization/app BuildFailed"}
		w.root(t, r, f)
		r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMap("settings", "1")})
		r.Ready(t, "app")
		if _, code := w.ask(t.Context(), t, "kustomization/app", "-n", r.Namespace); code != 0 {
			t.Errorf("it ends with %d after it was mended, want 0", code)
		}
	})
}

type whyFault struct {
	name, reason string
	files        map[string]string
	plant        func(*testing.T, *scenario.Row)
	// root is Kind/name and the reason.
	root string
	// ask is kind/name; kustomization/app if it is empty.
	ask string
}

func (f whyFault) is(l whyLink) bool { return f.root == l.Kind+"/"+l.Name+" "+l.Reason }

func whyFaults() []whyFault {
	one := map[string]string{"app/a.yaml": scenario.ConfigMap("settings", "1")}
	app := func(spec string) func(*testing.T, *scenario.Row) {
		return func(t *testing.T, r *scenario.Row) { r.Kustomization(t, "app", spec) }
	}
	source := func(spec string) func(*testing.T, *scenario.Row) {
		return func(t *testing.T, r *scenario.Row) {
			r.Fetched(t)
			r.Kustomization(t, "app", "")
			r.Ready(t, "app")
			r.Patch(t, &sourcev1.GitRepository{}, "git", r.Fill(spec))
		}
	}
	return []whyFault{
		{"BadCredential", "the source's login is not valid any more, and the Kustomization is not what is to be repaired", one,
			func(t *testing.T, r *scenario.Row) {
				r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: wrong, namespace: $ns}\nstringData: {username: nobody, password: wrong}\n"))
				r.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"secretRef":{"name":"wrong"}}}`)
				r.Kustomization(t, "app", "")
			}, "GitRepository/git AuthenticationFailed", ""},
		{"BranchGone", "the branch is not there", one,
			func(t *testing.T, r *scenario.Row) {
				r.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"ref":{"branch":"none"}}}`)
				r.Kustomization(t, "app", "")
			}, "GitRepository/git GitOperationFailed", ""},
		{"SourceSuspended", "a person suspended the source; what it gave stays ready", one, source(`{"spec":{"suspend":true}}`), "GitRepository/git Suspended", "gitrepository/git"},
		{"SourceMissing", "the reference is wrong", one, app("sourceRef: {kind: GitRepository, name: typo}"), "GitRepository/typo ObjectMissing", ""},
		{"WrongPath", "the directory is not there", one, app("path: ./typo"), "Kustomization/app ArtifactFailed", ""},
		{"BadYAML", "a file cannot be read", map[string]string{"app/a.yaml": "kind: [broken"}, app(""), "Kustomization/app BuildFailed", ""},
		{"MissingDefinition", "nobody installed the kind", map[string]string{"app/a.yaml": "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: g}\n"}, app(""), "Kustomization/app ReconciliationFailed", ""},
		{"VariableMissing", "the ConfigMap of a substitution is not there", one, app("postBuild: {substituteFrom: [{kind: ConfigMap, name: none}]}"), "Kustomization/app BuildFailed", ""},
		{"AccountMissing", "the service account is not there", one, app("serviceAccountName: nobody"), "Kustomization/app AccountMissing", ""},
		{"AccountWithoutRights", "the service account may not write", one,
			func(t *testing.T, r *scenario.Row) {
				r.Apply(t, r.Fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: poor, namespace: $ns}\n"))
				r.Kustomization(t, "app", "serviceAccountName: poor")
			}, "Kustomization/app ReconciliationFailed", ""},
		{"Webhook", "an admission webhook does not answer", one,
			func(t *testing.T, r *scenario.Row) {
				r.Apply(t, r.Fill(deadWebhook))
				r.Kustomization(t, "app", "")
			}, "Kustomization/app ReconciliationFailed", ""},
		{"ImmutableField", "the API server refuses the change", map[string]string{"app/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fixed}\nimmutable: true\ndata: {value: \"1\"}\n"},
			func(t *testing.T, r *scenario.Row) {
				r.Kustomization(t, "app", "")
				r.Ready(t, "app")
				r.Commit(t, map[string]string{"app/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fixed}\nimmutable: true\ndata: {value: \"2\"}\n"})
			}, "Kustomization/app ReconciliationFailed", ""},
		{"FailingHealth", "nobody runs its pods", map[string]string{"app/a.yaml": deploymentOfNobody}, app("{wait: true, timeout: 2s, retryInterval: 10m}"), "Kustomization/app HealthCheckFailed", ""},
		{"DependencyMissing", "what it depends on is not there", one, app("dependsOn: [{name: none}]"), "Kustomization/none ObjectMissing", ""},
		{"DependencyFails", "what it depends on fails, and that is what is to be repaired", map[string]string{"app/a.yaml": scenario.ConfigMap("settings", "1"), "base/a.yaml": "kind: [broken"},
			func(t *testing.T, r *scenario.Row) {
				r.Kustomization(t, "base", "")
				r.Kustomization(t, "app", "dependsOn: [{name: base}]")
			}, "Kustomization/base BuildFailed", ""},
		{"DependencyCycle", "they wait for each other", one,
			func(t *testing.T, r *scenario.Row) {
				r.Kustomization(t, "app", "dependsOn: [{name: other}]")
				r.Kustomization(t, "other", "{path: ./app, dependsOn: [{name: app}]}")
			}, "Kustomization/app DependencyCycle", ""},
		{"PruneBlocked", "the directory was emptied, and a person decides", map[string]string{"app/kustomization.yaml": "resources: [a.yaml]\n", "app/a.yaml": scenario.ConfigMap("settings", "1")},
			func(t *testing.T, r *scenario.Row) {
				r.Kustomization(t, "app", "")
				r.Ready(t, "app")
				r.Commit(t, map[string]string{"app/kustomization.yaml": "resources: []\n", "app/a.yaml": ""})
			}, "Kustomization/app PruneBlocked", ""},
		{"Suspended", "a person suspended it", one, app("suspend: true"), "Kustomization/app Suspended", ""},
		{"ChartMissing", "the chart is not in the repository", one,
			func(t *testing.T, r *scenario.Row) {
				r.Apply(t, r.Fill(releaseOfTypo))
			}, "HelmChart/$ns-web InvalidChartReference", "helmrelease/web"},
		{"BelowASource", "an object that the Kustomization applied is not well, and waits for it", map[string]string{"app/a.yaml": brokenSource},
			app("{wait: true, timeout: 5m}"), "GitRepository/inner URLInvalid", ""},
	}
}

// deadWebhook admits ConfigMaps of the namespace, if somebody listened on its port.
const deadWebhook = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: dead-$ns}
webhooks:
- name: dead.example.com
  clientConfig: {url: "https://127.0.0.1:9/"}
  rules: [{apiGroups: [""], apiVersions: [v1], resources: [configmaps], operations: [CREATE, UPDATE]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $ns}}
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 2
`

const deploymentOfNobody = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {nobody: has}
      containers: [{name: web, image: example.com/web:v1}]
`

const releaseOfTypo = `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: $ns}
spec:
  interval: 10m
  chart: {spec: {chart: ./charts/typo, sourceRef: {kind: GitRepository, name: git}}}
`

const brokenSource = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: inner}
spec: {url: "https://", interval: 10m}
`

// whys asks cascade why of one tier.
type whys struct {
	*scenario.Tier
	program string
}

type (
	whyLink struct {
		Kind, Namespace, Name, Reason, Next, Page string
	}
	whyGroup struct {
		Root whyLink
	}
	whyAnswer struct {
		Ready  bool
		Groups []whyGroup
		Chains [][]whyLink
		Unread map[string]string
	}
)

// ask runs cascade why. It does not fail the test, so that it can be asked again.
func (w *whys) ask(ctx context.Context, t *testing.T, args ...string) (whyAnswer, int) {
	t.Helper()
	answer, code, err := w.try(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	return answer, code
}

func (w *whys) try(ctx context.Context, args ...string) (whyAnswer, int, error) {
	cmd := exec.CommandContext(ctx, w.program, slices.Concat([]string{"why", "-o", "json", "--kubeconfig", w.MoM.Kubeconfig()}, args)...)
	out, err := cmd.Output()
	code := 0
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		code = exit.ExitCode()
		if code != 2 {
			return whyAnswer{}, code, fmt.Errorf("cascade why ends with %d: %s", code, exit.Stderr)
		}
	} else if err != nil {
		return whyAnswer{}, 0, err
	}
	var answer whyAnswer
	if err := json.Unmarshal(out, &answer); err != nil {
		return whyAnswer{}, code, fmt.Errorf("%w:\n%s", err, out)
	}
	if len(answer.Unread) > 0 {
		return whyAnswer{}, code, fmt.Errorf("unread: %v", answer.Unread)
	}
	return answer, code, nil
}

// root waits until each chain of the object has the root of the fault, which says what to do.
func (w *whys) root(t *testing.T, r *scenario.Row, f whyFault) {
	t.Helper()
	f.root, f.ask = r.Fill(f.root), r.Fill(f.ask)
	if f.ask == "" {
		f.ask = "kustomization/app"
	}
	scenario.Eventually(t, scenario.Converge, f.reason+": the root is "+f.root, func(ctx context.Context) error {
		answer, code, err := w.try(ctx, f.ask, "-n", r.Namespace)
		if err != nil {
			return err
		}
		if code != 2 || len(answer.Chains) == 0 {
			return fmt.Errorf("it ends with %d and %d chains", code, len(answer.Chains))
		}
		for _, chain := range answer.Chains {
			switch root := chain[0]; {
			case !f.is(root) || root.Namespace != r.Namespace:
				return fmt.Errorf("the root is %+v", root)
			case root.Page == "":
				return fmt.Errorf("the reason %s has no entry on the page", root.Reason)
			case root.Next == "":
				return fmt.Errorf("%s says not what to do", root.Reason)
			}
		}
		return nil
	})
}
