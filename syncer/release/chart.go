package release

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/Masterminds/semver/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// Chart is what a release is to be made of. Comparing takes its name and version
// only; it is loaded when there is something to install.
type Chart struct {
	Name, Version, AppVersion string
	// Load returns the chart. It is shared: nobody changes it.
	Load func(context.Context) (*chart.Chart, error)
}

// TrackedVersion is the version of a chart that came as an OCI artifact of a
// revision, or as an ExternalArtifact whose revision has a digest: part of the
// digest is appended, so that a tag that moved is another version. digest is
// that of the artifact, for status.history. Errors are for a condition of reason
// ChartMutateError.
func TrackedVersion(version, revision string) (tracked, digest string, err error) {
	v, err := semver.NewVersion(version)
	if err != nil {
		return "", "", fmt.Errorf("invalid chart version %s", version)
	}
	digest = revision
	if tag, rest, ok := strings.Cut(revision, "@"); ok {
		// In tags an underscore stands for the plus of a version.
		of, err := semver.NewVersion(strings.ReplaceAll(tag, "_", "+"))
		if err == nil {
			if strings.Contains(rest, "@") || !of.Equal(v) {
				return "", "", fmt.Errorf("artifact revision %s does not match chart version %s", tag, version)
			}
			digest = rest
		}
	}
	_, sum, ok := strings.Cut(digest, ":")
	if !ok || strings.Contains(sum, ":") || len(sum) < 12 {
		return "", "", fmt.Errorf("invalid artifact revision %s", digest)
	}
	with, err := v.SetMetadata(sum[:12])
	if err != nil {
		return "", "", err
	}
	return with.String(), digest, nil
}

// copyChart copies what Helm changes of a chart while it works, so that a chart
// can be shared: dependencies that are enabled or not, and values.
func copyChart(c *chart.Chart) *chart.Chart {
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
		out.AddDependency(copyChart(d))
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

func copyValues(v map[string]any) map[string]any {
	if v == nil {
		return map[string]any{}
	}
	return copyValue(v).(map[string]any)
}
