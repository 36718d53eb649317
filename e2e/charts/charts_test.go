package charts

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dir is the directory of a chart.
func dir(name string) string { return filepath.Join("..", "..", "deploy", "charts", name) }

// render renders a chart for a release named demo.
func render(t *testing.T, name string, values map[string]any) Rendering {
	t.Helper()
	c, err := Load(dir(name))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Render(c, "demo", "fleet", values)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func set(t *testing.T, chart, name string) map[string]any {
	t.Helper()
	sets, err := Sets(dir(chart))
	if err != nil {
		t.Fatal(err)
	}
	if sets[name] == nil {
		t.Fatalf("chart %s has no value set %s", chart, name)
	}
	return sets[name]
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v, err := Values(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestChanges: an edit of values becomes the edits of objects that it is meant to
// be, and never one of a template.
func TestChanges(t *testing.T) {
	for _, change := range Changes() {
		t.Run(change.Name, func(t *testing.T) {
			base := set(t, change.Chart, change.Set)
			before := render(t, change.Chart, base)
			after := render(t, change.Chart, Merge(base, values(t, change.Values)))
			if diff := cmp.Diff(change.Diff, Diff(before.Objects, after.Objects)); diff != "" {
				t.Errorf("%s: -want +got:\n%s", change.Reason, diff)
			}
		})
	}
}
