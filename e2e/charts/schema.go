package charts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Schema is what a values.schema.json says of one value.
type Schema struct {
	Type        any               `json:"type"`
	Description string            `json:"description"`
	Default     any               `json:"default"`
	Enum        []any             `json:"enum"`
	Properties  map[string]Schema `json:"properties"`
	Definitions map[string]Schema `json:"definitions"`
	// Examples are values that differ from the default.
	Examples []any `json:"examples"`
	// order of Properties in the file.
	order []string
}

// UnmarshalJSON keeps the order of properties, which is that of the README, and
// takes true and false for a schema of anything.
func (s *Schema) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("true")) || bytes.Equal(data, []byte("false")) {
		return nil
	}
	type plain Schema
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

// LoadSchema reads the schema of a chart's directory.
func LoadSchema(dir string) (Schema, error) {
	var s Schema
	data, err := os.ReadFile(filepath.Join(dir, "values.schema.json"))
	if err != nil {
		return s, fmt.Errorf("cannot read schema: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("cannot parse schema of %s: %w", filepath.Base(dir), err)
	}
	return s, nil
}

// Pool is the schema of one pool, nil if a chart has none.
func (s Schema) Pool() *Schema {
	if p, found := s.Definitions["pool"]; found {
		return &p
	}
	return nil
}

// Leaves calls f for each value that an object of a schema may have, with its path.
// Blocks are gone into, also those that are not there.
func (s Schema) Leaves(path []string, f func(path []string, leaf Schema)) {
	for _, name := range s.order {
		p := s.Properties[name]
		below := append(slices.Clone(path), name)
		if len(p.Properties) > 0 {
			p.Leaves(below, f)
			continue
		}
		f(below, p)
	}
}

// At returns the value at a path, nil if there is none.
func At(values map[string]any, path []string) any {
	value, found := values[path[0]]
	if !found || len(path) == 1 {
		return value
	}
	below, _ := value.(map[string]any)
	return At(below, path[1:])
}

// Nest returns values that have one at a path.
func Nest(path []string, value any) map[string]any {
	if len(path) > 1 {
		value = Nest(path[1:], value)
	}
	return map[string]any{path[0]: value}
}

// EachLeaf calls f for each value that a value set may have, those of its pools
// included. kind tells apart what a value may mean: the chart, the type of the
// control plane and, of a pool, its type.
func (s Schema) EachLeaf(chart string, values map[string]any, f func(path []string, kind string, leaf Schema)) {
	control, _ := At(values, []string{"controlPlane", "type"}).(string)
	if control == "" {
		control, _ = s.Properties["controlPlane"].Properties["type"].Default.(string)
	}
	s.Leaves(nil, func(path []string, leaf Schema) {
		// A block of another type of control plane may not be there.
		other := path[0] == "controlPlane" && path[1] != "type" && path[1] != control
		if path[0] != "pools" && !other {
			f(path, chart+" "+control, leaf)
		}
	})
	pools, _ := values["pools"].(map[string]any)
	for name := range pools {
		kind, _ := At(values, []string{"pools", name, "type"}).(string)
		if kind == "" && control == "eks" {
			kind = "managed"
		}
		s.Pool().Leaves([]string{"pools", name}, func(path []string, leaf Schema) {
			f(path, strings.TrimSpace(chart+" "+control+" "+kind), leaf)
		})
	}
}

// Fixed reports whether the description of a value says that it cannot be changed
// in clusters and pools of a kind.
func (s Schema) Fixed(kind string) bool {
	for _, word := range []string{"Cannot be", "Cannot go back", "Must not go back", "for good"} {
		_, condition, found := strings.Cut(s.Description, word)
		condition, _, _ = strings.Cut(condition, ".")
		switch {
		case !found:
		case strings.Contains(condition, "if `managed`"):
			return strings.HasSuffix(kind, " managed")
		case strings.Contains(condition, "if `selfManaged`"):
			return strings.Contains(kind, " selfManaged")
		case strings.Contains(condition, "on AKS"):
			return strings.Contains(kind, " aks")
		default:
			return true
		}
	}
	return false
}
