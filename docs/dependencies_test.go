package docs

import (
	"encoding/json"
	"testing"
)

// TestDependencies: each direct dependency of the product has its line, and no line
// lacks its dependency.
func TestDependencies(t *testing.T) {
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(run(t, "go", "mod", "edit", "-json", "../go.mod")), &mod); err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	for _, r := range mod.Require {
		if !r.Indirect {
			direct[r.Path] = true
		}
	}
	if len(direct) < 20 {
		t.Fatalf("go.mod has only %d direct dependencies", len(direct))
	}
	named := map[string]bool{}
	for _, cells := range rows(section(t, "dependencies.md", "## Direct dependencies"), 3) {
		names := words(cells[0])
		if len(names) != 1 || cells[1] == "" || cells[2] == "" {
			t.Errorf("cannot read the row %q", cells)
			continue
		}
		named[names[0]] = true
		if !direct[names[0]] {
			t.Errorf("%s is no direct dependency any more: remove its line", names[0])
		}
	}
	for path := range direct {
		if !named[path] {
			t.Errorf("%s has no line: say which package uses it, and why", path)
		}
	}
}
