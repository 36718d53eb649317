package chart

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// open makes a snapshot of a tarball, whatever is in it.
func open(t testing.TB, data []byte) (*source.Snapshot, error) {
	t.Helper()
	return source.NewArchives(t.TempDir(), 1<<30, 1<<30).Open(t.Context(), bytes.NewReader(data), source.About{Revision: "test", File: "a.tgz"})
}

func load(t testing.TB, data []byte, options ...Option) (*helmchart.Chart, error) {
	t.Helper()
	s, err := open(t, data)
	if err != nil {
		return nil, err
	}
	return Load(t.Context(), s, options...)
}

// with is a chart with more files.
func with(more ...string) map[string]string { return chartFiles("c", "c", "1.0.0", more...) }

// TestLoad: what is loaded is what Helm loads.
func TestLoad(t *testing.T) {
	sub := string(tgz(t, chartFiles("sub", "sub", "2.0.0", "charts/deep/Chart.yaml", "apiVersion: v2\nname: deep\nversion: 1.0.0\n", "charts/deep-2.0.0.tgz", string(tgz(t, chartFiles("deep2", "deep2", "2.0.0"))))))
	for name, c := range map[string]struct {
		reason string
		files  map[string]string
	}{
		"plain":        {"a usual chart", with()},
		"subcharts":    {"charts in charts, in directories and packed", with("charts/sub-2.0.0.tgz", sub, "charts/other/Chart.yaml", "apiVersion: v2\nname: other\nversion: 1.0.0\n", "charts/_ignored.tgz", "x", "charts/.ignored/Chart.yaml", "x", "charts/sub.tgz.prov", "x")},
		"bom":          {"a mark at the beginning is no content", with("values.yaml", "\xEF\xBB\xBFa: 1\n")},
		"null values":  {"values may be null", with("values.yaml", "a: null\nb:\n")},
		"no values":    {"values may be empty", with("values.yaml", "")},
		"null all":     {"values may be nothing", with("values.yaml", "null\n")},
		"old":          {"a chart of Helm 2", with("Chart.yaml", "name: c\nversion: 1.0.0\n", "requirements.yaml", "dependencies:\n- {name: x, version: 1.0.0, repository: https://example.com}\n", "requirements.lock", "dependencies:\n- {name: x, version: 1.0.0, repository: https://example.com}\n")},
		"lock":         {"a lock file", with("Chart.lock", "dependencies:\n- {name: x, version: 1.0.0, repository: https://example.com}\ngenerated: \"2020-01-01T00:00:00Z\"\n")},
		"deep folders": {"folders that are no charts", with("charts/other/Chart.yaml", "apiVersion: v2\nname: other\nversion: 1.0.0\n", "charts/other/files/charts/x/Chart.yaml", "&a [*a]\n")},
		"documents":    {"values of several documents", with("values.yaml", "a: {b: 1}\n---\na: {c: 2}\n")},
	} {
		t.Run(name, func(t *testing.T) {
			data := tgz(t, c.files)
			got, err := load(t, data)
			if err != nil {
				t.Fatalf("%s: %v", c.reason, err)
			}
			want, err := loader.LoadArchive(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := whole(got), whole(want); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, got, want)
			}
		})
	}
}

// whole is all of a chart that counts when it is rendered.
func whole(c *helmchart.Chart) string {
	var b strings.Builder
	var write func(at string, c *helmchart.Chart)
	write = func(at string, c *helmchart.Chart) {
		fmt.Fprintf(&b, "%s: %+v lock %+v values %v schema %s\n", at, *c.Metadata, c.Lock != nil, c.Values, c.Schema)
		if c.Lock != nil {
			fmt.Fprintf(&b, "%s: %v %+v\n", at, c.Lock.Generated, *c.Lock.Dependencies[0])
		}
		var lines []string
		for _, f := range c.Templates {
			lines = append(lines, fmt.Sprintf("%s: template %s %s\n", at, f.Name, f.Data))
		}
		for _, f := range c.Files {
			lines = append(lines, fmt.Sprintf("%s: file %s %s\n", at, f.Name, f.Data))
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
		subs := slices.SortedFunc(slices.Values(c.Dependencies()), func(a, b *helmchart.Chart) int { return strings.Compare(a.Name(), b.Name()) })
		for _, sub := range subs {
			write(at+"/"+sub.Name(), sub)
		}
	}
	write(c.Name(), c)
	deps := strings.Builder{}
	for _, d := range c.Metadata.Dependencies {
		fmt.Fprintf(&deps, "%+v", *d)
	}
	return pointers(b.String()) + deps.String()
}

// pointers takes addresses out.
func pointers(s string) string {
	var out []string
	for field := range strings.FieldsSeq(s) {
		if at := strings.Index(field, "0x"); at >= 0 {
			field = field[:at]
		}
		out = append(out, field)
	}
	return strings.Join(out, " ")
}

// TestLoadFresh: Helm changes charts, so each load is another chart.
func TestLoadFresh(t *testing.T) {
	s, err := open(t, tgz(t, with("charts/sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0\n")))
	if err != nil {
		t.Fatal(err)
	}
	first, err := Load(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	before := whole(first)
	first.Metadata.Name, first.Values["image"].(map[string]any)["name"], first.Templates[0].Data[0] = "x", "x", 'x'
	first.SetDependencies()
	second, err := Load(t.Context(), s)
	if err != nil || whole(second) != before {
		t.Errorf("the second chart is another one: %v", err)
	}
}

// TestLoadHostile: a chart that is meant to do harm ends in an error that names the
// cause, in bounded memory.
func TestLoadHostile(t *testing.T) {
	file := func(name, content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: content, Mode: 0o644}
	}
	chartYAML := file("c/Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n")
	zeros := strings.Repeat("\x00", DefaultFileMaxBytes)
	var many []tar.Header
	for i := range 30 {
		many = append(many, file(fmt.Sprintf("c/files/%d", i), zeros))
	}
	bomb := string(tarball(t, append([]tar.Header{chartYAML}, many[:15]...)...))
	var countless []tar.Header
	for i := range maxFiles + 1 {
		countless = append(countless, file(fmt.Sprintf("c/%d", i), ""))
	}
	dense := "a: {" + strings.Repeat("b,", 2_600_000) + "}\n"
	var denseSubs []string
	for i := range 19 {
		sub := fmt.Sprintf("charts/c%d/", i)
		denseSubs = append(denseSubs, sub+"Chart.yaml", fmt.Sprintf("apiVersion: v2\nname: c%d\nversion: 1.0.0\n", i), sub+"values.yaml", "a: ["+strings.Repeat("b,", 100_000)+"]\n")
	}
	nested := tgz(t, with())
	for range maxNesting + 2 {
		nested = tgz(t, with("charts/n.tgz", string(nested)))
	}
	schema := func(s string) []byte { return tgz(t, with("values.schema.json", s)) }
	doubling := func(n int, in string) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/` + in + `/a0","` + in + `":{`)
		for i := range n {
			fmt.Fprintf(&b, `"a%d":{"allOf":[{"$ref":"#/%s/a%d"},{"$ref":"#/%s/a%d"}]},`, i, in, i+1, in, i+1)
		}
		fmt.Fprintf(&b, `"a%d":{"type":"object"}}}`, n)
		return b.String()
	}
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/a0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"a%d":{"$ref":"#/$defs/a%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"a%d":{}}}`, n)
		return b.String()
	}
	for name, c := range map[string]struct {
		reason string
		data   []byte
		want   string // reason of the error
		has    string
	}{
		"up":                 {"a name that leads up", tarball(t, chartYAML, file("c/../../x", "x")), source.ReasonArtifactFailed, "leads elsewhere"},
		"absolute":           {"an absolute name", tarball(t, chartYAML, file("/etc/passwd", "x")), source.ReasonArtifactFailed, "not allowed"},
		"backslash":          {"a name of another system", tarball(t, chartYAML, file(`c\..\x`, "x")), source.ReasonArtifactFailed, "not allowed"},
		"drive":              {"a drive of another system", tarball(t, chartYAML, file("c/c:/x", "x")), ReasonPackage, "leads elsewhere"},
		"file beside":        {"a file that is in no chart", tarball(t, chartYAML, file("x", "x")), ReasonPackage, "2 files and directories at the root"},
		"two charts":         {"two directories", tarball(t, chartYAML, file("d/Chart.yaml", "x")), ReasonPackage, "2 files and directories at the root"},
		"at the root":        {"no directory", tarball(t, file("Chart.yaml", "x")), ReasonPackage, "the root has Chart.yaml"},
		"no Chart.yaml":      {"no chart", tarball(t, file("c/values.yaml", "x: 1")), ReasonPackage, "Chart.yaml file is missing"},
		"empty":              {"nothing", tarball(t), ReasonPackage, "0 files"},
		"name up":            {"the name is part of paths (CVE-2024-25620)", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: ..\nversion: 1.0.0\n")), ReasonPackage, "not allowed"},
		"name with slash":    {"the name is part of paths (CVE-2026-35206)", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: a/../../b\nversion: 1.0.0\n")), ReasonPackage, "is invalid"},
		"sub name up":        {"that of a chart in it too", tgz(t, with("charts/s/Chart.yaml", "apiVersion: v2\nname: ..\nversion: 1.0.0\n")), ReasonPackage, "not allowed"},
		"bomb":               {"files that are large together", tarball(t, append([]tar.Header{chartYAML}, many...)...), source.ReasonLimitExceeded, "more than"},
		"large file":         {"a file that is large", tarball(t, chartYAML, file("c/x", zeros+"x")), source.ReasonLimitExceeded, "--helm-chart-file-max-size"},
		"nested bombs":       {"charts in it that are large together", tgz(t, with("charts/a.tgz", bomb, "charts/b.tgz", bomb, "charts/c.tgz", bomb)), source.ReasonLimitExceeded, "more than"},
		"many files":         {"more files than any chart has", tarball(t, append(countless, chartYAML)...), source.ReasonLimitExceeded, "more than"},
		"nested":             {"charts in charts in charts", nested, source.ReasonLimitExceeded, "nest"},
		"nested folders":     {"the same in directories", tgz(t, with(strings.Repeat("charts/x/", 200)+"Chart.yaml", "apiVersion: v2\nname: x\nversion: 1.0.0\n")), source.ReasonLimitExceeded, "nest"},
		"deep folders":       {"folders in folders", tgz(t, with(strings.Repeat("x/", 900)+"x", "x")), source.ReasonLimitExceeded, "nest"},
		"sub up":             {"a chart in it leads elsewhere", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, file("c/../../x", "x"))))), ReasonPackage, "leads elsewhere"},
		"sub absolute":       {"a chart in it leads elsewhere", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, file("/x", "x"))))), ReasonPackage, "leads elsewhere"},
		"sub backslash":      {"a chart in it leads elsewhere", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, file(`c\x`, "x"))))), ReasonPackage, "leads elsewhere"},
		"sub twice":          {"a file that is there twice", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, chartYAML)))), ReasonPackage, "twice"},
		"sub file as folder": {"a file that is a directory", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, file("c/x", ""), file("c/x/y", ""))))), ReasonPackage, "as a file and as a directory"},
		"sub two":            {"two charts in one archive", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, file("d/x", ""))))), ReasonPackage, "a chart is one"},
		"sub device":         {"a device", tgz(t, with("charts/a.tgz", string(tarball(t, chartYAML, tar.Header{Typeflag: tar.TypeChar, Name: "c/x"})))), ReasonPackage, "no file"},
		"sub no archive":     {"no archive", tgz(t, with("charts/a.tgz", "x")), ReasonPackage, "no gzipped archive"},
		"sub empty":          {"an empty archive", tgz(t, with("charts/a.tgz", string(tarball(t)))), ReasonPackage, "no files"},
		"sub cut off":        {"half an archive", tgz(t, with("charts/a.tgz", bomb[:len(bomb)/2])), ReasonPackage, "unexpected EOF"},
		"sub folder":         {"a directory with the name that an archive gets", tgz(t, with("charts/a.tgz", string(tgz(t, with())), "charts/a.tgz.d/x", "x")), ReasonPackage, "there is a directory"},
		"cycle in Chart":     {"an alias that contains itself kills a process", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\nannotations: &a {k: *a}\n")), ReasonPackage, "contains itself"},
		"cycle in values":    {"an alias that contains itself kills a process", tgz(t, with("values.yaml", "a: &a {k: *a}\n")), ReasonPackage, "contains itself"},
		"cycle in lock":      {"an alias that contains itself kills a process", tgz(t, with("Chart.lock", "a: &a {k: *a}\n")), ReasonPackage, "contains itself"},
		"cycle in sub":       {"an alias that contains itself kills a process", tgz(t, with("charts/a.tgz", string(tgz(t, with("values.yaml", "a: &a {k: *a}\n"))))), ReasonPackage, "contains itself"},
		"laughs":             {"aliases that expand", tgz(t, with("values.yaml", laughs(9))), ReasonPackage, "expands to more than"},
		"deep values":        {"brackets without end", tgz(t, with("values.yaml", "a: "+strings.Repeat("[", 100_000))), ReasonPackage, ""},
		"dense values":       {"a text of commas is a hundred times its size when it is parsed", tgz(t, with("values.yaml", dense)), source.ReasonLimitExceeded, "values.yaml"},
		"dense Chart":        {"the same elsewhere", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\nx: ["+strings.Repeat("b,", 1_000_000)+"]\n")), source.ReasonLimitExceeded, "Chart.yaml"},
		"dense sub values":   {"little in each chart, and much in all of them", tgz(t, with(denseSubs...)), source.ReasonLimitExceeded, "values.yaml"},
		"null dependency":    {"an empty node is no panic (CVE-2025-55198)", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\ndependencies: [null]\n")), ReasonPackage, "null nodes"},
		"null maintainer":    {"an empty node is no panic (CVE-2025-55198)", tgz(t, with("Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\nmaintainers: [null]\n")), ReasonPackage, "null nodes"},
		"null lock":          {"an empty node is no panic", tgz(t, with("Chart.lock", "dependencies: [null]\n")), ReasonPackage, "empty dependency"},
		"null chart":         {"an empty file is no panic (CVE-2024-26147)", tgz(t, with("Chart.yaml", "null\n")), ReasonPackage, "name is required"},
		"schema http":        {"a schema elsewhere is a request to anybody (CVE-2025-32387)", schema(`{"properties":{"a":{"$ref":"http://169.254.169.254/x?token=s3cr3t"}}}`), ReasonPackage, "it refers to http://169.254.169.254/x: "},
		"schema file":        {"a schema in a file of the host", schema(`{"$ref":"file:///etc/passwd"}`), ReasonPackage, "it refers to file:///etc/passwd"},
		"schema path":        {"a schema in a file of the host", schema(`{"$ref":"../../etc/passwd"}`), ReasonPackage, "it refers to file:///etc/passwd"},
		"schema of schema":   {"the schema of the schema", schema(`{"$schema":"https://example.com/meta"}`), ReasonPackage, "it refers to https://example.com/meta"},
		"schema id":          {"a reference from another base", schema(`{"$id":"https://example.com/x/","$ref":"y"}`), ReasonPackage, "it refers to https://example.com/x/y"},
		"schema deep":        {"a schema that nests", schema(strings.Repeat(`{"not":`, 5000) + "{}" + strings.Repeat("}", 5000)), source.ReasonLimitExceeded, "nests deeper"},
		"schema nodes":       {"a schema of many nodes", schema(`{"enum":[` + strings.Repeat("[],", 500_000) + "1]}"), source.ReasonLimitExceeded, "nodes"},
		"schema doubling":    {"references that double", schema(doubling(40, "$defs")), source.ReasonLimitExceeded, "expand"},
		"schema doubling 2":  {"references that double", schema(doubling(40, "definitions")), source.ReasonLimitExceeded, "expand"},
		"schema chain":       {"references to references", schema(chain(10_000)), source.ReasonLimitExceeded, "lead to references"},
		"schema broken":      {"no JSON", schema(`{`), ReasonPackage, "no JSON"},
		"schema in sub":      {"a schema of a chart in it", tgz(t, with("charts/a.tgz", string(schema(`{"$ref":"file:///etc/passwd"}`)))), ReasonPackage, "charts/a.tgz.d/values.schema.json"},
	} {
		t.Run(name, func(t *testing.T) {
			peak := watchHeap()
			_, err := load(t, c.data)
			if grown := peak(); grown > 256<<20 {
				t.Errorf("%s: the heap grew by %d MiB", c.reason, grown>>20)
			}
			if err == nil {
				t.Fatalf("%s: no error", c.reason)
			}
			if got := source.ReasonOf(err); got != c.want || !strings.Contains(err.Error(), c.has) || strings.Contains(err.Error(), "s3cr3t") || len(err.Error()) > 2000 {
				t.Errorf("%s: %s: %.2000v, want reason %s with %q", c.reason, got, err, c.want, c.has)
			}
		})
	}
}

// laughs is a text that expands to ten to the power of n.
func laughs(n int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	return b.String()
}

// TestSchemas: schemas that people write are taken, and without them nothing is
// refused.
func TestSchemas(t *testing.T) {
	for name, schema := range map[string]string{
		"draft 7":   `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/definitions/a"}}}`,
		"2020":      `{"$schema":"https://json-schema.org/draft/2020-12/schema","$defs":{"a":{"$anchor":"b"}},"properties":{"x":{"$ref":"#b"}}}`,
		"id":        `{"$id":"https://example.com/chart.json","$defs":{"a":{"$id":"a.json"}},"properties":{"x":{"$ref":"a.json"},"y":{"$ref":"https://example.com/a.json"},"z":{"$ref":"#/$defs/a"}}}`,
		"recursive": `{"$defs":{"tree":{"type":"object","properties":{"left":{"$ref":"#/$defs/tree"},"right":{"$ref":"#/$defs/tree"}}}},"$ref":"#/$defs/tree"}`,
		"itself":    `{"properties":{"x":{"$ref":"#"}}}`,
		"urn":       `{"properties":{"x":{"$ref":"urn:example:x"}}}`,
		"boolean":   `true`,
		"invalid":   `{"type":"nothing"}`,
	} {
		if err := checkSchema([]byte(schema)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	remote := tgz(t, with("values.schema.json", `{"$ref":"https://example.com/x"}`, "charts/s/Chart.yaml", "apiVersion: v2\nname: s\nversion: 1.0.0\n", "charts/s/values.schema.json", "{}"))
	chart, err := load(t, remote, WithoutSchemas())
	if err != nil || chart.Schema != nil || chart.Dependencies()[0].Schema != nil {
		t.Errorf("Load() without schemas = %v, %v", chart, err)
	}
}

// TestLoadPacked: a chart may be the only file of a snapshot.
func TestLoadPacked(t *testing.T) {
	s, err := open(t, tgz(t, map[string]string{"c-1.0.0.tgz": string(tgz(t, with()))}))
	if err != nil {
		t.Fatal(err)
	}
	if chart, err := Load(t.Context(), s); err != nil || chart.Name() != "c" {
		t.Errorf("Load() = %v, %v", chart, err)
	}
	if about, err := Describe(t.Context(), s); err != nil || about != (About{Name: "c", Version: "1.0.0", AppVersion: "7"}) {
		t.Errorf("Describe() = %+v, %v", about, err)
	}
}

// TestLoadStops: a load ends with its context.
func TestLoadStops(t *testing.T) {
	s, err := open(t, tgz(t, with()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Load(ctx, s); err == nil {
		t.Error("Load() with a context that has ended is no error")
	}
}

// TestPackAgain: what is packed and loaded is the same chart, and packed in whatever
// order of files the same bytes.
func TestPackAgain(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		files := with()
		for range random.IntN(6) {
			n := random.IntN(4)
			name := fmt.Sprintf("charts/s%d", n)
			maps.Copy(files, map[string]string{
				"c/" + name + "/Chart.yaml":  fmt.Sprintf("apiVersion: v2\nname: n%d\nversion: %d.0.0\n", 3-n, random.IntN(3)),
				"c/" + name + "/values.yaml": fmt.Sprintf("a: %d\n", random.IntN(100)),
			})
		}
		var packs [][]byte
		for range 2 {
			var headers []tar.Header
			for _, name := range slices.Collect(maps.Keys(files)) {
				headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: files[name], Mode: 0o644})
			}
			_, read, err := untar(t.Context(), bytes.NewReader(tarball(t, headers...)), newBudget(DefaultFileMaxBytes), nil)
			if err != nil {
				t.Fatal(err)
			}
			chart, err := assemble(t.Context(), read, newBudget(DefaultFileMaxBytes), kept)
			if err != nil {
				t.Fatal(err)
			}
			data, err := pack(chart, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			packs = append(packs, data)
			again, err := loader.LoadArchive(bytes.NewReader(data))
			if err != nil || whole(again) != whole(chart) {
				t.Fatalf("%v, got\n%s\nwant\n%s", err, whole(again), whole(chart))
			}
		}
		if !bytes.Equal(packs[0], packs[1]) {
			t.Fatal("the same chart is other bytes")
		}
	}
}

// FuzzLoad: whatever a tarball has, loading it ends, and Helm takes what is taken.
func FuzzLoad(f *testing.F) {
	f.Add("c/Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n", "c/values.yaml", "a: 1\n", "c/charts/a.tgz", "x")
	f.Add("c/Chart.yaml", "name: c\nversion: 1.0.0\n", "c/requirements.yaml", "dependencies: [null]\n", "c/charts/s/Chart.yaml", "null")
	f.Add("c/Chart.yaml", "apiVersion: v2\nname: c\nversion: 1.0.0\n", "c/values.schema.json", `{"$ref":"#"}`, "c/Chart.lock", "dependencies: null\n")
	f.Fuzz(func(t *testing.T, a, aa, b, bb, c, cc string) {
		var headers []tar.Header
		for name, content := range map[string]string{a: aa, b: bb, c: cc} {
			if name == "" || strings.ContainsRune(name, 0) || strings.HasSuffix(name, "/") {
				return
			}
			headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: content, Mode: 0o644, Format: tar.FormatPAX})
		}
		for _, h := range headers {
			if !strings.HasPrefix(h.Name, "c/") {
				return
			}
		}
		data := tarball(t, headers...)
		chart, err := load(t, data)
		if err != nil {
			return
		}
		want, err := loader.LoadArchive(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("Helm refuses it: %v", err)
		}
		if chart.Name() != want.Name() || len(chart.Dependencies()) != len(want.Dependencies()) {
			t.Errorf("got %s, want %s", chart.Name(), want.Name())
		}
	})
}

// BenchmarkLoad: a chart of usual size, as each reconcile of a release loads it.
func BenchmarkLoad(b *testing.B) {
	files := with()
	for i := range 40 {
		files[fmt.Sprintf("c/templates/%d.yaml", i)] = strings.Repeat("kind: ConfigMap\n", 200)
	}
	files["c/values.yaml"] = strings.Repeat("# a comment\n", 100)
	for i := range 300 {
		files["c/values.yaml"] += fmt.Sprintf("key%d: {a: 1, b: [x, y], c: text}\n", i)
	}
	s, err := open(b, tgz(b, files))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(b.Context(), s); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNamesOfCharts: names take room as well, and a packaged chart of a few KB can have
// megabytes of them.
func TestNamesOfCharts(t *testing.T) {
	file := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Format: tar.FormatPAX}
	}
	var long, wide []tar.Header
	for i := range 10 {
		long = append(long, file(fmt.Sprintf("c/%d", i)+strings.Repeat("y", 1_000_000)))
	}
	for i := range 1000 {
		wide = append(wide, file(fmt.Sprintf("c/%d/", i)+strings.Repeat("x/", 90)+"f"))
	}
	for name, tc := range map[string]struct {
		reason  string
		headers []tar.Header
		fails   string
	}{
		"Deep":     {"each directory above a file is looked at", []tar.Header{file("c/" + strings.Repeat("x/", 500_000) + "f")}, "nest more than"},
		"Folders":  {"directories too", []tar.Header{{Typeflag: tar.TypeDir, Name: "c/" + strings.Repeat("x/", 500_000), Format: tar.FormatPAX}}, "nest more than"},
		"Long":     {"names of a megabyte", long, "names of the chart's files"},
		"Ordinary": {"many files in deep directories", wide, ""},
	} {
		t.Run(name, func(t *testing.T) {
			data := tarball(t, tc.headers...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := untar(t.Context(), bytes.NewReader(data), newBudget(DefaultFileMaxBytes), nil)
			runtime.ReadMemStats(&after)
			if (err == nil) != (tc.fails == "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s\nuntar() = %v, want %q", tc.reason, err, tc.fails)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 128<<20 {
				t.Errorf("%s\n%d bytes were allocated for %d", tc.reason, took, len(data))
			}
		})
	}
}
