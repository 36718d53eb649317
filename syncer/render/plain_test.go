package render

import (
	"errors"
	"maps"
	"testing"

	kustypes "sigs.k8s.io/kustomize/api/types"
)

// TestPlain: what takes the short way, and what must not. That both ways give
// the same is TestRenderingEqualsFlux.
func TestPlain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  tree
		build  Build
		doubt  bool
	}{
		"Usual":           {"manifests of the usual kinds", workload(8, 2), Build{}, false},
		"Listed":          {"listed by kustomization files, at any depth", tree{"kustomization.yaml": "resources: [b, ./c/x.yaml]\n", "b/kustomization.yaml": "kind: Kustomization\nresources: [a.yaml]\n", "b/a.yaml": manifest("a"), "c/x.yaml": manifest("x")}, Build{}, false},
		"Comments":        {"people write comments", tree{"a.yaml": "# head\n" + manifest("a", "k", "v # why") + "# foot\n"}, Build{}, false},
		"Unusual":         {"a file of unusual YAML is read by kustomize's reader, and only this", tree{"a.yaml": manifest("a", "k", "&x v"), "b.yaml": manifest("b", "f", "0.5")}, Build{}, false},
		"List":            {"the same for lists", tree{"a.yaml": "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}]\n"}, Build{}, false},
		"Variables":       {"variables come after the build", tree{"a.yaml": manifest("a", "k", "${v}")}, Build{Variables: map[string]string{"v": "x"}}, false},
		"CommonMetadata":  {"so does commonMetadata", tree{"a.yaml": manifest("a")}, Build{CommonLabels: map[string]string{"v": "x"}}, false},
		"Namespace":       {"kustomize knows where namespaces go", tree{"a.yaml": manifest("a")}, Build{TargetNamespace: "x"}, true},
		"Patch":           {"kustomize patches", tree{"a.yaml": manifest("a")}, Build{Patches: []kustypes.Patch{{Patch: "x"}}}, true},
		"Empty":           {"nothing at all is a case of its own", tree{"a.txt": "x"}, Build{}, true},
		"BaseWithMore":    {"one base that does more", tree{"kustomization.yaml": "resources: [b]\n", "b/kustomization.yaml": "namePrefix: x-\nresources: [a.yaml]\n", "b/a.yaml": manifest("a")}, Build{}, true},
		"Twice":           {"kustomize says what is there twice", tree{"a.yaml": manifest("a"), "b.yaml": manifest("a")}, Build{}, true},
		"LocalConfig":     {"an object that is not to be applied", tree{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {config.kubernetes.io/local-config: \"true\"}}\n"}, Build{}, true},
		"Broken":          {"kustomize reports errors", tree{"a.yaml": "a: [\n"}, Build{}, true},
		"ReferrerOddness": {"kustomize fails over what is no reference", tree{"a.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: words\n"}, Build{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := newFileSystem(t.Context(), tc.files)
			begin, err := kustomization(fsys, "/", tc.build)
			if err != nil {
				t.Fatal(err)
			}
			built, err := plain(fsys, "/", begin)
			if errors.Is(err, errDoubt) != tc.doubt || err == nil && len(built) == 0 {
				t.Errorf("%s\nplain() = %d objects, %v, want doubt: %t", tc.reason, len(built), err, tc.doubt)
			}
		})
	}
}

// reading counts how often each file is read.
type reading struct {
	tree
	reads map[string]int
}

func (r reading) ReadFile(name string) ([]byte, error) {
	r.reads[r.at(name)]++
	return r.tree.ReadFile(name)
}

// TestReadOnce: whichever way a build goes, it reads a file once.
func TestReadOnce(t *testing.T) {
	overlay := workload(100, 10)
	overlay["kustomization.yaml"] = "namePrefix: x-\nresources: [f000.yaml, f001.yaml, f002.yaml]\n"
	doubtful := maps.Clone(workload(100, 10))
	doubtful["z.yaml"] = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {config.kubernetes.io/local-config: \"true\"}}\n"
	for name, files := range map[string]tree{"plain": workload(100, 10), "overlay": overlay, "doubtful": doubtful} {
		r := reading{files, map[string]int{}}
		if _, err := rendered(t.Context(), r, Build{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for file, n := range r.reads {
			if n > 1 {
				t.Errorf("%s: %s was read %d times", name, file, n)
			}
		}
		if len(r.reads) == 0 {
			t.Errorf("%s: nothing was read", name)
		}
	}
}

// BenchmarkKustomize is what Render costs without the short way.
func BenchmarkKustomize(b *testing.B) {
	files := workload(8, 2)
	for b.Loop() {
		fsys := newFileSystem(b.Context(), files)
		begin, err := kustomization(fsys, "/", Build{})
		if err != nil {
			b.Fatal(err)
		}
		built, err := kustomize(fsys, "/", begin, workers)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := finish(b.Context(), fsys, built, Build{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
}
