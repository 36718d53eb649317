// Package chart packages a Helm chart for a release, with Helm's own library. The chart's
// version, that of the program in it and its default image are the release's, whatever its
// files say. The image is in an annotation: an upgrade that reuses values has the defaults of
// the chart before in the place of its own, and would go on with the image before. The same chart at the same time makes the same bytes.
package chart

import (
	"fmt"
	"strings"
	"time"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// imageAnnotation of the chart has the image that its templates take where the values have none.
const imageAnnotation = "cascade.dev/image"

// Package writes the chart of a directory to another one, and returns the file.
func Package(dir, to, version, image string, at time.Time) (string, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return "", fmt.Errorf("cannot load chart %s: %w", dir, err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(version, "v"), version
	if c.Metadata.Annotations == nil {
		c.Metadata.Annotations = map[string]string{}
	}
	c.Metadata.Annotations[imageAnnotation] = image
	stamp(c, at.UTC())
	file, err := chartutil.Save(c, to)
	if err != nil {
		return "", fmt.Errorf("cannot package chart %s: %w", dir, err)
	}
	return file, nil
}

// stamp gives all files of a chart one time: those on disk are of the checkout.
func stamp(c *chart.Chart, at time.Time) {
	c.ModTime, c.SchemaModTime = at, at
	for _, f := range c.Raw {
		f.ModTime = at
	}
	for _, f := range c.Templates {
		f.ModTime = at
	}
	for _, f := range c.Files {
		f.ModTime = at
	}
	for _, d := range c.Dependencies() {
		stamp(d, at)
	}
}
