package chart

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/Masterminds/semver/v3"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

// packTime is the modification time of all files of a packaged chart. With the
// time of packaging, the same chart would be another file each time.
var packTime = time.Unix(0, 0).UTC()

// pack returns a packaged chart. The same chart is the same bytes.
func pack(c *helmchart.Chart, dir string) ([]byte, error) {
	if err := distinct(c); err != nil {
		return nil, err
	}
	normalize(c)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create directory: %w", err)
	}
	// The library only writes into a directory.
	into, err := os.MkdirTemp(dir, "chart")
	if err != nil {
		return nil, fmt.Errorf("cannot create directory: %w", err)
	}
	defer os.RemoveAll(into)
	name, err := chartutil.Save(c, into)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var data bytes.Buffer
	if _, err := data.ReadFrom(f); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// distinct refuses two charts in one place: in an archive one would be written over
// the other.
func distinct(c *helmchart.Chart) error {
	seen := map[string]bool{}
	for _, sub := range c.Dependencies() {
		if seen[sub.Name()] {
			return fmt.Errorf("chart '%s' has two charts with the name '%s'", c.Name(), sub.Name())
		}
		seen[sub.Name()] = true
		if err := distinct(sub); err != nil {
			return err
		}
	}
	return nil
}

// normalize removes from a chart what differs from one packaging to the next.
func normalize(c *helmchart.Chart) {
	c.ModTime, c.SchemaModTime = packTime, packTime
	if c.Lock != nil && c.Lock.Generated.IsZero() {
		c.Lock.Generated = packTime
	}
	for _, f := range c.Raw {
		f.ModTime = packTime
	}
	for _, f := range c.Templates {
		f.ModTime = packTime
	}
	for _, f := range c.Files {
		f.ModTime = packTime
	}
	sortCharts(c)
	for _, sub := range c.Dependencies() {
		normalize(sub)
	}
}

// withMetadata returns a version with the metadata of a build.
func withMetadata(version, metadata string) (string, error) {
	if metadata == "" {
		return version, nil
	}
	v, err := semver.NewVersion(version)
	if err != nil {
		return "", failf(ReasonMetadata, "failed to parse version from chart metadata as SemVer: %w", err)
	}
	set, err := v.SetMetadata(metadata)
	if err != nil {
		return "", failf(ReasonMetadata, "failed to set SemVer metadata on chart version: %w", err)
	}
	return set.String(), nil
}
