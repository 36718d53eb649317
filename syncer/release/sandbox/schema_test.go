package sandbox

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestCheckSchema(t *testing.T) {
	doubling := func(n int) string {
		definitions := map[string]any{}
		for i := range n {
			ref := map[string]any{"$ref": fmt.Sprintf("#/definitions/d%d", i+1)}
			definitions[fmt.Sprintf("d%d", i)] = map[string]any{"anyOf": []any{ref, ref}}
		}
		definitions[fmt.Sprintf("d%d", n)] = map[string]any{"type": "string"}
		data, err := json.Marshal(map[string]any{"definitions": definitions, "$ref": "#/definitions/d0"})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, tc := range map[string]struct {
		reason string
		schema string
		want   string
	}{
		"Ordinary":   {"what charts have", `{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"$ref": "#/definitions/a~1b"}}, "definitions": {"a/b": {"type": "string"}}}`, ""},
		"Newest":     {"a dialect of today", `{"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"a": {"$anchor": "a"}}, "$ref": "#a"}`, ""},
		"Itself":     {"a tree is a schema of itself", `{"properties": {"sub": {"$ref": "#"}}}`, ""},
		"Identified": {"a part that has a name of its own", `{"$id": "https://example.com/root", "$ref": "https://example.com/part", "$defs": {"p": {"$id": "https://example.com/part"}}}`, ""},
		"Dialect":    {"the validator has it", `{"$ref": "http://json-schema.org/draft-07/schema#"}`, ""},
		"URN":        {"the validator allows everything", `{"$ref": "urn:example:a"}`, ""},
		"Property":   {"a property may have any name", `{"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}}`, ""},
		"Syntax":     {"the validator reports it", `{`, ""},
		"File":       {"a file of ours", `{"$ref": "file:///etc/passwd"}`, "not a part of it"},
		"Relative":   {"as is this", `{"allOf": [{"$ref": "../../etc/passwd"}]}`, "not a part of it"},
		"Remote":     {"another host", `{"properties": {"a": {"$ref": "https://example.com/schema.json#/x"}}}`, "not a part of it"},
		"Dynamic":    {"another host by another word", `{"$dynamicRef": "https://example.com/schema.json"}`, "not a part of it"},
		"SchemaRef":  {"another host for the dialect", `{"$schema": "https://example.com/schema.json"}`, "somewhere else"},
		"Nested":     {"a part with another dialect", `{"$defs": {"a": {"$schema": "file:///etc/passwd"}}}`, "somewhere else"},
		"Doubling":   {"validating it would never end", doubling(60), "expands to more"},
		"Few":        {"a few times is fine", doubling(10), ""},
		"Deep":       {"the parser survives more than the validator", strings.Repeat(`{"not":`, 5000) + `true` + strings.Repeat(`}`, 5000), "nested deeper"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkSchema([]byte(tc.schema))
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\ncheckSchema() = %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func FuzzCheckSchema(f *testing.F) {
	for _, s := range []string{`{"$ref": "#/a/0/~1"}`, `{"a": [{"$ref": "#"}]}`, `{"$ref": "#/$ref"}`, `[]`, `{"$id": "a", "$ref": "a#/x"}`} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) { _ = checkSchema([]byte(s)) })
}
