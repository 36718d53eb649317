package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// baseImage is the name in the base that an overlay replaces.
const baseImage = "cascade"

// copies are the files of this directory that are made from the manifests, by make
// generate: those that the chart has to have below it, and the base.
func copies(t *testing.T) map[string][]byte {
	t.Helper()
	made := map[string][]byte{
		"charts/cascade/manifests/flux-version": []byte(FluxVersion + "\n"),
		"charts/cascade/values.schema.json":     valuesSchema(t),
		"base/install.yaml":                     exported(t, optionsOf(v1alpha1.AgentValues{Image: baseImage})),
	}
	for _, dir := range []string{"crds", "agent", "options"} {
		files, err := manifests.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			name := dir + "/" + f.Name()
			if made["charts/cascade/manifests/"+name], err = manifests.ReadFile(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return made
}

// exported is what `cascade install --export` prints.
func exported(t *testing.T, o Options) []byte {
	t.Helper()
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	rights, workload, err := Agent(o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := ssautil.ObjectsToYAML(slices.Concat(crds, rights, workload))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

func TestCopies(t *testing.T) {
	made := copies(t)
	if *update {
		if err := os.RemoveAll("charts/cascade/manifests"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if *update {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, made[name], 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if there, err := os.ReadFile(name); err != nil || !bytes.Equal(there, made[name]) {
			t.Errorf("%s is not what the manifests say: run make generate (%v)", name, err)
		}
	}
	err := filepath.WalkDir("charts/cascade/manifests", func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && made[filepath.ToSlash(path)] == nil {
			t.Errorf("%s is a copy of nothing: run make generate", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestBase: what kustomize makes of the base is what an installation exports.
func TestBase(t *testing.T) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "base")
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(byID(t, exported(t, optionsOf(v1alpha1.AgentValues{Image: baseImage}))), byID(t, text)); diff != "" {
		t.Errorf("-exported, +built:\n%s", diff)
	}
}

func byID(t *testing.T, text []byte) map[string]any {
	t.Helper()
	objects, err := ssautil.ReadObjects(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]any{}
	for _, u := range objects {
		found[fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())] = u.Object
	}
	return found
}

// valuesSchema is the schema of the chart's values: that of spec.agent of a Layer, but for
// what only a layer can do, and what an installation has besides.
func valuesSchema(t *testing.T) []byte {
	t.Helper()
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	layers := crds[slices.IndexFunc(crds, func(u *unstructured.Unstructured) bool { return u.GetName() == "layers.cascade.dev" })]
	versions, _, err := unstructured.NestedSlice(layers.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	properties, found, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", "spec", "properties", "agent", "properties")
	if err != nil || !found {
		t.Fatalf("a Layer has no spec.agent: %v", err)
	}
	delete(properties, "decryption")
	properties["namespace"] = map[string]any{"type": "string", "description": "Namespace of all objects."}
	properties["createNamespace"] = map[string]any{"type": "boolean", "description": "CreateNamespace makes the Namespace."}
	properties["global"] = map[string]any{"type": "object", "description": "Global is Helm's own."}
	text, err := json.MarshalIndent(map[string]any{
		"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
		"properties": jsonSchema(properties),
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}

// jsonSchema turns the schema of a definition into one of JSON: quantities are texts or
// numbers, and what only API servers know is left out.
func jsonSchema(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if v["x-kubernetes-int-or-string"] == true {
			return map[string]any{"type": []any{"integer", "number", "string"}}
		}
		out := map[string]any{}
		for key, value := range v {
			if !strings.HasPrefix(key, "x-kubernetes-") && key != "default" {
				out[key] = jsonSchema(value)
			}
		}
		if _, object := out["properties"].(map[string]any); object && out["type"] == "object" && out["additionalProperties"] == nil {
			out["additionalProperties"] = false
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = jsonSchema(v[i])
		}
		return out
	}
	return v
}
