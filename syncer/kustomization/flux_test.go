package kustomization

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/target"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/kustomize"
	"github.com/fluxcd/pkg/ssa/normalize"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// folder shows a directory of the disk as render.Files.
type folder string

func (f folder) at(name string) string { return filepath.Join(string(f), filepath.Clean("/"+name)) }

func (f folder) Rules() string { return "" }

func (f folder) Stat(name string) (bool, string, error) {
	info, err := os.Stat(f.at(name))
	if err != nil {
		return false, "", fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return info.IsDir(), "", nil
}

func (f folder) ReadDir(name string) ([]source.Entry, error) {
	list, err := os.ReadDir(f.at(name))
	entries := make([]source.Entry, 0, len(list))
	for _, e := range list {
		entries = append(entries, source.Entry{Name: e.Name(), Dir: e.IsDir()})
	}
	return entries, err
}

func (f folder) ReadFile(name string) ([]byte, error) {
	if dir, _, err := f.Stat(name); err != nil || dir {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return os.ReadFile(f.at(name))
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// byFlux builds as Flux's kustomize-controller does: on disk, file by file.
func byFlux(ctx context.Context, root string, k *kustomizev1.Kustomization) ([]*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(k)
	if err != nil {
		return nil, err
	}
	owner := unstructured.Unstructured{Object: content}
	dir := filepath.Join(root, k.Spec.Path)
	if _, err := fluxkustomize.NewGenerator(root, owner).WriteFile(dir); err != nil {
		return nil, err
	}
	resources, err := fluxkustomize.SecureBuild(root, dir, false)
	if err != nil {
		return nil, err
	}
	if k.Spec.PostBuild != nil {
		for _, r := range resources.Resources() {
			out, err := fluxkustomize.SubstituteVariables(ctx, nil, owner, r, fluxkustomize.SubstituteWithDryRun(true),
				fluxkustomize.SubstituteWithStrict(true), fluxkustomize.SubstituteWithAlways(k.GetSubstituteStrategy() == kustomizev1.SubstituteStrategyAlways))
			if err != nil {
				return nil, err
			}
			if out != nil {
				if _, err := resources.Replace(r); err != nil {
					return nil, err
				}
			}
		}
	}
	data, err := resources.AsYaml()
	if err != nil {
		return nil, err
	}
	objects, err := ssautil.ReadObjects(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if err := normalize.UnstructuredList(objects); err != nil {
		return nil, err
	}
	if m := k.Spec.CommonMetadata; m != nil {
		ssautil.SetCommonMetadata(objects, m.Labels, m.Annotations)
	}
	return objects, nil
}

const (
	mapA = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x}\ndata: {k: v}\n"
	mapB = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n  one: \"1\"\n  t: \"true\"\n  m: |\n    two\n    lines\n"
	web  = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {app: web}}\nspec:\n  replicas: 1\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      - {name: web, image: \"ghcr/web:1\", ports: [{containerPort: 80}], envFrom: [{configMapRef: {name: settings}}]}\n"
	svc  = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n"
	role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: r, namespace: x}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\nsubjects: [{kind: ServiceAccount, name: s}]\n"
	cr   = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t}\nspec: {items: [{name: a, v: 1}], big: 12345678901, float: 1.50}\n"
)

var corpus = map[string]struct {
	files map[string]string
	spec  string
}{
	"Empty":            {map[string]string{"dir/readme.md": "x"}, "path: dir"},
	"EmptyToNamespace": {map[string]string{"readme.md": "x"}, "targetNamespace: there"},
	"Overlay":          {map[string]string{"base/kustomization.yaml": "resources: [web.yaml, svc.yaml]\n", "base/web.yaml": web, "base/svc.yaml": svc, "over/kustomization.yaml": "resources: [../base]\nnamespace: prod\nreplicas: [{name: web, count: 3}]\nlabels: [{pairs: {env: prod}, includeSelectors: true}]\n"}, "path: ./over"},
	"Component":        {map[string]string{"app/web.yaml": web, "comp/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nreplicas: [{name: web, count: 2}]\n"}, "path: app\ncomponents: [../comp]"},
	"ComponentMissing": {map[string]string{"app/web.yaml": web}, "path: app\ncomponents: [../gone]\nignoreMissingComponents: true"},
	"TargetNamespace":  {map[string]string{"all.yaml": strings.Join([]string{mapA, web, role, cr}, "---\n")}, "targetNamespace: there"},
	"PrefixSuffix":     {map[string]string{"all.yaml": web + "---\n" + strings.ReplaceAll(mapB, "name: b", "name: settings")}, "namePrefix: p-\nnameSuffix: -s"},
	"Images":           {map[string]string{"kustomization.yaml": "resources: [web.yaml]\nimages: [{name: ghcr/web, newTag: \"2\", digest: \"sha256:0000000000000000000000000000000000000000000000000000000000000000\"}]\n", "web.yaml": web}, "images: [{name: ghcr/web, newTag: \"3\"}]"},
	"SpecPatches":      {map[string]string{"web.yaml": web, "svc.yaml": svc}, "patches:\n- patch: |\n    - {op: replace, path: /spec/replicas, value: 7}\n  target: {kind: Deployment, labelSelector: app=web}\n- patch: |\n    apiVersion: v1\n    kind: Service\n    metadata: {name: web}\n    $patch: delete\n"},
	"BuildMetadata":    {map[string]string{"nest/kustomization.yaml": "resources: [a.yaml]\n", "nest/a.yaml": mapA, "kustomization.yaml": "resources: [nest]\nbuildMetadata: [managedByLabel]\n"}, "buildMetadata: [originAnnotations]"},
	"CommonMetadata":   {map[string]string{"all.yaml": web + "---\n" + mapA}, "commonMetadata: {labels: {app: other, team: x}, annotations: {a: \"1\"}}"},
	"Substitution":     {map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"${name}\"}\ndata: {d: \"${gone:=dflt}\", e: \"$${name}\", n: \"${num}\", s: \"${name:0:2}\", u: \"${name^^}\", plain: $name}\n"}, "postBuild: {substitute: {name: web, num: \"3\"}}"},
	"SubstituteNumber": {map[string]string{"web.yaml": strings.ReplaceAll(web, "replicas: 1", "replicas: ${num}")}, "postBuild: {substitute: {num: \"4\"}}"},
	"SubstituteNot":    {map[string]string{"a.yaml": strings.ReplaceAll(mapA, "k: v", "k: \"${x}\"")}, "postBuild: {substitute: {}}"},
	"SubstituteAlways": {map[string]string{"a.yaml": strings.ReplaceAll(mapA, "k: v", "k: \"${x:-y}\"")}, "postBuild: {substituteStrategy: Always}"},
	"SubstituteOff":    {map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}}\ndata: {k: \"${x}\"}\n", "b.yaml": strings.ReplaceAll(mapB, "\"1\"", "\"${x}\"")}, "postBuild: {substitute: {x: \"9\"}}"},
}

// failingCorpus is what neither builds.
var failingCorpus = map[string]struct {
	files map[string]string
	spec  string
}{
	"VariableMissing":  {map[string]string{"a.yaml": strings.ReplaceAll(mapA, "k: v", "k: \"${x}\"")}, "postBuild: {substitute: {y: \"1\"}}"},
	"ComponentMissing": {map[string]string{"a.yaml": mapA}, "components: [gone]"},
}

func kustomizationOf(t *testing.T, spec string) *kustomizev1.Kustomization {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	k.Namespace, k.Name = "cascade-system", "apps"
	if err := yaml.UnmarshalStrict([]byte(spec), &k.Spec); err != nil {
		t.Fatal(err)
	}
	return k
}

func byUs(ctx context.Context, files render.Files, k *kustomizev1.Kustomization) ([]*unstructured.Unstructured, error) {
	build, err := (&Reconciler{Targets: &target.Targets{}, Workers: workers}).inputs(ctx, k)
	if err != nil {
		return nil, err
	}
	rendering, err := render.Render(ctx, files, build)
	if err != nil {
		return nil, err
	}
	return rendering.Objects, nil
}

// TestRenderingEqualsFlux compares us with Flux's own library for each field of
// the spec that shapes a rendering; package render compares what files say.
func TestRenderingEqualsFlux(t *testing.T) {
	want := map[string][]map[string]any{}
	for round := range 2 {
		for name, tc := range corpus {
			t.Run(fmt.Sprint(name, round), func(t *testing.T) {
				k := kustomizationOf(t, tc.spec)
				got, err := byUs(t.Context(), folder(write(t, tc.files)), k)
				if err != nil {
					t.Fatalf("by us: %v", err)
				}
				if round == 0 {
					objects, err := byFlux(t.Context(), write(t, tc.files), k)
					if err != nil {
						t.Fatalf("by Flux: %v", err)
					}
					want[name] = contents(objects)
				}
				if diff := cmp.Diff(want[name], contents(got)); diff != "" {
					t.Errorf("objects: -Flux, +us:\n%s", diff)
				}
				if len(got) == 0 && !strings.HasPrefix(name, "Empty") {
					t.Error("nothing was built: this compares nothing")
				}
			})
		}
	}
}

func TestFailuresEqualFlux(t *testing.T) {
	for name, tc := range failingCorpus {
		t.Run(name, func(t *testing.T) {
			k := kustomizationOf(t, tc.spec)
			if got, err := byUs(t.Context(), folder(write(t, tc.files)), k); err == nil {
				t.Errorf("by us: %d objects, want an error", len(got))
			}
			if want, err := byFlux(t.Context(), write(t, tc.files), k); err == nil {
				t.Errorf("by Flux: %d objects, want an error", len(want))
			}
		})
	}
}

func contents(objects []*unstructured.Unstructured) []map[string]any {
	out := []map[string]any{}
	for _, u := range objects {
		out = append(out, u.Object)
	}
	return out
}
