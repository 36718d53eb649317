package providers

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/envsubst"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	bootstrapv1 "sigs.k8s.io/cluster-api-provider-aws/v2/cmd/clusterawsadm/api/bootstrap/v1beta1"
	"sigs.k8s.io/kustomize/api/krusty"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/pages"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestFleetPages: every manifest of the pages about fleets, and of what the example has for
// clouds, is admitted by an API server with the definitions and webhooks of Cluster API and
// its providers, and with our own. Commands are run that need no cloud.
func TestFleetPages(t *testing.T) {
	scenario.Alongside(t)
	a := startAdmission(t)
	a.defineOurs(t)
	// What is left out of each page, and why. The rest is run.
	for page, left := range map[string][]string{
		"fleet-aws.md":   {"needs AWS", "needs AWS", "needs the internet", "needs AWS"},
		"fleet-azure.md": {"needs Azure", "needs Azure"},
	} {
		t.Run(page, func(t *testing.T) { a.page(t, page, left) })
	}
	t.Run("Example", a.example)
	t.Run("Rollouts", a.rollouts)
	t.Run("Guarded", a.guardedPages)
}

// defineOurs installs our definitions and Flux's.
func (a *admission) defineOurs(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(scenario.Path(t, "deploy", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no definitions: %v", err)
	}
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, file := range files {
		for _, u := range objectsOf(t, file) {
			a.learn(u)
			if _, err := a.client.Resource(resource).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, kind := range []string{"Namespace", "Secret", "ConfigMap", "ServiceAccount"} {
		a.resources[schema.GroupKind{Kind: kind}] = schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind) + "s"}
	}
	a.established(t)
}

func objectsOf(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, file, text)
}

func parsed(t *testing.T, of string, text []byte) []*unstructured.Unstructured {
	t.Helper()
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err != nil || len(objects) == 0 {
		t.Fatalf("%s: there are %d objects: %v", of, len(objects), err)
	}
	return objects
}

// page follows one page.
func (a *admission) page(t *testing.T, name string, left []string) {
	blocks, err := pages.Read(scenario.Path(t, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := append(scenario.Programs(t), os.Getenv("PATH"))
	shell, err := pages.NewShell(dir, []string{"HOME=" + dir, "PATH=" + strings.Join(path, ":"), "LC_ALL=C.UTF-8"})
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	var notRun []string
	files := map[string]int{}
	manifests, commands := 0, 0
	for _, b := range blocks {
		switch {
		case b.NotRun != "":
			notRun = append(notRun, b.NotRun)
		case b.Language == "yaml":
			if before, twice := files[b.File]; twice && b.File != "" {
				t.Errorf("line %d: file %s is in line %d as well", b.Line, b.File, before)
			}
			files[b.File] = b.Line
			manifests += a.manifests(t, fmt.Sprintf("%s, line %d", name, b.Line), []byte(b.Text))
		default:
			for _, c := range b.Commands {
				commands++
				out, code, err := shell.Run(t.Context(), c.Text)
				if err != nil || code != 0 {
					t.Fatalf("line %d: %s ends with %d, %v\n%s", c.Line, c.Text, code, err, out)
				}
				if diff := cmp.Diff(pages.Steady(c.Output), pages.Steady(out)); diff != "" {
					t.Errorf("line %d: %s: -the page, +what was printed:\n%s", c.Line, c.Text, diff)
				}
			}
		}
	}
	if !slices.Equal(notRun, left) {
		t.Errorf("blocks are not run because of %q, want %q", notRun, left)
	}
	if manifests < 10 || commands < 1 {
		t.Errorf("there are %d manifests and %d commands", manifests, commands)
	}
	t.Logf("%d manifests admitted, %d commands run, %d blocks not run", manifests, commands, len(notRun))
}

// manifests has the objects of a stream admitted, and returns how many there are.
func (a *admission) manifests(t *testing.T, of string, text []byte) int {
	t.Helper()
	if bytes.Contains(text, []byte("kind: AWSIAMConfiguration")) {
		if err := yaml.UnmarshalStrict(text, &bootstrapv1.AWSIAMConfiguration{}); err != nil {
			t.Errorf("%s: clusterawsadm does not read it: %v", of, err)
		}
		return 1
	}
	objects := parsed(t, of, text)
	for _, u := range objects {
		for _, err := range a.admit(t, u) {
			t.Errorf("%s: %v", of, err)
		}
	}
	return len(objects)
}

// admit applies an object, and what it stands for if it is a release of a cluster.
func (a *admission) admit(t *testing.T, u *unstructured.Unstructured) []error {
	t.Helper()
	if _, known := a.resources[u.GroupVersionKind().GroupKind()]; !known {
		return []error{fmt.Errorf("nobody defines %s %s", u.GetAPIVersion(), u.GetKind())}
	}
	if err := a.inNamespace(t.Context(), u.GetNamespace()); err != nil {
		return []error{err}
	}
	// Nothing is kept: a page has objects of several clusters.
	if _, err := a.apply(t.Context(), u, metav1.DryRunAll); err != nil {
		return []error{err}
	}
	chart, _, _ := unstructured.NestedString(u.Object, "spec", "chart", "spec", "chart")
	chart, ours := strings.CutPrefix(chart, "./charts/")
	if u.GetKind() != "HelmRelease" || !ours {
		return nil
	}
	values, _, err := unstructured.NestedMap(u.Object, "spec", "values")
	if err != nil {
		return []error{err}
	}
	rendered, err := a.tryRender(t, chart, u.GetNamespace(), values)
	if err != nil {
		return []error{fmt.Errorf("HelmRelease %s: %w", u.GetName(), err)}
	}
	var errs []error
	for _, o := range rendered {
		if _, err := a.apply(t.Context(), o, metav1.DryRunAll); err != nil {
			errs = append(errs, fmt.Errorf("HelmRelease %s: %w", u.GetName(), err))
		}
	}
	return errs
}

// inNamespace makes a namespace if it is not there.
func (a *admission) inNamespace(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
	_, err := a.of(ns).Create(ctx, ns, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// example: what base has for clouds is built as a Kustomization and a Layer build it, all
// variables have a value, and the Layers name paths that are there.
func (a *admission) example(t *testing.T) {
	base := scenario.Path(t, "e2e", "testdata", "repos", "base")
	layers := a.built(t, base, "layers/clouds", map[string]string{"agent_layer": "tenant"})
	names := map[string]bool{"tenant": true}
	profiles := map[string]bool{}
	for _, l := range layers {
		names[l.GetName()] = true
		path, _, _ := unstructured.NestedString(l.Object, "spec", "path")
		profiles[strings.TrimPrefix(path, "./")] = true
		if labels, _, _ := unstructured.NestedStringMap(l.Object, "spec", "clusterSelector", "matchLabels"); labels["cloud-controller"] == "" {
			t.Errorf("Layer %s selects clusters that are in no cloud: %v", l.GetName(), labels)
		}
	}
	for _, l := range layers {
		on, _, _ := unstructured.NestedSlice(l.Object, "spec", "dependsOn")
		if len(on) == 0 {
			t.Errorf("Layer %s depends on nothing", l.GetName())
		}
		for _, d := range on {
			if name := d.(map[string]any)["name"].(string); !names[name] {
				t.Errorf("Layer %s depends on %s, which there is not", l.GetName(), name)
			}
		}
	}
	want := []string{"profiles/cloud-controller-aws", "profiles/cloud-controller-azure", "profiles/cni"}
	if got := slices.Sorted(maps.Keys(profiles)); !slices.Equal(got, want) {
		t.Errorf("the Layers push %v, want %v", got, want)
	}
	for _, path := range slices.Sorted(maps.Keys(profiles)) {
		for _, u := range a.built(t, base, path, map[string]string{"cluster_name": "alpha", "pod_cidr": "192.168.0.0/16"}) {
			if u.GetKind() == "HelmRelease" {
				a.beforeNetwork(t, u)
			}
		}
	}
}

// rollouts: those that the example has are admitted, and each moves what its own repository
// declares, or has its tenants declare.
func (a *admission) rollouts(t *testing.T) {
	for repo, want := range map[string][]string{
		"masters":        {"layerRef master"},
		"env-production": {"kustomizationRef tenants", "layerRef tenant", "source apps"},
		"env-staging":    {"source apps"},
	} {
		base := scenario.Path(t, "e2e", "testdata", "repos", repo)
		var moved []string
		for _, u := range a.built(t, base, "rollouts", nil) {
			if u.GetKind() != "Rollout" {
				continue
			}
			moves, _, err := unstructured.NestedMap(u.Object, "spec", "moves")
			if err != nil {
				t.Fatal(err)
			}
			for how, what := range moves {
				name, _, _ := unstructured.NestedString(what.(map[string]any), "name")
				moved = append(moved, how+" "+name)
				kind := map[string]string{"layerRef": "Layer", "kustomizationRef": "Kustomization", "source": "GitRepository"}[how]
				if !declares(t, filepath.Dir(base), kind, name) {
					t.Errorf("%s: Rollout %s moves %s %s, which the example does not have", repo, u.GetName(), kind, name)
				}
			}
		}
		if slices.Sort(moved); !slices.Equal(moved, want) {
			t.Errorf("%s: the Rollouts move %v, want %v", repo, moved, want)
		}
	}
}

// declares reports whether a repository of the example has an object, beside its Rollouts.
func declares(t *testing.T, repos, kind, name string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(repos, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "rollouts":
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".yaml":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for part := range strings.SplitSeq(string(text), "\n---\n") {
			u := metav1.PartialObjectMetadata{}
			if err := yaml.Unmarshal([]byte(part), &u); err == nil && u.Kind == kind && u.Name == name {
				found = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// beforeNetwork fails if what a release brings could not start on a node without a network: it
// tolerates the taint that only its own work takes off.
func (a *admission) beforeNetwork(t *testing.T, release *unstructured.Unstructured) {
	t.Helper()
	values, _, _ := unstructured.NestedMap(release.Object, "spec", "values")
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	taint, all := "key: node.cloudprovider.kubernetes.io/uninitialized", "tolerations:\n- operator: Exists"
	if !strings.Contains(string(text), taint) && !strings.Contains(string(text), all) {
		t.Errorf("HelmRelease %s tolerates no node that is new:\n%s", release.GetName(), text)
	}
}

// built builds a directory as kustomize does, and has it admitted.
func (a *admission) built(t *testing.T, base, path string, variables map[string]string) []*unstructured.Unstructured {
	t.Helper()
	files := filesys.MakeFsInMemory()
	var kustomization kustypes.Kustomization
	kustomization.APIVersion, kustomization.Kind = kustypes.KustomizationVersion, kustypes.KustomizationKind
	err := fs.WalkDir(os.DirFS(filepath.Join(base, path)), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(base, path, name))
		if err != nil {
			return err
		}
		kustomization.Resources = append(kustomization.Resources, name)
		return files.WriteFile(name, text)
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WriteFile("kustomization.yaml", text); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, ".")
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if text, err = made.AsYaml(); err != nil {
		t.Fatal(err)
	}
	full, err := envsubst.Eval(string(text), func(name string) (string, bool) {
		value, there := variables[name]
		return value, there
	})
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	a.manifests(t, path, []byte(full))
	return parsed(t, path, []byte(full))
}

// guardedPages: a manifest with a field that nobody knows, or of a kind that nobody defines, is
// found.
func (a *admission) guardedPages(t *testing.T) {
	const ours, release = "apiVersion: cascade.dev/v1alpha1\nmetadata: {name: a, namespace: guarded}\n", `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: a, namespace: guarded}
spec:
  interval: 1m
  chart: {spec: {chart: ./charts/cluster-aws, sourceRef: {kind: GitRepository, name: base}}}
`
	for _, c := range []struct{ reason, text, want string }{
		{"our own kind", ours + "kind: Layer\nspec: {clusterSelector: {}, agnet: {}}", "agnet"},
		{"a kind that there is not", ours + "kind: Leyer", "nobody defines"},
		{"a value of a chart", release + "  values: {version: v1.34.2, regoin: x}", "regoin"},
		{"a provider's kind", "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterRoleIdentity\nmetadata: {name: a}\nspec: {roleArn: x}", "roleArn"},
		{"what a webhook refuses", "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterRoleIdentity\nmetadata: {name: a}\nspec: {roleARN: x}", "sourceIdentityRef"},
	} {
		var found string
		for _, err := range a.admit(t, parsed(t, c.reason, []byte(c.text))[0]) {
			found += err.Error()
		}
		if !strings.Contains(found, c.want) {
			t.Errorf("%s: it is admitted, or refused for something else: %q", c.reason, found)
		}
	}
}
