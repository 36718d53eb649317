package sandbox

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/engine"
)

// asHelm renders as an action of Helm does, and returns the manifests.
func asHelm(t *testing.T, out *string) func(Rendering) error {
	return func(r Rendering) error {
		t.Helper()
		top, err := util.ToRenderValuesWithSchemaValidation(r.Chart, r.Values, common.ReleaseOptions{Name: "web"}, common.DefaultCapabilities, true)
		if err != nil {
			return err
		}
		files, err := engine.Engine{CustomTemplateFuncs: r.Functions}.Render(r.Chart, top)
		if err != nil {
			return err
		}
		*out = files["web/templates/x"]
		return nil
	}
}

func TestRender(t *testing.T) {
	failed := errors.New("the cluster refuses it")
	for name, tc := range map[string]struct {
		reason       string
		text, schema string
		skip         bool
		helm         error
		want, fails  string
		exceeded     bool
	}{
		"Renders":  {reason: "an ordinary chart, with its version and its values", text: "{{ .Chart.Version }} {{ .Values.a }}", want: "2.0.0 A"},
		"Exceeded": {reason: "the bound is told, not the place in a template", text: `{{ repeat 9000000000 "xxxxxxxxxx" }}`, fails: "chart is refused: function repeat", exceeded: true},
		"Fails":    {reason: "an error of the chart is the chart's", text: `{{ fail "no good" }}`, fails: "no good"},
		"Acts":     {reason: "so is one of what Helm does after rendering", text: "x", helm: failed, fails: failed.Error()},
		"Schema":   {reason: "a schema may not read files", text: "x", schema: `{"$ref": "file:///etc/passwd"}`, fails: "cannot use values.schema.json of chart web"},
		"Skipped":  {reason: "which nobody reads without validation", text: "x", schema: `{"$ref": "file:///etc/passwd"}`, skip: true, want: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			c := chartOf(map[string]string{"x": tc.text})
			if tc.schema != "" {
				c.Schema = []byte(tc.schema)
			}
			values := map[string]any{"a": "A"}
			got := ""
			err := Render(t.Context(), Request{Chart: c, Version: "2.0.0", Values: values, SkipSchemas: tc.skip, Workers: workers}, func(r Rendering) error {
				if string(r.Original.Templates[0].Data) != tc.text || r.Original.Metadata.Version != "2.0.0" {
					t.Errorf("%s: the original is %s %q", tc.reason, r.Original.Metadata.Version, r.Original.Templates[0].Data)
				}
				r.Values["a"] = strings.ToUpper(r.Values["a"].(string))
				if err := asHelm(t, &got)(r); err != nil {
					return err
				}
				return tc.helm
			})
			if tc.fails == "" && (err != nil || got != tc.want) || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
				t.Errorf("%s: Render() = %q, %v; want %q, %q", tc.reason, got, err, tc.want, tc.fails)
			}
			var over *Exceeded
			if errors.As(err, &over) != tc.exceeded {
				t.Errorf("%s: the error is an Exceeded: %t", tc.reason, !tc.exceeded)
			}
			if c.Metadata.Version != "1.0.0" || string(c.Templates[0].Data) != tc.text {
				t.Errorf("%s: the shared chart was changed", tc.reason)
			}
		})
	}
}

func TestPostRenderers(t *testing.T) {
	step := func(suffix string) PostRenderer {
		return func(data []byte) ([]byte, error) { return append(data, suffix...), nil }
	}
	for name, tc := range map[string]struct {
		reason      string
		steps       []PostRenderer
		want, fails string
	}{
		"None":    {"nothing is declared", nil, "a: 1\n", ""},
		"Order":   {"one after the other", []PostRenderer{step("b: 2\n"), step("c: 3\n")}, "a: 1\nb: 2\nc: 3\n", ""},
		"Hostile": {"a patch may bring YAML that no parser survives", []PostRenderer{step("x: &x [*x]\n"), step("")}, "", "cannot read rendered manifests"},
		"Long":    {"or too much of it", []PostRenderer{step(strings.Repeat("#", mostOutput)), step("")}, "", "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Render(t.Context(), Request{Chart: chartOf(nil), PostRenderers: tc.steps, Workers: workers}, func(r Rendering) error {
				out, err := r.PostRenderer.Run(bytes.NewBufferString("a: 1\n"))
				if err == nil && out.String() != tc.want {
					t.Errorf("%s: got %q", tc.reason, out)
				}
				return err
			})
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: Run() = %v, want %q", tc.reason, err, tc.fails)
			}
		})
	}
}
