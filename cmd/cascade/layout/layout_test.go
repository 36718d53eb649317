package layout

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var update = flag.Bool("update", false, "write the golden files anew")

// agent stands for what the agent's manifests are.
const agent = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: layers.cascade.dev}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kustomizations.kustomize.toolkit.fluxcd.io}
---
apiVersion: v1
kind: Namespace
metadata: {name: cascade-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cascade, namespace: cascade-system}
spec: {replicas: 1}
`

// components stands for gotk-components.yaml.
const components = `apiVersion: v1
kind: Namespace
metadata: {name: flux-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kustomizations.kustomize.toolkit.fluxcd.io}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: source-controller, namespace: flux-system}
spec: {replicas: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kustomize-controller, namespace: flux-system}
spec: {replicas: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: helm-controller, namespace: flux-system}
spec: {replicas: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: notification-controller, namespace: flux-system}
spec: {replicas: 1}
`

const fluxSync = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: flux-system, namespace: flux-system}
spec: {interval: 1m0s, url: 'ssh://git@example.com/fleet', ref: {branch: main}, secretRef: {name: flux-system}}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: flux-system, namespace: flux-system}
spec: {interval: 10m0s, path: ./clusters/prod, prune: true, sourceRef: {kind: GitRepository, name: flux-system}}
`

const fluxKustomization = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- gotk-components.yaml
- gotk-sync.yaml
`

func flux(more map[string]string) map[string]string {
	files := map[string]string{
		"clusters/prod/flux-system/gotk-components.yaml": components,
		"clusters/prod/flux-system/gotk-sync.yaml":       fluxSync,
		"clusters/prod/flux-system/kustomization.yaml":   fluxKustomization,
		"clusters/prod/apps.yaml":                        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n",
	}
	maps.Copy(files, more)
	return files
}

func treeOf(files map[string]string) fstest.MapFS {
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

// with is a tree after changes.
func with(tree fstest.MapFS, changes Changes) fstest.MapFS {
	tree = maps.Clone(tree)
	for name, text := range changes {
		if text == nil {
			delete(tree, name)
			continue
		}
		tree[name] = &fstest.MapFile{Data: text}
	}
	return tree
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	list, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func plain() Sync {
	return Sync{Namespace: "cascade-system", URL: "https://example.com/fleet", Branch: "main", Path: "clusters/prod", Interval: 10 * time.Minute, Secret: Name}
}

func decide(tree fs.FS, t *testing.T, s Sync) (Changes, error) {
	t.Helper()
	f, err := FindFlux(tree, s.Path)
	if err != nil {
		return nil, err
	}
	if f != nil {
		return f.Take(tree, s.Path, objects(t, agent))
	}
	return Tier(tree, objects(t, agent), s)
}

// TestLayout: what changes is what the golden file says, and with it nothing changes any more.
func TestLayout(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		change func(*Sync)
	}{
		"empty":    {"a repository without a file", nil, nil},
		"root":     {"the whole repository is the path", nil, func(s *Sync) { s.Path = "." }},
		"public":   {"without a login there is no Secret", nil, func(s *Sync) { s.Secret = "" }},
		"lockdown": {"the agent has no rights, so it syncs as an account that has them", nil, func(s *Sync) { s.Account = true }},
		"patched": {"patches of a person stay, with comments, and only what is missing is added", map[string]string{
			"clusters/prod/cascade-system/kustomization.yaml": "---\n# ours\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n  # the agent\n  - agent.yaml\npatches:\n  - path: more.yaml # memory\n",
		}, nil},
		"listed": {"where a kustomization says what is a part of the path, the agent has to be named", map[string]string{
			"clusters/prod/kustomization.yml": "kind: Kustomization\nresources: [./apps, infra]\n",
		}, nil},
		"upgraded": {"only the agent's file changes", map[string]string{
			"clusters/prod/cascade-system/agent.yaml":         "# of an earlier version\n",
			"clusters/prod/cascade-system/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- agent.yaml\n- ./sync.yaml\n",
		}, nil},
		"flux": {"Flux's definitions stay Flux's, its sync stays, its controllers stop", flux(nil), nil},
		"flux-scaled": {"a count of a person is remembered", flux(map[string]string{
			"clusters/prod/flux-system/kustomization.yaml": fluxKustomization + "replicas:\n- name: source-controller\n  count: 3\n- name: notification-controller\n  count: 2\n",
		}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			tree, s := treeOf(tc.files), plain()
			if tc.change != nil {
				tc.change(&s)
			}
			changes, err := decide(tree, t, s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, changes)
			again, err := decide(with(tree, changes), t, s)
			if err != nil || len(again) != 0 {
				t.Errorf("%s: a second time it changes %v: %v", tc.reason, again.Names(), err)
			}
		})
	}
}

func golden(t *testing.T, name string, changes Changes) {
	t.Helper()
	var text strings.Builder
	for _, file := range changes.Names() {
		fmt.Fprintf(&text, "=== %s\n%s", file, changes[file])
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Errorf("got\n%s\nwant, of %s\n%s", text.String(), file, want)
	}
}

// TestThereAndBack: what Leave leaves is what was there before Take.
func TestThereAndBack(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
	}{
		"Plain":  {"as flux bootstrap leaves it", flux(nil)},
		"Listed": {"a list of a person", flux(map[string]string{"clusters/prod/kustomization.yaml": "kind: Kustomization\nresources:\n- flux-system\n- apps.yaml\n"})},
		"Scaled": {"counts of a person", flux(map[string]string{
			"clusters/prod/flux-system/kustomization.yaml": fluxKustomization + "replicas:\n- name: source-controller\n  count: 3\n- name: notification-controller\n  count: 2\n",
		})},
		"Patched": {"patches of a person", flux(map[string]string{
			"clusters/prod/flux-system/kustomization.yaml": fluxKustomization + "# who may\npatches:\n- target: {kind: Deployment}\n  patch: |\n    - {op: add, path: /spec/template/spec/priorityClassName, value: high}\n",
		})},
	} {
		t.Run(name, func(t *testing.T) {
			before := treeOf(tc.files)
			f, err := FindFlux(before, "clusters/prod")
			if err != nil || f == nil {
				t.Fatalf("no Flux is found: %v", err)
			}
			taken, err := f.Take(before, "clusters/prod", objects(t, agent))
			if err != nil {
				t.Fatal(err)
			}
			between := with(before, taken)
			left, err := f.Leave(between, "clusters/prod")
			if err != nil {
				t.Fatal(err)
			}
			after := with(between, left)
			for _, file := range slices.Sorted(maps.Keys(before)) {
				if after[file] == nil || string(after[file].Data) != string(before[file].Data) {
					t.Errorf("%s: %s is\n%s\nwant\n%s", tc.reason, file, after[file].Data, before[file].Data)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%s: there are %v", tc.reason, slices.Sorted(maps.Keys(after)))
			}
		})
	}
}

// TestStops: kustomize runs none of the controllers, whatever patches say, and all others.
func TestStops(t *testing.T) {
	tree := treeOf(flux(map[string]string{
		"clusters/prod/flux-system/gotk-components.yaml": components + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: source-watcher, namespace: flux-system}\nspec: {replicas: 1}\n",
		"clusters/prod/flux-system/kustomization.yaml":   fluxKustomization + "patches:\n- target: {kind: Deployment}\n  patch: |\n    - {op: replace, path: /spec/replicas, value: 2}\n",
	}))
	f, err := FindFlux(tree, "clusters/prod")
	if err != nil {
		t.Fatal(err)
	}
	if f.EventsAddress() != "http://notification-controller.flux-system.svc.cluster.local./" || f.Secret != "flux-system" {
		t.Errorf("events go to %q, the Secret is %q", f.EventsAddress(), f.Secret)
	}
	changes, err := f.Take(tree, "clusters/prod", objects(t, agent))
	if err != nil {
		t.Fatal(err)
	}
	built, err := f.Build(with(tree, changes))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"source-controller": 0, "kustomize-controller": 0, "helm-controller": 0, "source-watcher": 0, "notification-controller": 2}
	for _, u := range built {
		if u.GetKind() != "Deployment" {
			continue
		}
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); n != want[u.GetName()] {
			t.Errorf("%s has %d replicas, want %d", u.GetName(), n, want[u.GetName()])
		}
		delete(want, u.GetName())
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

// TestFindPatched: what syncs the repository is what Flux's directory makes of it; where that cannot be
// built, what is written there.
func TestFindPatched(t *testing.T) {
	const patch = fluxKustomization + "patches:\n- target: {kind: GitRepository}\n  patch: |\n    - {op: replace, path: /spec/secretRef/name, value: mirror}\n" +
		"- target: {kind: Kustomization}\n  patch: |\n    - {op: add, path: /spec/serviceAccountName, value: flux-applier}\n"
	for name, tc := range map[string]struct {
		reason, kustomization, secret, account string
	}{
		"Plain":   {"as flux bootstrap leaves it", fluxKustomization, "flux-system", ""},
		"Patched": {"patches of a person", patch, "mirror", "flux-applier"},
		"Broken":  {"it cannot be built", patch + "components: [none]\n", "flux-system", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := FindFlux(treeOf(flux(map[string]string{"clusters/prod/flux-system/kustomization.yaml": tc.kustomization})), "clusters/prod")
			if err != nil {
				t.Fatal(err)
			}
			account, _, _ := unstructured.NestedString(f.Kustomization.Object, "spec", "serviceAccountName")
			if f.Secret != tc.secret || account != tc.account {
				t.Errorf("%s: the Secret is %q, the account %q", tc.reason, f.Secret, account)
			}
		})
	}
}

// TestDiff: git takes a difference, and makes of it what the changes are.
func TestDiff(t *testing.T) {
	before := treeOf(flux(map[string]string{"clusters/prod/kustomization.yaml": "resources: [flux-system]"}))
	f, err := FindFlux(before, "clusters/prod")
	if err != nil {
		t.Fatal(err)
	}
	taken, err := f.Take(before, "clusters/prod", objects(t, agent))
	if err != nil {
		t.Fatal(err)
	}
	between := with(before, taken)
	left, err := f.Leave(between, "clusters/prod")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, before); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		from    fstest.MapFS
		changes Changes
	}{{before, taken}, {between, left}} {
		var diff bytes.Buffer
		if err := Diff(&diff, step.from, step.changes); err != nil {
			t.Fatal(err)
		}
		git := exec.Command("git", "apply", "-")
		git.Dir, git.Stdin = dir, bytes.NewReader(diff.Bytes())
		if out, err := git.CombinedOutput(); err != nil {
			t.Fatalf("git does not take it: %v\n%s\n%s", err, out, diff.Bytes())
		}
		for name, want := range with(step.from, step.changes) {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want.Data) {
				t.Errorf("%s is\n%s\nwant\n%s", name, got, want.Data)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "clusters/prod/cascade-system/agent.yaml")); err == nil {
		t.Error("what goes is still there")
	}
}

// TestRefuses: what cannot be read, or has two meanings, is refused by name.
func TestRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		path   string
		want   string
	}{
		"TwoFluxes":   {"which is meant", map[string]string{"a/x/gotk-components.yaml": components, "a/y/gotk-components.yaml": components}, "a", "cannot tell which installation"},
		"NoSync":      {"nothing syncs it", map[string]string{"a/flux-system/gotk-components.yaml": components}, "a", "must have a GitRepository and a Kustomization"},
		"NotYAML":     {"a kustomization that is none", map[string]string{"a/kustomization.yaml": "resources: [\n"}, "a", "a/kustomization.yaml"},
		"NoList":      {"resources of another type", map[string]string{"a/kustomization.yaml": "resources: {a: b}\n"}, "a", "a/kustomization.yaml"},
		"PathIsAFile": {"the path is a file", map[string]string{"a": "x"}, "a", "it is a file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			s.Path = tc.path
			if changes, err := decide(treeOf(tc.files), t, s); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: it decides %v: %v", tc.reason, changes.Names(), err)
			}
		})
	}
	for _, outside := range []string{"..", "a/../../b", "./../x"} {
		if clean, err := Clean(outside); err == nil {
			t.Errorf("path %s is taken as %s", outside, clean)
		}
	}
	for path, want := range map[string]string{"./clusters/a/": "clusters/a", "": ".", "./": ".", "/a": "a"} {
		if clean, err := Clean(path); err != nil || clean != want {
			t.Errorf("path %q is %q: %v", path, clean, err)
		}
	}
}

// TestBuild: patches of the directory count, and files outside of it do not.
func TestBuild(t *testing.T) {
	tree := with(treeOf(nil), nil)
	changes, err := Tier(tree, objects(t, agent), plain())
	if err != nil {
		t.Fatal(err)
	}
	tree = with(tree, changes)
	file := "clusters/prod/cascade-system/kustomization.yaml"
	patch := "patches:\n- target: {kind: Deployment}\n  patch: |\n    - {op: replace, path: /spec/replicas, value: 3}\n"
	tree[file] = &fstest.MapFile{Data: append(slices.Clone(changes[file]), patch...)}
	built, err := Build(tree, "clusters/prod")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, u := range built {
		found[u.GetKind()] = true
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); u.GetKind() == "Deployment" && n != 3 {
			t.Errorf("a patch does not count: %d replicas", n)
		}
	}
	if !found["Kustomization"] || !found["GitRepository"] || !found["Namespace"] {
		t.Errorf("it makes %v", found)
	}
	tree["secret.yaml"] = &fstest.MapFile{Data: []byte("{}")}
	tree[file] = &fstest.MapFile{Data: append(slices.Clone(changes[file]), "- ../../../secret.yaml\n"...)}
	if _, err := Build(tree, "clusters/prod"); err == nil {
		t.Error("a file outside of the directory is read")
	}
}

// TestSamePlace: the same repository by another protocol is no move, and another server is one.
func TestSamePlace(t *testing.T) {
	const https = "https://git.example.com/ops/fleet"
	for _, tt := range []struct {
		reason, a, b string
		want         bool
	}{
		{"a suffix and a slash mean nothing", https, "https://Git.example.com/ops/fleet.git/", true},
		{"nor does a login", https, "https://ann:word@git.example.com/ops/fleet", true},
		{"it may be read by SSH, which has another port", https, "ssh://git@git.example.com:2222/ops/fleet", true},
		{"the port is the usual one", https, "https://git.example.com:443/ops/fleet", true},
		{"another server of one host", "http://localhost:3000/ops/fleet", "http://localhost:3001/ops/fleet", false},
		{"another repository", https, https + "2", false},
	} {
		if got := SamePlace(tt.a, tt.b); got != tt.want {
			t.Errorf("%s: SamePlace(%q, %q) = %t", tt.reason, tt.a, tt.b, got)
		}
	}
}
