package chart

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/source"
)

func user(name string) source.Key {
	return source.Key{Kind: "HelmChart", NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

// tgz packs files, sorted by name.
func tgz(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var headers []tar.Header
	for _, name := range slices.Sorted(maps.Keys(files)) {
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])), Mode: 0o644, Linkname: files[name]})
	}
	return tarball(t, headers...)
}

// tarball packs entries; the content of a file is in Linkname.
func tarball(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// chartFiles are those of a small chart, in a directory.
func chartFiles(dir, name, version string, more ...string) map[string]string {
	files := map[string]string{
		dir + "/Chart.yaml":          "apiVersion: v2\nname: " + name + "\nversion: " + version + "\nappVersion: \"7\"\n",
		dir + "/values.yaml":         "replicas: 1\nimage: {name: a, tag: b}\n",
		dir + "/templates/a.yaml":    "kind: ConfigMap\n",
		dir + "/values-prod.yaml":    "replicas: 3\nimage: {tag: c}\n",
		dir + "/values.schema.json":  `{"type":"object"}`,
		dir + "/crds/crd.yaml":       "kind: CustomResourceDefinition\n",
		dir + "/templates/NOTES.txt": "hello\n",
	}
	for i := 0; i+1 < len(more); i += 2 {
		files[dir+"/"+more[i]] = more[i+1]
	}
	return files
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

// repository is a Helm repository with counters.
type repository struct {
	*httptest.Server
	mu     sync.Mutex
	files  map[string][]byte
	counts map[string]int
	auth   map[string]string
	// handle answers in place of the files if it returns true.
	handle func(w http.ResponseWriter, r *http.Request) bool
}

func startRepository(t testing.TB) *repository {
	s := &repository{files: map[string][]byte{}, counts: map[string]int{}, auth: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		name := strings.TrimPrefix(r.URL.Path, "/")
		s.counts[name]++
		s.auth[name] = r.Header.Get("Authorization")
		data, ok := s.files[name]
		handle := s.handle
		s.mu.Unlock()
		if handle != nil && handle(w, r) {
			return
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		etag := `"` + sum(data) + `"`
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			s.mu.Lock()
			s.counts["304"]++
			s.mu.Unlock()
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(data)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *repository) put(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = data
}

func (s *repository) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[name]
}

// add puts charts into the repository and its index.
func (s *repository) add(t testing.TB, charts ...map[string]string) {
	t.Helper()
	s.mu.Lock()
	var entries map[string][]map[string]any
	if old, ok := s.files["index.yaml"]; ok {
		var index struct {
			Entries map[string][]map[string]any `json:"entries"`
		}
		if err := json.Unmarshal(old, &index); err != nil {
			t.Fatal(err)
		}
		entries = index.Entries
	}
	if entries == nil {
		entries = map[string][]map[string]any{}
	}
	for _, files := range charts {
		data := tgz(t, files)
		m, err := metadataOf(func(name string) ([]byte, error) {
			for file, content := range files {
				if _, below, _ := strings.Cut(file, "/"); below == name {
					return []byte(content), nil
				}
			}
			return nil, fs.ErrNotExist
		})
		if err != nil {
			t.Fatal(err)
		}
		file := "charts/" + m.Name + "-" + m.Version + ".tgz"
		s.files[file] = data
		entries[m.Name] = append(entries[m.Name], map[string]any{"name": m.Name, "version": m.Version, "apiVersion": "v2", "urls": []string{file}, "digest": sum(data)})
	}
	index, err := json.Marshal(map[string]any{"apiVersion": "v1", "entries": entries})
	if err != nil {
		t.Fatal(err)
	}
	s.files["index.yaml"] = index
	s.mu.Unlock()
}

func newCharts(t testing.TB) *Charts {
	indexes := NewIndexes(t.TempDir(), DefaultIndexMaxBytes, DefaultIndexCacheBytes)
	return NewCharts(indexes, t.TempDir(), Limits{Chart: DefaultChartMaxBytes, File: DefaultFileMaxBytes})
}

// TestOneDownload: however many objects name one chart of one repository, the index is
// fetched and parsed once, and the chart fetched once.
func TestOneDownload(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("podinfo", "podinfo", "6.1.0"), chartFiles("podinfo", "podinfo", "6.2.0"))
	charts := newCharts(t)
	repo := Repository{URL: server.URL}
	const objects = 300
	builds := make([]*Build, objects)
	all := func(f func(i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		failed := make(chan error, objects)
		for i := range objects {
			wg.Go(func() { failed <- f(i) })
		}
		wg.Wait()
		close(failed)
		for err := range failed {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	spec := func(i int) Spec {
		return Spec{User: user(fmt.Sprint(i)), Chart: "podinfo", Version: "6.x", Last: builds[i]}
	}
	round := func() {
		all(func(i int) (err error) {
			builds[i], err = charts.FromRepository(t.Context(), repo, spec(i), nil)
			return err
		})
	}
	round()
	for i, b := range builds {
		if b.Version != "6.2.0" || b.Snapshot != builds[0].Snapshot {
			t.Fatalf("build %d is %+v, want the snapshot of the others", i, b)
		}
	}
	if want := (IndexCounts{Requests: 1, Downloads: 1, Parses: 1}); charts.indexes.Counts() != want {
		t.Errorf("indexes did %+v, want %+v", charts.indexes.Counts(), want)
	}
	if want := (ChartCounts{Downloads: 1}); charts.Counts() != want {
		t.Errorf("charts did %+v, want %+v", charts.Counts(), want)
	}
	round()
	if got := server.count("index.yaml") + server.count("charts/podinfo-6.2.0.tgz"); got != 2 {
		t.Errorf("%d requests, want 2: nothing changed", got)
	}
	// The same index again, and then another one.
	for _, u := range []string{"a", "b"} {
		if _, err := charts.indexes.Fetch(t.Context(), user(u), repo); err != nil {
			t.Fatal(err)
		}
	}
	if got := server.count("304"); got != 2 {
		t.Errorf("%d answers 304, want 2", got)
	}
	server.add(t, chartFiles("podinfo", "podinfo", "6.3.0"))
	if _, err := charts.indexes.Fetch(t.Context(), user("a"), repo); err != nil {
		t.Fatal(err)
	}
	round()
	if b := builds[objects-1]; b.Version != "6.3.0" || b.Snapshot != builds[0].Snapshot {
		t.Errorf("build %+v, want 6.3.0", b)
	}
	if want := (IndexCounts{Requests: 4, Downloads: 2, Parses: 2}); charts.indexes.Counts() != want {
		t.Errorf("indexes did %+v, want %+v", charts.indexes.Counts(), want)
	}
	for i := range objects {
		charts.Forget(user(fmt.Sprint(i)))
	}
	charts.Forget(user("a"))
	charts.Forget(user("b"))
	if n := len(charts.indexes.shared) + len(charts.indexes.users); n != 0 {
		t.Errorf("%d things are kept for nobody", n)
	}
}

// TestIndexCache: above the limit an index is read from its file again, not from the
// server.
func TestIndexCache(t *testing.T) {
	x := NewIndexes(t.TempDir(), DefaultIndexMaxBytes, 1)
	charts := NewCharts(x, t.TempDir(), Limits{Chart: DefaultChartMaxBytes, File: DefaultFileMaxBytes})
	servers := map[string]*repository{}
	for _, name := range []string{"a", "b"} {
		servers[name] = startRepository(t)
		servers[name].add(t, chartFiles(name, name, "1.0.0"))
	}
	for range 3 {
		for _, name := range []string{"a", "b"} {
			if _, err := charts.FromRepository(t.Context(), Repository{URL: servers[name].URL}, Spec{User: user(name), Chart: name}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := x.Counts()
	if c.Requests != 2 || c.Parses != 2 || c.Reloads < 4 {
		t.Errorf("indexes did %+v, want 2 requests, 2 parses and the rest from files", c)
	}
}

// TestFromRepository: versions, revisions and reasons are Flux's.
func TestFromRepository(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("podinfo", "podinfo", "6.1.0"), chartFiles("podinfo", "podinfo", "6.2.0-rc.1"), chartFiles("podinfo", "podinfo", "6.1.0+build.2"), chartFiles("podinfo", "podinfo", "v5.0.0"),
		chartFiles("broken", "broken", "1.0.0"), chartFiles("gone", "gone", "1.0.0"), chartFiles("large", "large", "1.0.0"), chartFiles("none", "none", "1.0.0"))
	delete(server.files, "charts/gone-1.0.0.tgz")
	server.files["charts/broken-1.0.0.tgz"] = append(server.files["charts/broken-1.0.0.tgz"], 0)
	server.files["charts/large-1.0.0.tgz"] = make([]byte, 1<<20)
	server.files["index.yaml"] = bytes.ReplaceAll(server.files["index.yaml"], []byte(`"charts/none-1.0.0.tgz"`), nil)
	charts := newCharts(t)
	charts.limits.Chart = 1<<20 - 1
	for name, c := range map[string]struct {
		reason string
		spec   Spec
		want   string // version, or the reason of the error
		has    string // in the summary or the error
	}{
		"newest":        {"no version is the newest that is no prerelease", Spec{Chart: "podinfo"}, "6.1.0+build.2", "pulled 'podinfo' chart with version '6.1.0+build.2'"},
		"star":          {"neither is a star", Spec{Chart: "podinfo", Version: "*"}, "6.1.0+build.2", ""},
		"exact":         {"the very same string comes first", Spec{Chart: "podinfo", Version: "6.1.0"}, "6.1.0", ""},
		"prerelease":    {"a range that names prereleases", Spec{Chart: "podinfo", Version: ">=6.0.0-0"}, "6.2.0-rc.1", ""},
		"with v":        {"a version may have a v before it", Spec{Chart: "podinfo", Version: "5.0.0"}, "v5.0.0", ""},
		"range":         {"the newest in a range", Spec{Chart: "podinfo", Version: "<6"}, "v5.0.0", ""},
		"values":        {"the generation is in the version", Spec{Chart: "podinfo", Version: "6.1.0", Generation: 4, ValuesFiles: []string{"values.yaml", "values-prod.yaml"}}, "6.1.0+4", "packaged 'podinfo' chart with version '6.1.0+4' and merged values files [values.yaml values-prod.yaml]"},
		"default":       {"the default values alone are no change", Spec{Chart: "podinfo", Version: "6.1.0", Generation: 4, ValuesFiles: []string{"./values.yaml"}}, "6.1.0", "pulled"},
		"missing":       {"a values file has to be there", Spec{Chart: "podinfo", ValuesFiles: []string{"no.yaml"}}, ReasonValues, "values files merge error: no values file found at path 'no.yaml'"},
		"ignored":       {"or not", Spec{Chart: "podinfo", Version: "6.1.0", Generation: 1, IgnoreMissingValues: true, ValuesFiles: []string{"no.yaml", "values-prod.yaml"}}, "6.1.0+1", "merged values files [values-prod.yaml]"},
		"outside":       {"values files are in the chart", Spec{Chart: "podinfo", ValuesFiles: []string{"../../etc/passwd"}}, ReasonValues, "no values file found"},
		"no chart":      {"a name that nobody has", Spec{Chart: "nobody"}, ReasonReference, "invalid chart reference: Helm repository " + server.URL + "/ has no chart 'nobody'"},
		"no match":      {"a range that nothing is in", Spec{Chart: "podinfo", Version: ">99"}, ReasonReference, "no 'podinfo' chart with version matching '>99' found"},
		"no range":      {"what is no range", Spec{Chart: "podinfo", Version: "latest!"}, ReasonReference, "cannot read version 'latest!'"},
		"no name":       {"a name is needed", Spec{}, ReasonReference, "no name set"},
		"invalid name":  {"a name is no path", Spec{Chart: "../podinfo"}, ReasonReference, "invalid chart name"},
		"other content": {"the digest of the index counts", Spec{Chart: "broken"}, ReasonPull, "its digest is"},
		"not found":     {"the file is gone", Spec{Chart: "gone"}, ReasonPull, "/charts/gone-1.0.0.tgz: the server answered 404 Not Found"},
		"too large":     {"a chart is limited", Spec{Chart: "large"}, source.ReasonLimitExceeded, "--helm-chart-max-size"},
		"no URL":        {"an entry without a URL", Spec{Chart: "none"}, ReasonPull, "has no downloadable URLs"},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.User = user(name)
			build, err := charts.FromRepository(t.Context(), Repository{URL: server.URL}, c.spec, nil)
			got, text := "", ""
			if err != nil {
				got, text = source.ReasonOf(err), err.Error()
			} else {
				got, text = build.Version, build.Summary()
				if about, err := Describe(t.Context(), build.Snapshot); err != nil || about.Name != c.spec.Chart || build.Packaged && about.Version != build.Version {
					t.Errorf("%s: the chart is %+v, %v", c.reason, about, err)
				}
				if build.Snapshot.Revision != build.Version || build.Snapshot.File != c.spec.Chart+"-"+build.Version+".tgz" {
					t.Errorf("%s: snapshot %s in %s", c.reason, build.Snapshot.Revision, build.Snapshot.File)
				}
			}
			if got != c.want || !strings.Contains(text, c.has) {
				t.Errorf("%s: got %q, want %q with %q in %q", c.reason, got, c.want, c.has, text)
			}
		})
	}
}

// TestValuesFiles: the later file is over the earlier one, and what is packaged twice is
// the same file.
func TestValuesFiles(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("podinfo", "podinfo", "6.1.0"))
	var digests []string
	for range 2 {
		build, err := newCharts(t).FromRepository(t.Context(), Repository{URL: server.URL}, Spec{User: user("a"), Chart: "podinfo", Generation: 2, ValuesFiles: []string{"values.yaml", "values-prod.yaml"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		chart, err := Load(t.Context(), build.Snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]any{"replicas": 3.0, "image": map[string]any{"name": "a", "tag": "c"}}, chart.Values); diff != "" {
			t.Errorf("-want, +got:\n%s", diff)
		}
		if len(chart.Schema) == 0 {
			t.Error("the schema is lost")
		}
		digests = append(digests, build.Snapshot.Digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %v, want the same", digests)
	}
}

// TestCredentials: a credential goes to the repository's own server, and to others only
// if that is wanted; never after a redirect (CVE-2021-32690).
func TestCredentials(t *testing.T) {
	own, other := startRepository(t), startRepository(t)
	chart := tgz(t, chartFiles("a", "a", "1.0.0"))
	other.put("a.tgz", chart)
	own.put("index.yaml", fmt.Appendf(nil, `{"apiVersion":"v1","entries":{
		"own":[{"name":"own","version":"1.0.0","urls":["a.tgz"]}],
		"other":[{"name":"other","version":"1.0.0","urls":[%q]}],
		"redirected":[{"name":"redirected","version":"1.0.0","urls":["to-other"]}],
		"loop":[{"name":"loop","version":"1.0.0","urls":["loop"]}],
		"file":[{"name":"file","version":"1.0.0","urls":["file:///etc/passwd"]}],
		"secret":[{"name":"secret","version":"1.0.0","urls":["gone.tgz?token=s3cr3t"]}]}}`, other.URL+"/a.tgz"))
	own.put("a.tgz", chart)
	own.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user+":"+password != "me:pa55" && user+":"+password != "s3cr3t:" {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		switch r.URL.Path {
		case "/to-other":
			http.Redirect(w, r, other.URL+"/a.tgz", http.StatusFound)
			return true
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
			return true
		}
		return false
	}
	secret := map[string][]byte{"username": []byte("me"), "password": []byte("pa55")}
	for name, c := range map[string]struct {
		reason string
		chart  string
		repo   Repository
		want   string // reason of the error
		sent   bool   // to the other server
		user   *url.Userinfo
	}{
		"own":           {"the repository itself", "own", Repository{Secret: secret}, "", false, nil},
		"none":          {"the server asks for a credential", "own", Repository{}, source.ReasonAuthenticationFailed, false, nil},
		"wrong":         {"the server refuses the credential", "own", Repository{Secret: map[string][]byte{"username": []byte("me"), "password": []byte("no")}}, source.ReasonAuthenticationFailed, false, nil},
		"half":          {"a user without a password", "own", Repository{Secret: map[string][]byte{"username": []byte("me")}}, source.ReasonAuthenticationFailed, false, nil},
		"other":         {"a chart at another server", "other", Repository{Secret: secret}, "", false, nil},
		"passed":        {"the same where that is wanted", "other", Repository{Secret: secret, PassCredentials: true}, "", true, nil},
		"redirected":    {"another server by a redirect", "redirected", Repository{Secret: secret}, "", false, nil},
		"redirected on": {"that is not what was wanted", "redirected", Repository{Secret: secret, PassCredentials: true}, "", false, nil},
		"loop":          {"redirects without end", "loop", Repository{Secret: secret}, ReasonPull, false, nil},
		"file":          {"a file of the host", "file", Repository{Secret: secret}, ReasonPull, false, nil},
		"query":         {"the query of a URL may be secret", "secret", Repository{Secret: secret}, ReasonPull, false, nil},
		"in URL":        {"Helm takes a login from the URL", "own", Repository{}, "", false, url.UserPassword("me", "pa55")},
		"wrong in URL":  {"the message does not show it", "own", Repository{}, source.ReasonAuthenticationFailed, false, url.UserPassword("pa55", "s3cr3t")},
		"user in URL":   {"a token may be the user", "own", Repository{}, "", false, url.User("s3cr3t")},
		"both":          {"what the Secret has comes first", "own", Repository{Secret: secret}, "", false, url.UserPassword("me", "s3cr3t")},
		"other, in URL": {"a chart at another server", "other", Repository{PassCredentials: true}, "", false, url.UserPassword("me", "pa55")},
	} {
		t.Run(name, func(t *testing.T) {
			other.mu.Lock()
			other.auth["a.tgz"] = ""
			other.mu.Unlock()
			at, _ := url.Parse(own.URL)
			at.User = c.user
			c.repo.URL = at.String()
			_, err := newCharts(t).FromRepository(t.Context(), c.repo, Spec{User: user(name), Chart: c.chart}, nil)
			got := ""
			if err != nil {
				got = source.ReasonOf(err)
				if strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "pa55") {
					t.Errorf("%s: %v", c.reason, err)
				}
			}
			if got != c.want {
				t.Errorf("%s: reason %q, want %q: %v", c.reason, got, c.want, err)
			}
			other.mu.Lock()
			defer other.mu.Unlock()
			if sent := other.auth["a.tgz"] != ""; sent != c.sent {
				t.Errorf("%s: the other server got %q", c.reason, other.auth["a.tgz"])
			}
		})
	}
}

// TestSlowIndex: a server may take for its answer what spec.timeout leaves it, as one that makes its
// index when it is asked.
func TestSlowIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers sync.WaitGroup
		defer servers.Wait()
		at := &url.URL{Scheme: "http", Host: "slow"}
		client, err := Repository{}.client(at)
		if err != nil {
			t.Fatal(err)
		}
		client.Transport.(*credentialed).home.DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			servers.Go(func() {
				defer far.Close()
				if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
					return
				}
				time.Sleep(4 * time.Minute)
				_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			})
			return near, nil
		}
		for timeout, want := range map[time.Duration]error{5 * time.Minute: nil, 3 * time.Minute: context.DeadlineExceeded} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			res, err := get(ctx, client, indexURL(at), nil)
			if !errors.Is(err, want) {
				t.Errorf("an index after 4 minutes within %s: %v, want %v", timeout, err, want)
			}
			if err == nil {
				_ = res.Body.Close()
			}
		}
	})
}

// TestPatience: who gives up after the usual time waits for nobody who has longer.
func TestPatience(t *testing.T) {
	usual, long := Repository{URL: "https://h/x", Timeout: time.Minute}, Repository{URL: "https://h/x", Timeout: time.Hour}
	if usual.key() != (Repository{URL: usual.URL}).key() {
		t.Error("the usual timeout is another repository")
	}
	if usual.key() == long.key() {
		t.Error("an index of a minute waits for one of an hour")
	}
}

// TestFetchIndex: what is wrong with a repository has a reason, and leaves the last
// index as it was.
func TestFetchIndex(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("a", "a", "1.0.0"))
	good := server.files["index.yaml"]
	x := NewIndexes(t.TempDir(), 1<<20, DefaultIndexCacheBytes)
	first, err := x.Fetch(t.Context(), user("u"), Repository{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	if want := "sha256:" + sum(good); first.Revision != want || first.File() != "index-"+sum(good)+".yaml" {
		t.Errorf("revision %s in %s, want %s", first.Revision, first.File(), want)
	}
	if data := artifactOf(t, first); first.Digest != "sha256:"+sum(data) || first.Size != int64(len(data)) {
		t.Errorf("artifact %s of %d bytes is not what it says", first.Digest, first.Size)
	}
	for name, c := range map[string]struct {
		reason string
		url    string
		index  []byte
		handle func(w http.ResponseWriter, r *http.Request) bool
		want   string
	}{
		"gone":   {"nothing there", "/nowhere", nil, nil, ReasonFailed},
		"broken": {"what is no index", "", []byte("<html>"), nil, ReasonIndexation},
		"large":  {"an index is limited", "", bytes.Repeat([]byte("#\n"), 1<<20), nil, source.ReasonLimitExceeded},
		"bomb": {"also where it is compressed", "", nil, func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Encoding", "gzip")
			gz := gzip.NewWriter(w)
			_, _ = gz.Write(bytes.Repeat([]byte("#\n"), 1<<20))
			_ = gz.Close()
			return true
		}, source.ReasonLimitExceeded},
		"cut off": {"the connection ends early", "", nil, func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "apiVersion: v1\n")
			return true
		}, ReasonFailed},
		"refused":    {"the server fails", "", nil, func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(500); return true }, ReasonFailed},
		"not asked":  {"304 to who did not ask", "/fresh", nil, func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(304); return true }, ReasonFailed},
		"no host":    {"a URL without a host", "http:///charts", nil, nil, source.ReasonURLInvalid},
		"scheme":     {"a scheme that is none of a repository", "ftp://example.com", nil, nil, source.ReasonURLInvalid},
		"registry":   {"a registry has no index", "oci://example.com/charts", nil, nil, source.ReasonURLInvalid},
		"unreadable": {"no URL at all", "http://a b%zz", nil, nil, source.ReasonURLInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			server.mu.Lock()
			server.handle = c.handle
			if server.files["index.yaml"] = good; c.index != nil {
				server.files["index.yaml"] = c.index
			}
			server.mu.Unlock()
			at := c.url
			if !strings.Contains(at, ":") {
				at = server.URL + at
			}
			_, err := x.Fetch(t.Context(), user(name), Repository{URL: at})
			if err == nil || source.ReasonOf(err) != c.want || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("%s: %v, want reason %s", c.reason, err, c.want)
			}
		})
	}
	server.handle = nil
	server.put("index.yaml", good)
	if again, err := x.Fetch(t.Context(), user("u"), Repository{URL: server.URL}); err != nil || again != first {
		t.Errorf("Fetch() = %p, %v, want %p", again, err, first)
	}
}

// TestRefusedIndex: an index that was refused is not parsed again, nor transferred again
// if the server can tell; a better one is taken.
func TestRefusedIndex(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("a", "a", "1.0.0"))
	good := server.files["index.yaml"]
	server.put("index.yaml", []byte("<html>"))
	x := NewIndexes(t.TempDir(), DefaultIndexMaxBytes, DefaultIndexCacheBytes)
	for range 3 {
		if _, err := x.Fetch(t.Context(), user("a"), Repository{URL: server.URL}); err == nil || source.ReasonOf(err) != ReasonIndexation {
			t.Errorf("Fetch() = %v, want reason %s", err, ReasonIndexation)
		}
	}
	if want := (IndexCounts{Requests: 3, Downloads: 1, Parses: 1}); x.Counts() != want {
		t.Errorf("indexes did %+v, want %+v", x.Counts(), want)
	}
	server.handle = func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, "<html>") // without an ETag
		return true
	}
	for range 2 {
		if _, err := x.Fetch(t.Context(), user("a"), Repository{URL: server.URL}); err == nil {
			t.Error("no error")
		}
	}
	if want := (IndexCounts{Requests: 5, Downloads: 3, Parses: 1}); x.Counts() != want {
		t.Errorf("indexes did %+v, want %+v", x.Counts(), want)
	}
	server.handle = nil
	server.put("index.yaml", good)
	first, err := x.Fetch(t.Context(), user("a"), Repository{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	// A bad one leaves the good one, which is taken up when it is there again.
	server.put("index.yaml", []byte("<html>"))
	if _, err := x.Fetch(t.Context(), user("a"), Repository{URL: server.URL}); err == nil {
		t.Error("no error")
	}
	server.put("index.yaml", good)
	if again, err := x.Fetch(t.Context(), user("a"), Repository{URL: server.URL}); err != nil || again != first {
		t.Errorf("Fetch() = %p, %v, want %p", again, err, first)
	}
	if want := (IndexCounts{Requests: 8, Downloads: 6, Parses: 3}); x.Counts() != want {
		t.Errorf("indexes did %+v, want %+v", x.Counts(), want)
	}
}

// TestOtherIndex: a server that has another index than the one that is looked for is not asked by each who looks.
func TestOtherIndex(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("a", "a", "1.0.0"))
	first := "sha256:" + sum(server.files["index.yaml"])
	x := NewIndexes(t.TempDir(), DefaultIndexMaxBytes, DefaultIndexCacheBytes)
	s, err := x.use(user("a"), Repository{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	looks := func(reason, revision string, held bool, want error, requests int64) {
		t.Helper()
		index, err := x.get(t.Context(), s, Repository{URL: server.URL, Revision: revision, Held: held})
		if !errors.Is(err, want) || want == nil && index.Revision != revision || x.Counts().Requests != requests {
			t.Errorf("%s: %v after %d requests, want %v after %d", reason, err, x.Counts().Requests, want, requests)
		}
	}
	looks("nothing is known", "gone", false, ErrOtherIndex, 1)
	looks("it has answered", "gone", false, ErrOtherIndex, 1)
	looks("it was not asked for this one", "gone too", false, ErrOtherIndex, 2)
	looks("it has answered for both", "gone", false, ErrOtherIndex, 2)
	looks("this one is known", first, false, nil, 2)
	s.others["gone"] = time.Now().Add(-AskAgain)
	looks("nothing newer is wanted", "gone", true, ErrOtherIndex, 2)
	looks("it may have it by now", "gone", false, ErrOtherIndex, 3)
	server.handle = func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	s.others["gone"] = time.Now().Add(-AskAgain)
	looks("what it has answered stands", "gone", false, ErrOtherIndex, 4)
	looks("nobody has to wait for it again", "gone", false, ErrOtherIndex, 4)
	looks("nobody knows whether it has this one", "new", false, ErrNoAnswer, 5)
	looks("nor later", "new", true, ErrNoAnswer, 6)
	server.handle = nil
	server.add(t, chartFiles("a", "a", "2.0.0"))
	looks("it answers, and has it", "sha256:"+sum(server.files["index.yaml"]), false, nil, 7)
	looks("that it has no more", first, false, ErrOtherIndex, 7)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// atEnd is a body after whose end something happens.
type atEnd struct {
	io.ReadCloser
	do func()
}

func (a atEnd) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF {
		a.do()
	}
	return n, err
}

// TestIndexWithoutDisk: what has nothing to do with the index is not held against it.
func TestIndexWithoutDisk(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("a", "a", "1.0.0"))
	dir := filepath.Join(t.TempDir(), "indexes")
	x := NewIndexes(dir, DefaultIndexMaxBytes, DefaultIndexCacheBytes)
	repository := Repository{URL: server.URL}
	s, err := x.use(user("a"), repository)
	if err != nil {
		t.Fatal(err)
	}
	full := true
	transport := s.client.Transport
	s.client.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		res, err := transport.RoundTrip(r)
		if err == nil && full {
			// Once the index is received, there is no place for anything else.
			res.Body = atEnd{res.Body, func() {
				if os.RemoveAll(dir) != nil || os.WriteFile(dir, nil, 0o600) != nil {
					t.Error("the directory is still there")
				}
			}}
		}
		return res, err
	})
	if _, err := x.Fetch(t.Context(), user("a"), repository); err == nil || source.ReasonOf(err) != ReasonFailed {
		t.Errorf("Fetch() = %v, want reason %s", err, ReasonFailed)
	}
	full = false
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Fetch(t.Context(), user("a"), repository); err != nil {
		t.Errorf("there is room again, and Fetch() = %v", err)
	}
}

// TestCompressedIndex: an index may be compressed for the way.
func TestCompressedIndex(t *testing.T) {
	server := startRepository(t)
	server.add(t, chartFiles("a", "a", "1.0.0"))
	data := server.files["index.yaml"]
	server.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			t.Error("the server was not asked to compress")
		}
		w.Header().Set("Content-Encoding", "gzip")
		gz := gzip.NewWriter(w)
		_, _ = gz.Write(data)
		_ = gz.Close()
		return true
	}
	index, err := NewIndexes(t.TempDir(), DefaultIndexMaxBytes, DefaultIndexCacheBytes).Fetch(t.Context(), user("a"), Repository{URL: server.URL})
	if err != nil || index.Revision != "sha256:"+sum(data) {
		t.Errorf("Fetch() = %+v, %v", index, err)
	}
}
