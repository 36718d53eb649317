package fetch

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// helmCharts is a reconciler of HelmCharts in repositories of the bench, as of a process that
// begins.
func (b *gitBench) helmCharts() *HelmCharts {
	b.t.Helper()
	charts, _ := b.helm()
	return charts
}

// helm has the reconcilers of HelmCharts and of HelmRepositories, as of a process that begins.
func (b *gitBench) helm() (*HelmCharts, *HelmRepositories) {
	b.t.Helper()
	dir := b.t.TempDir()
	sources := &Sources{
		Client: b.Client, Reader: b.Client, Snapshots: source.NewSnapshots(), Logins: b.Logins, Events: b.events, Metrics: b.Metrics, Now: b.Now, Jitter: b.Jitter,
	}
	indexes := chart.NewIndexes(dir, 1<<20, 1<<20)
	return &HelmCharts{
		Sources: sources, Charts: chart.NewCharts(indexes, dir, chart.Limits{Chart: 1 << 20, File: 1 << 20}),
		From: &find.Finder{Client: b.Client, Reader: b.Client, Snapshots: sources.Snapshots, Fetched: map[string]bool{sourcev1.GitRepositoryKind: true}},
	}, &HelmRepositories{Sources: sources, Indexes: indexes}
}

// chartServer is a Helm repository with versions of the chart shop.
type chartServer struct {
	*httptest.Server
	mu       sync.Mutex
	versions []string
	away     bool
}

func newChartServer(t *testing.T, versions ...string) *chartServer {
	s := &chartServer{versions: versions}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path == "/index.yaml" {
			_, _ = io.WriteString(w, "apiVersion: v1\nentries:\n  shop:\n")
			for _, v := range s.versions {
				_, _ = io.WriteString(w, "  - {apiVersion: v2, name: shop, version: "+v+", urls: [shop-"+v+".tgz]}\n")
			}
			return
		}
		version := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/shop-"), ".tgz")
		content := "apiVersion: v2\nname: shop\nversion: " + version + "\n"
		gz := gzip.NewWriter(w)
		archive := tar.NewWriter(gz)
		err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "shop/Chart.yaml", Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(archive, content)
		}
		if err := errors.Join(err, archive.Close(), gz.Close()); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *chartServer) publish(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = append(s.versions, version)
}

// withdraw has the server answer without the newest version.
func (s *chartServer) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = s.versions[:len(s.versions)-1]
}

// leave has the server answer nobody, or everybody again.
func (s *chartServer) leave(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// inRepository creates the HelmRepository charts at a URL, and the HelmChart shop in it.
func (b *gitBench) inRepository(url, version string) *sourcev1.HelmRepository {
	b.t.Helper()
	repository, c := &sourcev1.HelmRepository{}, &sourcev1.HelmChart{}
	repository.Namespace, repository.Name, repository.Generation, repository.Spec.URL = "ns", "charts", 1, url
	c.Namespace, c.Name, c.Generation, c.Spec.Chart, c.Spec.Version = "ns", "shop", 1, "shop", version
	c.Spec.SourceRef = sourcev1.LocalHelmChartSourceReference{Kind: sourcev1.HelmRepositoryKind, Name: "charts"}
	for _, obj := range []client.Object{repository, c} {
		if err := b.Client.Create(b.t.Context(), obj); err != nil {
			b.t.Fatal(err)
		}
	}
	return repository
}

// ask has the HelmChart shop ask for another version.
func (b *gitBench) ask(version string) {
	b.t.Helper()
	c := &sourcev1.HelmChart{}
	if err := b.Client.Get(b.t.Context(), types.NamespacedName{Namespace: "ns", Name: "shop"}, c); err != nil {
		b.t.Fatal(err)
	}
	c.Spec.Version, c.Spec.Interval, c.Generation = version, metav1.Duration{Duration: time.Hour}, c.Generation+1
	if err := b.Client.Update(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
}

// helmRepository reconciles the HelmRepository once, after its spec was changed if change is not nil.
func (b *gitBench) helmRepository(r *HelmRepositories, change func(*sourcev1.HelmRepository)) *sourcev1.HelmRepository {
	b.t.Helper()
	obj, name := &sourcev1.HelmRepository{}, types.NamespacedName{Namespace: "ns", Name: "charts"}
	if change != nil {
		if err := b.Client.Get(b.t.Context(), name, obj); err != nil {
			b.t.Fatal(err)
		}
		change(obj)
		obj.Generation++
		if err := b.Client.Update(b.t.Context(), obj); err != nil {
			b.t.Fatal(err)
		}
	}
	if _, err := r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Client.Get(b.t.Context(), name, obj); err != nil {
		b.t.Fatal(err)
	}
	return obj
}

// TestSuspendedRepository: of a suspended HelmRepository no newer index is used than the one that it had, and a chart
// stays as it is where that one is gone, also if its server does not answer any more.
func TestSuspendedRepository(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, version string
		restart, other  bool
		edit            string
		want, tells     string
	}{
		"Range":   {"the newest index is not used", ">=1.0.0", false, false, "", "1.4.0", ""},
		"Edited":  {"the index that it had tells what is in the range", ">=1.0.0", false, false, "<1.4.0", "1.3.0", ""},
		"Restart": {"the index that it had is gone", ">=1.0.0", true, false, "", "1.4.0", ""},
		"Other":   {"a HelmRepository of the same URL took a newer one", ">=1.0.0", false, true, "", "1.4.0", ""},
		"Exact":   {"it is the same in each index", "1.3.0", true, false, "1.4.0", "1.4.0", ""},
		"Unknown": {"nobody knows what it led to", ">=1.0.0", true, false, ">=1.2.0", "", "resume it"},
	} {
		t.Run(name, func(t *testing.T) {
			b, server := newGitBench(t), newChartServer(t, "1.3.0", "1.4.0")
			b.inRepository(server.URL, tc.version)
			charts, repositories := b.helm()
			had := b.helmRepository(repositories, nil)
			if c := b.chart(charts); had.Status.Artifact == nil || c.Status.Artifact == nil {
				t.Fatalf("it was not built: %v, %v", states(had.Status.Conditions), states(c.Status.Conditions))
			}
			server.publish("2.0.0")
			if tc.restart {
				charts, repositories = b.helm()
			}
			if is := b.helmRepository(repositories, func(r *sourcev1.HelmRepository) { r.Spec.Suspend = true }); !cmp.Equal(is.Status.Artifact, had.Status.Artifact) {
				t.Errorf("the artifact is %+v, want %+v", is.Status.Artifact, had.Status.Artifact)
			}
			if tc.other {
				other := source.Key{Kind: sourcev1.HelmRepositoryKind, NamespacedName: types.NamespacedName{Namespace: "other", Name: "charts"}}
				if _, err := repositories.Indexes.Fetch(t.Context(), other, chart.Repository{URL: server.URL}); err != nil {
					t.Fatal(err)
				}
			}
			if tc.edit != "" {
				b.ask(tc.edit)
			}
			c := b.chart(charts)
			built := charts.Snapshots.Get(source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: client.ObjectKeyFromObject(c)})
			failed := apimeta.FindStatusCondition(c.Status.Conditions, sourcev1.FetchFailedCondition)
			switch {
			case tc.tells != "":
				if failed == nil || failed.Reason != reasonSourceUnavailable || !strings.Contains(failed.Message, tc.tells) || built != nil {
					t.Errorf("%s: it tells %+v, and there is %+v", tc.reason, failed, built)
				}
			case failed != nil || built == nil || built.Revision != tc.want || c.Status.Artifact.Revision != tc.want:
				t.Errorf("%s: it tells %+v, and there is %+v, want %s", tc.reason, failed, built, tc.want)
			}
			server.leave(true)
			requests := repositories.Indexes.Counts().Requests
			for range 3 {
				if diff := cmp.Diff(states(c.Status.Conditions), states(b.chart(charts).Status.Conditions)); diff != "" {
					t.Errorf("%s: its server does not answer: -before +after\n%s", tc.reason, diff)
				}
			}
			if n := repositories.Indexes.Counts().Requests; n != requests {
				t.Errorf("%s: %d requests, want %d: the server has answered, or needs no question", tc.reason, n, requests)
			}
			server.leave(false)
			b.helmRepository(repositories, func(r *sourcev1.HelmRepository) { r.Spec.Suspend = false })
			if c := b.chart(charts); strings.HasPrefix(c.Spec.Version, ">=") && c.Status.Artifact.Revision != "2.0.0" {
				t.Errorf("%s: it is resumed, and the chart is at %s", tc.reason, c.Status.Artifact.Revision)
			}
		})
	}
}

// TestRepositoryOfAnother: a chart in a HelmRepository that another process reconciles, as where agents share a tier by
// labels, is found in the index that the status of that names.
func TestRepositoryOfAnother(t *testing.T) {
	b, server := newGitBench(t), newChartServer(t, "1.3.0")
	b.inRepository(server.URL, "*")
	_, repositories := b.helm()
	charts, _ := b.helm()
	charts.Shard = func(o client.Object) bool { return o.GetName() == "shop" }
	for _, version := range []string{"1.3.0", "1.4.0", "2.0.0"} {
		if version != "1.3.0" {
			server.publish(version)
		}
		b.helmRepository(repositories, nil)
		if c := b.chart(charts); c.Status.Artifact == nil || c.Status.Artifact.Revision != version {
			t.Errorf("the repository has %s, and of the chart there is %+v: %v", version, c.Status.Artifact, states(c.Status.Conditions))
		}
	}
	server.publish("3.0.0")
	if c := b.chart(charts); c.Status.Artifact.Revision != "2.0.0" {
		t.Errorf("the status of the repository has no index with %s", c.Status.Artifact.Revision)
	}

	// A process that begins knows the newest one only, which the status does not name yet.
	charts, begun := b.helm()
	charts.Shard = func(o client.Object) bool { return o.GetName() == "shop" }
	wants := func(reason, version string) {
		t.Helper()
		if c := b.chart(charts); c.Status.Artifact.Revision != version || states(c.Status.Conditions)["Ready"] != "True/ChartPullSucceeded" {
			t.Errorf("%s: there is %s, want %s: %v", reason, c.Status.Artifact.Revision, version, states(c.Status.Conditions))
		}
	}
	wants("it is the newest", "3.0.0")
	server.leave(true)
	for range 3 {
		wants("the server has answered", "3.0.0")
	}
	if n := begun.Indexes.Counts().Requests; n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	server.leave(false)
	server.publish("4.0.0")
	b.helmRepository(repositories, nil)
	server.leave(true)
	fails := func(reason string) {
		t.Helper()
		if got := states(b.chart(charts).Status.Conditions); got["FetchFailed"] != "True/"+chart.ReasonPull || got["Stalled"] != "" {
			t.Errorf("%s: %v", reason, got)
		}
	}
	fails("the range may lead to another version in the index of the status")
	b.ask("3.0.0")
	wants("it is the same in each index", "3.0.0")
	b.ask("4.0.0")
	fails("it may be in the index of the status")
	server.leave(false)
	wants("the server answers", "4.0.0")
}

// TestRepositoryBehind: a chart that was built from another index than the one that its HelmRepository has by now, as one of
// several machines has that later, is looked at again soon, and its status does not name the index that it is not of.
func TestRepositoryBehind(t *testing.T) {
	b, server := newGitBench(t), newChartServer(t, "1.3.0")
	b.inRepository(server.URL, "*")
	_, repositories := b.helm()
	charts, _ := b.helm()
	charts.Shard = func(o client.Object) bool { return o.GetName() == "shop" }
	b.helmRepository(repositories, nil)
	first := b.chart(charts).Status.ObservedSourceArtifactRevision
	server.publish("1.4.0")
	b.helmRepository(repositories, nil)
	server.withdraw()
	for _, version := range []string{"*", "1.3.0"} { // the second is the same in each index
		b.ask(version)
		res, err := charts.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "shop"}})
		if soon := res.RequeueAfter == chart.AskAgain; err != nil || soon != (version == "*") {
			t.Errorf("version %s is looked at again after %s, %v", version, res.RequeueAfter, err)
		}
		c := b.chart(charts)
		if c.Status.Artifact == nil || c.Status.Artifact.Revision != "1.3.0" || first == "" || (c.Status.ObservedSourceArtifactRevision == first) != (version == "*") {
			t.Errorf("version %s is %+v, from the index %s, and there was %s", version, c.Status.Artifact, c.Status.ObservedSourceArtifactRevision, first)
		}
	}
}

// TestSuspendedChart: a process that begins has the chart that a suspended HelmChart had, if
// it can be made again, and says so if not.
func TestSuspendedChart(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		spec   sourcev1.HelmChartSpec
		file   string
		edit   func(*sourcev1.HelmChart)
		want   string
	}{
		"Plain": {"its version says it all", sourcev1.HelmChartSpec{}, "other.yaml", nil, ""},
		"ValuesFiles": {
			"the generation in the version is that by which it was built, which to suspend it has raised",
			sourcev1.HelmChartSpec{ValuesFiles: []string{"chart/values.yaml", "more.yaml"}}, "other.yaml", nil, "",
		},
		"Revision": {
			"the source moved, and the chart did not",
			sourcev1.HelmChartSpec{ReconcileStrategy: sourcev1.ReconcileStrategyRevision}, "other.yaml", nil, "",
		},
		"Both": {
			"the version says both",
			sourcev1.HelmChartSpec{ValuesFiles: []string{"more.yaml"}, ReconcileStrategy: sourcev1.ReconcileStrategyRevision}, "other.yaml", nil, "",
		},
		"Edited": {
			"the version is the same, and the content is not", sourcev1.HelmChartSpec{ValuesFiles: []string{"chart/values.yaml", "more.yaml"}}, "other.yaml",
			func(c *sourcev1.HelmChart) { c.Spec.ValuesFiles = []string{"chart/values.yaml"} }, "has other content by now",
		},
		"Changed": {
			"the chart is another one", sourcev1.HelmChartSpec{ReconcileStrategy: sourcev1.ReconcileStrategyRevision}, "chart/values.yaml", nil, "there is only 1.2.3+",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGitBench(t)
			b.commit("fleet", "main", "more.yaml", "k: more\n")
			for at, content := range map[string]string{"Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.2.3\n", "values.yaml": "k: chart\n"} {
				b.put("fleet", "chart/"+at, content)
			}
			b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\n")
			b.run("fleet")
			c := &sourcev1.HelmChart{}
			c.Namespace, c.Name, c.Generation, c.Spec = "ns", "shop", 4, tc.spec
			c.Spec.Chart, c.Spec.SourceRef = "chart", sourcev1.LocalHelmChartSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet"}
			if err := b.Client.Create(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			before := b.helmCharts()
			before.Snapshots.Put(gitKey("fleet"), b.Snapshots.Get(gitKey("fleet")))
			had := b.chart(before)
			if had.Status.Artifact == nil {
				t.Fatalf("it was not built: %v", states(had.Status.Conditions))
			}
			had.Spec.Suspend, had.Generation = true, 5
			if tc.edit != nil {
				tc.edit(had)
			}
			if err := b.Client.Update(t.Context(), had); err != nil {
				t.Fatal(err)
			}
			b.put("fleet", tc.file, "k: new\n")
			b.run("fleet")

			after := b.helmCharts()
			after.Snapshots.Put(gitKey("fleet"), b.Snapshots.Get(gitKey("fleet")))
			has := b.chart(after)
			key := source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: client.ObjectKeyFromObject(has)}
			failed := apimeta.FindStatusCondition(has.Status.Conditions, sourcev1.FetchFailedCondition)
			if tc.want != "" {
				if failed == nil || failed.Reason != ReasonRevisionNotFetched || !strings.Contains(failed.Message, tc.want) {
					t.Errorf("%s: it tells %+v, want %q", tc.reason, failed, tc.want)
				}
				if after.Snapshots.Get(key) != nil {
					t.Errorf("%s: it is used", tc.reason)
				}
				return
			}
			if failed != nil {
				t.Fatalf("%s: it tells %+v", tc.reason, failed)
			}
			if s := after.Snapshots.Get(key); s == nil || s.Revision != had.Status.Artifact.Revision || s.Digest != had.Status.Artifact.Digest {
				t.Errorf("%s: there is %+v, want %+v", tc.reason, s, had.Status.Artifact)
			}
			had.Status.ObservedGeneration = had.Generation // which suspends it, and is seen
			if diff := cmp.Diff(had.Status, has.Status); diff != "" {
				t.Errorf("%s: the status changed: -before +after\n%s", tc.reason, diff)
			}
		})
	}
}

// TestVerifiedChart: a chart counts as verified if its signature was found to be good, not if the policy has nobody look.
func TestVerifiedChart(t *testing.T) {
	for name, tc := range map[string]struct {
		reason           string
		provider, secret string
		signed           bool
		verified, ready  string
	}{
		"Signed":   {"it is signed with the key", "cosign", "keys", true, "True/Succeeded", "True/ChartPullSucceeded"},
		"Unsigned": {"nobody signed it", "cosign", "keys", false, "False/VerificationError", "False/VerificationError"},
		"Skip":     {"nobody looked", "notation", "skip", false, "", "True/ChartPullSucceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newImageBench(t)
			b.pushChart("1.0.0", tc.signed)
			b.inRepository("oci://"+b.host+"/charts", "1.0.0")
			charts, repositories := b.helm()
			charts.Images, charts.ChartBytes = source.NewImages(t.TempDir(), 1<<20, time.Now), 1<<20
			b.helmRepository(repositories, func(r *sourcev1.HelmRepository) { r.Spec.Type, r.Spec.Insecure = sourcev1.HelmRepositoryTypeOCI, true })
			b.verify(tc.provider, tc.secret)
			for range 2 { // the second time there is nothing new
				if got := states(b.chart(charts).Status.Conditions); got["SourceVerified"] != tc.verified || got["Ready"] != tc.ready {
					t.Errorf("%s: it tells %v, want SourceVerified %q, Ready %q", tc.reason, got, tc.verified, tc.ready)
				}
			}
			if b.chart(charts).Status.Artifact == nil {
				return
			}
			b.verify("notation", "skip")
			if got := states(b.chart(charts).Status.Conditions); got["SourceVerified"] != "" || got["Ready"] != tc.ready {
				t.Errorf("%s, and nobody has to look by the policy that there is now: it tells %v", tc.reason, got)
			}
		})
	}
}

// verify has the HelmChart shop ask for a signature.
func (b *gitBench) verify(provider, secret string) {
	b.t.Helper()
	c := &sourcev1.HelmChart{}
	if err := b.Client.Get(b.t.Context(), types.NamespacedName{Namespace: "ns", Name: "shop"}, c); err != nil {
		b.t.Fatal(err)
	}
	c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: provider, SecretRef: &meta.LocalObjectReference{Name: secret}}
	c.Generation++
	if err := b.Client.Update(b.t.Context(), c); err != nil {
		b.t.Fatal(err)
	}
}

// chart reconciles the chart once and returns it.
func (b *gitBench) chart(r *HelmCharts) *sourcev1.HelmChart {
	b.t.Helper()
	name := types.NamespacedName{Namespace: "ns", Name: "shop"}
	_, _ = r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: name}) // the status tells of it
	c := &sourcev1.HelmChart{}
	if err := b.Client.Get(b.t.Context(), name, c); err != nil {
		b.t.Fatal(err)
	}
	return c
}

// TestChartWaits: who asks for a chart whose source a process that has begun has not fetched yet
// is answered when it is there, and at once if the source says that it cannot be.
func TestChartWaits(t *testing.T) {
	b := newGitBench(t)
	b.commit("fleet", "main", "Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.2.3\n")
	b.declare("fleet", "url: "+b.server.HTTPURL("fleet")+"\nref: {branch: main}\n")
	b.run("fleet")
	c := &sourcev1.HelmChart{}
	c.Namespace, c.Name, c.Spec.Chart = "ns", "shop", "."
	c.Spec.SourceRef = sourcev1.LocalHelmChartSourceReference{Kind: sourcev1.GitRepositoryKind, Name: "fleet"}
	if err := b.Client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	before := b.helmCharts()
	before.Snapshots.Put(gitKey("fleet"), b.Snapshots.Get(gitKey("fleet")))
	c = b.chart(before)
	c.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
	if err := b.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	after := b.helmCharts()
	if got := b.chart(after); !cmp.Equal(got.Status, c.Status) {
		t.Errorf("it waits for its source, and the status changed: -before +after\n%s", cmp.Diff(c.Status, got.Status))
	}
	b.declare("fleet", "url: http://127.0.0.1:1/none\nref: {branch: main}\n")
	b.run("fleet")
	failing := failedWith("FetchFailed", reasonSourceUnavailable, "ArtifactInStorage", "True/ChartPackageSucceeded")
	if got := b.chart(after); got.Status.LastHandledReconcileAt != "now" || !cmp.Equal(states(got.Status.Conditions), failing) {
		t.Errorf("its source is away: lastHandledReconcileAt %q, %v", got.Status.LastHandledReconcileAt, states(got.Status.Conditions))
	}
}

// TestChartOfWrongAddress: a HelmRepository of a registry has nothing that wakes its charts when
// its address is corrected.
func TestChartOfWrongAddress(t *testing.T) {
	repository := &sourcev1.HelmRepository{}
	repository.Namespace, repository.Name, repository.Spec.Type, repository.Spec.URL = "ns", "charts", sourcev1.HelmRepositoryTypeOCI, "ftp://example.com"
	b := newGitBench(t, repository)
	c := &sourcev1.HelmChart{}
	c.Namespace, c.Name, c.Spec.Chart, c.Spec.Interval.Duration = "ns", "shop", "shop", time.Hour
	c.Spec.SourceRef = sourcev1.LocalHelmChartSourceReference{Kind: sourcev1.HelmRepositoryKind, Name: "charts"}
	if err := b.Client.Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	result, err := b.helmCharts().Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c)})
	if err != nil || result.RequeueAfter != time.Hour {
		t.Errorf("it is looked at again after %s, %v; want its interval", result.RequeueAfter, err)
	}
	if err := b.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	if got := states(c.Status.Conditions)["Stalled"]; got != "True/URLInvalid" {
		t.Errorf("Stalled is %s, as Flux has it it is True/URLInvalid", got)
	}
}

// TestLoginInURL: what is told of a repository does not show the login in its URL.
func TestLoginInURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "some-user" || password != "pass-word" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, "apiVersion: v1\nentries: {}\n")
	}))
	defer server.Close()
	obj := &sourcev1.HelmRepository{}
	obj.Namespace, obj.Name, obj.Spec.URL = "ns", "charts", strings.Replace(server.URL, "://", "://some-user:pass-word@", 1)
	b := newGitBench(t, obj)
	r := &HelmRepositories{Sources: b.Sources, Indexes: chart.NewIndexes(t.TempDir(), 1<<20, 1<<20)}
	got, failed := r.fetch(t.Context(), source.Key{Kind: sourcev1.HelmRepositoryKind, NamespacedName: client.ObjectKeyFromObject(obj)}, obj)
	if failed != nil {
		t.Fatal(failed.err)
	}
	if told := got.message + got.event; strings.Contains(told, "some-user") || strings.Contains(told, "pass-word") || !strings.Contains(told, "from '"+server.URL) {
		t.Errorf("told: %s", told)
	}
}

// TestTimeoutOfCharts: how long it may take is what the repository says.
func TestTimeoutOfCharts(t *testing.T) {
	repository := func(name string, timeout *metav1.Duration) client.Object {
		r := &sourcev1.HelmRepository{}
		r.Namespace, r.Name, r.Spec.Timeout = "ns", name, timeout
		return r
	}
	r := newGitBench(t, repository("says", &metav1.Duration{Duration: 7 * time.Minute}), repository("silent", nil)).helmCharts()
	for name, tc := range map[string]struct {
		reason     string
		kind, from string
		want       time.Duration
	}{
		"Says":    {"as with Flux", sourcev1.HelmRepositoryKind, "says", 7 * time.Minute},
		"Silent":  {"the default", sourcev1.HelmRepositoryKind, "silent", time.Minute},
		"Missing": {"the fetch says that it is", sourcev1.HelmRepositoryKind, "missing", time.Minute},
		"Git":     {"its dependencies have their own", sourcev1.GitRepositoryKind, "fleet", dependenciesTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			c := &sourcev1.HelmChart{}
			c.Namespace, c.Spec.SourceRef.Kind, c.Spec.SourceRef.Name = "ns", tc.kind, tc.from
			if got := r.timeout(t.Context(), c); got != tc.want {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
	for at, want := range map[string]time.Duration{"https://example.com/says/": 7 * time.Minute, "https://example.com/unknown/": time.Minute} {
		said := repository("says", &metav1.Duration{Duration: 7 * time.Minute}).(*sourcev1.HelmRepository)
		said.Spec.URL = "https://example.com/says"
		key := source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "shop"}}
		got, err := newGitBench(t, said).helmCharts().dependencyRepository(t.Context(), key, at)
		if err != nil || got.Timeout != want {
			t.Errorf("a dependency from %s has %s, %v; want %s", at, got.Timeout, err, want)
		}
	}
}

// TestPinnedVersion: the version that is asked for is one that a repository has.
func TestPinnedVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, revision string
		files            []string
		version          string
		generation       int64
	}{
		"Plain":       {"as it is", "1.2.3", nil, "1.2.3", 5},
		"Metadata":    {"it is that of the repository", "1.2.3+7", nil, "1.2.3+7", 5},
		"ValuesFiles": {"the repository has it without the generation, with or without a v", "1.2.3+4", []string{"more.yaml"}, "=1.2.3", 4},
		"Default":     {"no generation is in it", "1.2.3+k3s1", []string{"values.yaml"}, "1.2.3+k3s1", 5},
	} {
		t.Run(name, func(t *testing.T) {
			c := &sourcev1.HelmChart{}
			c.Generation, c.Spec.ValuesFiles = 5, tc.files
			(&HelmCharts{}).pin(c, &meta.Artifact{Revision: tc.revision})
			if c.Spec.Version != tc.version || c.Generation != tc.generation || c.Status.ObservedGeneration != tc.generation {
				t.Errorf("%s: version %s of generation %d (%d was seen)", tc.reason, c.Spec.Version, c.Generation, c.Status.ObservedGeneration)
			}
		})
	}
}
