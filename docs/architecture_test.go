package docs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRooms: each import between packages of the product is an arrow in the table of
// the architecture page.
func TestRooms(t *testing.T) {
	rooms := roomsOf(t, section(t, "architecture.md", "## Rooms and arrows"))
	for _, problem := range problemsOf(rooms, packages(t)) {
		t.Error(problem)
	}
}

// TestRemoteIsInSmallFiles: remote is the largest of the packages, and no file of it or below it
// has more than 500 lines.
func TestRemoteIsInSmallFiles(t *testing.T) {
	if err := filepath.WalkDir(filepath.Join("..", "remote"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" {
			return err
		}
		text, err := os.ReadFile(name)
		if lines := bytes.Count(text, []byte("\n")); lines > 500 {
			t.Errorf("%s has %d lines: split it by what it is about", name, lines)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRoomsRefuses: the rule itself finds what it is there for.
func TestRoomsRefuses(t *testing.T) {
	rooms := map[string][]string{"a": nil, "b": {"a"}, "all": {"c/*"}, "c/d": nil}
	code := map[string][]string{"a": nil, "b": {"a"}, "all": {"c/d"}, "c/d": nil}
	if got := problemsOf(rooms, code); len(got) != 0 {
		t.Errorf("nothing is wrong, and it finds %q", got)
	}
	for name, tc := range map[string]struct {
		reason string
		change func(code map[string][]string)
		want   string
	}{
		"Arrow":     {"an import that no row allows", func(code map[string][]string) { code["a"] = []string{"b"} }, "a imports b"},
		"Outside":   {"a pattern is about what is below", func(code map[string][]string) { code["all"] = []string{"a"} }, "all imports a"},
		"Inner":     {"and not about the rooms of a room", func(code map[string][]string) { code["all"] = []string{"c/d/e"} }, "all imports c/d/e"},
		"NoRow":     {"a new package", func(code map[string][]string) { code["e"] = nil }, "e has no row"},
		"NoPackage": {"one that was removed", func(code map[string][]string) { delete(code, "a"); code["b"] = nil }, "a is no package"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := map[string][]string{}
			for at, imports := range code {
				changed[at] = imports
			}
			tc.change(changed)
			got := problemsOf(rooms, changed)
			if len(got) != 1 || !strings.Contains(got[0], tc.want) {
				t.Errorf("%s\ngot %q, want one problem with %q", tc.reason, got, tc.want)
			}
		})
	}
}

// roomsOf reads the table: what each package may import.
func roomsOf(t *testing.T, text string) map[string][]string {
	t.Helper()
	rooms := map[string][]string{}
	for _, cells := range rows(text, 3) {
		names, may := words(cells[0]), words(cells[2])
		if len(names) != 1 || len(may) == 0 && cells[2] != "none" {
			t.Fatalf("cannot read the row %q", cells)
		}
		if _, ok := rooms[names[0]]; ok {
			t.Errorf("%s has two rows", names[0])
		}
		rooms[names[0]] = may
	}
	return rooms
}

// packages of the product with what they import of ours, by their paths in the
// module.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	module := strings.TrimSpace(run(t, "go", "list", "-m"))
	found := map[string][]string{}
	d := json.NewDecoder(strings.NewReader(run(t, "go", "list", "-json=ImportPath,GoFiles,Imports", module+"/...")))
	for {
		var p struct {
			ImportPath       string
			GoFiles, Imports []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		at := strings.TrimPrefix(p.ImportPath, module+"/")
		if len(p.GoFiles) == 0 || at == "e2e" || strings.HasPrefix(at, "e2e/") {
			continue
		}
		found[at] = nil
		for _, i := range p.Imports {
			if of, ok := strings.CutPrefix(i, module+"/"); ok {
				found[at] = append(found[at], of)
			}
		}
	}
	if len(found) < 10 {
		t.Fatalf("found only %d packages", len(found))
	}
	return found
}

// problemsOf compares the table with the code.
func problemsOf(rooms, code map[string][]string) []string {
	var problems []string
	for at, imports := range code {
		may, ok := rooms[at]
		if !ok {
			problems = append(problems, at+" has no row in the table: say what it is and what it may import")
			continue
		}
		for _, of := range imports {
			if !slices.ContainsFunc(may, func(m string) bool { return allows(m, of) }) {
				problems = append(problems, at+" imports "+of+", which its row does not allow")
			}
		}
	}
	for at := range rooms {
		if _, ok := code[at]; !ok {
			problems = append(problems, at+" is no package any more: remove its row")
		}
	}
	slices.Sort(problems)
	return problems
}

// allows reports whether an entry of the third column covers a package.
func allows(may, of string) bool {
	ok, err := path.Match(may, of)
	return ok && err == nil
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("cannot run %s %s: %v\n%s", name, strings.Join(args, " "), err, problems.String())
	}
	return out.String()
}
