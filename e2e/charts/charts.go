// Package charts renders the cluster charts as Helm does, for the tests that look
// at what comes out. Nothing but files is read.
package charts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Names of the charts.
func Names() []string { return []string{"cluster-aws", "cluster-azure", "cluster-local"} }

// Load loads a chart from a directory, without what .helmignore says.
func Load(dir string) (*chart.Chart, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot load chart %s: %w", filepath.Base(dir), err)
	}
	return c, nil
}

// Sets returns the value sets of a chart's directory, by name.
func Sets(dir string) (map[string]map[string]any, error) {
	files, err := filepath.Glob(filepath.Join(dir, "ci", "*.yaml"))
	if err != nil {
		return nil, err
	}
	sets := map[string]map[string]any{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read values: %w", err)
		}
		values, err := Values(string(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		sets[strings.TrimSuffix(filepath.Base(file), ".yaml")] = values
	}
	return sets, nil
}

// Values parses values.
func Values(text string) (map[string]any, error) {
	values := map[string]any{}
	if err := sigsyaml.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("cannot parse values: %w", err)
	}
	return values, nil
}

// Rendering is what a chart makes of values.
type Rendering struct {
	// Objects in the order of the files and of what is in them.
	Objects []*unstructured.Unstructured
	// Notes is what Helm shows a person.
	Notes string
}

// Render renders a chart for a release, after the schema has accepted the values.
func Render(c *chart.Chart, release, namespace string, values map[string]any) (Rendering, error) {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = common.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	// A copy: Helm writes defaults into what it is given.
	data, err := sigsyaml.Marshal(values)
	if err != nil {
		return Rendering{}, fmt.Errorf("cannot copy values: %w", err)
	}
	copied, err := Values(string(data))
	if err != nil {
		return Rendering{}, err
	}
	all, err := util.ToRenderValues(c, copied, options, capabilities)
	if err != nil {
		return Rendering{}, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return Rendering{}, err
	}
	var r Rendering
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			r.Notes = files[name]
		case strings.HasSuffix(name, ".yaml"):
			objects, err := decode(files[name])
			if err != nil {
				return Rendering{}, fmt.Errorf("%s: %w\n%s", name, err, files[name])
			}
			r.Objects = append(r.Objects, objects...)
		}
	}
	return r, nil
}

// decode reads a YAML stream. A key that is there twice is an error: the API server
// would take one of the two.
func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read documents: %w", err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		data, err := sigsyaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, fmt.Errorf("cannot parse document: %w", err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("cannot parse object: %w", err)
		}
		objects = append(objects, u)
	}
}
