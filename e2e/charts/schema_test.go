package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T, chart string) Schema {
	t.Helper()
	s, err := LoadSchema(dir(chart))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDefaults: a default that a schema states is the one that templates have, and
// the one of values.yaml.
func TestDefaults(t *testing.T) {
	tried := map[string]bool{}
	each(t, func(t *testing.T, chart string, values map[string]any, r Rendering) {
		s := load(t, chart)
		s.EachLeaf(chart, values, func(path []string, kind string, leaf Schema) {
			// Once for each kind of cluster and pool is enough.
			id := kind + ": " + strings.Join(path, ".")
			if path[0] == "pools" {
				id = kind + ": " + strings.Join(path[2:], ".")
			}
			if leaf.Default == nil || tried[id] || At(values, path) != nil {
				return
			}
			with, err := tryRender(t, chart, "demo", Merge(values, Nest(path, leaf.Default)))
			if err != nil {
				return // the value does not go with the others
			}
			tried[id] = true
			if diff := Diff(r.Objects, with.Objects); len(diff) > 0 {
				t.Errorf("the default of %s is not %v: %q", strings.Join(path, "."), leaf.Default, diff)
			}
		})
		c, err := Load(dir(chart))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range c.Values {
			if stated := s.Properties[name].Default; len(s.Properties[name].Properties) == 0 && !reflect.DeepEqual(stated, value) {
				t.Errorf("values.yaml has %v for %s, the schema %v", value, name, stated)
			}
		}
	})
	if len(tried) < 100 {
		t.Errorf("only %d defaults were tried", len(tried))
	}
}

// TestReadme: the tables of the READMEs are those of the schemas. -update writes
// them.
func TestReadme(t *testing.T) {
	for _, chart := range Names() {
		t.Run(chart, func(t *testing.T) {
			file := filepath.Join(dir(chart), "README.md")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := load(t, chart)
			tables := map[string]string{"values": table(s, nil)}
			if pool := s.Pool(); pool != nil {
				tables["pool"] = table(*pool, nil)
			}
			text := string(data)
			for _, name := range slices.Sorted(maps.Keys(tables)) {
				begin, end := fmt.Sprintf("<!-- %s -->\n", name), fmt.Sprintf("<!-- end of %s -->", name)
				before, rest, found := strings.Cut(text, begin)
				_, after, closed := strings.Cut(rest, end)
				if !found || !closed {
					t.Fatalf("%s has no place for the table of %s", file, name)
				}
				text = before + begin + tables[name] + end + after
			}
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(text, string(data)); diff != "" {
				t.Errorf("%s (go test ./e2e/charts -update): -want +got:\n%s", file, diff)
			}
		})
	}
}

// table is a Markdown table of the values of a schema.
func table(s Schema, path []string) string {
	var b strings.Builder
	b.WriteString("| value | default | |\n|---|---|---|\n")
	s.Leaves(path, func(path []string, leaf Schema) {
		if path[0] == "global" {
			return
		}
		description := leaf.Description
		if len(leaf.Enum) > 1 {
			words := make([]string, 0, len(leaf.Enum))
			for _, word := range leaf.Enum {
				if word != "" {
					words = append(words, fmt.Sprintf("`%v`", word))
				}
			}
			if len(words) > 1 {
				description += " One of " + strings.Join(words, ", ") + "."
			}
		}
		stated := ""
		if leaf.Default != nil && leaf.Default != "" {
			data, _ := json.Marshal(leaf.Default)
			stated = "`" + strings.Trim(string(data), `"`) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.Join(path, "."), stated, description)
	})
	return b.String()
}
