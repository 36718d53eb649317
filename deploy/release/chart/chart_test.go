package chart

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// checkout is a chart as Git lays it down: at the time of the checkout.
func checkout(t *testing.T, at time.Time) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cascade")
	for name, text := range map[string]string{
		"Chart.yaml":             "apiVersion: v2\nname: cascade\nversion: 0.0.0\nappVersion: none\n",
		"values.yaml":            "# a comment\nimage: \"\"\nreplicas: 1\n",
		"values.schema.json":     `{"type":"object"}`,
		"templates/one.yaml":     "kind: One\n",
		"templates/_helpers.tpl": "{{/* */}}",
		"README.md":              "words",
	} {
		file := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600), os.Chtimes(file, at, at))
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPackage(t *testing.T) {
	var packed [][]byte
	for _, at := range []time.Time{noon.Add(time.Hour), noon.Add(2 * time.Hour)} {
		file, err := Package(checkout(t, at), t.TempDir(), "v1.2.0", "registry.example/cascade:v1.2.0@sha256:0", noon)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) != "cascade-1.2.0.tgz" {
			t.Errorf("the file is %s", file)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		packed = append(packed, content)
	}
	if !bytes.Equal(packed[0], packed[1]) {
		t.Error("two checkouts make two packages")
	}
	c, err := loader.LoadArchive(bytes.NewReader(packed[0]))
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Annotations[imageAnnotation] != "registry.example/cascade:v1.2.0@sha256:0" || c.Values["image"] != "" || c.Values["replicas"] == nil {
		t.Errorf("an installation that says no image has %v of %v", c.Values, c.Metadata.Annotations)
	}
	if c.Metadata.Version != "1.2.0" || c.Metadata.AppVersion != "v1.2.0" || len(c.Templates) != 2 || len(c.Schema) == 0 {
		t.Errorf("the package has %+v and %d templates", c.Metadata, len(c.Templates))
	}
}

func TestRefused(t *testing.T) {
	if _, err := Package(t.TempDir(), t.TempDir(), "v1.2.0", "registry.example/cascade:v1.2.0@sha256:0", noon); err == nil {
		t.Error("a directory without a chart is packaged")
	}
}
