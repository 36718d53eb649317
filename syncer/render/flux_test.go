package render

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxkustomize "github.com/fluxcd/pkg/kustomize"
	securefs "github.com/fluxcd/pkg/kustomize/filesys"
	"github.com/fluxcd/pkg/ssa/normalize"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	kustypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	"sigs.k8s.io/yaml"
)

// fluxCase is a source and the fields of a Kustomization that is built from it.
type fluxCase struct {
	files tree
	spec  string
	// fails is why neither can build it, if so.
	fails string
	// empty: nothing is to be built.
	empty bool
}

// readCases reads the cases of all archives that match a pattern. An archive is
// text, in which a line `-- case/path --` begins a file. The files of a case
// named spec:, fails: and empty: describe it; a file named path.quoted holds a
// Go string in quotes, for bytes that an editor would not keep.
func readCases(t testing.TB, pattern string) map[string]*fluxCase {
	t.Helper()
	archives, err := filepath.Glob(pattern)
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives match %s: %v", pattern, err)
	}
	cases := map[string]*fluxCase{}
	for _, archive := range archives {
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		group := strings.TrimSuffix(filepath.Base(archive), ".txtar")
		for file, content := range extract(t, archive, string(data)) {
			name, file, _ := strings.Cut(file, "/")
			name = group + "/" + name
			c := cases[name]
			if c == nil {
				c = &fluxCase{files: tree{}}
				cases[name] = c
			}
			if quoted, ok := strings.CutSuffix(file, ".quoted"); ok {
				if content, err = strconv.Unquote(strings.TrimSpace(content)); err != nil {
					t.Fatalf("%s: %s: %v", archive, file, err)
				}
				file = quoted
			}
			switch file {
			case "spec:":
				c.spec = content
			case "fails:":
				c.fails = strings.TrimSpace(content)
			case "empty:":
				c.empty = true
			default:
				c.files[file] = content
			}
		}
	}
	return cases
}

func extract(t testing.TB, archive, data string) map[string]string {
	t.Helper()
	files := map[string]string{}
	name := ""
	for line := range strings.Lines(data) {
		if n, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(n, " --\n") {
			name = strings.TrimSuffix(n, " --\n")
			if _, ok := files[name]; ok {
				t.Fatalf("%s: %s is there twice", archive, name)
			}
			files[name] = ""
			continue
		}
		if name != "" {
			files[name] += line
		}
	}
	return files
}

func write(t testing.TB, files tree) string {
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

func kustomizationOf(t testing.TB, spec string) *kustomizev1.Kustomization {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	k.Namespace, k.Name = "cascade-system", "apps"
	if err := yaml.UnmarshalStrict([]byte(spec), &k.Spec); err != nil {
		t.Fatal(err)
	}
	return k
}

// buildOf is the Build of a Kustomization.
func buildOf(k *kustomizev1.Kustomization) Build {
	s := k.Spec
	b := Build{
		Path: s.Path, TargetNamespace: s.TargetNamespace, NamePrefix: s.NamePrefix, NameSuffix: s.NameSuffix,
		Components: s.Components, IgnoreMissingComponents: s.IgnoreMissingComponents,
	}
	for _, m := range s.BuildMetadata {
		b.BuildMetadata = append(b.BuildMetadata, string(m))
	}
	for _, p := range s.Patches {
		patch := kustypes.Patch{Patch: p.Patch}
		if t := p.Target; t != nil {
			patch.Target = &kustypes.Selector{LabelSelector: t.LabelSelector, AnnotationSelector: t.AnnotationSelector}
			patch.Target.Group, patch.Target.Version, patch.Target.Kind, patch.Target.Name, patch.Target.Namespace = t.Group, t.Version, t.Kind, t.Name, t.Namespace
		}
		b.Patches = append(b.Patches, patch)
	}
	for _, i := range s.Images {
		b.Images = append(b.Images, kustypes.Image{Name: i.Name, NewName: i.NewName, NewTag: i.NewTag, Digest: i.Digest})
	}
	if m := s.CommonMetadata; m != nil {
		b.CommonLabels, b.CommonAnnotations = m.Labels, m.Annotations
	}
	if s.PostBuild != nil {
		b.Variables = s.PostBuild.Substitute
		b.Always = k.GetSubstituteStrategy() == kustomizev1.SubstituteStrategyAlways
	}
	return b
}

// anew builds as Flux does, with a schema that is read anew.
func anew(root, dir string) (resmap.ResMap, error) {
	openapi.ResetOpenAPI()
	defer openapi.ResetOpenAPI()
	return fluxkustomize.SecureBuild(root, dir, false)
}

// inMemory does the same with the schema that is in memory.
func inMemory(root, dir string) (resources resmap.ResMap, err error) {
	files, err := securefs.MakeFsOnDiskSecure(root)
	if err != nil {
		return nil, err
	}
	err = guarded(func() error {
		resources, err = krusty.MakeKustomizer(&krusty.Options{
			LoadRestrictions: kustypes.LoadRestrictionsNone, PluginConfig: kustypes.DisabledPluginConfig(),
		}).Run(files, dir)
		return err
	})
	return resources, err
}

// byFlux builds as kustomize-controller does: on disk, file by file.
func byFlux(ctx context.Context, root string, k *kustomizev1.Kustomization, build func(root, dir string) (resmap.ResMap, error)) (*Rendering, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(k)
	if err != nil {
		return nil, err
	}
	owner := unstructured.Unstructured{Object: content}
	dir := filepath.Join(root, k.Spec.Path)
	if _, err := fluxkustomize.NewGenerator(root, owner).WriteFile(dir); err != nil {
		return nil, err
	}
	resources, err := build(root, dir)
	if err != nil {
		return nil, err
	}
	for _, r := range resources.Resources() {
		if r.GetName() == "" || r.GetKind() == "" || r.GetApiVersion() == "" {
			return nil, errors.New("no apiVersion, kind or name")
		}
		if k.Spec.PostBuild == nil {
			continue
		}
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
	data, err := resources.AsYaml()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	r := &Rendering{Digest: "sha256:" + hex.EncodeToString(sum[:])}
	if r.Objects, err = ssautil.ReadObjects(bytes.NewReader(data)); err != nil {
		return nil, err
	}
	if err := normalize.UnstructuredList(r.Objects); err != nil {
		return nil, err
	}
	if m := k.Spec.CommonMetadata; m != nil {
		ssautil.SetCommonMetadata(r.Objects, m.Labels, m.Annotations)
	}
	return r, nil
}

// compare renders a case by us and by Flux, and returns our rendering, or nil if
// both fail.
func compare(t testing.TB, c *fluxCase) *Rendering {
	t.Helper()
	for _, content := range c.files {
		if strings.Contains(strings.ToLower(content), "openapi") {
			return compareWith(t, c, anew)
		}
	}
	// Reading the schema anew takes most of the time, and changes nothing.
	return compareWith(t, c, inMemory)
}

func compareWith(t testing.TB, c *fluxCase, build func(root, dir string) (resmap.ResMap, error)) *Rendering {
	t.Helper()
	k := kustomizationOf(t, c.spec)
	us, errUs := rendered(t.Context(), c.files, buildOf(k))
	flux, errFlux := byFlux(t.Context(), write(t, c.files), k, build)
	if errors.Is(errUs, errNameless) {
		return nil // on purpose: Flux leaves such an object out, and prunes it
	}
	if (errUs == nil) != (errFlux == nil) {
		t.Fatalf("by us: %v\nby Flux: %v\nfiles: %q\nspec: %s", errUs, errFlux, c.files, c.spec)
	}
	if errUs != nil {
		return nil
	}
	if diff := cmp.Diff(contents(flux.Objects), contents(us.Objects)); diff != "" {
		t.Fatalf("objects: -Flux, +us:\n%s\nfiles: %q\nspec: %s", diff, c.files, c.spec)
	}
	if us.Digest != flux.Digest {
		t.Fatalf("digest: by us %s, by Flux %s\nfiles: %q\nspec: %s", us.Digest, flux.Digest, c.files, c.spec)
	}
	return us
}

// TestRenderingEqualsFlux compares us with Flux's own library, case by case, and
// then us with us, in parallel: what one build loads must not be seen by
// another.
func TestRenderingEqualsFlux(t *testing.T) {
	cases := readCases(t, "testdata/differential/*.txtar")
	if len(cases) < 150 {
		t.Errorf("%d cases, want 150 or more", len(cases))
	}
	renderings := map[string]*Rendering{}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			r := compare(t, c)
			switch {
			case r == nil && c.fails == "":
				k := kustomizationOf(t, c.spec)
				_, err := rendered(t.Context(), c.files, buildOf(k))
				t.Errorf("both fail: this compares nothing: %v", err)
			case r != nil && c.fails != "":
				t.Errorf("both build it, and should not: %s", c.fails)
			case r != nil && (len(r.Objects) == 0) != c.empty:
				t.Errorf("%d objects were built", len(r.Objects))
			}
			renderings[name] = r
		})
	}
	t.Run("parallel", func(t *testing.T) {
		for round := range 2 {
			for name, c := range cases {
				t.Run(fmt.Sprint(name, round), func(t *testing.T) {
					t.Parallel()
					r, err := rendered(t.Context(), c.files, buildOf(kustomizationOf(t, c.spec)))
					want := renderings[name]
					if (err == nil) != (want != nil) {
						t.Fatalf("Render() = %v, and alone it was otherwise", err)
					}
					if err != nil {
						return
					}
					if diff := cmp.Diff(contents(want.Objects), contents(r.Objects)); diff != "" || r.Digest != want.Digest {
						t.Errorf("-alone, +in parallel:\n%s", diff)
					}
				})
			}
		}
	})
}

func contents(objects []*unstructured.Unstructured) []map[string]any {
	out := []map[string]any{}
	for _, u := range objects {
		out = append(out, u.Object)
	}
	return out
}
