package sandbox

import (
	"maps"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// CopyChart copies what Helm changes of a chart while it works, so that a chart
// can be shared: dependencies that are enabled or not, and values.
func CopyChart(c *chart.Chart) *chart.Chart {
	out := &chart.Chart{
		Raw: c.Raw, Lock: c.Lock, Templates: c.Templates, Files: c.Files, Schema: c.Schema,
		SchemaModTime: c.SchemaModTime, ModTime: c.ModTime,
	}
	if c.Values != nil {
		out.Values = copyValue(c.Values).(map[string]any)
	}
	if c.Metadata != nil {
		m := *c.Metadata
		m.Annotations = maps.Clone(m.Annotations)
		m.Dependencies = nil
		for _, d := range c.Metadata.Dependencies {
			d := *d
			m.Dependencies = append(m.Dependencies, &d)
		}
		out.Metadata = &m
	}
	for _, d := range c.Dependencies() {
		out.AddDependency(CopyChart(d))
	}
	return out
}

// copyValue copies the maps and lists of a value.
func copyValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = copyValue(item)
		}
		return out
	case common.Values:
		return copyValue(map[string]any(v))
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = copyValue(item)
		}
		return out
	}
	return v
}

// CopyValues copies values, which Helm changes while it merges them.
func CopyValues(v map[string]any) map[string]any {
	if v == nil {
		return map[string]any{}
	}
	return copyValue(v).(map[string]any)
}
