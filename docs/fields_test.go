package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// TestFieldsAreNamed: each field of these kinds of Flux, as their definitions have it, is in a
// row of flux-compatibility.md that names a test. e2e/flux: TestCompatibilityTable holds that
// the test is there.
func TestFieldsAreNamed(t *testing.T) {
	page, err := os.ReadFile("flux-compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := namedFields(string(page))
	for file, of := range map[string]struct {
		section string
		fields  int
	}{
		"notification.toolkit.fluxcd.io_receivers":       {"Receiver (notification.toolkit.fluxcd.io/v1)", 20},
		"notification.toolkit.fluxcd.io_alerts":          {"Alert and Provider", 10},
		"notification.toolkit.fluxcd.io_providers":       {"Alert and Provider", 10},
		"image.toolkit.fluxcd.io_imagerepositories":      {"ImageRepository", 20},
		"image.toolkit.fluxcd.io_imagepolicies":          {"ImagePolicy", 15},
		"image.toolkit.fluxcd.io_imageupdateautomations": {"ImageUpdateAutomation", 25},
		"source.extensions.fluxcd.io_artifactgenerators": {"ArtifactGenerator", 20},
	} {
		text, err := os.ReadFile(filepath.Join("..", "deploy", "crds", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(text, crd); err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, v := range crd.Spec.Versions {
			if !v.Storage {
				continue
			}
			for _, part := range []string{"spec", "status"} {
				eachField(part, v.Schema.OpenAPIV3Schema.Properties[part], func(path, name string) {
					found++
					if !sections[of.section][name] {
						t.Errorf("no row of %q with a test names %s of %s", of.section, path, crd.Spec.Names.Kind)
					}
				})
			}
		}
		if found < of.fields {
			t.Errorf("%s has %d fields, by the way in which it is read", crd.Spec.Names.Kind, found)
		}
	}
}

var (
	namesTest = regexp.MustCompile("^\\| (.*?) \\| .*`[a-z0-9/]+: (?:Test|Fuzz)[A-Za-z]+.*\\|$")
	inCode    = regexp.MustCompile("`([^`]*)`")
	oneName   = regexp.MustCompile("[A-Za-z]+")
)

// namedFields are the words of code in the first cells of rows that name a test, by section.
func namedFields(page string) map[string]map[string]bool {
	sections, current := map[string]map[string]bool{}, ""
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			current = strings.TrimSpace(strings.TrimLeft(line, "#"))
			sections[current] = map[string]bool{}
		}
		row := namesTest.FindStringSubmatch(line)
		if row == nil || current == "" {
			continue
		}
		for _, span := range inCode.FindAllStringSubmatch(row[1], -1) {
			for _, name := range oneName.FindAllString(span[1], -1) {
				sections[current][name] = true
			}
		}
	}
	return sections
}

// eachField calls f with each field of a schema. What references, selectors of labels and
// conditions consist of is the same everywhere.
func eachField(path string, schema apiextensionsv1.JSONSchemaProps, f func(path, name string)) {
	if schema.Items != nil && schema.Items.Schema != nil {
		schema = *schema.Items.Schema
	}
	names := slices.Sorted(maps.Keys(schema.Properties))
	reference := !slices.ContainsFunc(names, func(name string) bool {
		return !slices.Contains([]string{"apiVersion", "kind", "name", "namespace"}, name)
	})
	if reference || slices.Contains(names, "matchExpressions") || slices.Equal(names, []string{"matchLabels"}) || strings.HasSuffix(path, ".conditions") {
		return
	}
	for _, name := range names {
		f(path+"."+name, name)
		eachField(path+"."+name, schema.Properties[name], f)
	}
}
