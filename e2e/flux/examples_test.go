package flux

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestExamples: repositories of the shape that Flux's three examples have (kustomize and
// Helm with artifact generators, multi-tenancy, hub and spoke): the same kinds, directories
// and links, with a chart of our own. All of their objects become ready.
func TestExamples(t *testing.T) {
	scenario.Alongside(t)
	h := scenario.StartHelmTier(t)
	h.RestartAgent(t, "--feature-gates=ExternalArtifact=true")
	parts := scenario.PartsOf(t)
	defer parts.Wait()
	for _, example := range []struct {
		name, root string
		// repositories besides the fleet's.
		others []string
		// namespaces that have objects of the example, and how many it has of Flux's kinds.
		namespaces []string
		objects    int
		check      func(*example, *testing.T)
	}{
		{"kustomize-helm", "./clusters/staging", nil, []string{"certificates", "web"}, 14, (*example).kustomizeHelm},
		{"multi-tenancy", "./clusters/staging", []string{"dev-team"}, []string{"apps"}, 13, (*example).multiTenancy},
		{"hub-and-spoke", "./hub", nil, []string{"staging"}, 12, (*example).hubAndSpoke},
	} {
		parts.Run(example.name, func(t *testing.T) {
			e := begin(t, h, example.name)
			if example.name == "hub-and-spoke" {
				e.spoke(t)
			}
			for _, other := range example.others {
				e.repository(t, other)
			}
			e.repository(t, "fleet")
			e.sync(t, example.root)
			e.ready(t, example.objects, append(example.namespaces, e.flux)...)
			example.check(e, t)
		})
	}
}

// example is one that runs.
type example struct {
	*scenario.HelmTier
	name string
	// flux is the namespace that stands for flux-system.
	flux string
	// there is the spoke, if there is one.
	there *stage.Tier
}

func begin(t *testing.T, h *scenario.HelmTier, name string) *example {
	t.Helper()
	e := &example{HelmTier: h, name: name, flux: "flux-" + name}
	username, password := h.Git.Login()
	h.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: flux-system, namespace: %[1]s}\nstringData: {username: %[2]s, password: %[3]s}\n",
		e.flux, username, password))
	return e
}

// files are those of a repository of the example, with this run's addresses.
func (e *example) files(t *testing.T, repository string) map[string]string {
	t.Helper()
	dir := filepath.Join("testdata", "examples", e.name, repository)
	username, password := e.Git.Login()
	fill := strings.NewReplacer("$flux", e.flux, "$charts", e.Charts.URL(), "$git/", strings.TrimSuffix(e.Git.HTTPURL("x"), "x.git"), "$username", username, "$password", password)
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(at)
		name, _ := filepath.Rel(dir, at)
		files[name] = fill.Replace(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// repository makes one of the example's.
func (e *example) repository(t *testing.T, name string) {
	t.Helper()
	full := "examples-" + name
	if name == "fleet" {
		full = "examples-" + e.name
	}
	if err := e.Git.Create(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	e.Put(t, full, e.files(t, name))
}

// sync is what flux bootstrap makes.
func (e *example) sync(t *testing.T, path string) {
	t.Helper()
	e.Apply(t, fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: flux-system, namespace: %[1]s}
spec: {interval: 1s, ref: {branch: main}, secretRef: {name: flux-system}, url: "%[2]s"}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: flux-system, namespace: %[1]s}
spec: {interval: 10m, path: %[3]s, prune: true, sourceRef: {kind: GitRepository, name: flux-system}}
`, e.flux, e.Git.HTTPURL("examples-"+e.name), path))
}

// ready waits until so many objects of Flux's kinds are there, and all of them are ready.
func (e *example) ready(t *testing.T, objects int, namespaces ...string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "all objects are ready", func(ctx context.Context) error {
		var all, not []string
		for _, list := range []client.ObjectList{
			&sourcev1.GitRepositoryList{}, &sourcev1.HelmRepositoryList{}, &sourcev1.HelmChartList{}, &sourcev1.ExternalArtifactList{},
			&kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}, &generatorv1.ArtifactGeneratorList{},
		} {
			if err := e.Client.List(ctx, list); err != nil {
				return err
			}
			_ = meta.EachListItem(list, func(o runtime.Object) error { // the function does not fail
				r := o.(scenario.Reporter)
				if !slices.Contains(namespaces, r.GetNamespace()) {
					return nil
				}
				name := fmt.Sprintf("%T %s/%s", r, r.GetNamespace(), r.GetName())
				all = append(all, name)
				if c := meta.FindStatusCondition(r.GetConditions(), fluxmeta.ReadyCondition); c == nil || c.Status != metav1.ConditionTrue {
					not = append(not, name+": "+scenario.Summary(r.GetConditions()))
				}
				return nil
			})
		}
		if len(not) > 0 || len(all) != objects {
			return fmt.Errorf("there are %d of %d objects: %q; not ready: %q", len(all), objects, all, not)
		}
		return nil
	})
}

// has waits until a ConfigMap has a value.
func (e *example) has(t *testing.T, tier *stage.Tier, namespace, name, key, want string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("ConfigMap %s/%s has %s=%s", namespace, name, key, want), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := scenario.Get(ctx, tier, cm, namespace, name); err != nil {
			return err
		}
		if cm.Data[key] != want {
			return fmt.Errorf("it has %v", cm.Data)
		}
		return nil
	})
}

// kustomizeHelm: the values of the environment, and a commit to the applications makes their
// artifact anew and leaves the other.
func (e *example) kustomizeHelm(t *testing.T) {
	e.has(t, e.MoM, "web", "web-settings", "color", "staging")
	e.has(t, e.MoM, "web", "web-settings", "replicas", "one")
	e.has(t, e.MoM, "certificates", "issuers", "server", "https://staging.example.com/directory")
	revision := func(name string) string {
		a := &sourcev1.ExternalArtifact{}
		if err := e.Load(t.Context(), a, e.flux, name); err != nil {
			t.Fatal(err)
		}
		return a.Status.Artifact.Revision
	}
	infrastructure, apps := revision("infrastructure"), revision("apps")
	values := e.files(t, "fleet")["apps/staging/web-values.yaml"]
	e.Put(t, "examples-"+e.name, map[string]string{"apps/staging/web-values.yaml": strings.Replace(values, "color: staging", "color: changed", 1)})
	e.has(t, e.MoM, "web", "web-settings", "color", "changed")
	if revision("apps") == apps || revision("infrastructure") != infrastructure {
		t.Errorf("apps is at %s, before %s; infrastructure at %s, before %s", revision("apps"), apps, revision("infrastructure"), infrastructure)
	}
}

// multiTenancy: the tenant's release is his account's, and the policy holds.
func (e *example) multiTenancy(t *testing.T) {
	e.has(t, e.MoM, "apps", "web-settings", "color", "staging")
	err := stage.Apply(t.Context(), e.Client, "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: mine, namespace: apps}\nspec: {interval: 1m, path: ./, prune: true, sourceRef: {kind: GitRepository, name: dev-team}}\n")
	if err == nil || !strings.Contains(err.Error(), "serviceAccountName is required") {
		t.Errorf("a Kustomization of a tenant without an account: %v", err)
	}
}

// spoke makes the cluster that the hub works on, and gives the hub its kubeconfig.
func (e *example) spoke(t *testing.T) {
	t.Helper()
	there, err := e.Cluster(t.Context(), "spoke")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(there.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	e.there = there
	e.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: staging}\n")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "staging", Name: "cluster-kubeconfig"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := e.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// hubAndSpoke: everything is in the spoke, and nothing of it in the hub.
func (e *example) hubAndSpoke(t *testing.T) {
	e.has(t, e.there, "web", "web-settings", "color", "staging")
	e.has(t, e.there, "controllers", "controllers-settings", "controller", "enabled")
	e.has(t, e.there, "controllers", "issuers", "server", "https://example.com/directory")
	if err := e.Load(t.Context(), &corev1.ConfigMap{}, "controllers", "issuers"); err == nil {
		t.Error("what is for the spoke is in the hub")
	}
}
