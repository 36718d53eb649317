package chart

import (
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common/util"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestCheckValidation: schemas that double their work with each level of the values are
// refused before anybody validates.
func TestCheckValidation(t *testing.T) {
	nest := func(depth int) map[string]any {
		v := map[string]any{}
		for range depth {
			v = map[string]any{"x": v}
		}
		return v
	}
	list := func(depth int) map[string]any {
		var v any = "end"
		for range depth {
			v = []any{v}
		}
		return map[string]any{"x": v}
	}
	wide := map[string]any{}
	for _, c := range strings.Split(strings.Repeat("a", 500), "") {
		wide[c+strings.Repeat("x", len(wide))] = nest(3)
	}
	doubled := `{"$defs":{"a":{"WORD":{"x":{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}}}},"$ref":"#/$defs/a"}`
	for name, c := range map[string]struct {
		reason string
		schema string
		values map[string]any
		fails  bool
	}{
		"doubled":    {"two references at each level", strings.Replace(doubled, "WORD", "properties", 1), nest(60), true},
		"shallow":    {"the same for values of few levels", strings.Replace(doubled, "WORD", "properties", 1), nest(8), false},
		"pattern":    {"the same by a pattern", strings.Replace(doubled, "WORD", "patternProperties", 1), nest(60), true},
		"additional": {"the same for all fields", `{"additionalProperties":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}}`, nest(60), true},
		"items":      {"the same in lists", `{"properties":{"x":{"$ref":"#/$defs/l"}},"$defs":{"l":{"items":{"oneOf":[{"$ref":"#/$defs/l"},{"not":{"$ref":"#/$defs/l"}}]}}}}`, list(60), true},
		"by anchor":  {"the same by a name", `{"$anchor":"r","properties":{"x":{"allOf":[{"$ref":"#r"},{"$ref":"#r"}]}}}`, nest(60), true},
		"tree":       {"a tree is no more than its values", `{"properties":{"x":{"$ref":"#"},"y":{"$ref":"#"}}}`, nest(200), false},
		"wide":       {"neither is a table", `{"additionalProperties":{"$ref":"#/$defs/a"},"$defs":{"a":{"type":"object","properties":{"x":{"$ref":"#/$defs/a"}}}}}`, wide, false},
		"itself":     {"a schema that is itself is refused by who validates", `{"$ref":"#"}`, nest(1), false},
		"none":       {"no schema", "", nest(1), false},
		"invalid":    {"no JSON", "{", nest(1), false},
	} {
		t.Run(name, func(t *testing.T) {
			files := with("charts/s/Chart.yaml", "apiVersion: v2\nname: s\nversion: 1.0.0\n")
			delete(files, "c/values.schema.json")
			chart, err := load(t, tgz(t, files))
			if err != nil {
				t.Fatal(err)
			}
			chart.Dependencies()[0].Schema = []byte(c.schema)
			err = CheckValidation(chart, map[string]any{"s": c.values})
			if (err != nil) != c.fails || err != nil && source.ReasonOf(err) != source.ReasonLimitExceeded {
				t.Errorf("%s: %v, want an error: %t", c.reason, err, c.fails)
			}
			if err == nil && c.schema != "" {
				_ = util.ValidateAgainstSingleSchema(c.values, []byte(c.schema)) // it ends
			}
		})
	}
}
