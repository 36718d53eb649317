package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// TestChartImage: the program is that of the chart, also where an upgrade reuses values, and that of
// the values where these name one.
func TestChartImage(t *testing.T) {
	load := func(version string) *chart.Chart { // as a release packages it
		c, err := loader.LoadDir("charts/cascade")
		if err != nil {
			t.Fatal(err)
		}
		if version != "" {
			c.Metadata.Annotations = map[string]string{"cascade.dev/image": "registry.example/cascade:" + version}
		}
		return c
	}
	reused := load("v1.1.0")
	var err error
	if reused.Values, err = util.CoalesceValues(load("v1.0.0"), map[string]any{"hostNetwork": false}); err != nil { // as helm upgrade --reuse-values does
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		chart  *chart.Chart
		values map[string]any
		want   string
	}{
		"Release":    {"it has an image", load("v1.1.0"), nil, "registry.example/cascade:v1.1.0"},
		"Reused":     {"defaults of the chart before are none of this one", reused, map[string]any{"hostNetwork": false}, "registry.example/cascade:v1.1.0"},
		"Said":       {"a mirror has it", load("v1.1.0"), map[string]any{"image": "mirror.example/cascade:v1.1.0"}, "mirror.example/cascade:v1.1.0"},
		"Unreleased": {"nothing else is known", load(""), nil, "cascade:devel"},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := util.ToRenderValues(tc.chart, tc.values, common.ReleaseOptions{Name: "cascade", Namespace: "default"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			rendered, err := engine.Render(tc.chart, values)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(slices.Collect(maps.Values(rendered)), "\n"); !strings.Contains(text, "image: "+tc.want+"\n") || strings.Contains(text, "v1.0.0") {
				t.Errorf("%s: the Deployment does not have image %s", tc.reason, tc.want)
			}
		})
	}
}
