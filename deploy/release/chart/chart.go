// Package chart packages a Helm chart for a release, with Helm's own library. The chart's
// version, that of the program in it and its default image are the release's, whatever its
// files say. The same chart at the same time makes the same bytes.
package chart

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// unsaid is the line of the values that leaves the image to the chart.
const unsaid = "\nimage: \"\"\n"

// Package writes the chart of a directory to another one, and returns the file.
func Package(dir, to, version, image string, at time.Time) (string, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return "", fmt.Errorf("cannot load chart %s: %w", dir, err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(version, "v"), version
	i := slices.IndexFunc(c.Raw, func(f *common.File) bool { return f.Name == chartutil.ValuesfileName })
	if i < 0 || !bytes.Contains(c.Raw[i].Data, []byte(unsaid)) {
		return "", fmt.Errorf("cannot package chart %s: its %s has no line %q, which names the image of the release", dir, chartutil.ValuesfileName, strings.TrimSpace(unsaid))
	}
	c.Raw[i].Data = bytes.Replace(c.Raw[i].Data, []byte(unsaid), fmt.Appendf(nil, "\nimage: %q\n", image), 1)
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
