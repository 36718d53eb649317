package migration

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

var update = flag.Bool("update", false, "write the golden files anew")

func bootstrapped() Facts {
	return Facts{
		Namespace: "flux-system",
		Replaced:  []Controller{{"kustomize-controller", 1}, {"helm-controller", 1}, {"source-controller", 1}},
		Others:    []Controller{{"notification-controller", 1}, {"image-reflector-controller", 1}},
		Served:    []Kind{{"GitRepository", 2}, {"Kustomization", 5}, {"HelmRelease", 3}}, Objects: 240,
		Unserved: []Kind{{"Alert", 1}, {"ImagePolicy", 4}},
	}
}

// TestPlans: what a person reads before anything happens.
func TestPlans(t *testing.T) {
	files := []string{"clusters/prod/cascade-system/agent.yaml", "clusters/prod/flux-system/kustomization.yaml"}
	from := func(f Facts) Plan { return FromFlux(f, files) }
	to := func(f Facts) Plan { return ToFlux(f, files, false) }
	for name, tc := range map[string]struct {
		reason string
		change func(*Facts)
		plan   func(Facts) Plan
	}{
		"from":          {"as flux bootstrap leaves it", nil, from},
		"from-again":    {"the commit is there already", nil, func(f Facts) Plan { return FromFlux(f, nil) }},
		"from-operator": {"an operator declares the controllers", func(f *Facts) { f.Instance = "flux-system/flux" }, from},
		"from-nothing":  {"there is no Flux", func(f *Facts) { f.Replaced = nil }, from},
		"from-sharded": {"labels share the objects out among controllers", func(f *Facts) {
			f.Shards = []Controller{{"kustomize-controller-shard1", 1}, {"helm-controller-shard1", 0}, {"kustomize-controller-shard2", 2}}
		}, from},
		"from-unsharded": {"those for parts were scaled to zero", func(f *Facts) { f.Shards = []Controller{{"kustomize-controller-shard1", 0}} }, from},
		"from-helm":      {"releases of an earlier Flux", func(f *Facts) { f.Unrecorded = 3 }, from},
		"to":             {"nothing that only an agent serves", nil, to},
		"to-children":    {"children would stand still", func(f *Facts) { f.Layers, f.Children = 2, 7 }, to},
		"to-leave":       {"a person says that they may", func(f *Facts) { f.Layers, f.Children = 2, 7 }, func(f Facts) Plan { return ToFlux(f, files, true) }},
		"to-annotated":   {"what Flux does not read", func(f *Facts) { f.Annotated = []string{"Kustomization a/b has cascade.dev/first-sync"} }, to},
		"to-nothing":     {"there are no controllers to go back to", func(f *Facts) { f.Replaced = nil }, to},
	} {
		t.Run(name, func(t *testing.T) {
			f := bootstrapped()
			if tc.change != nil {
				tc.change(&f)
			}
			p := tc.plan(f)
			var text strings.Builder
			fmt.Fprintf(&text, "# %s\n", tc.reason)
			for _, s := range p.Says {
				fmt.Fprintln(&text, s)
			}
			for _, s := range p.Warns {
				fmt.Fprintln(&text, "!", s)
			}
			if p.Refused != "" {
				fmt.Fprintln(&text, "refused:", p.Refused)
			}
			if f.Instance != "" {
				text.WriteString(InstancePatch(f))
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
				t.Errorf("got\n%s\nwant\n%s", text.String(), want)
			}
		})
	}
}

// TestReadControllers: which of Flux's Deployments an agent replaces, and which are copies of
// those for a part of the objects.
func TestReadControllers(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	scheme.AddKnownTypeWithName(instance(), &unstructured.Unstructured{})
	scheme.AddKnownTypeWithName(instance().GroupVersion().WithKind("FluxInstanceList"), &unstructured.UnstructuredList{})
	build := fake.NewClientBuilder().WithScheme(scheme)
	for _, name := range []string{"source-controller", "kustomize-controller", "kustomize-controller-shard1", "source-watcher", "notification-controller", "source-controller-shard1"} {
		build.WithObjects(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": "flux"}}})
	}
	f, err := Read(t.Context(), build.Build(), "flux-system")
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []struct {
		what string
		got  []Controller
		want string
	}{
		{"replaced", f.Replaced, "kustomize-controller, source-controller"},
		{"for a part of the objects", f.Shards, "kustomize-controller-shard1, source-controller-shard1"},
		{"left", f.Others, "notification-controller, source-watcher"},
	} {
		if got := names(of.got); got != of.want {
			t.Errorf("%s: %s, want %s", of.what, got, of.want)
		}
	}
}

// TestRuns: an operator's controllers count as stopped when all are at zero.
func TestRuns(t *testing.T) {
	f := bootstrapped()
	if !f.Runs() {
		t.Error("none is to run")
	}
	for i := range f.Replaced {
		f.Replaced[i].Replicas = 0
	}
	if f.Runs() {
		t.Error("one is to run")
	}
}

// TestRecordFile: a record that was written is read again, and what is no record is refused.
func TestRecordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record")
	if r, err := Load(file); r != nil || err != nil {
		t.Errorf("there is no file, and it has %v: %v", r, err)
	}
	if err := (Record{"default_a__ConfigMap": "1-2-3"}).Save(file); err != nil {
		t.Fatal(err)
	}
	if r, err := Load(file); err != nil || r["default_a__ConfigMap"] != "1-2-3" {
		t.Errorf("it has %v: %v", r, err)
	}
	if err := os.WriteFile(file, []byte("no record"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("a file that is no record is one")
	}
}
