package images

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// repository: image, interval and insecure, and the whole status.
func (h *imageSpec) repository(t *testing.T) {
	r := h.row(t, nil)
	r.push(t, "app", "1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0", "1.6.0", "1.7.0", "1.8.0", "1.9.0", "latest", "sha256-abc.sig")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m}")
	o := &imagev1.ImageRepository{}
	r.Tells(t, o, "app", "Ready", "True", "Succeeded", "successful scan: found 11 tags")
	s := o.Status
	if s.CanonicalImageName != r.image("app") || !slices.Equal(s.ObservedExclusionList, []string{`^.*\.sig$`}) || s.ObservedGeneration != o.Generation || !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("the status is %+v, the finalizers %v", s, o.Finalizers)
	}
	if diff := cmp.Diff([]string{"latest", "1.9.0", "1.8.0", "1.7.0", "1.6.0", "1.5.0", "1.4.0", "1.3.0", "1.2.0", "1.1.0"}, s.LastScanResult.LatestTags); diff != "" || s.LastScanResult.TagCount != 11 || s.LastScanResult.ScanTime.IsZero() {
		t.Errorf("the scan is %+v: -want, +got:\n%s", s.LastScanResult, diff)
	}
	r.Event(t, "ImageRepository", "app", "Succeeded", "successful scan: found 11 tags")
	revision := s.LastScanResult.Revision
	r.Answered(t, o, "app")
	if o.Status.LastScanResult.Revision != revision {
		t.Errorf("the revision of the same tags is %s, and was %s", o.Status.LastScanResult.Revision, revision)
	}
	r.push(t, "app", "2.0.0")
	r.Answered(t, o, "app")
	if o.Status.LastScanResult.Revision == revision || o.Status.LastScanResult.TagCount != 12 {
		t.Errorf("the scan of another tag is %+v", o.Status.LastScanResult)
	}
	r.make(t, "ImageRepository", "app", "{image: $image, interval: 10m}")
	r.Tells(t, o, "app", "Ready", "False", "ReadOperationFailed", "...spec.insecure")
}

// repositoryShared: one list of tags for all that name an image.
func (h *imageSpec) repositoryShared(t *testing.T) {
	r := h.row(t, nil)
	r.push(t, "app", "1.0.0")
	const objects = 8
	for n := range objects {
		r.make(t, "ImageRepository", fmt.Sprint("app-", n), "{image: $image, insecure: true, interval: 10m}")
	}
	for n := range objects {
		r.Tells(t, &imagev1.ImageRepository{}, fmt.Sprint("app-", n), "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	}
	if got := h.registry.Count("GET", r.Namespace+"/app/tags/list", http.StatusOK); got != 1 {
		t.Errorf("%d lists of tags for %d ImageRepositories; want 1", got, objects)
	}
}

// repositoryInterval: a new tag is found by itself.
func (h *imageSpec) repositoryInterval(t *testing.T) {
	r := h.row(t, nil)
	r.push(t, "app", "1.0.0")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 2s}")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	r.push(t, "app", "1.1.0")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "True", "Succeeded", "successful scan: found 2 tags")
}

func (h *imageSpec) repositoryExclusionList(t *testing.T) {
	r := h.row(t, nil)
	r.push(t, "app", "1.0.0", "1.0.2", "1.1.1", "2.0.0", "x.sig")
	r.make(t, "ImageRepository", "app", `{image: $image, insecure: true, interval: 10m, exclusionList: ['^.*\.sig$', '1\.0\.2', '1.1.1|1.0.0']}`)
	o := &imagev1.ImageRepository{}
	r.Tells(t, o, "app", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	if !slices.Equal(o.Status.ObservedExclusionList, []string{`^.*\.sig$`, `1\.0\.2`, `1.1.1|1.0.0`}) || !slices.Equal(o.Status.LastScanResult.LatestTags, []string{"2.0.0"}) {
		t.Errorf("the status is %+v", o.Status)
	}
	r.make(t, "ImageRepository", "app", `{image: $image, insecure: true, interval: 10m, exclusionList: ['(']}`)
	r.Tells(t, o, "app", "Stalled", "True", "Failure", "cannot use spec.exclusionList[0]")
}

// repositoryLogin: secretRef, and the pull secrets of serviceAccountName.
func (h *imageSpec) repositoryLogin(t *testing.T) {
	r := h.row(t, nil)
	closed := origins.StartRegistry(origins.Login{Username: "cascade", Password: "hunter2"})
	defer closed.Close()
	if _, err := closed.PushFiles("org/app", "1.0.0", map[string]string{"a": "1"}, nil); err != nil {
		t.Fatal(err)
	}
	secret := func(name, password string) {
		text := fmt.Sprintf(`{"auths":{%q:{"username":"cascade","password":%q}}}`, closed.Address(), password)
		r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: $ns}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: %q}\n", name, text)))
	}
	secret("good", "hunter2")
	secret("bad", "wrong")
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: puller, namespace: $ns}\nimagePullSecrets: [{name: good}]\n"))
	image := "{image: " + closed.Address() + "/org/app, insecure: true, interval: 10m%s}"
	o := &imagev1.ImageRepository{}
	r.make(t, "ImageRepository", "none", fmt.Sprintf(image, ""))
	r.Tells(t, o, "none", "Ready", "False", "ReadOperationFailed", "...401")
	r.make(t, "ImageRepository", "bad", fmt.Sprintf(image, ", secretRef: {name: bad}"))
	r.Tells(t, o, "bad", "Ready", "False", "ReadOperationFailed", "...401")
	r.make(t, "ImageRepository", "good", fmt.Sprintf(image, ", secretRef: {name: good}"))
	r.Tells(t, o, "good", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	r.make(t, "ImageRepository", "account", fmt.Sprintf(image, ", serviceAccountName: puller"))
	r.Tells(t, o, "account", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	r.make(t, "ImageRepository", "missing", fmt.Sprintf(image, ", secretRef: {name: gone}"))
	r.Tells(t, o, "missing", "Ready", "False", "AuthenticationFailed", "cannot read Secret")
	// What one credential may read is not shown to who has none.
	r.Answered(t, o, "none")
	r.Tells(t, o, "none", "Ready", "False", "ReadOperationFailed", "...401")
}

// repositoryCertificates: certSecretRef.
func (h *imageSpec) repositoryCertificates(t *testing.T) {
	r := h.row(t, nil)
	server := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	address := server.Listener.Addr().String()
	tag, err := name.NewTag(address + "/org/app:1.0.0")
	if err == nil {
		err = remote.Write(tag, empty.Image, remote.WithTransport(server.Client().Transport))
	}
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: ca, namespace: $ns}\nstringData: {ca.crt: %q}\n", ca)))
	o := &imagev1.ImageRepository{}
	r.make(t, "ImageRepository", "without", "{image: "+address+"/org/app, interval: 10m}")
	r.Tells(t, o, "without", "Ready", "False", "ReadOperationFailed", "...certificate")
	r.make(t, "ImageRepository", "with", "{image: "+address+"/org/app, interval: 10m, certSecretRef: {name: ca}}")
	r.Tells(t, o, "with", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
}

// repositoryProxy: proxySecretRef.
func (h *imageSpec) repositoryProxy(t *testing.T) {
	r := h.row(t, nil)
	r.push(t, "app", "1.0.0")
	var through atomic.Int64
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { through.Add(1) }})
	defer proxy.Close()
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Secret\nmetadata: {name: proxy, namespace: $ns}\nstringData: {address: \""+proxy.URL+"\"}\n"))
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m, proxySecretRef: {name: proxy}}")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "True", "Succeeded", "successful scan: found 1 tags")
	if through.Load() == 0 {
		t.Error("the proxy was not asked")
	}
}

// repositoryProvider: the identity of a cloud is for its own registries.
func (h *imageSpec) repositoryProvider(t *testing.T) {
	r := h.row(t, nil)
	for _, provider := range []string{"aws", "azure", "gcp"} {
		r.make(t, "ImageRepository", provider, "{image: $image, insecure: true, interval: 10m, provider: "+provider+"}")
		r.Tells(t, &imagev1.ImageRepository{}, provider, "Ready", "False", "AuthenticationFailed", "...identity of the cloud")
	}
	r.push(t, "app", "1.0.0")
	r.make(t, "ImageRepository", "generic", "{image: $image, insecure: true, interval: 10m, provider: generic}")
	r.Tells(t, &imagev1.ImageRepository{}, "generic", "Ready", "True", "Succeeded", "")
}

func (h *imageSpec) repositorySuspended(t *testing.T) {
	r := h.row(t, nil)
	r.scanned(t, "1.0.0")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 1s, suspend: true}")
	r.push(t, "app", "1.1.0")
	r.Ask(t, &imagev1.ImageRepository{}, "app")
	// Another of the same image shows when the agent would have looked.
	r.make(t, "ImageRepository", "other", "{image: $image, insecure: true, interval: 1s}")
	o := &imagev1.ImageRepository{}
	r.Tells(t, o, "other", "Ready", "True", "Succeeded", "successful scan: found 2 tags")
	if err := r.Load(t.Context(), o, r.Namespace, "app"); err != nil || o.Status.LastScanResult.TagCount != 1 || o.Status.LastHandledReconcileAt != "" {
		t.Errorf("a suspended repository has %+v, %v", o.Status, err)
	}
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m, suspend: false}")
	r.Tells(t, o, "app", "Ready", "True", "Succeeded", "successful scan: found 2 tags")
}

// repositoryTimeout: a registry that hangs has so long.
func (h *imageSpec) repositoryTimeout(t *testing.T) {
	r := h.row(t, nil)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }))
	defer hangs.Close()
	r.make(t, "ImageRepository", "app", "{image: "+strings.TrimPrefix(hangs.URL, "http://")+"/org/app, insecure: true, interval: 10m, timeout: 1s}")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "False", "ReadOperationFailed", "...in time: ")
}

// repositoryFailures: what cannot be scanned, and registries that mean harm.
func (h *imageSpec) repositoryFailures(t *testing.T) {
	r := h.row(t, nil)
	o := &imagev1.ImageRepository{}
	for of, image := range map[string]string{"tag": "$image:1.0.0", "scheme": "https://example.com/app", "digest": "'$image@sha256:0'", "dots": "$image/../x", "empty": "''"} {
		r.make(t, "ImageRepository", of, "{image: "+image+", interval: 10m}")
		r.Tells(t, o, of, "Stalled", "True", "ImageURLInvalid", "")
	}
	r.make(t, "ImageRepository", "absent", "{image: $image, insecure: true, interval: 10m}")
	r.Tells(t, o, "absent", "Ready", "False", "ReadOperationFailed", "...404")
	huge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !strings.HasSuffix(q.URL.Path, "/tags/list") {
			return
		}
		if strings.Contains(q.URL.Path, "/many/") {
			fmt.Fprint(w, `{"tags":[`+strings.Repeat(`"a",`, 1_000_000)+`"b"]}`)
			return
		}
		fmt.Fprint(w, `{"tags":[`)
		tag := `"` + strings.Repeat("a", 120) + `",`
		for range 50 << 20 / len(tag) {
			if _, err := fmt.Fprint(w, tag); err != nil {
				return
			}
		}
		fmt.Fprint(w, `"b"]}`)
	}))
	defer huge.Close()
	for _, of := range []string{"huge", "many"} {
		r.make(t, "ImageRepository", of, "{image: "+strings.TrimPrefix(huge.URL, "http://")+"/"+of+"/app, insecure: true, interval: 10m}")
		r.Tells(t, o, of, "Ready", "False", "LimitExceeded", "...more than")
	}
}

// policy: each way to choose, and filterTags with pattern and extract.
func (h *imageSpec) policy(t *testing.T) {
	r := h.row(t, nil)
	r.scanned(t, "1.0.0", "1.10.0", "1.9.0", "2.0.0-rc.1", "main-abc-9", "main-def-10", "RELEASE.2026-01-02Z", "RELEASE.2026-01-03Z", "7", "12")
	for _, c := range []struct{ name, policy, filter, want, reason string }{
		{"semver", "{semver: {range: '>=1.0.0'}}", "", "1.10.0", "the highest version"},
		{"prerelease", "{semver: {range: '>=1.0.0-0'}}", "", "2.0.0-rc.1", "where the range has one"},
		{"alphabetical", "{alphabetical: {order: asc}}", "", "main-def-10", "the last by letters"},
		{"descending", "{alphabetical: {order: desc}}", "", "1.0.0", "the first by letters"},
		{"numerical", "{numerical: {order: asc}}", "{pattern: '^[0-9]+$'}", "12", "the greatest number"},
		{"least", "{numerical: {order: desc}}", "{pattern: '^[0-9]+$'}", "7", "the least"},
		{"extract", "{numerical: {order: asc}}", "{pattern: '^main-[a-f0-9]+-(?P<n>[0-9]+)$', extract: '$n'}", "main-def-10", "by what is extracted"},
		{"timestamp", "{alphabetical: {}}", "{pattern: '^RELEASE\\.(?P<timestamp>.*)Z$', extract: '$timestamp'}", "RELEASE.2026-01-03Z", "the documentation's example"},
	} {
		t.Logf("%s: %s", c.name, c.reason)
		filter := ""
		if c.filter != "" {
			filter = ", filterTags: " + c.filter
		}
		r.make(t, "ImagePolicy", c.name, "{imageRepositoryRef: {name: app}, policy: "+c.policy+filter+"}")
		o := r.chosen(t, c.name, c.want)
		if o.Status.ObservedGeneration != o.Generation || !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") || o.Status.LatestRef.Digest != "" {
			t.Errorf("the status of %s is %+v", c.name, o.Status)
		}
	}
}

// policyPrevious: status.observedPreviousRef, which a failure resets.
func (h *imageSpec) policyPrevious(t *testing.T) {
	r := h.settled(t, nil)
	if o := r.chosen(t, "app", "1.0.0"); o.Status.ObservedPreviousRef != nil {
		t.Errorf("the first image comes after %v", o.Status.ObservedPreviousRef)
	}
	r.newTag(t, "1.1.0")
	if o := r.chosen(t, "app", "1.1.0"); o.Status.ObservedPreviousRef == nil || o.Status.ObservedPreviousRef.Tag != "1.0.0" {
		t.Errorf("the second image comes after %v", o.Status.ObservedPreviousRef)
	}
	r.make(t, "ImagePolicy", "app", "{imageRepositoryRef: {name: app}, policy: {semver: {range: '>=9'}}}")
	o := &imagev1.ImagePolicy{}
	r.Tells(t, o, "app", "Ready", "False", "Failure", "...no tag fits")
	if o.Status.ObservedPreviousRef != nil || o.Status.LatestRef == nil || o.Status.LatestRef.Tag != "1.1.0" {
		t.Errorf("after a failure the status is %+v", o.Status)
	}
}

// policyDigest: digestReflectionPolicy in its three values, and interval.
func (h *imageSpec) policyDigest(t *testing.T) {
	r := h.row(t, nil)
	r.scanned(t, "1.0.0")
	of := "{imageRepositoryRef: {name: app}, policy: {semver: {range: '*'}}, digestReflectionPolicy: %s}"
	r.make(t, "ImagePolicy", "never", fmt.Sprintf(of, "Never"))
	r.make(t, "ImagePolicy", "once", fmt.Sprintf(of, "IfNotPresent"))
	r.make(t, "ImagePolicy", "always", fmt.Sprintf(of, "Always, interval: 1s"))
	first := r.chosen(t, "once", "1.0.0").Status.LatestRef.Digest
	if o := r.chosen(t, "never", "1.0.0"); o.Status.LatestRef.Digest != "" || !strings.HasPrefix(first, "sha256:") || r.chosen(t, "always", "1.0.0").Status.LatestRef.Digest != first {
		t.Errorf("never: %v, once: %s", o.Status.LatestRef, first)
	}
	second, err := h.registry.PushFiles(r.Namespace+"/app", "1.0.0", map[string]string{"another": "one"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the digest is the new one", func(ctx context.Context) error {
		o := &imagev1.ImagePolicy{}
		if err := r.Load(ctx, o, r.Namespace, "always"); err != nil {
			return err
		}
		if o.Status.LatestRef.Digest != second {
			return fmt.Errorf("it is %s", o.Status.LatestRef.Digest)
		}
		return nil
	})
	o := &imagev1.ImagePolicy{}
	r.Answered(t, o, "once")
	if o.Status.LatestRef.Digest != first {
		t.Errorf("the digest that was present became %s", o.Status.LatestRef.Digest)
	}
	r.push(t, "app", "1.1.0")
	r.Ask(t, &imagev1.ImageRepository{}, "app")
	if got := r.chosen(t, "once", "1.1.0").Status.LatestRef.Digest; got == first || got == "" {
		t.Errorf("the digest of another tag is %s", got)
	}
}

// policyOtherImage: what was chosen for one image is not written as a tag of the next one.
func (h *imageSpec) policyOtherImage(t *testing.T) {
	r := h.settled(t, nil)
	r.make(t, "ImageRepository", "app", "{image: $image-absent, insecure: true, interval: 10m}")
	r.Tells(t, &imagev1.ImageRepository{}, "app", "Ready", "False", "ReadOperationFailed", "...404")
	o := &imagev1.ImagePolicy{}
	r.Tells(t, o, "app", "Ready", "False", "DependencyNotReady", "the tags of ImageRepository")
	if o.Status.LatestRef == nil || o.Status.LatestRef.Name != r.image("app") || o.Status.LatestRef.Tag != "1.0.0" {
		t.Errorf("the policy has chosen %v", o.Status.LatestRef)
	}
}

// policyAccess: another namespace's ImageRepository, which its accessFrom lets in or not.
func (h *imageSpec) policyAccess(t *testing.T) {
	r := h.row(t, nil)
	r.scanned(t, "1.0.0")
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-other, labels: {team: web}}\n---\napiVersion: image.toolkit.fluxcd.io/v1\nkind: ImagePolicy\nmetadata: {name: app, namespace: $ns-other}\n"+
		"spec: {imageRepositoryRef: {name: app, namespace: $ns}, policy: {semver: {range: '*'}}}\n"))
	other := &row{&scenario.Row{Tier: r.Tier, Namespace: r.Namespace + "-other"}, h}
	o := &imagev1.ImagePolicy{}
	other.Tells(t, o, "app", "Ready", "False", "AccessDenied", "")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m, accessFrom: {namespaceSelectors: [{matchLabels: {team: db}}]}}")
	other.Tells(t, o, "app", "Ready", "False", "AccessDenied", "")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m, accessFrom: {namespaceSelectors: [{matchLabels: {team: web}}]}}")
	other.Tells(t, o, "app", "Ready", "True", "Succeeded", "")
	if o.Status.LatestRef == nil || o.Status.LatestRef.Tag != "1.0.0" {
		t.Errorf("the policy has chosen %v", o.Status.LatestRef)
	}
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m}")
	other.Tells(t, o, "app", "Ready", "False", "AccessDenied", "")
	r.make(t, "ImageRepository", "app", "{image: $image, insecure: true, interval: 10m, accessFrom: {namespaceSelectors: [{matchLabels: {}}]}}")
	other.Tells(t, o, "app", "Ready", "True", "Succeeded", "")
}

func (h *imageSpec) policySuspended(t *testing.T) {
	r := h.settled(t, nil)
	r.make(t, "ImagePolicy", "app", "{imageRepositoryRef: {name: app}, policy: {semver: {range: '*'}}, suspend: true}")
	r.make(t, "ImagePolicy", "other", semver)
	r.push(t, "app", "1.1.0")
	r.Ask(t, &imagev1.ImageRepository{}, "app")
	r.chosen(t, "other", "1.1.0")
	o := &imagev1.ImagePolicy{}
	if err := r.Load(t.Context(), o, r.Namespace, "app"); err != nil || o.Status.LatestRef.Tag != "1.0.0" {
		t.Errorf("a suspended policy has chosen %v, %v", o.Status.LatestRef, err)
	}
	r.make(t, "ImagePolicy", "app", semver)
	r.chosen(t, "app", "1.1.0")
}

func (h *imageSpec) policyFailures(t *testing.T) {
	r := h.row(t, nil)
	o := &imagev1.ImagePolicy{}
	r.make(t, "ImagePolicy", "early", semver)
	r.Tells(t, o, "early", "Ready", "False", "DependencyNotReady", "referenced ImageRepository")
	r.scanned(t, "1.0.0", "latest")
	r.chosen(t, "early", "1.0.0") // it is woken by the scan
	for name, c := range map[string]struct{ policy, condition, reason, message string }{
		"none":    {"{semver: {range: '>=9'}}", "Ready", "Failure", "...no tag fits"},
		"range":   {"{semver: {range: 'over the hills'}}", "Stalled", "InvalidPolicy", "...range"},
		"pattern": {"{semver: {range: '*'}}, filterTags: {pattern: '('}", "Stalled", "InvalidPolicy", "...filterTags.pattern"},
		"number":  {"{numerical: {}}", "Ready", "Failure", "...as a number"},
		"nothing": {"{}", "Stalled", "InvalidPolicy", "...none of"},
	} {
		r.make(t, "ImagePolicy", name, "{imageRepositoryRef: {name: app}, policy: "+c.policy+"}")
		status := "False"
		if c.condition == "Stalled" {
			status = "True"
		}
		r.Tells(t, o, name, c.condition, metav1.ConditionStatus(status), c.reason, c.message)
	}
}

// restart: an agent that was started again asks no registry for what it listed, and its policies stay ready.
func (h *imageSpec) restart(t *testing.T) {
	path := "--snapshot-path=" + t.TempDir()
	h.RestartAgent(t, path)
	r := h.row(t, map[string]string{"app/web.yaml": marked("x:1")})
	r.scanned(t, "1.0.0")
	r.make(t, "ImagePolicy", "app", semver)
	before := r.chosen(t, "app", "1.0.0")
	r.automate(t, "", "")
	r.pushed(t, "main")
	head := r.git(t, "rev-parse", "main")
	lists := h.registry.Count("GET", r.Namespace+"/app/tags/list", http.StatusOK)
	h.RestartAgent(t, path)
	o := &imagev1.ImagePolicy{}
	r.Answered(t, o, "app")
	if got := h.registry.Count("GET", r.Namespace+"/app/tags/list", http.StatusOK); got != lists {
		t.Errorf("%d lists of tags after a restart", got-lists)
	}
	if c, was := o.Status.Conditions[0], before.Status.Conditions[0]; !c.LastTransitionTime.Equal(&was.LastTransitionTime) {
		t.Errorf("the policy was not ready for a while: %+v, before %+v", c, was)
	}
	r.newTag(t, "1.1.0")
	r.has(t, "main", "app/web.yaml", ":1.1.0")
	if got := r.git(t, "rev-parse", "main^"); got != head {
		t.Errorf("the parent is %s; want %s", got, head)
	}
}
