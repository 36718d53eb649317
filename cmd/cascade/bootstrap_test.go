package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssh"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/cmd/cascade/installation"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
	"github.com/cascade-gitops/cascade/cmd/cascade/login"
	"github.com/cascade-gitops/cascade/cmd/cascade/migration"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// fluxFiles are a repository of flux bootstrap, as far as it matters here.
func fluxFiles(sync string) fstest.MapFS { return fluxFilesIn("flux-system", sync) }

func fluxFilesIn(namespace, sync string) fstest.MapFS {
	files := fstest.MapFS{
		"a/flux-system/gotk-components.yaml": {Data: []byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: source-controller, namespace: flux-system}\n---\n" +
			"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: notification-controller, namespace: flux-system}\n")},
		"a/flux-system/gotk-sync.yaml": {Data: []byte("apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: flux-system, namespace: flux-system}\nspec: {ref: {branch: main}}\n---\n" +
			"apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: flux-system, namespace: flux-system}\n" + sync)},
		"a/flux-system/kustomization.yaml": {Data: []byte("resources: [gotk-components.yaml, gotk-sync.yaml]\n")},
	}
	for _, file := range files {
		file.Data = bytes.ReplaceAll(file.Data, []byte("namespace: flux-system"), []byte("namespace: "+namespace))
	}
	return files
}

// fluxLockedDown is such a repository with the patches by which Flux's tenants are apart.
func fluxLockedDown() fstest.MapFS {
	files := fluxFiles("")
	files["a/flux-system/gotk-components.yaml"].Data = append(files["a/flux-system/gotk-components.yaml"].Data, "---\n"+
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: kustomize-controller, namespace: flux-system}\nspec: {template: {spec: {containers: [{name: manager, args: [--watch-all-namespaces=true]}]}}}\n"...)
	files["a/flux-system/kustomization.yaml"].Data = append(files["a/flux-system/kustomization.yaml"].Data, "patches:\n- target: {kind: Deployment, name: kustomize-controller}\n  patch: |\n"+
		"    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --no-cross-namespace-refs=true}\n"+
		"    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --default-service-account=default}\n"...)
	return files
}

// deployedWith is a controller of Flux in the cluster.
func deployedWith(name string, args ...string) migration.Deployed {
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: name}}
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "manager", Args: args}}
	return migration.Deployed{Deployments: []appsv1.Deployment{d}}
}

func newBootstrapOf(change func(*bootstrap)) (*bootstrap, *bytes.Buffer) {
	said := &bytes.Buffer{}
	c := &cli{streams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: said}, now: time.Now}
	b := &bootstrap{install: install{cli: c, options: deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "registry.example/cascade:v1"}}}}
	b.url, b.branch, b.path, b.namespace, b.interval = "https://example.com/fleet", "main", "a", v1alpha1.AgentNamespace, time.Minute
	b.secretName = layout.Name
	if change != nil {
		change(b)
	}
	return b, said
}

// TestBootstrapDecides: what is left open of the values is decided by the cluster once, and
// by the repository from then on.
func TestBootstrapDecides(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  fstest.MapFS
		change func(*bootstrap)
		has    []string
		hasNot []string
	}{
		"NoNode":    {"there may be no network for pods", nil, nil, []string{"hostNetwork: true", "install.cascade.dev/version: "}, nil},
		"ReadyNode": {"there is one", nil, func(b *bootstrap) { b.readyNodes = 3 }, []string{"pod-security.kubernetes.io/enforce: restricted"}, []string{"hostNetwork: true"}},
		"Installed": {"an agent stays where it is", nil, func(b *bootstrap) { b.found = &installation.Found{HostNetwork: true}; b.readyNodes = 3 }, []string{"hostNetwork: true"}, nil},
		"Lockdown": {"the tier's own Kustomization acts as an account that the agent may act as", nil, func(b *bootstrap) {
			b.options.Lockdown = &v1alpha1.AgentLockdown{Impersonates: []string{"platform"}}
		}, []string{"serviceAccountName: cascade-sync", "  - cascade-sync\n"}, nil},
		"FluxLockdown": {"the Kustomization goes on to act as its account, and the agent may", fluxFiles("spec: {serviceAccountName: flux-applier}\n"), func(b *bootstrap) {
			b.options.Lockdown = &v1alpha1.AgentLockdown{Impersonates: []string{"platform"}}
		}, []string{"  - flux-applier\n", "  - platform\n"}, []string{"- cascade-sync"}},
		"Flux":          {"events go to Flux's controller, and its sync stays", fluxFiles(""), nil, []string{"--events-addr=http://notification-controller.flux-system.svc.cluster.local./", "count: 0"}, []string{"- sync.yaml", "--flux-namespace"}},
		"FluxElsewhere": {"the agent waits for Flux where it is", fluxFilesIn("gitops", ""), nil, []string{"- --flux-namespace=gitops\n"}, nil},
		"FluxFlags":     {"the lockdown of Flux's patches goes on", fluxLockedDown(), nil, []string{"- --no-cross-namespace-refs=true\n", "- --default-service-account=default\n"}, nil},
		"FluxPatched": {"that of the cluster, which more than the files may have patched", fluxFiles(""), func(b *bootstrap) {
			b.deployed = deployedWith("source-controller", "--feature-gates=ExternalArtifact=true")
		}, []string{"- --feature-gates=ExternalArtifact=true\n"}, nil},
		"FluxSaid":   {"what is said counts", fluxLockedDown(), func(b *bootstrap) { b.options.Args = []string{"--default-service-account=tenant"} }, []string{"- --default-service-account=tenant\n"}, []string{"- --default-service-account=default"}},
		"FluxEvents": {"what is said counts", fluxFiles(""), func(b *bootstrap) { b.options.EventsAddress = "http://other" }, []string{"--events-addr=http://other"}, []string{"notification-controller.flux-system"}},
		"Operated": {"an operator has the definitions, the controllers and the sync", nil, func(b *bootstrap) {
			b.operated = &layout.Flux{Namespace: "flux-system", Definitions: []string{"kustomizations.kustomize.toolkit.fluxcd.io"}, Others: []string{"notification-controller"}, Kustomization: &unstructured.Unstructured{Object: map[string]any{}}}
		}, []string{"--events-addr=", "name: layers.cascade.dev"}, []string{"name: kustomizations.kustomize.toolkit.fluxcd.io", "- sync.yaml", "replicas:\n-"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(tc.change)
			_, changes, err := b.decide(tc.files, true)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			tree := fstest.MapFS{}
			maps.Copy(tree, tc.files)
			for _, file := range changes.Names() {
				text.Write(changes[file])
				tree[file] = &fstest.MapFile{Data: changes[file]}
			}
			for _, want := range tc.has {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%s: it lacks %q", tc.reason, want)
				}
			}
			for _, want := range tc.hasNot {
				if strings.Contains(text.String(), want) {
					t.Errorf("%s: it has %q", tc.reason, want)
				}
			}
			// The cluster may look different the next time.
			b.readyNodes, b.found = 3-b.readyNodes, nil
			if _, again, err := b.decide(tree, true); err != nil || len(again) > 0 {
				t.Errorf("%s: a second time it changes %v: %v", tc.reason, again.Names(), err)
			}
		})
	}
	b, _ := newBootstrapOf(func(b *bootstrap) { b.options.Lockdown = &v1alpha1.AgentLockdown{} })
	if _, _, err := b.decide(fluxFiles(""), true); err == nil || !strings.Contains(err.Error(), "serviceAccountName") {
		t.Errorf("a Kustomization without an account under a lockdown: %v", err)
	}
	b, _ = newBootstrapOf(func(b *bootstrap) { b.deployed = deployedWith("helm-controller", "--insecure-kubeconfig-exec") })
	if _, _, err := b.decide(fluxFiles(""), true); err == nil || !strings.Contains(err.Error(), "helm-controller has --insecure-kubeconfig-exec=true, which the agent refuses") {
		t.Errorf("a flag that the agent refuses: %v", err)
	}
	b, _ = newBootstrapOf(func(b *bootstrap) {
		b.options.Replicas, b.deployed = 2, deployedWith("source-controller", "--watch-label-selector=team=a")
	})
	if _, _, err := b.decide(fluxFiles(""), true); err == nil || !strings.Contains(err.Error(), "--shards=4") || !strings.Contains(err.Error(), "--watch-label-selector=team=a") {
		t.Errorf("a flag of Flux that the agent refuses beside one of its own: %v", err)
	}
	b.options.Args = []string{"--watch-label-selector="}
	if _, _, err := b.decide(fluxFiles(""), true); err != nil {
		t.Errorf("a person says that there is no selector: %v", err)
	}
	b, _ = newBootstrapOf(func(b *bootstrap) { b.options.Lockdown = &v1alpha1.AgentLockdown{} })
	if _, changes, err := b.decide(fluxFiles("spec: {serviceAccountName: admin}\n"), true); err != nil || changes[path.Join("a", layout.Dir, "agent.yaml")] == nil {
		t.Errorf("a Kustomization with an account under a lockdown: %v", err)
	}
}

// TestBootstrapLocksDown: an agent that has all rights is not asked to take them away from
// itself before it has what it needs without them.
func TestBootstrapLocksDown(t *testing.T) {
	decide := func(t *testing.T, b *bootstrap, tree fstest.MapFS) []string {
		t.Helper()
		_, changes, err := b.decide(tree, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range changes.Names() {
			tree[file] = &fstest.MapFile{Data: changes[file]}
		}
		return changes.Names()
	}
	agentOf := func(t *testing.T, tree fstest.MapFS) (objects []*unstructured.Unstructured, bindings map[string]*unstructured.Unstructured) {
		t.Helper()
		objects, err := layout.Objects(tree, "a")
		if err != nil {
			t.Fatal(err)
		}
		bindings = map[string]*unstructured.Unstructured{}
		for _, u := range objects {
			if u.GetKind() == "ClusterRoleBinding" {
				bindings[u.GetName()] = u
			}
		}
		return objects, bindings
	}
	const agent, sync = "a/cascade-system/agent.yaml", "a/cascade-system/sync.yaml"
	for name, tc := range map[string]struct {
		files            fstest.MapFS
		toAccount, toOwn []string
	}{
		"Tier": {nil, []string{agent, sync}, []string{agent, sync}},
		"Flux": {fluxFiles("spec: {serviceAccountName: flux-applier}\n"), []string{agent}, []string{agent}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := fstest.MapFS{}
			maps.Copy(tree, tc.files)
			ready := &installation.Found{Ready: true}
			free, _ := newBootstrapOf(func(b *bootstrap) { b.found = ready })
			locked, _ := newBootstrapOf(func(b *bootstrap) {
				b.found, b.options.Lockdown, b.options.Image = ready, &v1alpha1.AgentLockdown{}, "registry.example/cascade:v2"
			})
			gone, _ := newBootstrapOf(func(b *bootstrap) { b.options.Lockdown = &v1alpha1.AgentLockdown{} })
			if _, changes, err := locked.decide(tree, true); err != nil || locked.handsOver || changes[agent] == nil {
				t.Errorf("a new tier has no rights to hand over: it writes %v: %v", changes.Names(), err)
			}
			decide(t, free, tree)
			if _, changes, err := gone.decide(tree, true); err != nil || gone.handsOver || !slices.Equal(changes.Names(), tc.toAccount) || !strings.Contains(string(changes[agent]), "subjects: []") {
				t.Errorf("no agent is ready, and who calls applies all: it writes %v, and another commit follows: %t: %v", changes.Names(), gone.handsOver, err)
			}
			var first []*unstructured.Unstructured
			for _, step := range []struct {
				reason    string
				with      *bootstrap
				handed    bool
				want      []string
				handsOver bool
			}{
				{"the agent gets the rights of a lockdown, and the Kustomization an account", locked, false, tc.toAccount, true},
				{"it is not known whether the agent applied that", locked, false, nil, true},
				{"the Kustomization acts as the account", locked, true, []string{agent}, false},
				{"all is there", locked, false, nil, false},
				{"the agent gets its rights back by the account's", free, false, tc.toOwn, false},
			} {
				step.with.handedOver = step.handed
				if got := decide(t, step.with, tree); !slices.Equal(got, step.want) || step.with.handsOver != step.handsOver {
					t.Errorf("%s: it writes %v, and another commit follows: %t", step.reason, got, step.with.handsOver)
				}
				objects, bindings := agentOf(t, tree)
				switch {
				case first == nil:
					first = objects
					if subjects, _, _ := unstructured.NestedSlice(bindings[v1alpha1.AgentName].Object, "subjects"); len(subjects) != 1 || bindings["cascade-accounts"] == nil {
						t.Errorf("%s: it loses its rights, or gets none", step.reason)
					}
					if text := string(tree[agent].Data); !strings.Contains(text, "cascade:v2") || strings.Contains(text, "cascade:v1") {
						t.Errorf("%s: the image is the old one, which may be gone", step.reason)
					}
				case step.handed:
					_ = unstructured.SetNestedSlice(bindings[v1alpha1.AgentName].Object, []any{map[string]any{"kind": "ServiceAccount", "name": v1alpha1.AgentName, "namespace": v1alpha1.AgentNamespace}}, "subjects")
					if !reflect.DeepEqual(objects, first) {
						t.Errorf("%s: more than its own rights goes", step.reason)
					}
				}
			}
		})
	}
}

// TestBootstrapStays: a tier that syncs something else is taken for another one, which the context
// leads to by mistake, and nothing is written into it.
func TestBootstrapStays(t *testing.T) {
	const fleet = "https://example.com/fleet"
	own := client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: layout.Name}
	flux := client.ObjectKey{Namespace: "gitops", Name: "sync"}
	for name, tc := range map[string]struct {
		reason            string
		key               client.ObjectKey
		url, branch, path string
		applied           bool // the agent, by that Kustomization
		move              bool
		want              []string // in the error
	}{
		"None":        {"it is a new tier", client.ObjectKey{}, "", "", "", false, false, nil},
		"Same":        {"it is that tier", own, fleet, "main", "./tiers/prod", false, false, nil},
		"Slash":       {"it is the same path", own, fleet, "main", "./tiers/prod/", false, false, nil},
		"Bare":        {"it is the same path", own, fleet, "main", "tiers/prod", false, false, nil},
		"Protocol":    {"it goes on by another protocol, which is no move", own, "ssh://git@example.com:2222/fleet.git", "main", "./tiers/prod", false, false, nil},
		"NoSource":    {"what it follows is not known", own, "", "", "./tiers/prod", false, false, nil},
		"NoBranch":    {"Flux has a default", own, fleet, "", "./tiers/prod", false, false, []string{"branch master", "branch main"}},
		"Path":        {"it has another path", own, fleet, "main", "./tiers/dev", false, false, []string{"cascade-system/cascade-system", "tiers/dev", "tiers/prod", "--move"}},
		"Branch":      {"it follows another branch", own, fleet, "stable", "./tiers/prod", false, false, []string{"branch stable", "branch main", "--move"}},
		"Repository":  {"it has another repository, and no login is shown", own, "https://hidden-word@example.com/dev", "main", "./tiers/prod", false, false, []string{"https://example.com/dev", fleet, "--move"}},
		"Flux":        {"Flux's Kustomization applies its agent", flux, fleet, "main", "./tiers/dev", true, false, []string{"gitops/sync", "tiers/dev", "tiers/prod"}},
		"FluxSame":    {"Flux's Kustomization applies its agent from there", flux, fleet, "main", "./tiers/prod", true, false, nil},
		"AnotherSync": {"a Kustomization that does not apply the agent goes on beside it", flux, fleet, "main", "./tiers/dev", false, false, nil},
		"Move":        {"a person says that it is to move", own, "https://example.com/dev", "stable", "./tiers/dev", false, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(func(b *bootstrap) { b.path, b.move, b.yes, b.timeout = "tiers/prod", tc.move, true, time.Minute })
			t.Setenv("GIT_PASSWORD", "secret-of-ann")
			agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
			if tc.applied {
				agent.Labels["kustomize.toolkit.fluxcd.io/namespace"], agent.Labels["kustomize.toolkit.fluxcd.io/name"] = tc.key.Namespace, tc.key.Name
			}
			objects := []client.Object{agent}
			if named := (metav1.ObjectMeta{Namespace: tc.key.Namespace, Name: tc.key.Name}); named.Name != "" {
				k := &kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Path: tc.path}}
				k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: named.Name}
				objects = append(objects, k)
				if tc.url != "" {
					objects = append(objects, &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{URL: tc.url, Reference: &sourcev1.GitRepositoryRef{Branch: tc.branch}}})
				}
			}
			c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					return fmt.Errorf("%s: %T %s is written", tc.reason, o, o.GetName())
				},
			}).Build()
			_, err := b.prepare(t.Context(), c)
			if (err != nil) != (tc.want != nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			for _, text := range tc.want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: it does not name %s: %v", tc.reason, text, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hidden-word") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// repositoryWith serves a repository that has these files, and logs in there.
func repositoryWith(t *testing.T, files fstest.MapFS) (*gitserver.Server, *login.Login) {
	t.Helper()
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir(), Username: "ann", Password: "secret", TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Commit(t.Context(), "fleet", "main", "Begin", func(dir string) error { return os.CopyFS(dir, files) }); err != nil {
		t.Fatal(err)
	}
	l, err := login.New(server.HTTPURL("fleet"), login.Given{Username: "ann", Password: "secret", CA: server.CA()}, nil, login.ScanHost)
	if err != nil {
		t.Fatal(err)
	}
	return server, l
}

// TestBootstrapStaysOfFlux: what Flux's files of a repository would replace is looked at before
// there is a commit.
func TestBootstrapStaysOfFlux(t *testing.T) {
	server, l := repositoryWith(t, fluxFiles("spec: {path: ./a}\n"))
	named := metav1.ObjectMeta{Namespace: "flux-system", Name: "flux-system"}
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(&kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Path: "./b"}}).Build()
	b, _ := newBootstrapOf(func(b *bootstrap) { b.url = server.HTTPURL("fleet") })
	pushes := server.Requests("fleet").Pushes
	if _, _, _, err := b.commit(t.Context(), c, l); err == nil || !strings.Contains(err.Error(), "flux-system/flux-system of this cluster syncs path b") {
		t.Errorf("the tier of another path: %v", err)
	}
	if now := server.Requests("fleet").Pushes; now != pushes {
		t.Errorf("it pushes all the same, %d times", now-pushes)
	}
	b.move = true
	tree, _, pushed, err := b.commit(t.Context(), c, l)
	if err != nil || !pushed {
		t.Fatalf("a person says that it is to move: %v", err)
	}
	tree.Close()
}

// TestBootstrapStaysOfPatched: what syncs a tier is what Flux's directory makes, with its patches, as
// Flux has people change what it generates. A tier that has that already goes nowhere.
func TestBootstrapStaysOfPatched(t *testing.T) {
	files := fluxFiles("spec: {path: ./clusters/other, sourceRef: {kind: GitRepository, name: flux-system}}\n")
	files["a/flux-system/kustomization.yaml"].Data = append(files["a/flux-system/kustomization.yaml"].Data, `patches:
- target: {kind: GitRepository}
  patch: '- {op: add, path: /spec, value: {url: "https://mirror.example/fleet", ref: {branch: main}}}'
- target: {kind: Kustomization}
  patch: '- {op: replace, path: /spec/path, value: ./a}'
`...)
	server, l := repositoryWith(t, files)
	named := metav1.ObjectMeta{Namespace: "flux-system", Name: "flux-system"}
	k := &kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Path: "./a"}}
	k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: named.Name}
	git := &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{URL: "https://mirror.example/fleet", Reference: &sourcev1.GitRepositoryRef{Branch: "main"}}}
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(k, git).Build()
	b, _ := newBootstrapOf(func(b *bootstrap) { b.url = server.HTTPURL("fleet") })
	tree, _, pushed, err := b.commit(t.Context(), c, l)
	if err != nil || !pushed {
		t.Fatalf("it stays where it is: %v", err)
	}
	tree.Close()
	git.Spec.URL = "https://mirror.example/another"
	c = fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(k, git).Build()
	if _, _, _, err := b.commit(t.Context(), c, l); err == nil || !strings.Contains(err.Error(), "would sync path a, branch main, of https://mirror.example/fleet from now on") {
		t.Errorf("the tier of another repository: %v", err)
	}
}

// TestBootstrapPinned: where no commit of the branch arrives there is none.
func TestBootstrapPinned(t *testing.T) {
	for name, tc := range map[string]struct{ reason, live, declared, want string }{
		"Live":     {"somebody pinned the tier by hand", "{branch: main, commit: 1a2b}", "{branch: main}", "GitRepository flux-system/flux-system is pinned to commit 1a2b"},
		"Declared": {"Flux's file says so", "", "{branch: main, tag: v1}", "is pinned to tag v1"},
		"Patched":  {"a patch beside it says so", "", "patch", "is pinned to semver >=1.0.0"},
		"Another":  {"Flux's file has another branch", "", "{branch: stable}", "say --branch stable"},
		"Same":     {"it arrives", "{name: refs/heads/main}", "{branch: main}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := fluxFiles("spec: {path: ./a}\n")
			sync := files["a/flux-system/gotk-sync.yaml"]
			if tc.declared == "patch" {
				files["a/flux-system/kustomization.yaml"].Data = append(files["a/flux-system/kustomization.yaml"].Data,
					"patches:\n- target: {kind: GitRepository}\n  patch: |\n    - {op: add, path: /spec/ref/semver, value: '>=1.0.0'}\n"...)
			} else {
				sync.Data = bytes.ReplaceAll(sync.Data, []byte("{branch: main}"), []byte(tc.declared))
			}
			server, l := repositoryWith(t, files)
			objects := fake.NewClientBuilder().WithScheme(newScheme())
			if tc.live != "" {
				named := metav1.ObjectMeta{Namespace: "flux-system", Name: "flux-system"}
				k := &kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Path: "./a"}}
				k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: named.Name}
				git := &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{Reference: &sourcev1.GitRepositoryRef{}}}
				if err := yaml.Unmarshal([]byte(tc.live), git.Spec.Reference); err != nil {
					t.Fatal(err)
				}
				objects.WithObjects(k, git)
			}
			b, _ := newBootstrapOf(func(b *bootstrap) { b.url = server.HTTPURL("fleet") })
			pushes := server.Requests("fleet").Pushes
			tree, _, pushed, err := b.commit(t.Context(), objects.Build(), l)
			if err == nil {
				tree.Close()
			}
			if tc.want == "" && (err != nil || !pushed) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if now := server.Requests("fleet").Pushes; tc.want != "" && now != pushes {
				t.Errorf("%s: it pushes all the same", tc.reason)
			}
		})
	}
}

// TestBootstrapPushBranch: a commit that a person is to merge is not followed before it is.
func TestBootstrapPushBranch(t *testing.T) {
	server, l := repositoryWith(t, fstest.MapFS{"README.md": {Data: []byte("A fleet.\n")}})
	b, _ := newBootstrapOf(func(b *bootstrap) { b.url, b.pushBranch = server.HTTPURL("fleet"), "upgrade" })
	var out bytes.Buffer
	b.streams.Out = &out
	c := fake.NewClientBuilder().WithScheme(newScheme()).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*appsv1.Deployment); ok {
				t.Errorf("it goes on to start the agent")
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	if synced, err := b.sync(t.Context(), &apply.Cluster{Client: c}, l); err != nil || synced || !strings.Contains(out.String(), "merge it into main") {
		t.Fatalf("it synced: %t: %v: %s", synced, err, out.String())
	}
	merge := func(from string) {
		t.Helper()
		remote, err := remoteOf(b.url, from, l)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := checkout.Clone(t.Context(), remote)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		sync, err := fs.ReadFile(tree.Files(), path.Join("a", layout.Dir, "sync.yaml"))
		if err != nil || !strings.Contains(string(sync), "branch: main\n") {
			t.Errorf("the tier follows another branch: %v: %s", err, sync)
		}
		agent, err := fs.Sub(tree.Files(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Commit(t.Context(), "fleet", "main", "Merge", func(dir string) error { return os.CopyFS(path.Join(dir, "a"), agent) }); err != nil {
			t.Fatal(err)
		}
	}
	b.now = func() time.Time { return time.Now().Add(time.Minute) }
	if _, err := b.sync(t.Context(), &apply.Cluster{Client: c}, l); err == nil || !strings.Contains(err.Error(), "it has a branch upgrade already") {
		t.Errorf("before it is merged: %v", err)
	}
	merge("upgrade")
	tree, _, pushed, err := b.commit(t.Context(), c, l)
	if err != nil || pushed {
		t.Fatalf("it is merged, and there is another commit: %t: %v", pushed, err)
	}
	tree.Close()
}

// TestBootstrapWorks: an agent that does not bring itself to what is committed is applied by hand.
func TestBootstrapWorks(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kustomizev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason   string
		ready    int32
		live     kustomizev1.KustomizationSpec
		declared map[string]any
		want     bool
	}{
		"Same":      {"it does what the commit says", 1, kustomizev1.KustomizationSpec{Path: "./a"}, map[string]any{"path": "./a"}, true},
		"NotReady":  {"there is nobody to do it", 0, kustomizev1.KustomizationSpec{Path: "./a"}, map[string]any{"path": "./a"}, false},
		"Elsewhere": {"it looks at another path", 1, kustomizev1.KustomizationSpec{Path: "./b"}, map[string]any{"path": "./a"}, false},
		"Account":   {"it has no rights of its own any more, and not the account's yet", 1, kustomizev1.KustomizationSpec{Path: "./a"}, map[string]any{"path": "./a", "serviceAccountName": "cascade-sync"}, false},
		"Back":      {"the account goes", 1, kustomizev1.KustomizationSpec{Path: "./a", ServiceAccountName: "cascade-sync"}, map[string]any{"path": "./a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			named := metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: layout.Name}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.AgentName}, Status: appsv1.DeploymentStatus{ReadyReplicas: tc.ready}},
				&kustomizev1.Kustomization{ObjectMeta: named, Spec: tc.live},
			).Build()
			declared := &unstructured.Unstructured{Object: map[string]any{"spec": tc.declared}}
			declared.SetGroupVersionKind(kustomizev1.GroupVersion.WithKind(kustomizev1.KustomizationKind))
			declared.SetNamespace(named.Namespace)
			declared.SetName(named.Name)
			if got, err := b.works(t.Context(), c, []*unstructured.Unstructured{declared}); got != tc.want || err != nil {
				t.Errorf("%s: %t, %v", tc.reason, got, err)
			}
		})
	}
}

// TestAwaitSuspended: nobody waits for what a person suspended.
func TestAwaitSuspended(t *testing.T) {
	for name, tc := range map[string]struct {
		git, kustomization bool
		want               string
	}{
		"Source":        {true, false, "GitRepository cascade-system/cascade-system is suspended, so that nothing arrives; run cascade resume gitrepository cascade-system -n cascade-system"},
		"Kustomization": {false, true, "Kustomization cascade-system/cascade-system is suspended, so that nothing arrives; run cascade resume kustomization cascade-system -n cascade-system"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			named := metav1.ObjectMeta{Namespace: b.namespace, Name: layout.Name}
			c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(
				&sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{Suspend: tc.git}},
				&kustomizev1.Kustomization{ObjectMeta: named, Spec: kustomizev1.KustomizationSpec{Suspend: tc.kustomization}},
			).Build()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := b.awaitSync(ctx, c, synced{b.tierKey(), b.tierKey()}, history{}); err == nil || !strings.Contains(err.Error(), tc.want) || ctx.Err() != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// history has the commits before the last one.
type history []string

func (h history) Head() string                { return "head" }
func (h history) Precedes(commit string) bool { return slices.Contains(h, commit) }

// TestAwaitCommit: a tier that is ready at a commit of before has not synced what was pushed, and
// one that is pinned never will.
func TestAwaitCommit(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		ref      sourcev1.GitRepositoryRef
		revision string
		want     string
	}{
		"Head":   {"it is there", sourcev1.GitRepositoryRef{Branch: "main"}, "main@sha1:head", ""},
		"Later":  {"somebody committed after it", sourcev1.GitRepositoryRef{Branch: "main"}, "main@sha1:later", ""},
		"Before": {"a server that lags behind", sourcev1.GitRepositoryRef{Branch: "main"}, "main@sha1:before", "has main@sha1:before, which is before commit head"},
		"Pinned": {"as in an incident", sourcev1.GitRepositoryRef{Branch: "main", Commit: "before"}, "main@sha1:before", "is pinned to commit before"},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(nil)
			git := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: layout.Name}, Spec: sourcev1.GitRepositorySpec{Reference: &tc.ref}}
			k := &kustomizev1.Kustomization{ObjectMeta: git.ObjectMeta}
			git.Status.Artifact, git.Status.Conditions = &fluxmeta.Artifact{Revision: tc.revision}, conditions("Ready", metav1.ConditionTrue, "Succeeded", "", 0)
			k.Status.LastAppliedRevision, k.Status.Conditions = tc.revision, git.Status.Conditions
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			looks := 0
			c := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(git, k).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, o, opts...)
					if g, ok := o.(*sourcev1.GitRepository); ok {
						g.Status.LastHandledReconcileAt = g.Annotations[fluxmeta.ReconcileRequestAnnotation]
						if looks++; looks > 1 {
							cancel() // it waits
						}
					}
					return err
				},
			}).Build()
			got, err := b.awaitSync(ctx, c, synced{b.tierKey(), b.tierKey()}, history{"before"})
			if tc.want == "" && (err != nil || got != tc.revision) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %q, %v", tc.reason, got, err)
			}
		})
	}
}

// TestLoginInURL: the login in the URL of a repository that Flux syncs is used and is not shown.
func TestLoginInURL(t *testing.T) {
	for address, want := range map[string]checkout.Remote{
		"https://me:hidden-word@example.com/fleet": {URL: "https://example.com/fleet", Auth: &http.BasicAuth{Username: "me", Password: "hidden-word"}},
		"https://hidden-word@example.com/fleet":    {URL: "https://example.com/fleet", Auth: &http.BasicAuth{Username: "hidden-word"}},
		"https://example.com/fleet":                {URL: "https://example.com/fleet"},
	} {
		l, err := login.InUse(address, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := remoteOf(address, "", l)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v; -want, +got:\n%s", address, err, diff)
		}
	}
}

// TestTroubles: a person is told why a tier does not sync itself, and not that it waits for
// what comes anyway.
func TestTroubles(t *testing.T) {
	says := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: "why"}}
	}
	for _, tc := range []struct {
		reason             string
		git, kustomization []metav1.Condition
		fetched            bool
		tried              string
		want               string
	}{
		{"nothing is known yet", nil, nil, false, "", ""},
		{"the source cannot log in", says("False", "AuthenticationFailed"), says("False", "ArtifactFailed"), false, "", "GitRepository is not ready: AuthenticationFailed: why"},
		{"the commit is on its way", says("Unknown", "Progressing"), says("False", "ArtifactFailed"), false, "", ""},
		{"the commit is there a moment before somebody looks at it", says("True", "Succeeded"), says("False", "ArtifactFailed"), true, "main@sha1:0", ""},
		{"the commit is there, and its path is not", says("True", "Succeeded"), says("False", "ArtifactFailed"), true, "main@sha1:1", "Kustomization is not ready: ArtifactFailed: why"},
		{"something else is not ready", says("True", "Succeeded"), says("False", "DependencyNotReady"), true, "", "Kustomization is not ready: DependencyNotReady: why"},
		{"it is being applied", says("True", "Succeeded"), says("Unknown", "Progressing"), true, "main@sha1:1", ""},
	} {
		git, k := &sourcev1.GitRepository{}, &kustomizev1.Kustomization{}
		git.Status.Conditions, k.Status.Conditions, k.Status.LastAttemptedRevision = tc.git, tc.kustomization, tc.tried
		if tc.fetched {
			git.Status.Artifact = &fluxmeta.Artifact{Revision: "main@sha1:1"}
		}
		if got := troubles(git, tc.fetched, k); got != tc.want {
			t.Errorf("%s: it says %q, want %q", tc.reason, got, tc.want)
		}
	}
}

// TestBootstrapKeepsLogin: a tier that works has its login until it gets the URL that another one
// is for, and then that one, whatever becomes of the command meanwhile.
func TestBootstrapKeepsLogin(t *testing.T) {
	pair, err := ssh.NewEd25519Generator().Generate()
	if err != nil {
		t.Fatal(err)
	}
	known := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(known, append([]byte("example.com "), pair.PublicKey...), 0o600); err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "identity")
	if err := os.WriteFile(keyFile, pair.PrivateKey, 0o600); err != nil {
		t.Fatal(err)
	}
	const web, shell, other = "https://example.com/fleet", "ssh://git@example.com/fleet", "cascade-system-key"
	const oldWeb, oldShell, elsewhere = "https://example.com/old", "ssh://git@example.com/old", "ssh://git@other.example/fleet"
	password := map[string][]byte{"username": []byte("ann"), "password": []byte("secret-of-ann")}
	key := map[string][]byte{"identity": pair.PrivateKey, "known_hosts": append([]byte("example.com "), pair.PublicKey...)}
	oldKey := map[string][]byte{"identity": []byte("of old"), "known_hosts": key["known_hosts"]}
	type kept struct {
		url  string // of the annotation
		data map[string][]byte
	}
	for name, tc := range map[string]struct {
		reason    string
		live, ref string // of the GitRepository
		has       map[string]kept
		url, want string
		made      bool // a key, which the person is asked about
		shown     bool
		given     bool // a key
	}{
		"New":             {"nothing is there", "", "", nil, shell, layout.Name, true, true, false},
		"ToKey":           {"it goes from https to ssh", web, layout.Name, map[string]kept{layout.Name: {data: password}}, shell, other, true, true, false},
		"Waits":           {"the commit is not applied yet", web, layout.Name, map[string]kept{layout.Name: {data: password}, other: {shell, key}}, shell, other, false, true, false},
		"Applied":         {"the agent applied the commit by itself", shell, other, map[string]kept{layout.Name: {data: password}, other: {shell, key}}, shell, other, false, false, false},
		"CutOff":          {"the commit named the Secret of the password", shell, layout.Name, map[string]kept{layout.Name: {data: password}, other: {shell, key}}, shell, other, false, true, false},
		"Same":            {"it has a key for the server", shell, layout.Name, map[string]kept{layout.Name: {data: key}, other: {elsewhere, password}}, shell, layout.Name, false, false, false},
		"KeyBefore":       {"it goes from one server to another", elsewhere, layout.Name, map[string]kept{layout.Name: {data: key}}, shell, other, false, true, false},
		"Back":            {"it goes from ssh to https again", shell, other, map[string]kept{layout.Name: {web, password}, other: {shell, key}}, web, layout.Name, false, false, false},
		"OwnSecret":       {"patches of the repository name another Secret", shell, "of-vault", map[string]kept{"of-vault": {data: key}}, shell, layout.Name, false, false, false},
		"OtherWriting":    {"the URL is that of the same repository", shell + ".git/", layout.Name, map[string]kept{layout.Name: {shell, key}}, shell, layout.Name, false, false, false},
		"OtherRepository": {"a deploy key is for one repository", oldShell, layout.Name, map[string]kept{layout.Name: {oldShell, oldKey}}, shell, other, false, false, true},
		"KeyOfServer":     {"a key may be for all of a server", oldShell, layout.Name, map[string]kept{layout.Name: {oldShell, key}}, shell, other, false, true, false},
		"TokenOfServer":   {"a token may be for all of a server", oldWeb, other, map[string]kept{layout.Name: {shell, key}, other: {oldWeb, password}}, web, layout.Name, false, false, false},
		"PasswordLeft":    {"a password of before says nothing of the key in use", elsewhere, other, map[string]kept{layout.Name: {web, password}, other: {elsewhere, key}}, shell, layout.Name, false, true, false},
		"KeyLeft":         {"a key of before may be refused by now", oldShell, other, map[string]kept{layout.Name: {"ssh://git@example.com/older", oldKey}, other: {oldShell, key}}, shell, layout.Name, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(func(b *bootstrap) { b.url = tc.url })
			if strings.HasPrefix(tc.url, "ssh://") {
				b.login.knownHostsFile = known
			}
			if tc.given {
				b.login.keyFile = keyFile
			}
			c := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			if tc.live != "" {
				named := metav1.ObjectMeta{Namespace: b.namespace, Name: layout.Name}
				if err := c.Create(t.Context(), &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{URL: tc.live, SecretRef: &fluxmeta.LocalObjectReference{Name: tc.ref}}}); err != nil {
					t.Fatal(err)
				}
			}
			for name, of := range tc.has {
				if err := keepLogin(t.Context(), c, client.ObjectKey{Namespace: b.namespace, Name: name}, of.url, of.data); err != nil {
					t.Fatal(err)
				}
			}
			first, err := b.logIn(t.Context(), c) // nobody answers
			if (err != nil) != tc.made || tc.made != (first.Made != "") {
				t.Fatalf("%s: a key is made: %t: %v", tc.reason, first.Made != "", err)
			}
			b.yes = true
			var shown bytes.Buffer
			b.streams.Out = &shown
			again, err := b.logIn(t.Context(), c)
			if err != nil || again.Made != "" || !bytes.Equal(first.Data["identity"], again.Data["identity"]) || !tc.made && tc.url == shell && !bytes.Equal(again.Data["identity"], pair.PrivateKey) {
				t.Fatalf("%s: the key is another one the second time: %v", tc.reason, err)
			}
			if has := strings.HasPrefix(shown.String(), "ssh-ed25519 "); has != tc.shown {
				t.Errorf("%s: the key that waits to be added is shown: %t", tc.reason, has)
			}
			if err := b.keep(t.Context(), c, nil, again); err != nil { // before the commit
				t.Fatal(err)
			}
			_, changes, err := b.decide(fstest.MapFS{}, true)
			if sync := strings.Join(strings.Fields(string(changes[path.Join("a", layout.Dir, "sync.yaml")])), " "); err != nil || !strings.Contains(sync, "secretRef: name: "+tc.want+" ") {
				t.Errorf("%s: the commit does not name %s: %v: %s", tc.reason, tc.want, err, sync)
			}
			if now, err := loginSecret(t.Context(), c, client.ObjectKey{Namespace: b.namespace, Name: tc.want}); err != nil || !reflect.DeepEqual(now, again.Data) {
				t.Errorf("%s: the commit names a Secret without the login: %v", tc.reason, err)
			}
			if now, err := loginSecret(t.Context(), c, client.ObjectKey{Namespace: b.namespace, Name: tc.ref}); tc.ref != "" && tc.ref != tc.want && (err != nil || !reflect.DeepEqual(now, tc.has[tc.ref].data)) {
				t.Errorf("%s: the tier lost its login before it has the commit: %v", tc.reason, err)
			}
		})
	}
}

// TestBootstrapKeepsFluxLogin: where Flux's files declare the sync, a key that waited goes into the
// Secret that these name. The login that the tier has until then stays.
func TestBootstrapKeepsFluxLogin(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, live string
		stays        bool
	}{
		"Waits":  {"the key was made for this repository", "", false},
		"InUse":  {"the tier syncs with it", "https://example.com/fleet", true},
		"Before": {"the tier has it for a URL of another kind", "ssh://git@example.com/fleet", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GIT_PASSWORD", "secret-of-ann")
			b, _ := newBootstrapOf(nil)
			key := b.secretKey()
			c := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			if err := keepLogin(t.Context(), c, key, b.url, map[string][]byte{"username": []byte("ann"), "password": []byte("secret-of-ann")}); err != nil {
				t.Fatal(err)
			}
			if tc.live != "" {
				named := metav1.ObjectMeta{Namespace: key.Namespace, Name: layout.Name}
				if err := c.Create(t.Context(), &sourcev1.GitRepository{ObjectMeta: named, Spec: sourcev1.GitRepositorySpec{URL: tc.live, SecretRef: &fluxmeta.LocalObjectReference{Name: key.Name}}}); err != nil {
					t.Fatal(err)
				}
			}
			l, err := b.logIn(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			git := &unstructured.Unstructured{Object: map[string]any{}}
			git.SetNamespace("flux-system")
			if err := b.keep(t.Context(), c, &layout.Flux{GitRepository: git, Secret: "flux-system"}, l); err != nil {
				t.Fatal(err)
			}
			if has, err := loginSecret(t.Context(), c, fluxSecret()); err != nil || !reflect.DeepEqual(has, l.Data) {
				t.Errorf("%s: the Secret of Flux's files lacks the login: %v", tc.reason, err)
			}
			if has, err := loginSecret(t.Context(), c, key); err != nil || tc.stays != (has != nil) {
				t.Errorf("%s: Secret %s is there: %t: %v", tc.reason, key, has != nil, err)
			}
		})
	}
}

// TestBootstrapReplacesFluxLogin: who says another login than the one that a tier from Flux has
// means the tier, for the server that it is for.
func TestBootstrapReplacesFluxLogin(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, password, address string
		want                      map[string]string
	}{
		"Said":      {"it is to be rotated", "new", "https://example.com/fleet", map[string]string{"username": "ann", "password": "new", "ca.crt": "ca"}},
		"OtherKind": {"it is for the clone alone", "new", "ssh://git@example.com/fleet", map[string]string{"username": "git", "password": "old", "bearerToken": "old", "ca.crt": "ca"}},
		"NotSaid":   {"the tier has one", "", "https://example.com/fleet", map[string]string{"username": "git", "password": "old", "bearerToken": "old", "ca.crt": "ca"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GIT_PASSWORD", tc.password)
			b, _ := newBootstrapOf(func(b *bootstrap) {
				b.url = "https://example.com/fleet"
			})
			c := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			old := map[string][]byte{"username": []byte("git"), "password": []byte("old"), "bearerToken": []byte("old"), "ca.crt": []byte("ca")}
			if err := keepLogin(t.Context(), c, fluxSecret(), b.url, old); err != nil {
				t.Fatal(err)
			}
			git := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"url": tc.address}}}
			git.SetNamespace("flux-system")
			l := &login.Login{Data: map[string][]byte{"username": []byte("ann"), "password": []byte("new")}}
			if err := b.keep(t.Context(), c, &layout.Flux{GitRepository: git, Secret: "flux-system"}, l); err != nil {
				t.Fatal(err)
			}
			has, err := loginSecret(t.Context(), c, fluxSecret())
			got := map[string]string{}
			for key, value := range has {
				got[key] = string(value)
			}
			if err != nil || !maps.Equal(got, tc.want) {
				t.Errorf("%s: the Secret has %v: %v", tc.reason, got, err)
			}
		})
	}
}

// TestBootstrapMadeKey: a key that was made goes on to be used until the tier syncs with it, and
// what it was told of a server counts for that server.
func TestBootstrapMadeKey(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, url string
		known       bool
	}{
		"Same":        {"the server was pinned", "ssh://git@example.com/fleet", true},
		"OtherPath":   {"it is the same server", "ssh://git@example.com/other", true},
		"OtherServer": {"another server has another key, which is to be read", "ssh://git@other.example/fleet", false},
		"OtherPort":   {"another server may be behind it", "ssh://git@example.com:2222/fleet", false},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := newBootstrapOf(func(b *bootstrap) { b.url = "ssh://git@example.com/fleet" })
			c := fake.NewClientBuilder().WithScheme(newScheme()).Build()
			made := client.ObjectKey{Namespace: b.namespace, Name: layout.Name}
			if err := keepLogin(t.Context(), c, made, b.url, map[string][]byte{"identity": []byte("made"), "known_hosts": []byte("example.com")}); err != nil {
				t.Fatal(err)
			}
			b.url = tc.url
			has, shown, err := b.hasLogin(t.Context(), c)
			if err != nil || !shown || !b.waits || string(has["identity"]) != "made" {
				t.Fatalf("%s: the key waits %t, is shown %t, it is %s: %v", tc.reason, b.waits, shown, has["identity"], err)
			}
			if known := has["known_hosts"] != nil; known != tc.known {
				t.Errorf("%s: the server is known: %t", tc.reason, known)
			}
		})
	}
}
