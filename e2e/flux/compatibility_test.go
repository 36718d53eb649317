package flux

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/scenario/subtests"
)

// TestCompatibilityTable: every test that docs/flux-compatibility.md and docs/findings.md
// name is there, and the first of them names every row of the specification that is
// tried. A part of a test is there if the source says that the test runs it: package
// subtests.
func TestCompatibilityTable(t *testing.T) {
	var err error
	page := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(scenario.Path(t, "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	packages := map[string]*subtests.Package{}
	read := func(dir string) *subtests.Package {
		t.Helper()
		if packages[dir] == nil {
			if packages[dir], err = subtests.Parse(scenario.Path(t, strings.Split(dir, "/")...)); err != nil {
				t.Fatal(err)
			}
		}
		return packages[dir]
	}
	namedBy := func(text string) map[string]bool {
		t.Helper()
		named := map[string]bool{}
		for _, m := range regexp.MustCompile("`([a-z0-9/]+): ((?:Test|Fuzz)[A-Za-z0-9]+(?:/[A-Za-z0-9]+)*)`").FindAllStringSubmatch(text, -1) {
			dir, name := m[1], m[2]
			named[path.Join(dir, name)] = true
			function, _, _ := strings.Cut(name, "/")
			if names := read(dir).Names(function); !slices.Contains(names, name) {
				t.Errorf("%s has no %s; of %s it has %d parts", dir, name, function, len(names))
			}
		}
		return named
	}
	if n := len(namedBy(page("findings.md"))); n < 10 {
		t.Errorf("docs/findings.md names only %d tests", n)
	}
	named := namedBy(page("flux-compatibility.md"))
	if len(named) < 80 {
		t.Fatalf("only %d tests are named: the table is written in another way than it is read", len(named))
	}
	for _, of := range []struct{ dir, prefix string }{
		{"e2e/flux", "TestKustomizationSpec/Rows/"}, {"e2e/flux", "TestTakeover/"}, {"e2e/flux", "TestHelmTakeover/"},
		{"e2e/helm", "TestHelmReleaseSpec/Rows/"}, {"e2e/sources", "TestSourceSpec/Rows/"}, {"e2e/images", "TestImages/Rows/"}, {"e2e/notifications", "TestAlerts/Rows/"}, {"e2e/notifications", "TestReceivers/Rows/"}, {"e2e/cli", "TestFlux/"}, {"e2e/cli", "TestHelmCLI/"},
		{"e2e/safety", "TestHelmSafety/"}, {"e2e/safety", "TestHostileCharts/"},
	} {
		function, _, _ := strings.Cut(of.prefix, "/")
		rows := 0
		for _, name := range read(of.dir).Names(function) {
			row, is := strings.CutPrefix(name, of.prefix)
			if !is || strings.Contains(row, "/") {
				continue
			}
			rows++
			if !named[path.Join(of.dir, name)] {
				t.Errorf("the table does not name %s: %s", of.dir, name)
			}
		}
		if rows == 0 {
			t.Errorf("%s has no rows that are found", of.prefix)
		}
	}
}
