package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// TestSubcharts: a subchart under two names and one that is switched off are rendered
// as Helm does, each with its own values.
func TestSubcharts(t *testing.T) {
	make := func() *chart.Chart {
		c := chartOf(map[string]string{"x": "{{ include \"sub.name\" . }} {{ .Values.one.a }} {{ .Values.global.g }}", "NOTES.txt": "hello {{ .Chart.Name }}"})
		sub := chartOf(map[string]string{"y": "{{ .Chart.Name }} {{ .Values.a }} {{ .Values.global.g }} {{ .Template.Name }}", "_h": "{{ define \"sub.name\" }}S{{ end }}", "deep/er/z": "{{ .Files.Get \"f\" }}"})
		sub.Metadata.Name, sub.Values = "sub", map[string]any{"a": "A"}
		sub.Files = []*common.File{{Name: "f", Data: []byte("file")}}
		off := chartOf(map[string]string{"w": "off"})
		off.Metadata.Name = "off"
		c.AddDependency(sub, off)
		c.Metadata.Dependencies = []*chart.Dependency{
			{Name: "sub", Alias: "one", Version: "1.0.0"}, {Name: "sub", Alias: "two", Version: "1.0.0"}, {Name: "off", Version: "1.0.0", Condition: "off.enabled"},
		}
		return c
	}
	values := map[string]any{"global": map[string]any{"g": "G"}, "one": map[string]any{"a": "B"}, "off": map[string]any{"enabled": false}}
	render := func(c *chart.Chart, e engine.Engine) (map[string]string, error) {
		if err := chartutil.ProcessDependencies(c, values); err != nil {
			t.Fatal(err)
		}
		top, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "web", Revision: 3}, common.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		return e.Render(c, top)
	}
	want, err := render(make(), engine.Engine{})
	if err != nil || len(want) != 6 {
		t.Fatalf("%v, %v: this is not what was to be tried", want, err)
	}
	r := newRenderer(t.Context(), Request{Workers: workers}, make())
	got, err := render(r.chart, engine.Engine{CustomTemplateFuncs: r.functions()})
	if err != nil {
		t.Fatal(err)
	}
	for name := range got {
		if strings.HasSuffix(name, "/cascade/entry") {
			delete(got, name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-Helm, +by a worker:\n%s", diff)
	}
}

// TestWire: templates see the same types of values.
func TestWire(t *testing.T) {
	want := map[string]any{
		"nil": nil, "true": true, "false": false, "int": -3, "int64": int64(1) << 40, "float": 1e6, "whole": float64(2), "text": "ä\x00", "number": json.Number("1.50"),
		"map": map[string]any{"": map[string]any{}}, "list": []any{[]any{}, "x"},
	}
	data, err := encode(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeMap(data)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	for i := range data {
		if _, err := decodeMap(data[:i]); err == nil {
			t.Errorf("the first %d bytes are taken for all", i)
		}
	}
	if _, err := encode(nil, make(chan int)); err == nil {
		t.Error("a channel is encoded")
	}
}

// TestManifestsAreChecked: what a worker rendered is parsed by Helm in this process.
func TestManifestsAreChecked(t *testing.T) {
	_, _, err := checkFiles(map[string]any{"web/templates/x": "a: &a [*a]", "web/templates/NOTES.txt": "a: &a [*a]"})
	if err == nil || !strings.Contains(err.Error(), "contains itself") {
		t.Errorf("checkFiles() = %v, want it to refuse a cycle", err)
	}
	if _, _, err := checkFiles(map[string]any{"web/templates/NOTES.txt": "a: &a [*a]"}); err != nil {
		t.Errorf("notes are no YAML: %v", err)
	}
	dense := map[string]any{}
	for i := range 4 {
		dense[fmt.Sprintf("web/templates/%d.yaml", i)] = "a: [" + strings.Repeat("b,", 400_000) + "]"
	}
	if _, _, err := checkFiles(dense); !errors.As(err, new(*Exceeded)) {
		t.Errorf("checkFiles() = %v of what is little in each file and much in all, want it refused", err)
	}
	// Each of them is a million nodes, nearly, of three hundred bytes.
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := range 5 {
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	bombs := map[string]any{}
	for i := range 4 {
		bombs[fmt.Sprintf("web/templates/%d.yaml", i)] = bomb
	}
	if _, _, err := checkFiles(bombs); !errors.As(err, new(*Exceeded)) {
		t.Errorf("checkFiles() = %v of aliases that add little in each file and much in all, want it refused", err)
	}
	if _, _, err := checkFiles(map[string]any{"web/templates/x": bomb + "---\n" + bomb}); !errors.Is(err, render.ErrHostile) {
		t.Errorf("checkFiles() = %v of aliases that add little in each document and much in all, want it refused", err)
	}
}

// TestRoom: what is rendered needs room in memory before Helm parses it, and so does what post renderers make of it.
func TestRoom(t *testing.T) {
	none := errors.New("there is none")
	text := "a: [" + strings.Repeat("b,", 1000) + "]\n"
	grown := func([]byte) ([]byte, error) { return []byte(text + "---\n" + text), nil }
	for name, tc := range map[string]struct {
		reason   string
		least    int
		rendered bool
	}{
		"None":  {"there is no room for what was rendered", 1, false},
		"Post":  {"there is room for that, and not for what is made of it", len(text) + 100, true},
		"Large": {"there is room for all", 3 * len(text), true},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			asked := 0
			err := Render(t.Context(), Request{
				Chart: chartOf(map[string]string{"x": text}), Version: "1.0.0", Workers: workers, PostRenderers: []PostRenderer{grown},
				Room: func(size, nodes int) error {
					if asked++; nodes < 1000 {
						t.Errorf("%s: it is asked for %d nodes", tc.reason, nodes)
					}
					if size > tc.least {
						return none
					}
					return nil
				},
			}, func(r Rendering) error {
				if err := asHelm(t, &got)(r); err != nil {
					return fmt.Errorf("in a template: %s", err.Error())
				}
				_, err := r.PostRenderer.Run(bytes.NewBufferString(got))
				return err
			})
			if (got != "") != tc.rendered || errors.Is(err, none) != (name != "Large") || (err != nil) != (name != "Large") || asked == 0 {
				t.Errorf("%s: Render() = %v, after %d bytes", tc.reason, err, len(got))
			}
		})
	}
}
