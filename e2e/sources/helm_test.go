package sources

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func (h *sourceSpec) helmRepositoryIndex(t *testing.T) {
	r := h.Row(t)
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	charts.Add(scenario.AppChart("app", "1.0.0"))
	r.MakeSource(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m}")
	o, a := r.Indexed(t, "own")
	r.Event(t, "HelmRepository", "own", "NewArtifact", "stored fetched index of size ")
	index := fetch(t, a)
	if !json.Valid(index) || !strings.Contains(string(index), `"1.0.0"`) {
		t.Errorf("the index is %.200s", index)
	}
	if a.Path != "helmrepository/"+r.Namespace+"/own/index-"+strings.TrimPrefix(a.Revision, "sha256:")+".yaml" || !strings.HasSuffix(o.Status.URL, "/helmrepository/"+r.Namespace+"/own/index.yaml") {
		t.Errorf("path %s, URL %s", a.Path, o.Status.URL)
	}
	if want := "sha256:744419e19d089620ba1b83ea766ccd77853e7980781986933991229bb7b7978a"; a.Revision != want {
		t.Errorf("the revision is %s, Flux's is %s", a.Revision, want)
	}
	first := a.Revision
	charts.Add(scenario.AppChart("app", "1.1.0"))
	r.Answered(t, o, "own")
	if _, a := r.Indexed(t, "own"); a.Revision == first {
		t.Error("the index with another chart has the same revision")
	}
}

func (h *sourceSpec) helmRepositoryAuth(t *testing.T) {
	r := h.Row(t)
	charts := origins.StartCharts(origins.Login{Username: "cascade", Password: "hunter2hunter2"})
	t.Cleanup(charts.Close)
	charts.Add(scenario.AppChart("app", "1.0.0"))
	o := &sourcev1.HelmRepository{}
	r.MakeSource(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}}")
	r.Tells(t, o, "own", "Ready", "False", "AuthenticationFailed", `...secrets "login" not found`)
	r.Apply(t, r.Fill(fmt.Sprintf(scenario.BasicAuth, "login", "wrong")))
	r.Ask(t, o, "own")
	r.Tells(t, o, "own", "Ready", "False", "Failed", "...401 Unauthorized")
	r.Apply(t, r.Fill(fmt.Sprintf(scenario.BasicAuth, "login", "hunter2hunter2")))
	r.Ask(t, o, "own")
	r.Indexed(t, "own")
	r.Release(t, "web", "chart: {spec: {sourceRef: {name: own}}}")
	r.Released(t, "web", 1)
}

// helmRepositoryPassCredentials: an index may name charts on another host, which
// is given the credentials only if that is said.
func (h *sourceSpec) helmRepositoryPassCredentials(t *testing.T) {
	r := h.Row(t)
	login := origins.Login{Username: "cascade", Password: "hunter2hunter2"}
	charts, elsewhere, guarded := origins.StartCharts(login), origins.StartCharts(origins.Login{}), origins.StartCharts(login)
	for _, s := range []*origins.Charts{charts, elsewhere, guarded} {
		t.Cleanup(s.Close)
	}
	open, closed := scenario.AppChart("open", "1.0.0"), scenario.AppChart("closed", "1.0.0")
	elsewhere.Add(open)
	guarded.Add(closed)
	charts.AddArchive(open, elsewhere.URL()+"/open-1.0.0.tgz", nil)
	charts.AddArchive(closed, guarded.URL()+"/closed-1.0.0.tgz", nil)
	r.Apply(t, r.Fill(fmt.Sprintf(scenario.BasicAuth, "login", login.Password)))
	r.MakeSource(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}}")
	r.MakeSource(t, "HelmRepository", "passing", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}, passCredentials: true}")
	r.Indexed(t, "own")
	r.Indexed(t, "passing")
	chart := "{chart: %s, interval: 10m, sourceRef: {kind: HelmRepository, name: %s}}"
	r.MakeSource(t, "HelmChart", "open", fmt.Sprintf(chart, "open", "own"))
	r.Artifact(t, &sourcev1.HelmChart{}, "open", "1.0.0")
	for _, asked := range elsewhere.Requests() {
		if asked.Authorization != "" {
			t.Errorf("%s was sent to another host", asked.Authorization)
		}
	}
	r.MakeSource(t, "HelmChart", "closed", fmt.Sprintf(chart, "closed", "own"))
	r.Tells(t, &sourcev1.HelmChart{}, "closed", "Ready", "False", "", "...401")
	r.MakeSource(t, "HelmChart", "passed", fmt.Sprintf(chart, "closed", "passing"))
	r.Artifact(t, &sourcev1.HelmChart{}, "passed", "1.0.0")
}

// helmRepositoryOCI: it is a name for others, and nothing is reconciled.
func (h *sourceSpec) helmRepositoryOCI(t *testing.T) {
	r := h.Row(t)
	if _, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", "1.0.0")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", "1.1.0")); err != nil {
		t.Fatal(err)
	}
	r.MakeSource(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\"}")
	r.MakeSource(t, "HelmChart", "chart", "{chart: app, version: 1.x, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}}")
	c := &sourcev1.HelmChart{}
	a := r.Artifact(t, c, "chart", "1.1.0")
	if got := fetch(t, a); string(got) != string(scenario.AppChart("app", "1.1.0").Pack()) {
		t.Errorf("what is served is not the chart that was pushed: %d bytes", len(got))
	}
	r.Tells(t, c, "chart", "Ready", "True", "ChartPullSucceeded", "pulled 'app' chart with version '1.1.0'")
	o := &sourcev1.HelmRepository{}
	if err := r.Load(t.Context(), o, r.Namespace, "registry"); err != nil || len(o.Status.Conditions) != 0 || len(o.Finalizers) != 0 || o.Status.Artifact != nil {
		t.Errorf("status %+v, finalizers %v, %v", o.Status, o.Finalizers, err)
	}
}

func (h *sourceSpec) helmRepositoryFailures(t *testing.T) {
	r := h.Row(t)
	o := &sourcev1.HelmRepository{}
	r.MakeSource(t, "HelmRepository", "missing", "{url: \"http://"+h.Registry.Address()+"/nowhere\", interval: 10m}")
	r.Tells(t, o, "missing", "Ready", "False", "Failed", "...404")
	r.Tells(t, o, "missing", "FetchFailed", "True", "Failed", "...404")
	broken := origins.StartCharts(origins.Login{})
	t.Cleanup(broken.Close)
	broken.Fault(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "entries: [") }))
	r.MakeSource(t, "HelmRepository", "broken", "{url: \""+broken.URL()+"\", interval: 10m}")
	r.Tells(t, o, "broken", "Ready", "False", "IndexationFailed", "")
}

func (h *sourceSpec) helmChartVersions(t *testing.T) {
	r := h.Row(t)
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0-rc.1", "2.0.0"} {
		charts.Add(scenario.AppChart("app", version))
	}
	r.MakeSource(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m}")
	r.Indexed(t, "own")
	for _, c := range []struct{ name, version, want, reason string }{
		{"range", "1.x", "1.1.0", "the greatest in the range"},
		{"any", "'*'", "2.0.0", "the default is any that is released"},
		{"before", "'>=1.2.0-0 <2.0.0'", "1.2.0-rc.1", "versions before a release count where the range has one"},
		{"exact", "1.0.0", "1.0.0", "one version"},
	} {
		t.Logf("%s: %s", c.name, c.reason)
		r.MakeSource(t, "HelmChart", c.name, "{chart: app, version: "+c.version+", interval: 10m, sourceRef: {kind: HelmRepository, name: own}}")
		o := &sourcev1.HelmChart{}
		a := r.Artifact(t, o, c.name, c.want)
		r.Tells(t, o, c.name, "Ready", "True", "ChartPullSucceeded", "pulled 'app' chart with version '"+c.want+"'")
		if o.Status.ObservedChartName != "app" || !strings.HasSuffix(a.Path, "/app-"+c.want+".tgz") || !strings.HasSuffix(o.Status.URL, "/helmchart/"+r.Namespace+"/"+c.name+"/latest.tar.gz") {
			t.Errorf("%s: path %s, status %+v", c.name, a.Path, o.Status)
		}
	}
	// What the index has new is taken without being asked.
	charts.Add(scenario.AppChart("app", "1.3.0"))
	r.Ask(t, &sourcev1.HelmRepository{}, "own")
	r.Artifact(t, &sourcev1.HelmChart{}, "range", "1.3.0")
	r.Event(t, "HelmChart", "range", "ChartPullSucceeded", "pulled 'app' chart with version '1.3.0'")
}

func (h *sourceSpec) helmChartGit(t *testing.T) {
	r := h.GitRow(t, scenario.InTree("charts/app", scenario.AppChart("app", "1.0.0")))
	chart := "{chart: ./charts/app, interval: 10m, sourceRef: {kind: GitRepository, name: git}, reconcileStrategy: %s}"
	r.MakeSource(t, "HelmChart", "version", fmt.Sprintf(chart, "ChartVersion"))
	r.MakeSource(t, "HelmChart", "revision", fmt.Sprintf(chart, "Revision"))
	o := &sourcev1.HelmChart{}
	r.Artifact(t, o, "version", "1.0.0")
	r.Tells(t, o, "version", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0'")
	if o.Status.ObservedSourceArtifactRevision != "main@sha1:"+r.Head {
		t.Errorf("status is %+v", o.Status)
	}
	r.Artifact(t, o, "revision", "1.0.0+"+r.Head[:12])
	r.Tells(t, o, "revision", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0+"+r.Head[:12]+"'")
	// Its version is what counts for one, any commit for the other.
	r.Commit(t, map[string]string{"charts/app/values.yaml": "settings: {color: blue}\nobjects: []\nrefuse: \"\"\n"})
	r.Artifact(t, o, "revision", "1.0.0+"+r.Head[:12])
	if files := unpacked(t, fetch(t, o.GetArtifact())); !strings.Contains(files["app/values.yaml"], "blue") {
		t.Errorf("values are %s", files["app/values.yaml"])
	}
	r.Answered(t, o, "version")
	if files := unpacked(t, fetch(t, r.Artifact(t, o, "version", "1.0.0"))); !strings.Contains(files["app/values.yaml"], "red") {
		t.Errorf("values are %s", files["app/values.yaml"])
	}
	r.Commit(t, map[string]string{"charts/app/Chart.yaml": scenario.AppChart("app", "1.1.0").Metadata()})
	r.Artifact(t, o, "version", "1.1.0")
}

func (h *sourceSpec) helmChartBucket(t *testing.T) {
	r := h.Row(t)
	r.Bucket(t, "bucket", scenario.InTree("charts/app", scenario.AppChart("app", "1.0.0")))
	r.MakeSource(t, "HelmChart", "chart", "{chart: charts/app, interval: 10m, sourceRef: {kind: Bucket, name: bucket}}")
	o := &sourcev1.HelmChart{}
	r.Artifact(t, o, "chart", "1.0.0")
	r.Tells(t, o, "chart", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0'")
}

func (h *sourceSpec) helmChartValuesFiles(t *testing.T) {
	more := map[string]string{"values-blue.yaml": "settings: {color: blue}\n", "values-more.yaml": "settings: {more: here}\n"}
	r := h.Row(t, scenario.WithFiles(scenario.AppChart("$ns", "1.0.0"), more))
	chart := "{chart: $ns, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}, valuesFiles: [%s]%s}"
	r.MakeSource(t, "HelmChart", "chart", fmt.Sprintf(chart, "values.yaml, values-blue.yaml, values-more.yaml", ""))
	o := &sourcev1.HelmChart{}
	a := r.Artifact(t, o, "chart", "1.0.0+1")
	values := unpacked(t, fetch(t, a))[r.Namespace+"/values.yaml"]
	if values != "objects: []\nrefuse: \"\"\nsettings:\n  color: blue\n  more: here\n" {
		t.Errorf("values are\n%s", values)
	}
	r.Tells(t, o, "chart", "Ready", "True", "ChartPackageSucceeded", "packaged '"+r.Namespace+"' chart with version '1.0.0+1' and merged values files [values.yaml values-blue.yaml values-more.yaml]")
	r.MakeSource(t, "HelmChart", "missing", fmt.Sprintf(chart, "values.yaml, nowhere.yaml", ""))
	r.Tells(t, o, "missing", "Ready", "False", "ValuesFilesError", "values files merge error: ")
	r.MakeSource(t, "HelmChart", "missing", fmt.Sprintf(chart, "values.yaml, nowhere.yaml", ", ignoreMissingValuesFiles: true"))
	r.Artifact(t, o, "missing", "1.0.0+2")
	if diff := cmp.Diff([]string{"values.yaml"}, o.Status.ObservedValuesFiles); diff != "" {
		t.Errorf("observed: -want, +got:\n%s", diff)
	}
	// Through a HelmRelease.
	r.Release(t, "web", "chart: {spec: {chart: $ns, valuesFiles: [values.yaml, values-blue.yaml]}}")
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "color", "blue")
}

// helmChartDependencies: what Chart.yaml asks for is fetched from where it says,
// a directory or a repository.
func (h *sourceSpec) helmChartDependencies(t *testing.T) {
	parent := scenario.AppChart("parent", "1.0.0")
	parent.More = "dependencies:\n- {name: app, version: 1.x, repository: \"" + h.Charts.URL() + "\"}\n- {name: local, version: 0.1.0, repository: \"file://../local\"}\n"
	files := scenario.InTree("charts/parent", parent)
	for name, text := range scenario.InTree("charts/local", scenario.AppChart("local", "0.1.0")) {
		files[name] = text
	}
	r := h.GitRow(t, files)
	r.MakeSource(t, "HelmChart", "chart", "{chart: ./charts/parent, interval: 10m, sourceRef: {kind: GitRepository, name: git}}")
	o := &sourcev1.HelmChart{}
	a := r.Artifact(t, o, "chart", "1.0.0")
	var got []string
	for name := range unpacked(t, fetch(t, a)) {
		if strings.HasSuffix(name, "Chart.yaml") {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"parent/Chart.yaml", "parent/charts/app/Chart.yaml", "parent/charts/local/Chart.yaml"}, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.Commit(t, map[string]string{"charts/broken/Chart.yaml": strings.ReplaceAll(parent.Metadata(), "1.x", "7.x"), "charts/broken/values.yaml": "{}\n"})
	r.Fetched(t)
	r.MakeSource(t, "HelmChart", "broken", "{chart: ./charts/broken, interval: 10m, sourceRef: {kind: GitRepository, name: git}}")
	r.Tells(t, o, "broken", "Ready", "False", "DependencyBuildError", "dependency build error: ")
}

func (h *sourceSpec) helmChartFailures(t *testing.T) {
	r := h.GitRow(t, map[string]string{"charts/broken/Chart.yaml": "name: [", "charts/app/Chart.yaml": "apiVersion: v2\nname: app\nversion: one\n"})
	r.MakeSource(t, "HelmRepository", "charts", "{url: \""+h.Charts.URL()+"\", interval: 10m}")
	r.Indexed(t, "charts")
	o := &sourcev1.HelmChart{}
	for _, c := range []struct{ name, spec, condition, reason, message string }{
		{"nowhere", "{chart: app, interval: 10m, sourceRef: {kind: HelmRepository, name: nowhere}}", "FetchFailed", "SourceUnavailable", "failed to get source: "},
		{"chart", "{chart: nowhere, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"version", "{chart: app, version: 7.x, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"path", "{chart: ./charts/nowhere, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"broken", "{chart: ./charts/broken, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "BuildFailed", "", ""},
		{"metadata", "{chart: ./charts/app, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "BuildFailed", "", ""},
	} {
		r.MakeSource(t, "HelmChart", c.name, c.spec)
		if c.reason == "" {
			scenario.Eventually(t, scenario.Converge, c.name+" is refused", func(ctx context.Context) error {
				if err := r.Load(ctx, o, r.Namespace, c.name); err != nil {
					return err
				}
				if f := meta.FindStatusCondition(o.Status.Conditions, "Ready"); f == nil || f.Status != "False" {
					return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
				}
				return nil
			})
			t.Logf("%s: %s", c.name, scenario.Summary(o.Status.Conditions))
			continue
		}
		r.Tells(t, o, c.name, "Ready", "False", c.reason, c.message)
		r.Tells(t, o, c.name, c.condition, "True", c.reason, c.message)
	}
	r.Release(t, "web", "chart: {spec: {version: 7.x}}")
	r.ReleaseTells(t, "web", "Ready", "False", "SourceNotReady", "HelmChart '"+r.Namespace+"/"+r.Namespace+"-web' is not ready: invalid chart reference: ")
}

func (h *sourceSpec) helmChartVerify(t *testing.T) {
	r := h.Row(t)
	ours := cosignKey(t, r, "ours")
	cosignKey(t, r, "theirs")
	digest, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", "1.0.0"))
	if err == nil {
		err = sign(h.Registry, ours, r.Namespace+"/app", digest)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.MakeSource(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\"}")
	chart := "{chart: app, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}, verify: {provider: cosign, secretRef: {name: %s}}}"
	o := &sourcev1.HelmChart{}
	r.MakeSource(t, "HelmChart", "ours", fmt.Sprintf(chart, "ours"))
	r.Artifact(t, o, "ours", "1.0.0")
	r.Tells(t, o, "ours", "SourceVerified", "True", "Succeeded", "verified signature of version 1.0.0")
	r.MakeSource(t, "HelmChart", "theirs", fmt.Sprintf(chart, "theirs"))
	r.Tells(t, o, "theirs", "SourceVerified", "False", "VerificationError", "chart verification error: failed to verify ")
	r.Tells(t, o, "theirs", "BuildFailed", "True", "ChartVerificationError", "chart verification error: failed to verify ")
	if o.GetArtifact() != nil {
		t.Errorf("the artifact is %+v", o.GetArtifact())
	}
}
