package render

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kustypes "sigs.k8s.io/kustomize/api/types"
)

// namesOf are Kind/namespace/name of objects.
func namesOf(objects []*unstructured.Unstructured) []string {
	out := []string{}
	for _, u := range objects {
		out = append(out, strings.TrimPrefix(fmt.Sprintf("%s/%s/%s", u.GetKind(), u.GetNamespace(), u.GetName()), "/"))
	}
	return out
}

func TestRenderObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		files  tree
		build  Build
		want   []string
	}{
		"Generated":       {"a plain directory, searched to the bottom, needs no kustomization file", tree{"a.yaml": manifest("a"), "b/c/d.yml": manifest("d"), "e.txt": "no"}, Build{}, []string{"ConfigMap//a", "ConfigMap//d"}},
		"Nested":          {"a directory with a kustomization file decides for itself what is in it", tree{"a.yaml": manifest("a"), "b/kustomization.yaml": "resources: [in.yaml]\n", "b/in.yaml": manifest("in"), "b/out.yaml": manifest("out")}, Build{}, []string{"ConfigMap//a", "ConfigMap//in"}},
		"Path":            {"only what is below the path", tree{"x/a.yaml": manifest("a"), "b.yaml": manifest("b")}, Build{Path: "./x"}, []string{"ConfigMap//a"}},
		"BaseBeside":      {"a base may be anywhere in the source, also above the path", tree{"apps/kustomization.yaml": "resources: [../base]\n", "base/kustomization.yaml": "resources: [a.yaml]\n", "base/a.yaml": manifest("a")}, Build{Path: "apps"}, []string{"ConfigMap//a"}},
		"EmptyDirectory":  {"nothing declared is no error; the empty guard of the prune plan decides what it means", tree{"x/readme.md": "hi"}, Build{Path: "x"}, []string{}},
		"EmptyResources":  {"the same, said in a file", tree{"kustomization.yaml": "resources: []\n"}, Build{}, []string{}},
		"LinkIgnored":     {"a symbolic link is no manifest, as in Flux's artifacts", tree{"a.yaml": manifest("a"), "l.yaml": "-> ../../etc/passwd"}, Build{}, []string{"ConfigMap//a"}},
		"TargetNamespace": {"spec.targetNamespace wins over the files", tree{"a.yaml": manifest("a")}, Build{TargetNamespace: "there"}, []string{"ConfigMap/there/a"}},
		"PrefixSuffix":    {"spec.namePrefix and nameSuffix", tree{"a.yaml": manifest("a")}, Build{NamePrefix: "p-", NameSuffix: "-s"}, []string{"ConfigMap//p-a-s"}},
		"Component":       {"spec.components are relative to the path", tree{"app/a.yaml": manifest("a"), "c/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nnameSuffix: -c\n"}, Build{Path: "app", Components: []string{"../c"}}, []string{"ConfigMap//a-c"}},
		"ComponentMissed": {"with ignoreMissingComponents an absent one is left out", tree{"a.yaml": manifest("a")}, Build{Components: []string{"nowhere"}, IgnoreMissingComponents: true}, []string{"ConfigMap//a"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := objectsOf(rendered(t.Context(), tc.files, tc.build))
			if err != nil {
				t.Fatalf("%s\nRender(): %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, namesOf(objects)); diff != "" {
				t.Errorf("%s\nobjects: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestRenderErrors(t *testing.T) {
	sops := "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {password: RU5D}\nsops: {mac: x}\n"
	for name, tc := range map[string]struct {
		reason string
		files  tree
		build  Build
		is     error
		has    string
	}{
		"PathMissing":      {"it is not an empty rendering, which would prune everything", tree{"a.yaml": manifest("a")}, Build{Path: "nowhere"}, ErrPathNotFound, "nowhere"},
		"PathIsFile":       {"a file is no directory", tree{"a.yaml": manifest("a")}, Build{Path: "a.yaml"}, ErrPathNotFound, "a.yaml"},
		"PathEscapes":      {"a path cannot lead out: it begins at the root again", tree{"a.yaml": manifest("a")}, Build{Path: "../../../etc"}, ErrPathNotFound, "etc"},
		"ResourceEscapes":  {"CVE-2022-24877: files of the host", tree{"kustomization.yaml": "resources: [../../../etc/passwd]\n"}, Build{}, errOutside, ""},
		"ResourceAbsolute": {"the same by an absolute path", tree{"kustomization.yaml": "resources: [/etc/passwd]\n"}, Build{}, errOutside, ""},
		"GeneratorEscapes": {"the same by a generator, whose result would be readable", tree{"kustomization.yaml": "configMapGenerator: [{name: x, files: [p=../../../../../../etc/passwd]}]\n"}, Build{}, errOutside, ""},
		"PatchEscapes":     {"the same by a patch", tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: /etc/passwd}]\n", "a.yaml": manifest("a")}, Build{}, errOutside, ""},
		"ResourceMissing":  {"a file that is named has to exist", tree{"kustomization.yaml": "resources: [gone.yaml]\n"}, Build{}, nil, "gone.yaml"},
		"NotKubernetes":    {"every manifest of a plain directory counts, as in Flux", tree{"a.yaml": "just: text\n"}, Build{}, nil, "a.yaml"},
		"BrokenYAML":       {"the error names the file", tree{"deep/b.yaml": "a: [\n"}, Build{}, nil, "deep/b.yaml"},
		"Twice":            {"one object must not be declared twice", tree{"a.yaml": manifest("a"), "b.yaml": manifest("a")}, Build{}, nil, ""},
		"UnknownField":     {"a typo in a kustomization file must not be ignored", tree{"kustomization.yaml": "resources: [b]\n", "b/kustomization.yaml": "resuorces: []\n"}, Build{}, nil, "resuorces"},
		"Cycle":            {"a base that contains itself", tree{"a/kustomization.yaml": "resources: [../b]\n", "b/kustomization.yaml": "resources: [../a]\n"}, Build{Path: "a"}, nil, "cycle"},
		"Sops":             {"an encrypted Secret applied as it is would destroy the one in the cluster", tree{"s.yaml": sops}, Build{}, nil, "SOPS"},
		"ComponentRemote":  {"components of spec go the same way as those of files", tree{"a.yaml": manifest("a")}, Build{Components: []string{"https://example.com/c"}}, nil, "https://example.com/c"},
		"ComponentRooted":  {"nor may they be absolute", tree{"a.yaml": manifest("a")}, Build{Components: []string{"/c"}}, nil, "/c"},
		"ComponentMissing": {"an absent component is an error unless it is said to be none", tree{"a.yaml": manifest("a")}, Build{Components: []string{"nowhere"}}, nil, "nowhere"},
		"VariableMissing":  {"strict, as Flux since 2.9: an empty string in its place could select everything", tree{"a.yaml": manifest("a", "k", "${gone}")}, Build{Variables: map[string]string{"here": "1"}}, nil, "gone"},
		"VariableName":     {"a name that no substitution can have", tree{"a.yaml": manifest("a")}, Build{Variables: map[string]string{"a-b": "1"}}, nil, "a-b"},
		"Alias":            {"threat V1 in a manifest", tree{"a.yaml": "data: &a {k: *a}\n"}, Build{}, ErrHostile, "a.yaml"},
		"AliasBelow":       {"in a resource that a kustomization file names", tree{"kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": "data: &a {k: *a}\n"}, Build{}, ErrHostile, ""},
		"AliasOfKustomize": {"in the kustomization file itself", tree{"kustomization.yaml": "metadata: &a {k: *a}\n"}, Build{}, ErrHostile, "kustomization.yaml"},
		"AliasOfPatch":     {"in an inline patch", tree{"kustomization.yaml": "resources: [a.yaml]\npatches:\n- patch: |\n    data: &a {k: *a}\n", "a.yaml": manifest("a")}, Build{}, ErrHostile, ""},
		"AliasOfSpec":      {"in a patch of the Kustomization object", tree{"a.yaml": manifest("a")}, Build{Patches: []kustypes.Patch{{Patch: "data: &a {k: *a}\n"}}}, ErrHostile, ""},
		"AliasOfPatchFile": {"in a patch's file, whose name ends in nothing in particular", tree{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p}]\n", "a.yaml": manifest("a"), "p": "data: &a {k: *a}\n"}, Build{}, ErrHostile, ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := objectsOf(rendered(t.Context(), tc.files, tc.build))
			if err == nil {
				t.Fatalf("%s\nRender() = %v, want an error", tc.reason, namesOf(objects))
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%s\nRender(): error %q, want it to be %q", tc.reason, err, tc.is)
			}
			if !strings.Contains(err.Error(), tc.has) {
				t.Errorf("%s\nRender(): error %q, want it to name %q", tc.reason, err, tc.has)
			}
			if strings.Contains(err.Error(), "root:x:0") {
				t.Errorf("%s\nRender(): the error has a file of the host: %q", tc.reason, err)
			}
		})
	}
}

func TestLaughsInManyFiles(t *testing.T) {
	// Each file alone is below the limit.
	body := strings.ReplaceAll("\n"+laughs(5, 9), "\n", "\n  ")
	files := tree{}
	for i := range 40 {
		files[fmt.Sprintf("f%02d.yaml", i)] = manifest(fmt.Sprint("m", i)) + "data:" + strings.TrimRight(body, " ")
	}
	if err := Check([]byte(files["f00.yaml"])); err != nil {
		t.Fatalf("Check() of one file: %v", err)
	}
	if _, err := rendered(t.Context(), files, Build{}); !errors.Is(err, ErrHostile) {
		t.Errorf("Render() = %v, want it to refuse what all files expand to together", err)
	}
}

func TestSubstitution(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		value  string
		vars   map[string]string
		always bool
		want   string
	}{
		"Set":          {"the ordinary case", "${v}", map[string]string{"v": "x"}, false, "x"},
		"Default":      {"a default stands in", "${gone:=d}", map[string]string{"v": "x"}, false, "d"},
		"DefaultUnset": {"the other spelling", "${gone:-d}", map[string]string{"v": "x"}, false, "d"},
		"Escaped":      {"two dollars are one, and nothing is put in", "$${v}", map[string]string{"v": "x"}, false, "${v}"},
		"Bare":         {"without braces it is no variable", "$v", map[string]string{"v": "x"}, false, "$v"},
		"NoVariables":  {"without variables nothing is touched, as in Flux", "${v}", nil, false, "${v}"},
		"Always":       {"unless it is asked for", "${v:=d}", nil, true, "d"},
		"Newline":      {"a value must not add lines to the YAML it is put into", "${v}", map[string]string{"v": "a\nb"}, false, "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := objectsOf(rendered(t.Context(), tree{"a.yaml": manifest("a", "k", tc.value)}, Build{Variables: tc.vars, Always: tc.always}))
			if err != nil {
				t.Fatalf("%s\nRender(): %v", tc.reason, err)
			}
			data, _, _ := unstructured.NestedStringMap(objects[0].Object, "data")
			if diff := cmp.Diff(map[string]string{"k": tc.want}, data); diff != "" {
				t.Errorf("%s\ndata: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestSubstitutionOfIdentity: an object that loses its name by a variable is not left out
// of the rendering, because then it would be pruned.
func TestSubstitutionOfIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, file string
		fails        bool
	}{
		"Name":   {"the variable is empty", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"${v}\"}\n", true},
		"Kind":   {"as good as no object", "apiVersion: v1\nkind: ${v}\nmetadata: {name: a}\n", true},
		"Part":   {"something is left of the name", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"a${v}\"}\n", false},
		"Other":  {"another field may be empty", manifest("a", "k", `"${v}"`), false},
		"Marked": {"nothing is substituted", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"a\", labels: {kustomize.toolkit.fluxcd.io/substitute: disabled}}\ndata: {k: \"${v}\"}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := rendered(t.Context(), tree{"a.yaml": tc.file, "b.yaml": manifest("b", "k", "v")}, Build{Variables: map[string]string{"v": ""}})
			if (err != nil) != tc.fails || name == "Name" && !errors.Is(err, errNameless) {
				t.Fatalf("%s: Render() = %v", tc.reason, err)
			}
			if err == nil && len(r.Objects) != 2 {
				t.Errorf("%s: %d objects, want 2", tc.reason, len(r.Objects))
			}
		})
	}
}

func TestSubstitutionDisabled(t *testing.T) {
	for _, field := range []string{"labels", "annotations"} {
		file := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  " + field + ": {kustomize.toolkit.fluxcd.io/substitute: disabled}\ndata: {k: \"${v}\"}\n"
		objects, err := objectsOf(rendered(t.Context(), tree{"a.yaml": file}, Build{Variables: map[string]string{"v": "x"}}))
		if err != nil {
			t.Fatalf("%s: Render(): %v", field, err)
		}
		if got, _, _ := unstructured.NestedString(objects[0].Object, "data", "k"); got != "${v}" {
			t.Errorf("%s: k = %q, want it untouched", field, got)
		}
	}
}

func TestLenient(t *testing.T) {
	objects, err := objectsOf(rendered(t.Context(), tree{"a.yaml": manifest("a", "k", `"<${gone}>"`)}, Build{Always: true, Lenient: true}))
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedString(objects[0].Object, "data", "k"); got != "<>" {
		t.Errorf("k = %q, want a missing variable to be empty", got)
	}
}

func TestCommonMetadata(t *testing.T) {
	file := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {l: file, own: x}}\n"
	objects, err := objectsOf(rendered(t.Context(), tree{"a.yaml": file}, Build{CommonLabels: map[string]string{"l": "spec"}, CommonAnnotations: map[string]string{"a": "1"}}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"l": "spec", "own": "x"}, objects[0].GetLabels()); diff != "" {
		t.Errorf("labels: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "1"}, objects[0].GetAnnotations()); diff != "" {
		t.Errorf("annotations: -want, +got:\n%s", diff)
	}
}

func TestMergeImages(t *testing.T) {
	file := []kustypes.Image{{Name: "app", NewName: "mirror/app", NewTag: "1", Digest: "sha256:old"}}
	for name, tc := range map[string]struct {
		reason   string
		override kustypes.Image
		want     []kustypes.Image
	}{
		"Tag":    {"a digest left beside a new tag would win over it", kustypes.Image{Name: "app", NewTag: "2"}, []kustypes.Image{{Name: "app", NewName: "mirror/app", NewTag: "2"}}},
		"Digest": {"and the other way round", kustypes.Image{Name: "app", Digest: "sha256:new"}, []kustypes.Image{{Name: "app", NewName: "mirror/app", Digest: "sha256:new"}}},
		"Name":   {"a new name alone keeps the version", kustypes.Image{Name: "app", NewName: "x"}, []kustypes.Image{{Name: "app", NewName: "x", NewTag: "1", Digest: "sha256:old"}}},
		"Other":  {"another image is added", kustypes.Image{Name: "db", NewTag: "3"}, append(append([]kustypes.Image{}, file...), kustypes.Image{Name: "db", NewTag: "3"})},
	} {
		t.Run(name, func(t *testing.T) {
			got := mergeImages(append([]kustypes.Image{}, file...), []kustypes.Image{tc.override})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nmergeImages(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
