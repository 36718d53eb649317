package charts

import (
	"bytes"
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

// schema is what a values.schema.json says of one value.
type schema struct {
	Type                 any               `json:"type"`
	Description          string            `json:"description"`
	Default              any               `json:"default"`
	Enum                 []any             `json:"enum"`
	Minimum              *float64          `json:"minimum"`
	Maximum              *float64          `json:"maximum"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties json.RawMessage   `json:"additionalProperties"`
	Ref                  string            `json:"$ref"`
	Definitions          map[string]schema `json:"definitions"`
	order                []string
}

// UnmarshalJSON keeps the order of properties, which is that of the README, and
// takes true and false for a schema of anything.
func (s *schema) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("true")) || bytes.Equal(data, []byte("false")) {
		return nil
	}
	type plain schema
	if err := json.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(object["properties"]))
	for depth, key := 0, true; ; {
		token, err := decoder.Token()
		if err != nil {
			return nil // the end, or no properties
		}
		switch token := token.(type) {
		case json.Delim:
			if token == '{' || token == '[' {
				depth++
			} else {
				depth--
			}
			key = depth == 1
		case string:
			if depth == 1 && key {
				s.order = append(s.order, token)
				key = false
				continue
			}
			key = depth == 1
		default:
			key = depth == 1
		}
	}
}

func load(t *testing.T, chart string) schema {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir(chart), "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// pool is the schema of one pool, nil if a chart has none.
func (s schema) pool() *schema {
	if p, found := s.Definitions["pool"]; found {
		return &p
	}
	return nil
}

// leaves calls f for each value that an object of a schema may have, with its path.
// Blocks are gone into, also those that are not there.
func (s schema) leaves(path []string, f func(path []string, leaf schema)) {
	for _, name := range s.order {
		p := s.Properties[name]
		below := append(slices.Clone(path), name)
		if len(p.Properties) > 0 {
			p.leaves(below, f)
			continue
		}
		f(below, p)
	}
}

// TestDefaults: a default that a schema states is the one that templates have, and
// the one of values.yaml.
func TestDefaults(t *testing.T) {
	tried := map[string]bool{}
	each(t, func(t *testing.T, chart string, values map[string]any, r Rendering) {
		s := load(t, chart)
		kind := fmt.Sprint(chart, at(values, []string{"controlPlane", "type"}))
		try := func(path []string, leaf schema) {
			// Once for each kind of cluster and pool is enough.
			id := kind + strings.Join(path, ".")
			if path[0] == "pools" && len(path) > 1 {
				id = fmt.Sprint(kind, at(values, []string{"pools", path[1], "type"}), strings.Join(path[2:], "."))
			}
			if leaf.Default == nil || tried[id] || at(values, path) != nil {
				return
			}
			with, err := tryRender(t, chart, "demo", Merge(values, nest(path, leaf.Default)))
			if err != nil {
				return // the value does not go with the others
			}
			tried[id] = true
			if diff := Diff(r.Objects, with.Objects); len(diff) > 0 {
				t.Errorf("the default of %s is not %v: %q", strings.Join(path, "."), leaf.Default, diff)
			}
		}
		s.leaves(nil, try)
		if pools, found := values["pools"].(map[string]any); found {
			for name := range pools {
				s.pool().leaves([]string{"pools", name}, try)
			}
		}
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

// at returns the value at a path, nil if there is none.
func at(values map[string]any, path []string) any {
	value, found := values[path[0]]
	if !found || len(path) == 1 {
		return value
	}
	below, _ := value.(map[string]any)
	return at(below, path[1:])
}

// nest returns values that have one at a path.
func nest(path []string, value any) map[string]any {
	if len(path) > 1 {
		value = nest(path[1:], value)
	}
	return map[string]any{path[0]: value}
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
			if pool := s.pool(); pool != nil {
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
func table(s schema, path []string) string {
	var b strings.Builder
	b.WriteString("| value | default | |\n|---|---|---|\n")
	s.leaves(path, func(path []string, leaf schema) {
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
