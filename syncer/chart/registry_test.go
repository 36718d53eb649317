package chart

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// ociRegistry is a registry with a count of what it was asked for.
type ociRegistry struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
}

func startRegistry(t testing.TB) *ociRegistry {
	r := &ociRegistry{}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req.Method+" "+req.URL.Path)
		r.mu.Unlock()
		handler.ServeHTTP(w, req)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *ociRegistry) host() string { return strings.TrimPrefix(r.URL, "http://") }

// count of requests with this in them.
func (r *ociRegistry) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, q := range r.requests {
		if strings.Contains(q, part) {
			n++
		}
	}
	return n
}

// push makes an image of a packaged chart as Helm does.
func (r *ociRegistry) push(t testing.TB, repository, tag string, packaged []byte) string {
	t.Helper()
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.helm.config.v1+json")
	image, err := mutate.Append(image, mutate.Addendum{Layer: static.NewLayer(packaged, types.MediaType(source.ChartMediaType))})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewTag(r.host()+"/"+repository+":"+tag, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func ociRepository(t testing.TB, r *ociRegistry) Repository {
	images := source.NewImages(t.TempDir(), 64<<20, time.Now)
	return Repository{URL: "oci://" + r.host() + "/charts/", Registry: NewRegistry(images, source.ImageOrigin{Insecure: true}, DefaultChartMaxBytes)}
}

// TestFromRegistry: charts as OCI artifacts.
func TestFromRegistry(t *testing.T) {
	server := startRegistry(t)
	for _, v := range []string{"6.1.0", "6.2.0", "6.3.0-rc.1", "6.2.0_build.7"} {
		server.push(t, "charts/podinfo", v, tgz(t, chartFiles("podinfo", "podinfo", strings.ReplaceAll(v, "_", "+"))))
	}
	server.push(t, "charts/bad", "1.0.0", []byte("no archive"))
	repo := ociRepository(t, server)
	charts := newCharts(t)
	for name, c := range map[string]struct {
		reason  string
		chart   string
		version string
		want    string
		has     string
	}{
		"exact":      {"a version is a tag", "podinfo", "6.1.0", "6.1.0", ""},
		"metadata":   {"a tag has no plus", "podinfo", "6.2.0+build.7", "6.2.0+build.7", ""},
		"range":      {"the newest in a range", "podinfo", "6.1.x", "6.1.0", ""},
		"newest":     {"no prerelease", "podinfo", "", "6.2.0+build.7", ""},
		"prerelease": {"but where it is asked for", "podinfo", ">=6.0.0-0", "6.3.0-rc.1", ""},
		"no match":   {"a range that nothing is in yet: no index tells when that changes", "podinfo", ">99", ReasonPull, "matching '>99'"},
		"no range":   {"what nothing can ever be in", "podinfo", "newest", ReasonReference, "cannot read version 'newest'"},
		"no version": {"a tag that is not there", "podinfo", "9.9.9", ReasonPull, "9.9.9"},
		"no chart":   {"a repository that is not there", "nobody", "*", ReasonPull, "nobody"},
		"no archive": {"what is no chart", "bad", "1.0.0", ReasonPull, ""},
	} {
		t.Run(name, func(t *testing.T) {
			build, err := charts.FromRepository(t.Context(), repo, Spec{User: user(name), Chart: c.chart, Version: c.version}, nil)
			got, text := "", ""
			if err != nil {
				got, text = source.ReasonOf(err), err.Error()
			} else if got = build.Version; build.Snapshot.Revision != got {
				t.Errorf("%s: revision %s, want %s", c.reason, build.Snapshot.Revision, got)
			}
			if got != c.want || !strings.Contains(text, c.has) {
				t.Errorf("%s: got %q, want %q with %q in %q", c.reason, got, c.want, c.has, text)
			}
		})
	}
}

// TestRegistryRequests: an exact version that somebody has is not asked for again.
func TestRegistryRequests(t *testing.T) {
	server := startRegistry(t)
	server.push(t, "charts/podinfo", "6.1.0", tgz(t, chartFiles("podinfo", "podinfo", "6.1.0")))
	repo, charts := ociRepository(t, server), newCharts(t)
	var builds []*Build
	for _, name := range []string{"a", "b", "a"} {
		build, err := charts.FromRepository(t.Context(), repo, Spec{User: user(name), Chart: "podinfo", Version: "6.1.0"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		builds = append(builds, build)
	}
	if got := charts.Counts().Downloads; got != 1 {
		t.Errorf("%d downloads, want 1", got)
	}
	if got := server.count("GET /v2/charts/podinfo/blobs"); got != 1 || server.count("tags/list") != 0 {
		t.Errorf("%d layers and %d lists of tags were fetched, want 1 and none", got, server.count("tags/list"))
	}
	if builds[0].Snapshot != builds[2].Snapshot {
		t.Error("the same chart has another snapshot")
	}
}

// TestPushedAgain: what a registry has by now under a version is used where the spec changed and
// where it was verified, and it is asked for once.
func TestPushedAgain(t *testing.T) {
	old := tgz(t, chartFiles("podinfo", "podinfo", "6.1.0"))
	mended := tgz(t, chartFiles("podinfo", "podinfo", "6.1.0", "templates/a.yaml", "kind: Mended\n"))
	for name, c := range map[string]struct {
		reason   string
		user     string
		changed  bool
		verify   bool
		values   []string
		restored bool
		want     string
	}{
		"unchanged": {"a version is the same until somebody asks anew, as in Flux", "a", false, false, nil, false, "old"},
		"changed":   {"who changes the spec gets what there is", "a", true, false, nil, false, "mended"},
		"new":       {"so does who is new, though others hold the old one", "b", true, false, nil, false, "mended"},
		"values":    {"with values files as well", "a", true, false, []string{"values-prod.yaml"}, false, "mended"},
		"restart":   {"what others hold is shared after a restart", "b", false, false, nil, true, "old"},
		"verified":  {"the signature is of what is used", "a", false, true, nil, false, "mended"},
		"merged":    {"also where values files are merged", "a", false, true, []string{"values-prod.yaml"}, false, "mended"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startRegistry(t)
			repo, charts := ociRepository(t, server), newCharts(t)
			var verify Verify
			if c.verify {
				verify = func(context.Context, string, string) error { return nil }
			}
			build := func(spec Spec) *Build {
				t.Helper()
				b, err := charts.FromRepository(t.Context(), repo, spec, verify)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			spec := Spec{User: user("a"), Chart: "podinfo", Version: "6.1.0", ValuesFiles: c.values, Generation: 1, Changed: true}
			server.push(t, "charts/podinfo", "6.1.0", old)
			first := build(spec)
			server.push(t, "charts/podinfo", "6.1.0", mended)
			spec.User, spec.Changed = user(c.user), c.changed
			switch {
			case c.restored:
				spec.Last = &Build{Name: first.Name, Version: first.Version}
			case c.user == "a":
				spec.Last = first
			}
			got := build(spec)
			text, err := got.Snapshot.ReadFile("podinfo/templates/a.yaml")
			if err != nil {
				t.Fatal(err)
			}
			has := "old"
			if strings.Contains(string(text), "Mended") {
				has = "mended"
			}
			if has != c.want || got.Version != first.Version {
				t.Errorf("%s: got the %s one of version %s, want the %s one of %s", c.reason, has, got.Version, c.want, first.Version)
			}
			spec.Last, spec.Changed = got, false
			layers := server.count("GET /v2/charts/podinfo/blobs")
			if again := build(spec); again != got || server.count("GET /v2/charts/podinfo/blobs") != layers {
				t.Errorf("%s: what is used was built again", c.reason)
			}
			// Who comes without a change of its own gets what the others have by now.
			spec.User, spec.Last = user("c"), nil
			if late := build(spec); late.Snapshot.Digest != got.Snapshot.Digest {
				t.Errorf("%s: another one got another chart", c.reason)
			}
			runtime.KeepAlive(first)
		})
	}
}

// TestOneManifestOfTwoTags: each of two versions has its own name, also where one manifest is both.
func TestOneManifestOfTwoTags(t *testing.T) {
	server := startRegistry(t)
	packed := tgz(t, chartFiles("podinfo", "podinfo", "6.1.0"))
	repo, charts := ociRepository(t, server), newCharts(t)
	var held []*Build
	for _, version := range []string{"6.1.0", "v6.1.0"} {
		server.push(t, "charts/podinfo", version, packed)
		build, err := charts.FromRepository(t.Context(), repo, Spec{User: user(version), Chart: "podinfo", Version: version}, nil)
		if err != nil || build.Version != version {
			t.Errorf("FromRepository() = %+v, %v, want version %s", build, err, version)
		}
		held = append(held, build)
	}
	runtime.KeepAlive(held)
}

// TestVerify: what was verified is what is used, and a failure has its reason.
func TestVerify(t *testing.T) {
	server := startRegistry(t)
	good := tgz(t, chartFiles("podinfo", "podinfo", "6.1.0"))
	digest := server.push(t, "charts/podinfo", "6.1.0", good)
	repo, charts := ociRepository(t, server), newCharts(t)
	spec := Spec{User: user("a"), Chart: "podinfo", Version: "6.1.0"}
	build, err := charts.FromRepository(t.Context(), repo, spec, func(_ context.Context, repository, got string) error {
		if repository != server.host()+"/charts/podinfo" || got != digest {
			t.Errorf("verify %s@%s, want %s", repository, got, digest)
		}
		// The tag moves while the signature is checked.
		server.push(t, "charts/podinfo", "6.1.0", tgz(t, chartFiles("podinfo", "podinfo", "6.1.0", "templates/evil.yaml", "kind: Evil\n")))
		return nil
	})
	if err != nil || build.Snapshot.Digest != "sha256:"+sum(good) {
		t.Errorf("FromRepository() = %+v, %v, want what was verified", build, err)
	}
	_, err = charts.FromRepository(t.Context(), repo, spec, func(context.Context, string, string) error { return errors.New("no matching signatures") })
	if source.ReasonOf(err) != ReasonVerification || !strings.HasPrefix(err.Error(), "chart verification error: ") {
		t.Errorf("FromRepository() = %v, want reason %s", err, ReasonVerification)
	}
	plain := startRepository(t)
	if _, err := charts.FromRepository(t.Context(), Repository{URL: plain.URL}, spec, func(context.Context, string, string) error { return nil }); source.ReasonOf(err) != ReasonVerification {
		t.Errorf("FromRepository() = %v, want reason %s: there are no signatures", err, ReasonVerification)
	}
}

// TestRegistryIdentity: what is read with other credentials is kept apart.
func TestRegistryIdentity(t *testing.T) {
	of := func(o source.ImageOrigin) string { return NewRegistry(nil, o, 1).Identity() }
	base := of(source.ImageOrigin{})
	if base != of(source.ImageOrigin{URL: "oci://elsewhere"}) {
		t.Error("the URL counts, and it must not")
	}
	for name, o := range map[string]source.ImageOrigin{
		"secret":      {Secrets: []map[string][]byte{{"username": []byte("u")}}},
		"login":       {Login: &source.Login{Identity: "x"}},
		"certificate": {Certificates: map[string][]byte{"ca.crt": []byte("x")}},
		"insecure":    {Insecure: true},
	} {
		if of(o) == base {
			t.Errorf("%s does not count", name)
		}
	}
}
