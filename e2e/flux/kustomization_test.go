package flux

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestKustomizationSpec tries what Flux says of a Kustomization, row by row, as
// docs/flux-compatibility.md lists them. Every row was seen to pass with Flux's own
// kustomize-controller v1.9.5 as well, but for three: DependsOnChain, where we are
// sooner on purpose, SecretsAreMasked, which it does from v1.10 on, and NotDecrypted,
// where it loses the marks of encryption before it looks for them.
func TestKustomizationSpec(t *testing.T) {
	scenario.Alongside(t)
	s := &kustomizationSpec{scenario.StartTier(t)}
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*kustomizationSpec, *testing.T)
		}{
			{"RetryInterval", (*kustomizationSpec).retryInterval},
			{"Timeout", (*kustomizationSpec).timeout},
			{"SourceNotFound", (*kustomizationSpec).sourceNotFound},
			{"SourceWithoutArtifact", (*kustomizationSpec).sourceWithoutArtifact},
			{"PathNotFound", (*kustomizationSpec).pathNotFound},
			{"PruneFalse", (*kustomizationSpec).pruneFalse},
			{"DeletionPolicies", (*kustomizationSpec).everyDeletionPolicy},
			{"WaitForTermination", (*kustomizationSpec).waitForTermination},
			{"WaitFailsEarly", (*kustomizationSpec).waitFailsEarly},
			{"HealthCheckCanceled", (*kustomizationSpec).healthCheckCanceled},
			{"HealthChecks", (*kustomizationSpec).healthChecks},
			{"HealthCheckExprs", (*kustomizationSpec).healthCheckExprs},
			{"HealthCheckExprsInvalid", (*kustomizationSpec).healthCheckExprsInvalid},
			{"DependsOnChain", (*kustomizationSpec).dependsOnChain},
			{"DependsOnNotFound", (*kustomizationSpec).dependsOnNotFound},
			{"DependsOnReadyExpr", (*kustomizationSpec).dependsOnReadyExpr},
			{"DependsOnRevision", (*kustomizationSpec).dependsOnRevision},
			{"ServiceAccount", (*kustomizationSpec).serviceAccount},
			{"ServiceAccountGone", (*kustomizationSpec).serviceAccountGone},
			{"KubeConfig", (*kustomizationSpec).kubeConfig},
			{"TargetMoves", (*kustomizationSpec).targetMoves},
			{"Overlay", (*kustomizationSpec).overlay},
			{"PostBuild", (*kustomizationSpec).postBuild},
			{"PostBuildWatched", (*kustomizationSpec).postBuildWatched},
			{"Force", (*kustomizationSpec).force},
			{"ForceHeld", (*kustomizationSpec).forceHeld},
			{"ForceInvalid", (*kustomizationSpec).forceInvalid},
			{"Ignore", (*kustomizationSpec).ignore},
			{"Suspend", (*kustomizationSpec).suspend},
			{"LastHandledOnFailure", (*kustomizationSpec).lastHandledOnFailure},
			{"History", (*kustomizationSpec).history},
			{"SecretsAreMasked", (*kustomizationSpec).secretsAreMasked},
			{"NotDecrypted", (*kustomizationSpec).notDecrypted},
			{"ApplyOrder", (*kustomizationSpec).applyOrder},
			{"ServerSideApplyModes", (*kustomizationSpec).serverSideApplyModes},
			{"OwnerLabels", (*kustomizationSpec).ownerLabels},
			{"Inventory", (*kustomizationSpec).inventory},
			{"PruneExceptions", (*kustomizationSpec).pruneExceptions},
			{"PruneOrder", (*kustomizationSpec).pruneOrder},
			{"ClusterScoped", (*kustomizationSpec).clusterScoped},
			{"ClusterScopedKinds", (*kustomizationSpec).clusterScopedKinds},
			{"VersionDropped", (*kustomizationSpec).versionDropped},
			{"KindMisspelt", (*kustomizationSpec).kindMisspelt},
			{"PruneAsServiceAccount", (*kustomizationSpec).pruneAsServiceAccount},
			{"HeldOnRecord", (*kustomizationSpec).heldOnRecord},
			{"FailedApplyKeepsInventory", (*kustomizationSpec).failedApplyKeepsInventory},
			{"RevertedCommit", (*kustomizationSpec).revertedCommit},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(s, t)
			})
		}
	})
	// These start the agent anew, with other flags.
	t.Run("Managers", s.managers)
	t.Run("Lockdown", s.lockdown)
}

// kustomizationSpec is the tier that all rows share.
type kustomizationSpec struct{ *scenario.Tier }

const thing = "apiVersion: $ns.example.com/v1\nkind: Thing\nmetadata: {name: thing}\n"

func (s *kustomizationSpec) retryInterval(t *testing.T) {
	r := s.Row(t, map[string]string{"app/thing.yaml": thing})
	r.Kustomization(t, "app", "")
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", `Thing/`+r.Namespace+`/thing dry-run failed: no matches for kind "Thing" in version`)
	r.Says(t, "app", "Reconciling", "True", "ProgressingWithRetry", "")
	// Nobody asks, and the interval is 10 minutes.
	r.Apply(t, r.Fill(scenario.ThingCRD))
	r.Ready(t, "app")
}

func (s *kustomizationSpec) sourceNotFound(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Kustomization(t, "app", "sourceRef: {kind: GitRepository, name: later}")
	r.Says(t, "app", "Ready", "False", "ArtifactFailed", "...not found")
	r.Apply(t, r.GitRepository("later", r.Git.HTTPURL(r.Namespace)))
	r.Ready(t, "app")
}

func (s *kustomizationSpec) sourceWithoutArtifact(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Apply(t, r.GitRepository("unreachable", r.Git.HTTPURL("nowhere")))
	r.Kustomization(t, "app", "sourceRef: {kind: GitRepository, name: unreachable}")
	r.Says(t, "app", "Ready", "False", "ArtifactFailed", "Source artifact not found, retrying in ")
}

// pathNotFound: and nothing that was there goes.
func (s *kustomizationSpec) pathNotFound(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/a.yaml": "", "elsewhere/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Says(t, "app", "Ready", "False", "ArtifactFailed", "kustomization path not found: ")
	if k, err := r.Read(t.Context(), "app"); err != nil || len(scenario.Inventory(k)) != 1 || r.Data(t, "a") == nil {
		t.Errorf("inventory %v, data %v, %v", scenario.Inventory(k), r.Data(t, "a"), err)
	}
	r.Kustomization(t, "app", "path: ./elsewhere")
	r.Ready(t, "app")
}

// suspend: requests are answered, nothing is done, and deletion takes nothing
// along.
func (s *kustomizationSpec) suspend(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	r.Kustomization(t, "app", "")
	before := r.Ready(t, "app")
	r.Kustomization(t, "app", "suspend: true")
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	k := r.Handled(t, "app", r.Ask(t, &kustomizev1.Kustomization{}, "app"))
	if diff := cmp.Diff(before.Status.Conditions, k.Status.Conditions); diff != "" {
		t.Errorf("conditions: -before, +suspended:\n%s", diff)
	}
	if k.Status.ObservedGeneration != k.Generation {
		t.Errorf("observed generation is %d of %d", k.Status.ObservedGeneration, k.Generation)
	}
	if k.Status.LastAppliedRevision != before.Status.LastAppliedRevision || r.Data(t, "a")["k"] != "one" {
		t.Error("a suspended Kustomization was reconciled")
	}
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Kustomization(t, "app", "suspend: true")
	r.Delete(t, &kustomizev1.Kustomization{}, "app")
	r.Gone(t, &kustomizev1.Kustomization{}, "app")
	if r.Data(t, "a") == nil {
		t.Error("the object is gone")
	}
}

func (s *kustomizationSpec) lastHandledOnFailure(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": "not: Kubernetes\n", "late/a.yaml": scenario.ConfigMapWith("a", "", "{}")})
	r.Kustomization(t, "app", "retryInterval: 1h")
	r.Says(t, "app", "Ready", "False", "BuildFailed", "")
	r.Handled(t, "app", r.Ask(t, &kustomizev1.Kustomization{}, "app"))
	r.Kustomization(t, "late", "dependsOn: [{name: app}]")
	r.Says(t, "late", "Ready", "False", "DependencyNotReady", "")
	r.Handled(t, "late", r.Ask(t, &kustomizev1.Kustomization{}, "late"))
}

// history: newest first, one entry for each (digest, status), at most five.
func (s *kustomizationSpec) history(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: '0'}")})
	r.Kustomization(t, "app", "")
	first := r.Ready(t, "app").Status.History
	if len(first) != 1 || first[0].LastReconciledStatus != "ReconciliationSucceeded" || first[0].Metadata["revision"] != "main@sha1:"+r.Head ||
		!strings.HasPrefix(first[0].Digest, "sha256:") || first[0].TotalReconciliations < 1 {
		t.Fatalf("history is %+v", first)
	}
	// Another revision, the same rendering.
	r.Commit(t, map[string]string{"README.md": "not read"})
	if h := r.Ready(t, "app").Status.History; len(h) != 1 || h[0].Digest != first[0].Digest || h[0].Metadata["revision"] != "main@sha1:"+r.Head {
		t.Errorf("history is %+v", h)
	}
	for i := range 6 {
		r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", fmt.Sprintf("{k: '%d'}", i+1))})
		r.Ready(t, "app")
	}
	h := r.Ready(t, "app").Status.History
	if len(h) != 5 || h[0].Metadata["revision"] != "main@sha1:"+r.Head || h[0].Digest == h[1].Digest {
		t.Errorf("history is %+v", h)
	}
	// A failed apply is history as well, a failed build is not.
	r.Commit(t, map[string]string{"app/b.yaml": thing})
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "")
	scenario.Eventually(t, scenario.Converge, "the failure is history", func(ctx context.Context) error {
		k, err := r.Read(ctx, "app")
		if err != nil {
			return err
		}
		if h := k.Status.History.Latest(); h == nil || h.LastReconciledStatus != "ReconciliationFailed" || h.Metadata["revision"] != "main@sha1:"+r.Head {
			return fmt.Errorf("history is %+v", k.Status.History)
		}
		return nil
	})
}

// lockdown: the flags of Flux's multi-tenancy lockdown.
func (s *kustomizationSpec) lockdown(t *testing.T) {
	tenant := &scenario.Row{}
	t.Run("Source", func(t *testing.T) {
		tenant = s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}"), "remote/kustomization.yaml": "resources: [https://127.0.0.1:1/base.yaml]\n"})
	})
	t.Run("Refused", func(t *testing.T) {
		r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
		r.Head = tenant.Head
		r.Kustomization(t, "app", "sourceRef: {kind: GitRepository, name: git, namespace: "+tenant.Namespace+"}")
		r.Ready(t, "app")
		s.RestartAgent(t, "--no-cross-namespace-refs=true", "--no-remote-bases=true", "--default-service-account=nobody", "--metrics-auth=kubernetes", "--profiling")
		// What was ready stays as it is until it is reconciled.
		r.Ask(t, &kustomizev1.Kustomization{}, "app")
		message := fmt.Sprintf("can't access 'GitRepository/%s/git', cross-namespace references have been blocked", tenant.Namespace)
		r.Says(t, "app", "Ready", "False", "AccessDenied", message)
		r.Says(t, "app", "Stalled", "True", "AccessDenied", message)
		if r.Data(t, "a") == nil {
			t.Error("the object is gone")
		}
		tenant.Kustomization(t, "app", "")
		tenant.Says(t, "app", "Ready", "False", "ReconciliationFailed", "...system:serviceaccount:"+tenant.Namespace+":nobody")
		tenant.Kustomization(t, "remote", "")
		tenant.Says(t, "remote", "Ready", "False", "BuildFailed", "...remote")
	})
	t.Run("Metrics", s.guardedMetrics)
}

// guardedMetrics: only those read them whom the API server lets.
func (s *kustomizationSpec) guardedMetrics(t *testing.T) {
	s.Apply(t, `apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: metrics-reader}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: metrics-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metrics-reader}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]
`)
	address, err := scenario.MetricsAddress(s.MoM)
	if err != nil {
		t.Fatal(err)
	}
	config, err := s.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	scrapers := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // nobody signed its certificate
	for _, tc := range []struct {
		reason, account, path string
		status                int
	}{
		{"who has no token reads nothing", "", "/metrics", http.StatusUnauthorized},
		{"who has no right reads nothing", "stranger", "/metrics", http.StatusForbidden},
		{"who has the right reads them", "scraper", "/metrics", http.StatusOK},
		{"profiles are another right", "scraper", "/debug/pprof/cmdline", http.StatusForbidden},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.account != "" {
			token, err := kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), tc.account, &authnv1.TokenRequest{}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token.Status.Token)
		}
		response, err := scrapers.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != tc.status || strings.Contains(string(text), "gotk_") != (tc.status == http.StatusOK) {
			t.Errorf("%s: %d with %d bytes, %v", tc.reason, response.StatusCode, len(text), err)
		}
	}
}
