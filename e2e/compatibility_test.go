package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestCompatibilityTable: every test that docs/flux-compatibility.md names is
// there, and every row of the specification that is tried is named.
func TestCompatibilityTable(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "docs", "flux-compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`([a-z0-9/]+): ((?:Test|Fuzz)[A-Za-z0-9]+)((?:/[A-Za-z0-9]+)*)`").FindAllStringSubmatch(string(data), -1) {
		named[m[2]+m[3]] = true
		functions, parts := tests(t, filepath.Join("..", m[1]))
		if !functions[m[2]] {
			t.Errorf("%s has no %s", m[1], m[2])
			continue
		}
		for part := range strings.SplitSeq(strings.TrimPrefix(m[3], "/"), "/") {
			if part != "" && !parts[part] {
				t.Errorf("%s: %s has no part %s", m[1], m[2], part)
			}
		}
	}
	if len(named) < 80 {
		t.Fatalf("only %d tests are named: the table is written in another way than it is read", len(named))
	}
	for test, file := range map[string]string{
		"TestKustomizationSpec/Rows/": "spec_kustomization_test.go", "TestFlux/": "flux_test.go", "TestTakeover/": "takeover_test.go",
		"TestHelmReleaseSpec/Rows/": "spec_helmrelease_test.go", "TestSourceSpec/Rows/": "spec_source_test.go", "TestHelmCLI/": "helm_cli_test.go",
		"TestHelmTakeover/": "takeover_helm_test.go", "TestHelmSafety/": "helm_safety_test.go", "TestHostileCharts/": "hostile_charts_test.go",
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rows := regexp.MustCompile(`\{"([A-Za-z]+)", \(\*\w+\)\.`).FindAllStringSubmatch(string(text), -1)
		if len(rows) == 0 {
			t.Errorf("%s has no rows that are found", file)
		}
		for _, row := range rows {
			if !named[test+row[1]] {
				t.Errorf("the table does not name %s%s", test, row[1])
			}
		}
	}
}

// tests returns the test functions of a package, and every string in its tests
// that may be the name of a part.
func tests(t *testing.T, dir string) (functions, parts map[string]bool) {
	t.Helper()
	functions, parts = map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				functions[n.Name.Name] = true
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					if s, err := strconv.Unquote(n.Value); err == nil {
						parts[s] = true
					}
				}
			}
			return true
		})
	}
	return functions, parts
}
