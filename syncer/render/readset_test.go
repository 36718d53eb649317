package render

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	kustypes "sigs.k8s.io/kustomize/api/types"
)

func TestReadSet(t *testing.T) {
	overlay := tree{
		"apps/kustomization.yaml": "resources: [../base]\npatches: [{path: p.yaml}]\n", "apps/p.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n",
		"base/kustomization.yaml": "resources: [a.yaml]\n", "base/a.yaml": manifest("a"), "base/b.yaml": manifest("b"), "other/x.yaml": manifest("x"),
	}
	plain := tree{"apps/a.yaml": manifest("a"), "apps/sub/b.yaml": manifest("b"), "apps/readme.md": "hello", "other/x.yaml": manifest("x")}
	broken := tree{"apps/kustomization.yaml": "resources: [gone.yaml]\n", "other/x.yaml": manifest("x")}
	linked := tree{"apps/l.yaml": "-> ../other/x.yaml", "apps/kustomization.yaml": "resources: [a.yaml]\n", "apps/a.yaml": manifest("a"), "other/x.yaml": manifest("x")}
	for name, tc := range map[string]struct {
		reason  string
		files   tree
		set     map[string]string // what is written, "" is removed
		changed bool
	}{
		"Nothing":           {"the same again", overlay, nil, false},
		"Elsewhere":         {"a change of what the build does not read is none", overlay, map[string]string{"other/x.yaml": manifest("y")}, false},
		"BesideBase":        {"the same, in a directory it reads from", overlay, map[string]string{"base/b.yaml": manifest("y")}, false},
		"Base":              {"a base that it reads", overlay, map[string]string{"base/a.yaml": manifest("a", "k", "w")}, true},
		"Patch":             {"a patch that it reads", overlay, map[string]string{"apps/p.yaml": ""}, true},
		"SecondFile":        {"a kustomization file it looked for and did not find", overlay, map[string]string{"base/kustomization.yml": "resources: []\n"}, true},
		"BaseGone":          {"what it reads is removed", overlay, map[string]string{"base/kustomization.yaml": ""}, true},
		"PlainElsewhere":    {"a plain directory reads only itself", plain, map[string]string{"other/x.yaml": manifest("y")}, false},
		"PlainAdded":        {"a file more in a directory that was listed", plain, map[string]string{"apps/sub/c.yaml": manifest("c")}, true},
		"PlainDeepAdded":    {"a directory more", plain, map[string]string{"apps/sub/deep/c.yaml": manifest("c")}, true},
		"PlainNotRead":      {"what was listed but not read may change", plain, map[string]string{"apps/readme.md": "bye"}, false},
		"PlainKustomized":   {"a kustomization file where none was", plain, map[string]string{"apps/sub/kustomization.yaml": "resources: []\n"}, true},
		"FailedElsewhere":   {"a failure is kept like a rendering", broken, map[string]string{"other/x.yaml": manifest("y")}, false},
		"FailedMended":      {"until what it looked for is there", broken, map[string]string{"apps/gone.yaml": manifest("a")}, true},
		"BesideLink":        {"what a link that was not read leads to may change", linked, map[string]string{"other/x.yaml": manifest("y")}, false},
		"DirectoryIsFile":   {"the directory itself became a file", plain, map[string]string{"apps/a.yaml": "", "apps/sub/b.yaml": "", "apps/readme.md": "", "apps": "x"}, true},
		"DirectoryGone":     {"or was removed", plain, map[string]string{"apps/a.yaml": "", "apps/sub/b.yaml": "", "apps/readme.md": ""}, true},
		"DirectoryReplaced": {"or holds other names", plain, map[string]string{"apps/a.yaml": "", "apps/c.yaml": manifest("a")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := Build{Path: "apps"}
			reads := readsOf(rendered(t.Context(), tc.files, b))
			if reads == nil {
				t.Fatal("no read set")
			}
			after := maps.Clone(tc.files)
			for name, content := range tc.set {
				after[name] = content
				if content == "" {
					delete(after, name)
				}
			}
			unchanged, err := reads.Unchanged(after)
			if err != nil || unchanged == tc.changed {
				t.Errorf("%s\nUnchanged() = %t, %v, want %t; read: %v", tc.reason, unchanged, err, !tc.changed, reads.Paths())
			}
			// Another process that builds what is there now reads the same, or something else.
			if now := readsOf(rendered(t.Context(), after, b)); now != nil && (now.Digest() == reads.Digest()) != !tc.changed {
				t.Errorf("%s\nthe digests are the same: %t, want %t; read: %v and %v", tc.reason, tc.changed, !tc.changed, reads.Paths(), now.Paths())
			}
		})
	}
}

// readsOf is the read set of a build, whether it failed or not.
func readsOf(r *Rendering, err error) *ReadSet {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Reads
	}
	if err != nil {
		return nil
	}
	return r.Reads
}

func TestReadSetPaths(t *testing.T) {
	files := tree{"apps/kustomization.yaml": "resources: [../base]\n", "base/kustomization.yaml": "resources: [a.yaml]\n", "base/a.yaml": manifest("a"), "z.yaml": manifest("z")}
	reads := readsOf(rendered(t.Context(), files, Build{Path: "apps"}))
	want := []string{"/apps", "/apps/Kustomization", "/apps/kustomization.yaml", "/apps/kustomization.yml", "/base", "/base/Kustomization", "/base/a.yaml", "/base/kustomization.yaml", "/base/kustomization.yml"}
	if diff := cmp.Diff(want, reads.Paths()); diff != "" {
		t.Errorf("Paths(): -want, +got:\n%s", diff)
	}
}

// counted counts what is asked of files.
type counted struct {
	tree
	rules string
	asked *int
}

func (c counted) Rules() string { return c.rules }

func (c counted) Stat(name string) (bool, string, error) {
	*c.asked++
	return c.tree.Stat(name)
}

func TestUnchangedAsksOnce(t *testing.T) {
	files := tree{"apps/x.txt": ""}
	for _, name := range strings.Split("abcdefghij", "") {
		files["apps/"+name+".yaml"] = manifest(name)
	}
	reads := readsOf(rendered(t.Context(), counted{files, "r", new(int)}, Build{Path: "apps"}))
	for name, tc := range map[string]struct {
		reason string
		rules  string
		want   func(asked int) bool
	}{
		"SameTree":   {"the hash of the directory stands for all in it", "r", func(asked int) bool { return asked == 1 }},
		"OtherRules": {"with other ignore rules it does not", "s", func(asked int) bool { return asked >= 10 }},
	} {
		asked := 0
		unchanged, err := reads.Unchanged(counted{files, tc.rules, &asked})
		if err != nil || !unchanged || !tc.want(asked) {
			t.Errorf("%s: %s\nUnchanged() = %t, %v after %d questions", name, tc.reason, unchanged, err, asked)
		}
	}
	// A link inside the directory may lead out of it.
	files["apps/l.yaml"], files["apps/kustomization.yaml"] = "-> ../base/a.yaml", "resources: [a.yaml]\n"
	reads, asked := readsOf(rendered(t.Context(), counted{files, "r", new(int)}, Build{Path: "apps"})), 0
	if unchanged, err := reads.Unchanged(counted{files, "r", &asked}); err != nil || !unchanged || asked == 1 {
		t.Errorf("with a link: Unchanged() = %t, %v after %d questions, want every path asked for", unchanged, err, asked)
	}
}

func TestPassingFailuresAreNotKept(t *testing.T) {
	files := tree{"apps/a.yaml": manifest("a")}
	_, err := rendered(t.Context(), unreadable{files, "apps/a.yaml"}, Build{Path: "apps"})
	if failed := (*Error)(nil); errors.As(err, &failed) || !errors.Is(err, errDisk) {
		t.Errorf("Render() = %v, want the error of the disk and no read set", err)
	}
	reads := readsOf(rendered(t.Context(), files, Build{Path: "apps"}))
	files["apps/a.yaml"] = manifest("b")
	if _, err := reads.Unchanged(unreadable{files, "apps/a.yaml"}); !errors.Is(err, errDisk) {
		t.Errorf("Unchanged() = %v, want the error of the disk: unknown is not unchanged", err)
	}
}

func TestKey(t *testing.T) {
	builds := map[string]Build{
		"Empty":      {},
		"Path":       {Path: "a"},
		"Namespace":  {TargetNamespace: "a"},
		"Prefix":     {NamePrefix: "a"},
		"Suffix":     {NameSuffix: "a"},
		"Patch":      {Patches: []kustypes.Patch{{Patch: "a"}}},
		"Target":     {Patches: []kustypes.Patch{{Patch: "a", Target: &kustypes.Selector{LabelSelector: "a=b"}}}},
		"Image":      {Images: []kustypes.Image{{Name: "a"}}},
		"Component":  {Components: []string{"a"}},
		"Components": {Components: []string{"a", "metadata"}},
		"Ignore":     {IgnoreMissingComponents: true},
		"Metadata":   {BuildMetadata: []string{"a"}},
		"Label":      {CommonLabels: map[string]string{"a": "b"}},
		"Annotation": {CommonAnnotations: map[string]string{"a": "b"}},
		"Variable":   {Variables: map[string]string{"a": "b"}},
		"Value":      {Variables: map[string]string{"a": "c"}},
		"Bytes":      {Variables: map[string]string{"a": "\xff"}},
		"OtherBytes": {Variables: map[string]string{"a": "\xfe"}},
		"Two":        {Variables: map[string]string{"a": "b", "c": "d"}},
		"Always":     {Always: true},
		"Lenient":    {Lenient: true},
		"Keys":       {Keys: "k"},
		"Decrypter":  {Decrypter: &caesar{}},
		"NoDigest":   {NoDigest: true},
	}
	// A field that is not in the key would have old renderings reused.
	for i := range reflect.TypeFor[Build]().NumField() {
		name := reflect.TypeFor[Build]().Field(i).Name
		set := false
		for _, b := range builds {
			set = set || !reflect.ValueOf(b).Field(i).IsZero()
		}
		if !set && name != "Sensitive" && name != "Workers" {
			t.Errorf("no case sets %s", name)
		}
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(builds)) {
		key := builds[name].Key()
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[key] = name
		if again := builds[name].Key(); again != key {
			t.Errorf("%s: Key() = %s, then %s", name, key, again)
		}
	}
}
