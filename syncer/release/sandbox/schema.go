package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// Limits of the schemas of values.
const (
	// mostExpanded bounds what a schema is when its references are followed, each
	// time anew as validation does.
	mostExpanded = 1_000_000
	// deepestSchema bounds the nesting of a schema; the JSON parser goes deeper.
	deepestSchema = 500
)

// checkSchemas refuses schemas, of a chart and its subcharts, for which Helm's
// validator would read files or ask other hosts, or would never end.
func checkSchemas(c *chart.Chart) error {
	if len(c.Schema) > 0 {
		if err := checkSchema(c.Schema); err != nil {
			return fmt.Errorf("cannot use values.schema.json of chart %s: %w; set disableSchemaValidation to do without", c.Name(), err)
		}
	}
	for _, d := range c.Dependencies() {
		if err := checkSchemas(d); err != nil {
			return err
		}
	}
	return nil
}

func checkSchema(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		return nil // the validator reports it better
	}
	s := &valuesSchema{root: root, anchors: map[string]any{}, sizes: map[string]int{}, open: map[string]bool{}}
	if err := s.collect(root, 0); err != nil {
		return err
	}
	_, err := s.size(root, 0)
	return err
}

// valuesSchema measures a JSON schema as validation goes through it.
type valuesSchema struct {
	root any
	// anchors are subschemas by name and by identifier.
	anchors map[string]any
	// sizes of what references lead to; open are those being measured: a cycle ends
	// where the values end.
	sizes map[string]int
	open  map[string]bool
}

// collect finds subschemas that have names of their own.
func (s *valuesSchema) collect(v any, depth int) error {
	if depth > deepestSchema {
		return fmt.Errorf("it is nested deeper than %d", deepestSchema)
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range []string{"$anchor", "$dynamicAnchor"} {
			if name, ok := v[key].(string); ok {
				s.anchors["#"+name] = v
			}
		}
		for _, key := range []string{"$id", "id"} {
			if id, ok := v[key].(string); ok && id != "" {
				s.anchors[strings.TrimSuffix(id, "#")] = v
			}
		}
		for _, item := range v {
			if err := s.collect(item, depth+1); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range v {
			if err := s.collect(item, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *valuesSchema) size(v any, depth int) (int, error) {
	if depth > 20*deepestSchema {
		return 0, fmt.Errorf("its references are nested deeper than %d", 20*deepestSchema)
	}
	total := 1
	add := func(n int, err error) error {
		if total += n; err == nil && total > mostExpanded {
			err = fmt.Errorf("it expands to more than %d parts", mostExpanded)
		}
		return err
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if err := add(s.size(item, depth+1)); err != nil {
				return 0, err
			}
		}
	case map[string]any:
		for key, item := range v {
			ref, isRef := item.(string)
			if isRef = isRef && (key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef"); isRef {
				if err := add(s.follow(ref, depth+1)); err != nil {
					return 0, err
				}
				continue
			}
			if dialect, ok := item.(string); ok && key == "$schema" && !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(dialect, "https://"), "http://"), "json-schema.org/") {
				return 0, fmt.Errorf("its dialect %q is somewhere else", dialect)
			}
			if err := add(s.size(item, depth+1)); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

// follow measures what a reference leads to.
func (s *valuesSchema) follow(ref string, depth int) (int, error) {
	if n, ok := s.sizes[ref]; ok || s.open[ref] {
		return n, nil
	}
	target, err := s.resolve(ref)
	if err != nil {
		return 0, err
	}
	s.open[ref] = true
	n, err := s.size(target, depth)
	delete(s.open, ref)
	s.sizes[ref] = n
	return n, err
}

// resolve finds what a reference leads to. What cannot be found within the schema
// is nothing, which the validator reports, or is somewhere else.
func (s *valuesSchema) resolve(ref string) (any, error) {
	if v, ok := s.anchors[strings.TrimSuffix(ref, "#")]; ok {
		return v, nil
	}
	at := s.root
	base, pointer, _ := strings.Cut(ref, "#")
	if base != "" {
		known, ok := s.anchors[base]
		switch {
		case ok:
			at = known
		case isDialect(base), strings.HasPrefix(base, "urn:"):
			return nil, nil // the validator has the ones, and takes the others to allow everything
		default:
			return nil, fmt.Errorf("it refers to %q, which is not a part of it", ref)
		}
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if part == "" {
			continue
		}
		part = strings.NewReplacer("~1", "/", "~0", "~", "%25", "%").Replace(part)
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			i := -1
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i < 0 || i >= len(v) {
				return nil, nil
			}
			at = v[i]
		default:
			return nil, nil
		}
	}
	return at, nil
}

// isDialect: the schemas of schemas are in the validator.
func isDialect(url string) bool {
	return strings.HasPrefix(url, "http://json-schema.org/draft-") || strings.HasPrefix(url, "https://json-schema.org/draft")
}
