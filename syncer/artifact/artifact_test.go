package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// plenty is an effort that no test exceeds by chance.
const plenty = 10_000_000

// tarball packs files. A content that begins with "-> " is a link.
func tarball(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// snapshotOf returns the snapshot of an archive of files.
func snapshotOf(t testing.TB, revision string, files map[string]string) *source.Snapshot {
	t.Helper()
	s, err := source.NewArchives(t.TempDir(), 1<<20, 8<<20).Open(context.Background(), bytes.NewReader(tarball(t, files)), source.About{Revision: revision, File: "a.tar.gz"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// filesOf are the files of a snapshot.
func filesOf(t testing.TB, s *source.Snapshot) map[string]string {
	t.Helper()
	files := map[string]string{}
	var below func(dir string)
	below = func(dir string) {
		entries, err := s.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			at := path.Join(dir, e.Name)
			if e.Dir {
				below(at)
				continue
			}
			data, err := s.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			files[at] = string(data)
		}
	}
	below("")
	return files
}

// generator returns one with sources named a and b, and an artifact of copy operations, each
// "from to", "from to strategy" or "from to strategy exclude,exclude".
func generator(ops ...string) *generatorv1.ArtifactGenerator {
	g := &generatorv1.ArtifactGenerator{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "g", UID: "uid-g", Generation: 1}}
	g.Spec.Sources = []generatorv1.SourceReference{{Alias: "a", Kind: "GitRepository", Name: "a"}, {Alias: "b", Kind: "Bucket", Name: "b"}}
	g.Spec.OutputArtifacts = []generatorv1.OutputArtifact{{Name: "out"}}
	for _, op := range ops {
		fields := strings.SplitN(op, " ", 4)
		c := generatorv1.CopyOperation{From: fields[0], To: fields[1]}
		if len(fields) > 2 && fields[2] != "-" {
			c.Strategy = fields[2]
		}
		if len(fields) > 3 {
			c.Exclude = strings.Split(fields[3], ",")
		}
		g.Spec.OutputArtifacts[0].Copy = append(g.Spec.OutputArtifacts[0].Copy, c)
	}
	return g
}

// composeAll makes the first artifact of a generator.
func composeAll(t testing.TB, g *generatorv1.ArtifactGenerator, steps int, snapshots map[string]*source.Snapshot) (*source.Snapshot, error) {
	t.Helper()
	recipe, err := read(g)
	if err != nil {
		return nil, err
	}
	left := source.NewEffort(context.Background(), steps)
	outputs, err := recipe.expand(left, snapshots)
	if err != nil {
		return nil, err
	}
	c := source.NewComposer(t.TempDir(), 1<<20).Begin(left)
	if err := outputs[0].compose(c, left, snapshots); err != nil {
		return nil, err
	}
	return c.End(func(digest string) source.About {
		return source.About{Revision: "latest@" + digest, File: fileOf(digest)}
	})
}

// TestCompose tries the copy operations, as Flux documents them.
func TestCompose(t *testing.T) {
	chart := string(tarball(t, map[string]string{"web/Chart.yaml": "name: web\n", "web/values.yaml": "a: 1\n"}))
	a := map[string]string{
		"config.yaml": "from: a\n", "apps/web/deploy.yaml": "web", "apps/web/README.md": "read", "apps/web/sub/x.yaml": "x", "apps/api/deploy.yaml": "api",
		"apps/web/testdata/t.yaml": "t", "charts/web-1.0.0.tgz": chart, "charts/notes.txt": "notes", "values.yaml": "a: 1\nlist: [1, 2]\nmap: {x: 1, w: 2}\nbig: 9007199254740993\n",
	}
	b := map[string]string{
		"config.yaml": "from: b\n", "values-prod.yaml": "list: [3]\nmap: {w: 3, z: 4}\nnothing: null\n", "list.yaml": "[1]\n", "two.yaml": "a: 1\n---\nb: 2\n",
		"bad.tgz": "not an archive", "plain.txt": "plain",
	}
	for name, tc := range map[string]struct {
		reason string
		ops    []string
		want   map[string]string
		fails  string
	}{
		"File":              {"cp file path", []string{"@a/config.yaml @artifact/etc/app.yaml"}, map[string]string{"etc/app.yaml": "from: a\n"}, ""},
		"FileIntoDirectory": {"cp file dir/", []string{"@a/config.yaml @artifact/etc/"}, map[string]string{"etc/config.yaml": "from: a\n"}, ""},
		"FileIntoRoot":      {"the root is a directory", []string{"@a/config.yaml @artifact/"}, map[string]string{"config.yaml": "from: a\n"}, ""},
		"FileIntoExisting":  {"cp file dir, which is there", []string{"@a/apps/web/sub @artifact/in", "@a/config.yaml @artifact/in/sub"}, map[string]string{"in/sub/x.yaml": "x", "in/sub/config.yaml": "from: a\n"}, ""},
		"Stars":             {"one level only, and a path is kept unless it ends in /**", []string{"@a/apps/web/*.yaml @artifact/"}, map[string]string{"apps/web/deploy.yaml": "web"}, ""},
		"StarsOfRoot":       {"there is no path to keep", []string{"@b/l*.yaml @artifact/in/"}, map[string]string{"in/list.yaml": "[1]\n"}, ""},
		"StarDirectories": {"directories match as well, and are copied with all that is in them", []string{"@a/apps/* @artifact/ - testdata,*.md"},
			map[string]string{"apps/web/deploy.yaml": "web", "apps/web/sub/x.yaml": "x", "apps/api/deploy.yaml": "api"}, ""},
		"StarsBelow":        {"a directory that is no pattern would lose its path", []string{"@a/app?/api/** @artifact/in/"}, map[string]string{"in/apps/api/deploy.yaml": "api"}, ""},
		"StarsOnFile":       {"what is in directories, and no file that matches the rest", []string{"@a/*/** @artifact/ - web,*.txt,*.tgz"}, map[string]string{"apps/api/deploy.yaml": "api"}, ""},
		"Directory":         {"cp -r dir dir/ keeps its name", []string{"@a/apps/web/sub/ @artifact/in/"}, map[string]string{"in/sub/x.yaml": "x"}, ""},
		"DirectoryAs":       {"and so does cp -r dir name: what it is copied to counts as there", []string{"@a/apps/web/sub @artifact/in"}, map[string]string{"in/sub/x.yaml": "x"}, ""},
		"DirectoryIntoRoot": {"with a slash or without", []string{"@a/apps/web/sub/ @artifact/", "@a/apps/api @artifact/"}, map[string]string{"sub/x.yaml": "x", "api/deploy.yaml": "api"}, ""},
		"Below": {"what is in a directory, without its name", []string{"@a/apps/web/** @artifact/in/ - *.md,**/testdata/**"},
			map[string]string{"in/deploy.yaml": "web", "in/sub/x.yaml": "x"}, ""},
		"BelowWhole":       {"the same without exclusions, which takes the tree as it is", []string{"@a/apps/api/** @artifact/"}, map[string]string{"deploy.yaml": "api"}, ""},
		"Deep":             {"two stars in the middle", []string{"@a/apps/**/deploy.yaml @artifact/"}, map[string]string{"apps/web/deploy.yaml": "web", "apps/api/deploy.yaml": "api"}, ""},
		"Braces":           {"alternatives", []string{"@a/apps/{web,api}/deploy.yaml @artifact/"}, map[string]string{"apps/web/deploy.yaml": "web", "apps/api/deploy.yaml": "api"}, ""},
		"Whole":            {"a whole source", []string{"@b/** @artifact/b/ - *.tgz,*.yaml"}, map[string]string{"b/plain.txt": "plain"}, ""},
		"WholeRoot":        {"the root has no name that could be kept", []string{"@b/ @artifact/b/ - *.tgz,*.yaml"}, map[string]string{"b/plain.txt": "plain"}, ""},
		"ExcludeBelow":     {"a path below what is copied", []string{"@a/apps/web/** @artifact/ - sub/**,*.md,testdata/*"}, map[string]string{"deploy.yaml": "web"}, ""},
		"ExcludeFull":      {"a path in the source", []string{"@a/apps/web/** @artifact/ - apps/web/sub/**,*.md,**/testdata/**"}, map[string]string{"deploy.yaml": "web"}, ""},
		"ExcludeDirectory": {"a directory that is excluded is left with all that is in it", []string{"@a/apps/web/ @artifact/ - sub,testdata,*.md"}, map[string]string{"web/deploy.yaml": "web"}, ""},
		"ExcludeFile":      {"one file that is excluded is no mistake", []string{"@a/config.yaml @artifact/ - config.yaml", "@b/config.yaml @artifact/b/"}, map[string]string{"b/config.yaml": "from: b\n"}, ""},
		"ExcludeAll":       {"of a pattern it is", []string{"@a/apps/web/*.yaml @artifact/ - *.yaml"}, nil, "all that matches is excluded"},
		"ExcludeWithin":    {"a directory that matches is there, though nothing of it is left", []string{"@a/apps/web/** @artifact/ - *.yaml,*.md"}, map[string]string{}, ""},
		"Order":            {"the later one wins", []string{"@a/config.yaml @artifact/c.yaml", "@b/config.yaml @artifact/c.yaml"}, map[string]string{"c.yaml": "from: b\n"}, ""},
		"Over": {"a directory over one that is there", []string{"@a/apps/web/sub/** @artifact/", "@a/apps/api/** @artifact/"},
			map[string]string{"x.yaml": "x", "deploy.yaml": "api"}, ""},
		"Merge": {"Helm's way: mappings are merged, lists replaced, numbers kept", []string{"@a/values.yaml @artifact/v.yaml", "@b/values-prod.yaml @artifact/v.yaml Merge"},
			map[string]string{"v.yaml": "a: 1\nbig: 9007199254740993\nlist:\n- 3\nmap:\n  w: 3\n  x: 1\n  z: 4\nnothing: null\n"}, ""},
		"MergeNothing": {"nothing is there to merge into", []string{"@b/values-prod.yaml @artifact/v.yaml Merge"},
			map[string]string{"v.yaml": b["values-prod.yaml"]}, ""},
		"MergeList": {"a list is no values", []string{"@a/values.yaml @artifact/v.yaml", "@b/list.yaml @artifact/v.yaml Merge"}, nil, "it is not a mapping in YAML"},
		"MergeTwo":  {"of which one would be lost", []string{"@a/values.yaml @artifact/v.yaml", "@b/two.yaml @artifact/v.yaml Merge"}, nil, "several documents"},
		"MergeText": {"there is no way to merge it", []string{"@b/plain.txt @artifact/v.yaml Merge"}, nil, "strategy Merge takes files that end in .yaml or .yml"},
		"Extract":   {"an archive of helm package", []string{"@a/charts/web-1.0.0.tgz @artifact/ Extract"}, map[string]string{"web/Chart.yaml": "name: web\n", "web/values.yaml": "a: 1\n"}, ""},
		"ExtractGlob": {"other files are left out", []string{"@a/charts/* @artifact/in/ Extract"},
			map[string]string{"in/web/Chart.yaml": "name: web\n", "in/web/values.yaml": "a: 1\n"}, ""},
		"ExtractDeep": {"at any depth, into the one directory", []string{"@a/**/*.tgz @artifact/ Extract"}, map[string]string{"web/Chart.yaml": "name: web\n", "web/values.yaml": "a: 1\n"}, ""},
		"ExtractAndMerge": {"the example of the documentation", []string{"@a/charts/*.tgz @artifact/ Extract", "@b/values-prod.yaml @artifact/web/values.yaml Merge"},
			map[string]string{"web/Chart.yaml": "name: web\n", "web/values.yaml": "a: 1\nlist:\n- 3\nmap:\n  w: 3\n  z: 4\nnothing: null\n"}, ""},
		"ExtractFile":      {"it is no archive", []string{"@b/plain.txt @artifact/ Extract"}, nil, "takes files that end in .tar.gz or .tgz"},
		"ExtractNoise":     {"nor is this", []string{"@b/bad.tgz @artifact/ Extract"}, nil, "cannot read archive"},
		"ExtractDirectory": {"not supported", []string{"@a/charts @artifact/ Extract"}, nil, "strategy Extract takes archives"},
		"Missing":          {"a path that is misspelt", []string{"@a/app @artifact/"}, nil, "no such file or directory"},
		"NoMatch":          {"a pattern that is", []string{"@a/apps/*.json @artifact/"}, nil, "no such file or directory"},
		"NoDirectory":      {"a file is no directory", []string{"@a/config.yaml/ @artifact/"}, nil, "no such file or directory"},
		"FileOnDirectory":  {"nothing is deleted for it", []string{"@a/apps/web/** @artifact/in/config.yaml/", "@a/config.yaml @artifact/in/"}, nil, "it is a directory"},
		"DirectoryOnFile":  {"the other way round", []string{"@a/config.yaml @artifact/in", "@a/apps/web/** @artifact/in/"}, nil, "it is a file"},
		"BelowFile":        {"and further below", []string{"@a/config.yaml @artifact/in", "@a/apps/web/** @artifact/in/deep/"}, nil, "it is a file"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := composeAll(t, generator(tc.ops...), plenty, map[string]*source.Snapshot{"a": snapshotOf(t, "a", a), "b": snapshotOf(t, "b", b)})
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || !isBuild(err) {
					t.Fatalf("%s\ncompose() = %v, want a failure about files with %q", tc.reason, err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\ncompose() = %v", tc.reason, err)
			}
			if files := filesOf(t, got); !maps.Equal(files, tc.want) {
				t.Errorf("%s\nfiles %q, want %q", tc.reason, files, tc.want)
			}
		})
	}
}

// TestRead: what no CRD refuses is refused here, for good.
func TestRead(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*generatorv1.ArtifactGenerator)
		want   string
	}{
		"Fine":    {"nothing is wrong", func(*generatorv1.ArtifactGenerator) {}, ""},
		"Aliases": {"which of the two?", func(g *generatorv1.ArtifactGenerator) { g.Spec.Sources[1].Alias = "a" }, "duplicate source alias 'a' found"},
		"Artifacts": {"which of the two?", func(g *generatorv1.ArtifactGenerator) {
			g.Spec.OutputArtifacts = append(g.Spec.OutputArtifacts, g.Spec.OutputArtifacts[0])
		}, "duplicate artifact name 'out' found"},
		"From":       {"there is no such source", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@c/x" }, "alias that is not in spec.sources"},
		"NoAlias":    {"it names none", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "x" }, "is not @alias/path"},
		"To":         {"there is one artifact", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].To = "@a/x" }, "is not @artifact/path"},
		"Revision":   {"there is no such source", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Revision = "@c" }, "revision '@c' names a source alias"},
		"Origin":     {"there is no such source", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].OriginRevision = "@c" }, "originRevision '@c' names a source alias"},
		"FromAbove":  {"it leads elsewhere", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/../../etc/passwd" }, "leads elsewhere"},
		"FromWithin": {"later, too", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/x/../../y" }, "leads elsewhere"},
		"FromRoot":   {"nor is it absolute", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a//etc/passwd" }, "is not relative"},
		"ToAbove":    {"the CRD refuses it, if it is ours", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].To = "@artifact/../x" }, "leads elsewhere"},
		"ToRoot":     {"the same", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].To = "@artifact//x" }, "is not relative"},
		"ToPattern":  {"to one of which paths?", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].To = "@artifact/*" }, "is a pattern"},
		"Null":       {"a byte that ends texts", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/x\x00y" }, "no path has"},
		"Pattern":    {"a bracket that is open", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/[a" }, "a bracket is not closed"},
		"PatternDir": {"a pattern is of files", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].From = "@a/*/" }, "ends with a slash"},
		"Exclude":    {"a brace that is open", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].Exclude = []string{"{a"} }, "a bracket is not closed"},
		"Excludes": {"too many", func(g *generatorv1.ArtifactGenerator) {
			g.Spec.OutputArtifacts[0].Copy[0].Exclude = make([]string, 101)
		}, "more than 100 patterns"},
		"Strategy":    {"there is no such", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Copy[0].Strategy = "Move" }, "is not one of"},
		"Name":        {"it cannot be that of an object", func(g *generatorv1.ArtifactGenerator) { g.Spec.OutputArtifacts[0].Name = "Out" }, "is not valid"},
		"PathPattern": {"there is no such source", func(g *generatorv1.ArtifactGenerator) { g.Spec.PathPattern = "@c/{app}" }, "alias that is not in spec.sources"},
		"PathTwice":   {"which of the two?", func(g *generatorv1.ArtifactGenerator) { g.Spec.PathPattern = "@a/{app}/{app}" }, "the capture 'app' twice"},
		"PathBrace":   {"it is no capture", func(g *generatorv1.ArtifactGenerator) { g.Spec.PathPattern = "@a/{app,env}" }, "a brace that is no capture"},
		"PathAbove":   {"it leads elsewhere", func(g *generatorv1.ArtifactGenerator) { g.Spec.PathPattern = "@a/../{app}" }, "leads elsewhere"},
		"PathEmpty":   {"it names no directory", func(g *generatorv1.ArtifactGenerator) { g.Spec.PathPattern = "@a/" }, "names no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator("@a/x @artifact/y")
			tc.change(g)
			_, err := read(g)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !isInvalid(err)) {
				t.Errorf("%s\nread() = %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestDiscovery: one artifact for each directory that a pattern finds.
func TestDiscovery(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		pattern string
		name    string
		from    string
		files   []string
		// want are names, labels and the path that is copied.
		want  []string
		fails string
	}{
		"Two": {"the example of the documentation", "@a/apps/{app}/envs/{env}", "{app}-{env}", "@a/apps/{app}/envs/{env}/**",
			[]string{"apps/auth/envs/dev/x", "apps/auth/envs/prod/x", "apps/pay/envs/dev/x", "apps/pay/README.md"},
			[]string{"auth-dev map[app:auth env:dev] apps/auth/envs/dev/**", "auth-prod map[app:auth env:prod] apps/auth/envs/prod/**", "pay-dev map[app:pay env:dev] apps/pay/envs/dev/**"}, ""},
		"Case": {"names and labels are lower case, paths are not", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"apps/Auth/x"},
			[]string{"auth map[app:auth] apps/Auth/**"}, ""},
		"Part":     {"a part of a name", "@a/team-{team}", "{team}", "@a/team-{team}/**", []string{"team-one/x", "other/x"}, []string{"one map[team:one] team-one/**"}, ""},
		"None":     {"nothing is no failure", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"x"}, nil, ""},
		"Dots":     {"a dot is a dot", "@a/a.b/{app}", "{app}", "@a/a.b/{app}/**", []string{"axb/c/x", "a.b/d/x"}, []string{"d map[app:d] a.b/d/**"}, ""},
		"Same":     {"two directories that differ in case", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"apps/Auth/x", "apps/auth/x"}, nil, "several directories have artifact 'auth'"},
		"Static":   {"the name does not tell them apart", "@a/apps/{app}", "all", "@a/apps/{app}/**", []string{"apps/a/x", "apps/b/x"}, nil, "several directories have artifact 'all'"},
		"Hidden":   {"it cannot be a label", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"apps/.hidden/x"}, nil, "captures '.hidden' for 'app'"},
		"Space":    {"nor can this", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"apps/a b/x"}, nil, "cannot be a label"},
		"Name":     {"nor can this be a name", "@a/apps/{app}", "{app}", "@a/apps/{app}/**", []string{"apps/a_b/x"}, nil, "artifact name 'a_b' is not valid"},
		"Unknown":  {"a placeholder of nothing is no name", "@a/apps/{app}", "{env}", "@a/apps/{app}/**", []string{"apps/a/x"}, nil, "artifact name '{env}' is not valid"},
		"HiddenUp": {"only what matches all of it counts", "@a/{app}/envs", "{app}", "@a/{app}/envs/**", []string{".git/x", "a/envs/x"}, []string{"a map[app:a] a/envs/**"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator(tc.from + " @artifact/")
			g.Spec.PathPattern, g.Spec.OutputArtifacts[0].Name = tc.pattern, tc.name
			files := map[string]string{}
			for _, f := range tc.files {
				files[f] = f
			}
			recipe, err := read(g)
			if err != nil {
				t.Fatal(err)
			}
			outputs, err := recipe.expand(source.NewEffort(t.Context(), plenty), map[string]*source.Snapshot{"a": snapshotOf(t, "a", files)})
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || !isInvalid(err) {
					t.Fatalf("%s\nexpand() = %v, want %q", tc.reason, err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range outputs {
				got = append(got, fmt.Sprintf("%s %v %s", o.name, o.labels, o.copies[0].from))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s\noutputs %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestDiscoveryBound: a repository of a tenant does not make any number of objects.
func TestDiscoveryBound(t *testing.T) {
	files := map[string]string{}
	for n := range MaxArtifacts + 1 {
		files[fmt.Sprintf("apps/a%d/x", n)] = ""
	}
	g := generator("@a/apps/{app}/** @artifact/")
	g.Spec.PathPattern, g.Spec.OutputArtifacts[0].Name = "@a/apps/{app}", "{app}"
	recipe, err := read(g)
	if err != nil {
		t.Fatal(err)
	}
	_, err = recipe.expand(source.NewEffort(t.Context(), plenty), map[string]*source.Snapshot{"a": snapshotOf(t, "a", files)})
	if !isInvalid(err) || !strings.Contains(err.Error(), "more than 1000 directories") {
		t.Errorf("expand() = %v", err)
	}
}

// TestHostile: what patterns, paths and files could cost is bounded, by counts.
func TestHostile(t *testing.T) {
	wide := map[string]string{}
	for n := range 3000 {
		wide[strings.Repeat(fmt.Sprintf("d%d/", n%50), 20)+fmt.Sprintf("%d.yaml", n)] = "x: 1\n"
	}
	wide["bomb.yaml"] = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + strings.Join(laughs(9), "")
	wide["self.yaml"] = "data: &a {k: *a}\n"
	wide["deep.yaml"] = strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	wide["flat.yaml"] = "a: [" + strings.Repeat("x,", 900_000) + "x]\n"
	wide["braces.yaml"] = "a: {" + strings.Repeat("b,", 900_000) + "b}\n"
	wide["expands.yaml"] = "b: &b [" + strings.Repeat("x,", 1000) + "]\nc: [" + strings.Repeat("*b,", 300) + "]\n"
	wide["values.yaml"] = "a: 1\n"
	all := map[string]*source.Snapshot{"a": snapshotOf(t, "a", wide), "b": snapshotOf(t, "b", map[string]string{"x": "x"})}
	stars := strings.Repeat("**/", 300)
	braces := strings.Repeat("{a,b,d1,d2}", 80)
	many := make([]string, 100)
	for n := range many {
		many[n] = stars + "*" + strings.Repeat("x*", 50)
	}
	for name, tc := range map[string]struct {
		reason string
		ops    []string
		steps  int
		fails  string
	}{
		"Stars":      {"two stars three hundred times", []string{"@a/" + stars + "nothing @artifact/"}, plenty, "no such file or directory"},
		"StarsInOne": {"a star after each character", []string{"@a/" + strings.Repeat("*x", 500) + " @artifact/"}, plenty, "no such file or directory"},
		"Braces":     {"4^80 alternatives", []string{"@a/" + braces + "/x @artifact/"}, plenty, "no such file or directory"},
		"Nested":     {"alternatives in alternatives", []string{"@a/" + strings.Repeat("{a,", 200) + "b" + strings.Repeat("}", 200) + " @artifact/"}, plenty, "no such file or directory"},
		"Excludes":   {"a hundred patterns for each file", []string{"@a/** @artifact/ - " + strings.Join(many, ";")}, 2000, "too many files to look at"},
		"Again":      {"the same directory over itself, again and again", slices.Repeat([]string{"@a/** @artifact/x/ - *.md"}, 100), 100_000, "too many files to look at"},
		"Bomb":       {"aliases that expand", []string{"@a/values.yaml @artifact/v.yaml", "@a/bomb.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"BombBelow":  {"the other way round", []string{"@a/bomb.yaml @artifact/v.yaml", "@a/values.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"Self":       {"an anchor that contains itself", []string{"@a/values.yaml @artifact/v.yaml", "@a/self.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"Flat":       {"a list of a million texts", []string{"@a/values.yaml @artifact/v.yaml", "@a/flat.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"FlatBelow":  {"the other way round", []string{"@a/flat.yaml @artifact/v.yaml", "@a/values.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"FlatBraces": {"in braces a text is two nodes", []string{"@a/values.yaml @artifact/v.yaml", "@a/braces.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"Expands":    {"aliases that add three hundred thousand", []string{"@a/values.yaml @artifact/v.yaml", "@a/expands.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
		"Deep":       {"recursion over the depth", []string{"@a/values.yaml @artifact/v.yaml", "@a/deep.yaml @artifact/v.yaml Merge"}, plenty, "refused YAML"},
	} {
		t.Run(name, func(t *testing.T) {
			g := generator(tc.ops...)
			for n, c := range g.Spec.OutputArtifacts[0].Copy {
				if len(c.Exclude) == 1 {
					g.Spec.OutputArtifacts[0].Copy[n].Exclude = strings.Split(c.Exclude[0], ";")
				}
			}
			_, err := composeAll(t, g, tc.steps, all)
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s\ncompose() = %v, want %q", tc.reason, err, tc.fails)
			}
		})
	}
}

// laughs are lines of YAML each of which holds the one before it nine times.
func laughs(n int) []string {
	var lines []string
	for i := 1; i < n; i++ {
		lines = append(lines, fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), ",")))
	}
	return lines
}
