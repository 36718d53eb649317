package release

import (
	"context"
	"fmt"
	"strings"

	"github.com/Masterminds/semver/v3"
	chart "helm.sh/helm/v4/pkg/chart/v2"
)

// Chart is what a release is installed from. Comparing needs its name and
// version only. It is loaded when there is something to install.
type Chart struct {
	Name, Version, AppVersion string
	// Load returns the chart. It is shared, and must not be changed.
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
