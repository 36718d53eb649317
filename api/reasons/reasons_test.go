package reasons

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/reasons.md anew")

const page = "../../docs/reasons.md"

// TestPage: the page says what programs say. After a change of the table:
// go test ./api/reasons -update
func TestPage(t *testing.T) {
	if *update {
		if err := os.WriteFile(page, []byte(Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), Page()); diff != "" {
		t.Errorf("docs/reasons.md is not what the table says; write it with: go test ./api/reasons -update\n-page, +table:\n%s", diff)
	}
}

// TestTable: each entry can be shown in a table, and says what to do or is said elsewhere.
func TestTable(t *testing.T) {
	word := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for _, s := range Sections() {
		seen := map[string]bool{}
		for _, e := range s.Entries {
			for _, r := range e.Reasons {
				if !word.MatchString(r) {
					t.Errorf("%s: %q is no reason", s.Title, r)
				}
				if seen[r+e.Note] {
					t.Errorf("%s has %s%s twice", s.Title, r, e.Note)
				}
				seen[r+e.Note] = true
			}
			if e.Means == "" || strings.ContainsAny(e.Means+e.Next+e.Note, "|\n") {
				t.Errorf("%s: the entry of %v says nothing, or breaks the table", s.Title, e.Reasons)
			}
		}
	}
}

func TestNext(t *testing.T) {
	for name, tc := range map[string]struct{ reason, kind, of, want string }{
		"Kind":      {"a kind's own entry counts", "GitRepository", "URLInvalid", "correct spec.url"},
		"Other":     {"other sources share it", "Bucket", "URLInvalid", "correct spec.url"},
		"Elsewhere": {"an entry without an answer leaves it to the Kustomization's", "HelmRelease", "DependencyNotReady", "look at that one; this one is woken"},
		"Plain":     {"the answer without a condition's name counts", "Kustomization", "BuildFailed", "correct the file that the message names; decision 020 (docs/decisions/020-where-credentials-go.md)"},
		"Any":       {"what any kind may have", "Layer", "WorkerStalled", "if it comes again, suspend the object, and report the agent's log"},
		"Below":     {"a provider's object has the words of a Cluster", "AWSCluster", "Stopped", "start it there"},
		"Layer":     {"what is wrong with a layer is said of its children", "Layer", "SourceNotReady", "look at the source"},
		"Nothing":   {"nobody knows", "Kustomization", "Invented", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Next(tc.kind, tc.of); got != tc.want {
				t.Errorf("%s\nNext(%s, %s) = %q, want %q", tc.reason, tc.kind, tc.of, got, tc.want)
			}
		})
	}
}

func TestAnchor(t *testing.T) {
	for _, tc := range []struct{ kind, of, want string }{
		{"Child", "Unreachable", "#child-conditions-connected-seeded-ready"},
		{"HelmChart", "NoSourceArtifact", "#ocirepository-bucket-helmrepository-helmchart"},
		{"Child", "Invented", ""},
	} {
		if got := Anchor(tc.kind, tc.of); got != tc.want {
			t.Errorf("Anchor(%s, %s) = %q, want %q", tc.kind, tc.of, got, tc.want)
		}
	}
}

// elsewhere are packages whose reasons another page explains.
func elsewhere() []string { return []string{"cmd/cascade/check"} }

// TestReasons: each constant of the code that is a reason is in the table.
func TestReasons(t *testing.T) {
	known := map[string]bool{}
	for _, s := range Sections() {
		for _, e := range s.Entries {
			for _, r := range e.Reasons {
				known[r] = true
			}
		}
	}
	found := 0
	for _, root := range []string{"api", "capibridge", "cmd", "inventory", "pivot", "remote", "syncer"} {
		err := filepath.WalkDir(filepath.Join("../..", root), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(at) != ".go" || strings.HasSuffix(at, "_test.go") {
				return err
			}
			if slices.ContainsFunc(elsewhere(), func(p string) bool { return strings.Contains(filepath.ToSlash(at), p+"/") }) {
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), at, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for name, value := range reasonsIn(f) {
				found++
				if !known[value] {
					t.Errorf("%s: %s = %q is not in the table", at, name, value)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 100 {
		t.Errorf("found only %d reasons", found)
	}
}

// reasonsIn are the constants of a file whose names begin with Reason.
func reasonsIn(f *ast.File) map[string]string {
	found := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, name := range v.Names {
				if !strings.HasPrefix(name.Name, "Reason") && !strings.HasPrefix(name.Name, "reason") || i >= len(v.Values) {
					continue
				}
				if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if value, err := strconv.Unquote(lit.Value); err == nil {
						found[name.Name] = value
					}
				}
			}
		}
	}
	return found
}
