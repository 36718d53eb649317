package sources

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestSourceSpec tries what Flux says of its sources besides GitRepositories, row
// by row, and what is applied from them. Every row was seen to pass with Flux's own
// source-controller v1.9.5 as well; the digests of artifacts are those that it made.
func TestSourceSpec(t *testing.T) {
	scenario.Alongside(t)
	h := &sourceSpec{scenario.StartHelmTier(t)}
	h.RestartAgent(t, "--artifact-addr=$(POD_IP):9090", "--artifact-adv-addr=$(POD_IP):9090", "--feature-gates=ExternalArtifact=true")
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*sourceSpec, *testing.T)
		}{
			{"OCITag", (*sourceSpec).ociTag},
			{"OCISemver", (*sourceSpec).ociSemver},
			{"OCIDigest", (*sourceSpec).ociDigest},
			{"OCILayers", (*sourceSpec).ociLayers},
			{"OCIAuth", (*sourceSpec).ociAuth},
			{"OCIIgnore", (*sourceSpec).ociIgnore},
			{"OCIFailures", (*sourceSpec).ociFailures},
			{"OCICosign", (*sourceSpec).ociCosign},
			{"OCIKustomization", (*sourceSpec).ociKustomization},
			{"HelmRepositoryIndex", (*sourceSpec).helmRepositoryIndex},
			{"HelmRepositoryAuth", (*sourceSpec).helmRepositoryAuth},
			{"HelmRepositoryPassCredentials", (*sourceSpec).helmRepositoryPassCredentials},
			{"HelmRepositoryOCI", (*sourceSpec).helmRepositoryOCI},
			{"HelmRepositoryFailures", (*sourceSpec).helmRepositoryFailures},
			{"HelmChartVersions", (*sourceSpec).helmChartVersions},
			{"HelmChartGit", (*sourceSpec).helmChartGit},
			{"HelmChartBucket", (*sourceSpec).helmChartBucket},
			{"HelmChartValuesFiles", (*sourceSpec).helmChartValuesFiles},
			{"HelmChartDependencies", (*sourceSpec).helmChartDependencies},
			{"HelmChartFailures", (*sourceSpec).helmChartFailures},
			{"HelmChartVerify", (*sourceSpec).helmChartVerify},
			{"Bucket", (*sourceSpec).bucket},
			{"BucketFailures", (*sourceSpec).bucketFailures},
			{"BucketKustomization", (*sourceSpec).bucketKustomization},
			{"ReleaseFromOCIRepository", (*sourceSpec).releaseFromOCIRepository},
			{"ReleaseFromHelmChart", (*sourceSpec).releaseFromHelmChart},
			{"ReleaseFromGit", (*sourceSpec).releaseFromGit},
			{"ReleaseFromBucket", (*sourceSpec).releaseFromBucket},
			{"ReleaseFromOCIChart", (*sourceSpec).releaseFromOCIChart},
			{"ReleaseFromExternalArtifact", (*sourceSpec).releaseFromExternalArtifact},
			{"SourcesSuspended", (*sourceSpec).sourcesSuspended},
			{"SourcesDeleted", (*sourceSpec).sourcesDeleted},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(h, t)
			})
		}
	})
}

// sourceSpec is the tier that all rows share.
type sourceSpec struct{ *scenario.HelmTier }

// fetch downloads an artifact and checks its size and digest.
func fetch(t *testing.T, a *fluxmeta.Artifact) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", a.URL, response.Status, err)
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != a.Digest || a.Size == nil || *a.Size != int64(len(data)) {
		t.Errorf("what is served has digest %s and %d bytes, the artifact is %+v", got, len(data), a)
	}
	return data
}

// unpacked are the files of a .tar.gz.
func unpacked(t *testing.T, data []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			files[path.Clean(header.Name)] = string(text)
		}
	}
}

func (h *sourceSpec) bucket(t *testing.T) {
	r := h.Row(t)
	files := map[string]string{".sourceignore": "docs/\n", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}"), "docs/readme.md": "Read me.\n", "apps/b.yaml": scenario.ConfigMapWith("b", "", "{k: one}")}
	r.Bucket(t, "bucket", files)
	o := &sourcev1.Bucket{}
	a := r.Artifact(t, o, "bucket", "")
	if want := "sha256:abd5c76b0a7acd0ab2c9007e59ff755f54e901846c02e948a533e8e482deedcc"; a.Revision != want {
		t.Errorf("the revision is %s, Flux's is %s", a.Revision, want)
	}
	r.Tells(t, o, "bucket", "Ready", "True", "Succeeded", "stored artifact: revision '"+a.Revision+"'")
	r.Event(t, "Bucket", "bucket", "NewArtifact", "fetched files from '"+r.Namespace+"' bucket")
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": files["app/a.yaml"], "apps/b.yaml": files["apps/b.yaml"]}, unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if want := "sha256:cc03373ca984c1f1ca859a0649813439c7dbf3f6454cab872b5279adeb8877d6"; a.Digest != want {
		t.Errorf("the artifact's digest is %s, Flux's is %s", a.Digest, want)
	}
	if !strings.HasSuffix(o.Status.URL, "/bucket/"+r.Namespace+"/bucket/latest.tar.gz") {
		t.Errorf("the URL is %s", o.Status.URL)
	}
	// Nothing new is nothing to download.
	before := h.Buckets.Count("GET", r.Namespace+"/app/a.yaml", 200)
	r.Answered(t, o, "bucket")
	if got := h.Buckets.Count("GET", r.Namespace+"/app/a.yaml", 200); before == 0 || got != before {
		t.Errorf("the file was downloaded %d times, then %d", before, got)
	}
	first := a.Revision
	if err := h.Buckets.Put(r.Namespace, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}"), "apps/b.yaml": ""}); err != nil {
		t.Fatal(err)
	}
	r.Answered(t, o, "bucket")
	if a := o.GetArtifact(); a.Revision == first {
		t.Error("other files have the same revision")
	}
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")}, unpacked(t, fetch(t, o.GetArtifact()))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	// A prefix names keys, not directories; what is ignored is not fetched.
	r.Bucket(t, "prefix", map[string]string{"apps/b.yaml": scenario.ConfigMapWith("b", "", "{}"), "other/c.yaml": scenario.ConfigMapWith("c", "", "{}")}, "prefix: app", "ignore: \"/apps\\n\"")
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")}, unpacked(t, fetch(t, r.Artifact(t, o, "prefix", "")))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if h.Buckets.Count("GET", r.Namespace+"/apps/b.yaml", 200) > 1 || h.Buckets.Count("GET", r.Namespace+"/other/c.yaml", 200) > 0 {
		t.Error("what nobody wants was downloaded")
	}
}

func (h *sourceSpec) bucketFailures(t *testing.T) {
	r := h.Row(t)
	o := &sourcev1.Bucket{}
	r.Bucket(t, "bucket", map[string]string{"a.yaml": scenario.ConfigMapWith("a", "", "{}")})
	r.Tells(t, o, "bucket", "Ready", "True", "Succeeded", "")
	r.MakeSource(t, "Bucket", "nowhere", "{bucketName: nowhere-at-all, endpoint: \""+h.Buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: bucket-keys}}")
	r.Tells(t, o, "nowhere", "Ready", "False", "BucketOperationFailed", "...'nowhere-at-all'")
	r.MakeSource(t, "Bucket", "missing", "{bucketName: $ns, endpoint: \""+h.Buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: nowhere}}")
	r.Tells(t, o, "missing", "Ready", "False", "AuthenticationFailed", "...nowhere")
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: wrong, namespace: $ns}\nstringData: {accesskey: wrong, secretkey: hunter2hunter2}\n"))
	r.MakeSource(t, "Bucket", "wrong", "{bucketName: $ns, endpoint: \""+h.Buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: wrong}}")
	c := r.Tells(t, o, "wrong", "Ready", "False", "BucketOperationFailed", "")
	if strings.Contains(c.Message, "hunter2") {
		t.Errorf("the message is %q", c.Message)
	}
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: empty, namespace: $ns}\nstringData: {accesskey: wrong}\n"))
	r.MakeSource(t, "Bucket", "empty", "{bucketName: $ns, endpoint: \""+h.Buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: empty}}")
	r.Tells(t, o, "empty", "Ready", "False", "AuthenticationFailed", "...accesskey")
}

func (h *sourceSpec) bucketKustomization(t *testing.T) {
	r := h.Row(t)
	r.Bucket(t, "bucket", scenario.ArtifactFiles())
	r.Kustomization(t, "app", "sourceRef: {kind: Bucket, name: bucket}")
	a := r.Artifact(t, &sourcev1.Bucket{}, "bucket", "")
	r.Tells(t, &kustomizev1.Kustomization{}, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: "+a.Revision)
	r.Has(t, "a", "k", "one")
}

// releaseFromOCIRepository: the digest is in the chart's version.
func (h *sourceSpec) releaseFromOCIRepository(t *testing.T) {
	r := h.Row(t)
	digest, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", "1.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	layer := "layerSelector: {mediaType: application/vnd.cncf.helm.chart.content.v1.tar+gzip, operation: copy}"
	r.MakeSource(t, "OCIRepository", "chart", "{insecure: true, url: \""+h.Registry.URL(r.Namespace+"/app")+"\", interval: 10m, ref: {semver: '*'}, "+layer+"}")
	r.Release(t, "web", "{chart: null, chartRef: {kind: OCIRepository, name: chart}}")
	o := r.Released(t, "web", 1)
	version := "1.0.0+" + strings.TrimPrefix(digest, "sha256:")[:12]
	r.ReleaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.Namespace+"/web.v1 with chart app@"+version)
	if s := o.Status.History.Latest(); s.ChartVersion != version || s.OCIDigest != digest || o.Status.LastAttemptedRevision != version || o.Status.LastAttemptedRevisionDigest != digest || o.Status.HelmChart != "" {
		t.Errorf("snapshot %+v, status %+v", s, o.Status)
	}
	if _, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", "1.1.0")); err != nil {
		t.Fatal(err)
	}
	r.Ask(t, &sourcev1.OCIRepository{}, "chart")
	r.Released(t, "web", 2)
	// The layer may be unpacked as well.
	r.MakeSource(t, "OCIRepository", "unpacked", "{insecure: true, url: \""+h.Registry.URL(r.Namespace+"/app")+"\", interval: 10m, ref: {tag: 1.0.0}}")
	r.Release(t, "other", "{chart: null, chartRef: {kind: OCIRepository, name: unpacked}}")
	r.Released(t, "other", 1)
	r.Release(t, "none", "{chart: null, chartRef: {kind: OCIRepository, name: nowhere}}")
	r.ReleaseTells(t, "none", "Ready", "False", "ArtifactFailed", "could not get Source object: ")
}

func (h *sourceSpec) releaseFromHelmChart(t *testing.T) {
	r := h.Row(t)
	r.MakeSource(t, "HelmChart", "chart", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	r.Release(t, "web", "{chart: null, chartRef: {kind: HelmChart, name: chart}}")
	o := r.Released(t, "web", 1)
	if o.Status.HelmChart != "" || o.Status.History.Latest().ChartVersion != "1.0.0" {
		t.Errorf("status is %+v", o.Status)
	}
	r.MakeSource(t, "HelmChart", "chart", "{chart: app, version: 1.1.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	r.Released(t, "web", 2)
	// What chart made goes when it is not wanted any more.
	r.Release(t, "other", "{}")
	r.Released(t, "other", 1)
	r.Release(t, "other", "{chart: null, chartRef: {kind: HelmChart, name: chart}}")
	r.Released(t, "other", 2)
	r.Gone(t, &sourcev1.HelmChart{}, r.Namespace+"-other")
	// The user's own stays.
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Artifact(t, &sourcev1.HelmChart{}, "chart", "1.1.0")
}

// releaseFromExternalArtifact: what a third party names, it has from a HelmChart
// here.
func (h *sourceSpec) releaseFromExternalArtifact(t *testing.T) {
	r := h.Row(t)
	r.MakeSource(t, "HelmChart", "chart", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	a := r.Artifact(t, &sourcev1.HelmChart{}, "chart", "1.0.0").DeepCopy()
	r.Release(t, "web", "{chart: null, chartRef: {kind: ExternalArtifact, name: made}}")
	r.ReleaseTells(t, "web", "Ready", "False", "ArtifactFailed", "could not get Source object: ")
	e := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "made"}}
	if err := r.Client.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	a.Revision = "latest@" + a.Digest
	e.Status.Artifact = a
	e.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Succeeded", LastTransitionTime: metav1.Now()}}
	if err := r.Client.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	r.Request(t, "web")
	o := r.Released(t, "web", 1)
	if s := o.Status.History.Latest(); s.ChartVersion != "1.0.0+"+strings.TrimPrefix(a.Digest, "sha256:")[:12] || s.OCIDigest != a.Revision {
		t.Errorf("snapshot %+v", s)
	}
	r.Has(t, "web-settings", "color", "red")
}

func (h *sourceSpec) releaseFromGit(t *testing.T) {
	r := h.GitRow(t, scenario.InTree("charts/app", scenario.AppChart("app", "1.0.0")))
	r.Release(t, "web", "chart: {spec: {chart: ./charts/app, version: null, sourceRef: {kind: GitRepository, name: git}, reconcileStrategy: Revision}}")
	o := r.Released(t, "web", 1)
	if got := o.Status.History.Latest().ChartVersion; got != "1.0.0+"+r.Head[:12] {
		t.Errorf("the chart's version is %s", got)
	}
	r.Commit(t, map[string]string{"charts/app/values.yaml": "settings: {color: blue}\nobjects: []\nrefuse: \"\"\n"})
	r.Has(t, "web-settings", "color", "blue")
	r.Released(t, "web", 2)
}

func (h *sourceSpec) releaseFromBucket(t *testing.T) {
	r := h.Row(t)
	r.Bucket(t, "bucket", scenario.InTree("app", scenario.AppChart("app", "1.0.0")))
	r.Release(t, "web", "chart: {spec: {chart: ./app, version: null, sourceRef: {kind: Bucket, name: bucket}}}")
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "color", "red")
}

func (h *sourceSpec) releaseFromOCIChart(t *testing.T) {
	r := h.Row(t)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		if _, err := h.Registry.PushChart(r.Namespace, scenario.AppChart("app", version)); err != nil {
			t.Fatal(err)
		}
	}
	r.MakeSource(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\"}")
	r.Release(t, "web", "chart: {spec: {version: 1.0.x, sourceRef: {name: registry}}}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "chart: {spec: {version: 1.x, sourceRef: {name: registry}}}")
	o := r.Released(t, "web", 2)
	if got := o.Status.History.Latest().ChartVersion; got != "1.1.0" {
		t.Errorf("the chart's version is %s", got)
	}
}

func (h *sourceSpec) sourcesSuspended(t *testing.T) {
	r := h.Row(t)
	digest := h.Push(t, r.Namespace, "latest", scenario.ArtifactFiles(), nil)
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 1s}")
	r.Artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 1s, suspend: true}")
	r.Bucket(t, "bucket", scenario.ArtifactFiles(), "suspend: true")
	next := h.Push(t, r.Namespace, "latest", map[string]string{"another": "one"}, nil)
	o := &sourcev1.OCIRepository{}
	r.MakeSource(t, "OCIRepository", "other", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 1s}")
	r.Artifact(t, &sourcev1.OCIRepository{}, "other", "latest@"+next)
	if err := r.Load(t.Context(), o, r.Namespace, "oci"); err != nil || o.GetArtifact().Revision != "latest@"+digest {
		t.Errorf("artifact %+v, %v", o.GetArtifact(), err)
	}
	b := &sourcev1.Bucket{}
	if err := r.Load(t.Context(), b, r.Namespace, "bucket"); err != nil || b.GetArtifact() != nil {
		t.Errorf("artifact %+v, %v", b.GetArtifact(), err)
	}
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 1s, suspend: false}")
	r.Artifact(t, o, "oci", "latest@"+next)
}

// sourcesDeleted: with a source goes what was served of it.
func (h *sourceSpec) sourcesDeleted(t *testing.T) {
	r := h.Row(t)
	digest := h.Push(t, r.Namespace, "latest", scenario.ArtifactFiles(), nil)
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m}")
	a := r.Artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	fetch(t, a)
	r.Delete(t, &sourcev1.OCIRepository{}, "oci")
	r.Gone(t, &sourcev1.OCIRepository{}, "oci")
	scenario.Eventually(t, scenario.Converge, "nothing is served of it", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			return errors.New(response.Status)
		}
		return nil
	})
}
