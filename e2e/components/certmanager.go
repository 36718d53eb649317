package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/charts"
)

// certManager makes cert-manager.yaml as a release of the project has it: the Namespace, and
// the project's chart with its definitions and without what checks an installation.
func (d directories) certManager() ([]byte, error) {
	deploy := filepath.Join(d.certs, "deploy")
	out, err := os.ReadFile(filepath.Join(deploy, "manifests", "namespace.yaml"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the Namespace of cert-manager: %w", err)
	}
	files, err := chartFiles(deploy, version(d.certs))
	if err != nil {
		return nil, err
	}
	chart, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("cannot load the chart of cert-manager: %w", err)
	}
	rendered, err := charts.Render(chart, "cert-manager", "cert-manager", map[string]any{
		"installCRDs": true, "creator": "static", "startupapicheck": map[string]any{"enabled": false},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot render the chart of cert-manager: %w", err)
	}
	for _, object := range rendered.Objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("cannot write %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		out = append(append(out, "---\n"...), text...)
	}
	return out, nil
}

// chartFiles are those of the project's chart. What its release adds is not in the module: the
// version, and the definitions among the templates.
func chartFiles(deploy, version string) ([]*archive.BufferedFile, error) {
	chart := filepath.Join(deploy, "charts", "cert-manager")
	metadata, err := os.ReadFile(filepath.Join(chart, "Chart.template.yaml"))
	if err != nil {
		return nil, fmt.Errorf("cannot read the chart of cert-manager: %w", err)
	}
	metadata = bytes.ReplaceAll(metadata, []byte("ersion: v0.1.0"), []byte("ersion: "+version))
	definitions, err := filepath.Glob(filepath.Join(deploy, "crds", "*.yaml"))
	if err != nil || len(definitions) == 0 {
		return nil, fmt.Errorf("cannot find the definitions of cert-manager in %s: %w", deploy, os.ErrNotExist)
	}
	crds, err := joined(definitions, nil)
	if err != nil {
		return nil, err
	}
	files := []*archive.BufferedFile{{Name: "Chart.yaml", Data: metadata}, {Name: "templates/crds.yaml", Data: crds}}
	templates, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the templates of cert-manager: %w", err)
	}
	for _, file := range append(templates, filepath.Join(chart, "values.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the chart of cert-manager: %w", err)
		}
		files = append(files, &archive.BufferedFile{Name: strings.TrimPrefix(file, chart+"/"), Data: text})
	}
	return files, nil
}
