package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// fluxArtifact is what source-controller stores of an index: Helm's reading of all
// of it, indented JSON.
func fluxArtifact(data []byte) ([]byte, error) {
	i := &repo.IndexFile{}
	var err error
	if json.Valid(data) {
		err = json.Unmarshal(data, i)
	} else {
		err = yaml.UnmarshalStrict(data, i)
	}
	if err != nil {
		return nil, err
	}
	if i.APIVersion == "" {
		return nil, repo.ErrNoAPIVersion
	}
	for name, versions := range i.Entries {
		i.Entries[name] = slices.DeleteFunc(versions, func(v *repo.ChartVersion) bool {
			if v == nil {
				return true
			}
			if v.Metadata == nil {
				v.Metadata = &helmchart.Metadata{}
			}
			if v.APIVersion == "" {
				v.APIVersion = helmchart.APIVersionV1
			}
			err := v.Validate()
			return err != nil && !strings.HasPrefix(err.Error(), "validation: more than one dependency with name or alias")
		})
	}
	i.SortEntries()
	return json.MarshalIndent(i, "", "  ")
}

func parseBytes(t testing.TB, data []byte) (*Index, error) {
	t.Helper()
	return parse(t.Context(), bytes.NewReader(data), int64(len(data)), "sha256:test", t.TempDir())
}

func artifactOf(t testing.TB, i *Index) []byte {
	t.Helper()
	data, err := io.ReadAll(i.Artifact())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// indexCases are indexes as they are in the wild, and such as are meant to do harm.
var indexCases = map[string]struct {
	reason string
	index  string
	// failed is set where Helm refuses the index too.
	failed bool
}{
	"helm": {
		reason: "the form of helm repo index, with text over many lines",
		index: `apiVersion: v1
entries:
  podinfo:
  - apiVersion: v2
    appVersion: 6.1.0
    created: "2022-06-01T10:00:00.123456789Z"
    description: 'a text: with # and

      an empty line'
    digest: 8a9b
    home: https://example.com/?a=1&b=<2>
    maintainers:
    - email: a@example.com
      name: a
    name: podinfo
    urls:
    - https://example.com/podinfo-6.1.0.tgz
    version: 6.1.0
  - apiVersion: v2
    created: "2022-06-02T10:00:00Z"
    name: podinfo
    urls:
    - charts/podinfo-6.2.0.tgz
    version: 6.2.0
  zeta:
  - name: zeta
    version: v1.0.0
    urls: [zeta.tgz]
generated: "2022-06-03T10:00:00Z"
`,
	},
	"indented lists, comments, CRLF": {
		reason: "other serializers indent lists and write comments",
		index: strings.ReplaceAll(`# made by hand
---
apiVersion: v1
serverInfo:
    contextPath: /v1
generated: 2022-06-03T10:00:00Z
entries:
    b:
        # the newest
        - name: b
          version: 0.2.0
          description: |+
              keeps its end

        - name: b
          # in between
          version: 0.1.0
          urls:
              - b.tgz
    "a":
        - name: a
          version: 1.0.0
publicKeys:
- one
- two
annotations: {x: "y"}
`, "\n", "\r\n"),
	},
	"lists in the column of the key": {
		reason: "YAML allows it",
		index:  "entries:\n a:\n - {name: a, version: 1.0.0}\n - {name: a, version: 2.0.0}\n b:\n -\n  name: b\n  version: 1.0.0\napiVersion: v1\n",
	},
	"null": {
		reason: "empty nodes are no panic (CVE-2024-26147, CVE-2025-55198)",
		index: `apiVersion: v1
entries:
  nothing:
  tilde: ~
  empty: []
  a:
  -
  - null
  - name: a
    version: 1.0.0
    maintainers: [null]
  - name: a
    version: 1.0.0
    dependencies: [null]
  - {}
  - name: a
    version: 1.0.0
`,
	},
	"invalid versions": {
		reason: "an entry that is not valid is left out",
		index: `apiVersion: v1
entries:
  a:
  - {name: a, version: not-a-version}
  - {name: a}
  - {name: ../../a, version: 1.0.0}
  - {name: "..", version: 1.0.0}
  - {version: 1.0.0}
  - {name: a, version: "1.2"}
  - {name: a, version: 1.0.0, dependencies: [{name: x}, {name: x}]}
`,
	},
	"equal versions": {
		reason: "the order of versions that differ in their metadata alone is Helm's",
		index: "apiVersion: v1\nentries:\n  a:\n" + func() string {
			var b strings.Builder
			for i := range 60 {
				fmt.Fprintf(&b, "  - {name: a, version: 1.%d.0+%d}\n", i%7, i)
			}
			return b.String()
		}(),
	},
	"no entries":       {reason: "an index may be empty", index: "apiVersion: v1\nentries:\n"},
	"empty entries":    {reason: "an index may be empty", index: "apiVersion: v1\nentries: {}\n"},
	"entries left out": {reason: "an index may be empty", index: "apiVersion: v1\n"},
	"flow":             {reason: "YAML in braces that is no JSON", index: "{apiVersion: v1, entries: {a: [{name: a, version: 1.0.0}]}}\n"},
	"flow in block":    {reason: "some of it in braces", index: "apiVersion: v1\nentries:\n  a: [{name: a, version: 1.0.0},\n{name: a, version: 1.1.0}]\n  b: {}\n", failed: true},
	"quotes to the left": {
		reason: "a text in quotes may go on at the left",
		index:  "apiVersion: v1\nentries:\n  a:\n  - name: a\n    version: 1.0.0\n    description: \"one\nentries:\n  two\"\n",
	},
	"brackets to the left": {
		reason: "a list in brackets may go on at the left",
		index:  "apiVersion: v1\nentries:\n  a:\n  - name: a\n    version: 1.0.0\n    keywords: [one,\n  - two]\n", failed: true,
	},
	"anchors between pieces": {
		reason: "an anchor of another version",
		index:  "apiVersion: v1\nentries:\n  a:\n  - name: a\n    version: 1.0.0\n    urls: &x [u]\n  - name: a\n    version: 1.1.0\n    urls: *x\n",
	},
	"json": {
		reason: "an index may be in JSON, with fields that nobody knows",
		index:  `{"apiVersion":"v1","unknown":{"x":[1]},"generated":"2022-06-03T10:00:00Z","Entries":{"b":null,"a":[{"name":"a","version":"1.0.0","more":1,"urls":["u"]},null,{"name":"a","version":"1.10.0"}],"e":[]},"annotations":{"z":"1","a":"2"},"serverInfo":{"b":1,"a":{"c":[]}}}`,
	},
	"json twice":         {reason: "of a name that is there twice the last counts", index: `{"apiVersion":"v1","entries":{"a":[{"name":"a","version":"1.0.0"}],"a":[{"name":"a","version":"2.0.0"}]}}`},
	"json null":          {reason: "an index may be empty", index: `{"apiVersion":"v1","entries":null}`},
	"no version":         {reason: "Helm asks for apiVersion", index: "entries: {}\n", failed: true},
	"empty":              {reason: "no index at all", index: "", failed: true},
	"html":               {reason: "a login page", index: "<!DOCTYPE html>\n<html><body>please log in</body></html>\n", failed: true},
	"unknown field":      {reason: "Helm reads YAML strictly", index: "apiVersion: v1\nentries:\n  a:\n  - {name: a, version: 1.0.0, odd: true}\n", failed: true},
	"name twice":         {reason: "Helm reads YAML strictly", index: "apiVersion: v1\nentries:\n  a:\n  - {name: a, version: 1.0.0}\n  a:\n  - {name: a, version: 1.0.0}\n", failed: true},
	"entries twice":      {reason: "Helm reads YAML strictly", index: "apiVersion: v1\nentries:\n  a:\n  - {name: a, version: 1.0.0}\nentries:\n  b: []\n", failed: true},
	"entries twice, {}":  {reason: "Helm reads YAML strictly", index: "apiVersion: v1\nentries: {}\nentries:\n  a:\n  - {name: a, version: 1.0.0}\n", failed: true},
	"entries is a list":  {reason: "no mapping", index: "apiVersion: v1\nentries:\n- a\n", failed: true},
	"versions no list":   {reason: "no list", index: "apiVersion: v1\nentries:\n  a:\n    name: a\n", failed: true},
	"json broken":        {reason: "the end is missing", index: `{"apiVersion":"v1","entries":{"a":[`, failed: true},
	"alias cycle":        {reason: "an alias that contains itself kills a process", index: "apiVersion: v1\nentries:\n  a:\n  - &a {name: a, version: 1.0.0, annotations: *a}\n", failed: true},
	"odd indentation":    {reason: "the second chart is in another column", index: "apiVersion: v1\nentries:\n   a: []\n  b: []\n", failed: true},
	"two documents":      {reason: "there is one index", index: "apiVersion: v1\nentries: {}\n---\napiVersion: v2\n"},
	"keys of other type": {reason: "names that YAML reads as numbers", index: "apiVersion: v1\nentries:\n  1:\n  - {name: \"1\", version: 1.0.0}\n  true:\n  - {name: \"true\", version: 1.0.0}\n"},
}

// TestIndexAsFlux: the artifact is Flux's, byte for byte, and what Helm refuses is
// refused.
func TestIndexAsFlux(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(indexCases)) {
		c := indexCases[name]
		t.Run(name, func(t *testing.T) {
			index, err := parseBytes(t, []byte(c.index))
			if c.failed {
				if err == nil {
					t.Fatalf("%s: no error", c.reason)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", c.reason, err)
			}
			want, err := fluxArtifact([]byte(c.index))
			if err != nil {
				t.Fatal(err)
			}
			if got := artifactOf(t, index); !bytes.Equal(got, want) {
				t.Errorf("%s: got\n%s\nwant\n%s", c.reason, got, want)
			}
		})
	}
}

// TestIndexInPieces: the usual forms are read in pieces, not as a whole.
func TestIndexInPieces(t *testing.T) {
	for _, name := range []string{"helm", "indented lists, comments, CRLF", "lists in the column of the key", "null", "equal versions", "no entries", "empty entries", "json"} {
		t.Run(name, func(t *testing.T) {
			data := indexCases[name].index
			b := &builder{ctx: t.Context(), charts: map[string]*listed{}}
			read := readYAML
			if data[0] == '{' {
				read = readJSON
			}
			if _, err := read(strings.NewReader(data), b); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestIndexReload: what is read again from the artifact is the same.
func TestIndexReload(t *testing.T) {
	index, err := parseBytes(t, []byte(indexCases["helm"].index))
	if err != nil {
		t.Fatal(err)
	}
	before := *index.charts.Load()
	index.charts.Store(nil)
	if _, _, err := index.versions(t.Context(), "podinfo"); err != nil {
		t.Fatal(err)
	}
	after := *index.charts.Load()
	if got, want := fmt.Sprint(after), fmt.Sprint(before); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := "6.2.0"; after["podinfo"][0].version != want {
		t.Errorf("the first version is %s, want %s", after["podinfo"][0].version, want)
	}
}

// TestIndexHostile: an index of the size that is allowed ends in bounded memory,
// whatever is in it.
func TestIndexHostile(t *testing.T) {
	const most = 25 << 20
	fill := func(begin, each, end string) func() []byte {
		return func() []byte {
			var b bytes.Buffer
			b.WriteString(begin)
			for b.Len() < most-len(each)-len(end) {
				b.WriteString(each)
			}
			b.WriteString(end)
			return b.Bytes()
		}
	}
	yamlHead, jsonHead := "apiVersion: v1\nentries:\n  a:\n", `{"apiVersion":"v1","entries":{"a":[`
	for name, c := range map[string]struct {
		reason string
		index  func() []byte
		// want is the reason of the error, empty for none.
		want string
	}{
		"versions":          {"more versions than anybody has", fill(yamlHead, "  - {name: a, version: 1.0.0}\n", ""), source.ReasonLimitExceeded},
		"large versions":    {"a usual index, if large", fill(yamlHead, "  - name: a\n    version: 1.0.0\n    description: "+strings.Repeat("x", 40_000)+"\n", ""), ""},
		"one line":          {"a line without end", fill(yamlHead, "x", ""), source.ReasonLimitExceeded},
		"one version":       {"a version without end", fill(yamlHead+"  - keywords:\n", "    - a\n", ""), source.ReasonLimitExceeded},
		"flow":              {"brackets without end", fill("[", "[],", "]"), source.ReasonLimitExceeded},
		"nested":            {"brackets that nest", fill(yamlHead+"  - keywords: ", "[", ""), source.ReasonLimitExceeded},
		"comments":          {"nothing but comments", fill("", "# comment\n", ""), source.ReasonLimitExceeded},
		"server info":       {"a part that is no chart", fill("apiVersion: v1\nserverInfo:\n", "  - {}\n", ""), source.ReasonLimitExceeded},
		"names twice":       {"the same name over and over", fill("apiVersion: v1\nentries:\n", "  ? a\n", ""), ReasonIndexation},
		"dense":             {"as many nodes as there is room for", fill(yamlHead, "  - "+"["+strings.Repeat("[],", 150_000)+"]\n", ""), ReasonIndexation},
		"json versions":     {"more versions than anybody has", fill(jsonHead, `{"name":"a","version":"1.0.0"},`, "{}]}}"), source.ReasonLimitExceeded},
		"json one version":  {"a version without end", fill(jsonHead+`{"keywords":[`, `"a",`, `"a"]}]}}`), source.ReasonLimitExceeded},
		"json server info":  {"a part that is no chart", fill(`{"serverInfo":{"a":[`, `[],`, `1]}}`), source.ReasonLimitExceeded},
		"json nested":       {"brackets that nest", fill(jsonHead, "[", ""), ReasonIndexation},
		"json empty parts":  {"parts that nobody knows", fill(`{`, `"a":1,`, `"b":1}`), source.ReasonLimitExceeded},
		"json small pieces": {"a list of nothing", fill(jsonHead, `{},`, `{}]}}`), source.ReasonLimitExceeded},
		"null":              {"a list of nothing", fill(yamlHead, "  -\n", ""), source.ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "index.yaml")
			data := c.index()
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			size := int64(len(data))
			data = nil
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			peak := watchHeap()
			_, err = parse(t.Context(), f, size, "sha256:test", t.TempDir())
			grown := peak()
			t.Logf("%s: the heap grew by %d MiB: %.200v", c.reason, grown>>20, err)
			if grown > 128<<20 {
				t.Errorf("%s: the heap grew by %d MiB", c.reason, grown>>20)
			}
			got := ""
			if err != nil {
				got = source.ReasonOf(wrapIndex(err))
			}
			if got != c.want {
				t.Errorf("%s: reason %q, want %q: %.300v", c.reason, got, c.want, err)
			}
		})
	}
}

// watchHeap returns a function that tells by how much the heap grew at most.
func watchHeap() func() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		var top uint64
		// Each look stops all that is watched.
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			top = max(top, m.HeapAlloc)
			select {
			case <-stop:
				done <- top
				return
			case <-look.C:
			}
		}
	}()
	return func() int64 {
		close(stop)
		return int64(<-done) - int64(before)
	}
}

// FuzzIndex: what is read in pieces is what Helm reads of the whole.
func FuzzIndex(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(indexCases)) {
		f.Add([]byte(indexCases[name].index))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		index, err := parseBytes(t, data)
		want, wantErr := []byte(nil), errors.New("not tried")
		if err == nil {
			want, wantErr = fluxArtifact(data)
		}
		if err != nil {
			return // a guard may refuse what Helm takes
		}
		defer index.file.Close()
		if wantErr != nil {
			t.Fatalf("Helm refuses it: %v", wantErr)
		}
		if got := artifactOf(t, index); !bytes.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}
