package safety

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// memoryBound is the most that the agent may come to while it is served hostile
// charts and indexes, with the race detector, which takes several times what the
// agent takes without.
const memoryBound = 1 << 30

// TestHostileCharts: charts, indexes and registries of somebody who means harm. Each
// ends as a named reason on the object that named it, within bounds of memory; a
// release that has nothing to do with it is upgraded meanwhile.
func TestHostileCharts(t *testing.T) {
	scenario.Alongside(t)
	h := &hostileOrigins{scenario.StartHelmTier(t)}
	pid := h.MoM.Agent()
	if pid == 0 {
		t.Fatal("the agent has no process")
	}
	good := h.Row(t)
	good.Release(t, "good", "{}")
	good.Released(t, "good", 1)
	for _, part := range []struct {
		name string
		run  func(*hostileOrigins, *testing.T)
	}{
		{"Archives", (*hostileOrigins).hostileArchives},
		{"Charts", (*hostileOrigins).hostileCharts},
		{"Paths", (*hostileOrigins).hostilePaths},
		{"Index", (*hostileOrigins).hostileIndex},
		{"Redirects", (*hostileOrigins).hostileRedirects},
		{"Artifacts", (*hostileOrigins).hostileArtifacts},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Cleanup(func() {
				if got := h.MoM.Agent(); got != pid {
					t.Errorf("the agent was process %d and is %d", pid, got)
				}
			})
			part.run(h, t)
		})
		version := len(good.Storage(t, good.Namespace, "good")) + 1
		good.Release(t, "good", fmt.Sprintf("{maxHistory: 0, values: {settings: {color: c%d}}}", version))
		good.Released(t, "good", version)
	}
	peak, err := peakMemory(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the agent's peak is %d MB", peak>>20)
	if peak > memoryBound {
		t.Errorf("the agent came to %d MB, at most %d are allowed", peak>>20, memoryBound>>20)
	}
}

// hostileOrigins is a tier, and the servers that mean harm.
type hostileOrigins struct{ *scenario.HelmTier }

// peakMemory of a process, in bytes.
func peakMemory(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	kB, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	return kB << 10, err
}

// refuses waits until an object says that it failed, and why.
func refuses(t *testing.T, r *scenario.HelmRow, o scenario.Reporter, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%T %s is refused", o, name), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.GetConditions(), "Ready")
		if c == nil || c.Status != "False" || c.Reason == "" || c.Message == "" {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.GetConditions()))
		}
		for _, passing := range []string{"has not been reconciled", "does not have an artifact", "HelmChart.source.toolkit.fluxcd.io", "Source artifact not found", "no artifact available"} {
			if strings.Contains(c.Message, passing) {
				return fmt.Errorf("conditions are %s", scenario.Summary(o.GetConditions()))
			}
		}
		for _, secret := range []string{"root:x:", "hunter2", "panic", "goroutine"} {
			if strings.Contains(c.Message, secret) {
				t.Errorf("%s: the message has %q: %s", name, secret, c.Message)
			}
		}
		t.Logf("%s: %s: %.300s", name, c.Reason, c.Message)
		return nil
	})
}

func file(name, text string) origins.Entry {
	return origins.Entry{Header: tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, Content: []byte(text)}
}

// hostileArchives are no charts, whatever their names say.
func (h *hostileOrigins) hostileArchives(t *testing.T) {
	r := h.Row(t)
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	many := []origins.Entry{file("many/Chart.yaml", origins.Chart{Name: "many", Version: "1.0.0"}.Metadata())}
	for i := range 25000 {
		many = append(many, file(fmt.Sprintf("many/templates/%d.yaml", i), "a: b\n"))
	}
	archives := map[string][]byte{
		"absolute": origins.TarballOf(file("absolute/Chart.yaml", origins.Chart{Name: "absolute", Version: "1.0.0"}.Metadata()), file("/etc/cascade-was-here", "x")),
		"above":    origins.TarballOf(file("above/Chart.yaml", origins.Chart{Name: "above", Version: "1.0.0"}.Metadata()), file("above/../../cascade-was-here", "x")),
		"bomb": origins.TarballOf(file("bomb/Chart.yaml", origins.Chart{Name: "bomb", Version: "1.0.0"}.Metadata()),
			origins.Entry{Header: tar.Header{Name: "bomb/values.yaml", Mode: 0o644, Typeflag: tar.TypeReg}, Content: bytes.Repeat([]byte("a: b\n"), 20<<20)}),
		"many":    origins.TarballOf(many...),
		"dots":    origins.TarballOf(file("../Chart.yaml", origins.Chart{Name: "dots", Version: "1.0.0"}.Metadata())),
		"nothing": origins.Tarball(nil),
		"noise":   []byte("this is no archive"),
		"short":   origins.Chart{Name: "short", Version: "1.0.0"}.Pack()[:40],
	}
	for name, archive := range archives {
		charts.AddArchive(origins.Chart{Name: name, Version: "1.0.0"}, name+"-1.0.0.tgz", archive)
	}
	link := origins.Chart{Name: "link", Version: "1.0.0"}
	charts.AddArchive(link, "link-1.0.0.tgz", origins.TarballOf(file("link/Chart.yaml", link.Metadata()),
		file("link/templates/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: linked}\ndata: {k: {{ .Files.Get \"passwd\" | quote }}}\n"),
		origins.Entry{Header: tar.Header{Name: "link/passwd", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}},
		origins.Entry{Header: tar.Header{Name: "link/values.yaml", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}}))
	r.MakeSource(t, "HelmRepository", "hostile", "{url: \""+charts.URL()+"\", interval: 10m}")
	for name := range archives {
		r.Release(t, name, "chart: {spec: {chart: "+name+", sourceRef: {name: hostile}}}")
	}
	for name := range archives {
		o := &helmv2.HelmRelease{}
		refuses(t, r, o, name)
	}
	if _, err := os.Stat("/etc/cascade-was-here"); err == nil {
		t.Error("a file outside was written")
	}
	// A link is no file, whatever it leads to.
	r.Release(t, "link", "chart: {spec: {chart: link, sourceRef: {name: hostile}}}")
	r.Released(t, "link", 1)
	if got := r.Data(t, "linked")["k"]; got != "" {
		t.Errorf("a link was followed: %q", got)
	}
}

// hostileCharts are charts that cost more than they should when they are rendered
// or checked, or that reach for what is not theirs.
func (h *hostileOrigins) hostileCharts(t *testing.T) {
	elsewhere := origins.StartCharts(origins.Login{})
	t.Cleanup(elsewhere.Close)
	values := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 12; i++ {
		values += fmt.Sprintf("a%[1]d: &a%[1]d [%[2]s]\n", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	deep := strings.Repeat(`{"properties":{"a":`, 20000) + "{}" + strings.Repeat("}}", 20000)
	charts := map[string]map[string]string{
		"endless":       {"templates/a.yaml": `{{ define "a" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`},
		"huge":          {"templates/a.yaml": `{{ range until 2000000 }}{{ range until 2000000 }}# more and more{{ end }}{{ end }}`},
		"aliases":       {"values.yaml": values, "templates/a.yaml": "a: {{ .Values.a11 }}\n"},
		"cycle":         {"values.yaml": "a: &a {b: *a}\n", "templates/a.yaml": "a: {{ .Values.a }}\n"},
		"schema":        {"values.yaml": "a: {}\n", "values.schema.json": `{"$ref": "#/definitions/a", "definitions": {"a": {"allOf": [{"$ref": "#/definitions/b"}]}, "b": {"allOf": [{"$ref": "#/definitions/a"}]}}}`},
		"schema-deep":   {"values.yaml": "a: {}\n", "values.schema.json": deep},
		"schema-remote": {"values.yaml": "a: {}\n", "values.schema.json": `{"$ref": "` + elsewhere.URL() + `/schema.json"}`},
		"schema-file":   {"values.yaml": "a: {}\n", "values.schema.json": `{"$ref": "file:///etc/passwd"}`},
		"alias-object":  {"templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: &a {k: *a}\n"},
		"files":         {"templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: {{ required \"no such file\" (.Files.Get \"/etc/passwd\") | quote }}}\n"},
	}
	var all []origins.Chart
	for name, files := range charts {
		all = append(all, origins.Chart{Name: name, Version: "1.0.0", Files: files})
	}
	r := h.Row(t, all...)
	for name := range charts {
		r.Release(t, name, "{timeout: 20s, chart: {spec: {chart: "+name+"}}}")
	}
	for name := range charts {
		refuses(t, r, &helmv2.HelmRelease{}, name)
	}
	if asked := elsewhere.Requests(); len(asked) != 0 {
		t.Errorf("a schema had the agent ask %+v", asked)
	}
}

// hostilePaths reach out of their source.
func (h *hostileOrigins) hostilePaths(t *testing.T) {
	r := h.GitRow(t, scenario.InTree("charts/app", scenario.AppChart("app", "1.0.0")))
	for name, spec := range map[string]string{
		"values-above":    "{chart: ./charts/app, valuesFiles: [../../../../../../../../etc/passwd], interval: 10m, sourceRef: {kind: GitRepository, name: git}}",
		"values-absolute": "{chart: ./charts/app, valuesFiles: [/etc/passwd], interval: 10m, sourceRef: {kind: GitRepository, name: git}}",
		"chart-above":     "{chart: ../../../../../../../../etc, interval: 10m, sourceRef: {kind: GitRepository, name: git}}",
		"chart-absolute":  "{chart: /etc, interval: 10m, sourceRef: {kind: GitRepository, name: git}}",
	} {
		r.MakeSource(t, "HelmChart", name, spec)
		refuses(t, r, &sourcev1.HelmChart{}, name)
	}
	r.Commit(t, map[string]string{"charts/parent/Chart.yaml": "apiVersion: v2\nname: parent\nversion: 1.0.0\ndependencies: [{name: etc, version: 1.0.0, repository: \"file://../../../../../../../etc\"}]\n"})
	r.Fetched(t)
	r.MakeSource(t, "HelmChart", "dependency-above", "{chart: ./charts/parent, interval: 10m, sourceRef: {kind: GitRepository, name: git}}")
	refuses(t, r, &sourcev1.HelmChart{}, "dependency-above")
}

// hostileIndex: more than anybody has, and less than YAML.
func (h *hostileOrigins) hostileIndex(t *testing.T) {
	r := h.Row(t)
	begin := "apiVersion: v1\nentries:\n  app:\n"
	line := "  - {apiVersion: v2, name: app, version: 1.0.%d, urls: [app.tgz], description: " + strings.Repeat("x", 900) + "}\n"
	write := func(w http.ResponseWriter, size int) {
		n, _ := io.WriteString(w, begin)
		for i := 0; n < size; i++ {
			more, err := fmt.Fprintf(w, line, i)
			if err != nil {
				return // a client that had enough
			}
			n += more
		}
	}
	for name, answer := range map[string]func(http.ResponseWriter){
		"fifty":   func(w http.ResponseWriter) { write(w, 51<<20) },
		"endless": func(w http.ResponseWriter) { write(w, 1<<40) },
		"deep":    func(w http.ResponseWriter) { _, _ = io.WriteString(w, strings.Repeat("[", 100000)) },
		"aliases": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "apiVersion: v1\nentries: &a {app: *a}\n")
		},
		"nulls": func(w http.ResponseWriter) { _, _ = io.WriteString(w, "apiVersion: v1\nentries: {app: [null]}\n") },
		"empty": func(http.ResponseWriter) {},
	} {
		charts := origins.StartCharts(origins.Login{})
		t.Cleanup(charts.Close)
		charts.Fault(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		r.MakeSource(t, "HelmRepository", name, "{url: \""+charts.URL()+"\", interval: 10m, timeout: 20s}")
	}
	for _, name := range []string{"fifty", "endless", "deep", "aliases", "empty"} {
		refuses(t, r, &sourcev1.HelmRepository{}, name)
	}
	// An entry that is none is no chart.
	r.Release(t, "web", "chart: {spec: {sourceRef: {name: nulls}}}")
	refuses(t, r, &helmv2.HelmRelease{}, "web")
}

// thief is a server that keeps what it is sent.
type thief struct {
	*httptest.Server
	mu    sync.Mutex
	taken []string
}

func steal(t *testing.T) *thief {
	t.Helper()
	s := &thief{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a := r.Header.Get("Authorization") + r.Header.Get("Cookie"); a != "" {
			s.taken = append(s.taken, r.Method+" "+r.URL.String()+": "+a)
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "t"})
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *thief) empty(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range s.taken {
		t.Errorf("another server was sent %s", what)
	}
}

// hostileRedirects: the credentials of one server are not for another, whoever says
// so.
func (h *hostileOrigins) hostileRedirects(t *testing.T) {
	r := h.Row(t)
	login := origins.Login{Username: "cascade", Password: "hunter2hunter2"}
	other := steal(t)
	// The other host by another name, so that no library takes it for the same.
	url := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	charts, registry := origins.StartCharts(login), origins.StartRegistry(login)
	t.Cleanup(charts.Close)
	t.Cleanup(registry.Close)
	charts.Fault(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, url+r.URL.Path, http.StatusFound) }))
	registry.Fault(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, url+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	realm := origins.StartRegistry(login)
	t.Cleanup(realm.Close)
	realm.Fault(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+url+`/token",service="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	r.Apply(t, r.Fill(fmt.Sprintf(scenario.BasicAuth, "login", login.Password)))
	r.MakeSource(t, "HelmRepository", "redirect", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}}")
	refuses(t, r, &sourcev1.HelmRepository{}, "redirect")
	for name, address := range map[string]string{"redirected": registry.Address(), "realm": realm.Address()} {
		r.DockerConfig(t, name, address, login.Password)
		r.MakeSource(t, "OCIRepository", name, "{insecure: true, url: \"oci://"+address+"/app\", interval: 10m, timeout: 20s, secretRef: {name: "+name+"}}")
		refuses(t, r, &sourcev1.OCIRepository{}, name)
		r.MakeSource(t, "HelmRepository", name, "{type: oci, insecure: true, url: \"oci://"+address+"\", secretRef: {name: "+name+"}}")
		r.MakeSource(t, "HelmChart", name, "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: "+name+"}}")
		refuses(t, r, &sourcev1.HelmChart{}, name)
	}
	other.empty(t)
}

// hostileArtifacts come from registries and buckets.
func (h *hostileOrigins) hostileArtifacts(t *testing.T) {
	r := h.Row(t)
	layers := map[string][]byte{
		"absolute": origins.TarballOf(file("/etc/cascade-was-here", "x")),
		"above":    origins.TarballOf(file("../../cascade-was-here", "x")),
		"noise":    []byte("this is no archive"),
	}
	for name, layer := range layers {
		if _, err := h.Registry.PushLayers(r.Namespace+"-"+name, "latest", origins.Layer{MediaType: origins.FluxContent, Content: layer}); err != nil {
			t.Fatal(err)
		}
		r.MakeSource(t, "OCIRepository", name, "{insecure: true, url: \""+h.Registry.URL(r.Namespace+"-"+name)+"\", interval: 10m}")
	}
	for name := range layers {
		refuses(t, r, &sourcev1.OCIRepository{}, name)
	}
	// A file may be there that nobody can use: the one that reads it is told.
	bomb := origins.TarballOf(origins.Entry{Header: tar.Header{Name: "a.yaml", Mode: 0o644, Typeflag: tar.TypeReg}, Content: bytes.Repeat([]byte("a: b\n"), 40<<20)})
	if _, err := h.Registry.PushLayers(r.Namespace+"-bomb", "latest", origins.Layer{MediaType: origins.FluxContent, Content: bomb}); err != nil {
		t.Fatal(err)
	}
	r.MakeSource(t, "OCIRepository", "bomb", "{insecure: true, url: \""+h.Registry.URL(r.Namespace+"-bomb")+"\", interval: 10m}")
	r.Kustomization(t, "bomb", "{sourceRef: {kind: OCIRepository, name: bomb}, path: ./}")
	refuses(t, r, &kustomizev1.Kustomization{}, "bomb")
	// A key of a bucket is a path, for those who take it for one.
	r.Bucket(t, "above", map[string]string{"../../cascade-was-here": "x", "a/../../../b.yaml": "x"})
	refuses(t, r, &sourcev1.Bucket{}, "above")
	if _, err := os.Stat("/etc/cascade-was-here"); err == nil {
		t.Error("a file outside was written")
	}
}
