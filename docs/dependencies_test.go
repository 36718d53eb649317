package docs

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestDependencies: each direct dependency of the product has its line, and no line
// lacks its dependency.
func TestDependencies(t *testing.T) {
	check(t, direct(t, "../go.mod"), rows(section(t, "dependencies.md", "## Direct dependencies"), 3))
}

// TestReleaseDependencies: the same of the module that makes releases, and that the two do
// not have different versions of one module.
func TestReleaseDependencies(t *testing.T) {
	release, product := direct(t, "../deploy/release/go.mod"), direct(t, "../go.mod")
	check(t, release, rows(section(t, "dependencies.md", "## Of releases"), 2))
	for path, version := range release {
		if other := product[path]; other != "" && other != version {
			t.Errorf("releases are made with %s %s, the product has %s: the same has to be compiled twice", path, version, other)
		}
	}
}

// direct dependencies of a module, with their versions.
func direct(t *testing.T, file string) map[string]string {
	t.Helper()
	var mod struct {
		Require []struct {
			Path, Version string
			Indirect      bool
		}
	}
	if err := json.Unmarshal([]byte(run(t, "go", "mod", "edit", "-json", file)), &mod); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, r := range mod.Require {
		if !r.Indirect {
			found[r.Path] = r.Version
		}
	}
	if len(found) < 15 {
		t.Fatalf("%s has only %d direct dependencies", file, len(found))
	}
	return found
}

// check compares dependencies with the rows of a table, of which the first cell names one.
func check(t *testing.T, direct map[string]string, table [][]string) {
	t.Helper()
	named := map[string]bool{}
	for _, cells := range table {
		names := words(cells[0])
		if len(names) != 1 || slices.Contains(cells, "") {
			t.Errorf("cannot read the row %q", cells)
			continue
		}
		named[names[0]] = true
		if direct[names[0]] == "" {
			t.Errorf("%s is no direct dependency any more: remove its line", names[0])
		}
	}
	for path := range direct {
		if !named[path] {
			t.Errorf("%s has no line: say what it is for", path)
		}
	}
}
