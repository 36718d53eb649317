package migration

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		"from-helm":     {"releases of an earlier Flux", func(f *Facts) { f.Unrecorded = 3 }, from},
		"to":            {"nothing that only an agent serves", nil, to},
		"to-children":   {"children would stand still", func(f *Facts) { f.Layers, f.Children = 2, 7 }, to},
		"to-leave":      {"a person says that they may", func(f *Facts) { f.Layers, f.Children = 2, 7 }, func(f Facts) Plan { return ToFlux(f, files, true) }},
		"to-annotated":  {"what Flux does not read", func(f *Facts) { f.Annotated = []string{"Kustomization a/b has cascade.dev/first-sync"} }, to},
		"to-nothing":    {"there are no controllers to go back to", func(f *Facts) { f.Replaced = nil }, to},
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

// TestRuns: an operator's controllers count as stopped when all are at zero.
func TestRuns(t *testing.T) {
	f := bootstrapped()
	if got := strings.Join(f.Runs(), " "); got != "kustomize-controller helm-controller source-controller" {
		t.Errorf("there run %s", got)
	}
	for i := range f.Replaced {
		f.Replaced[i].Replicas = 0
	}
	if got := f.Runs(); len(got) > 0 {
		t.Errorf("there run %v", got)
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
