package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	dockerregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	fluxMediaType = "application/vnd.cncf.flux.content.v1.tar+gzip"
	readmeType    = "text/markdown"
)

// docker is a registry in this process, in front of which a test may put what it
// likes.
type docker struct {
	t      *testing.T
	server *httptest.Server
	host   string
	front  func(w http.ResponseWriter, r *http.Request) (done bool)

	mu       sync.Mutex
	requests []string
}

func newDocker(t *testing.T, start func(http.Handler) *httptest.Server, options ...dockerregistry.Option) *docker {
	t.Helper()
	d := &docker{t: t}
	behind := dockerregistry.New(append(options, dockerregistry.Logger(log.New(io.Discard, "", 0)))...)
	d.server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		d.requests = append(d.requests, r.Method+" "+r.URL.Path)
		front := d.front
		d.mu.Unlock()
		if front != nil && front(w, r) {
			return
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(d.server.Close)
	d.host = strings.TrimPrefix(strings.TrimPrefix(d.server.URL, "http://"), "https://")
	return d
}

// between sets what is asked before the registry.
func (d *docker) between(front func(w http.ResponseWriter, r *http.Request) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.front = front
}

// asked returns the requests since the last call.
func (d *docker) asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.requests
	d.requests = nil
	return asked
}

// times counts the requests that contain a text.
func times(requests []string, text string) int {
	n := 0
	for _, r := range requests {
		if strings.Contains(r, text) {
			n++
		}
	}
	return n
}

// image makes one of layers with their media types.
func image(t *testing.T, annotations map[string]string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.flux.config.v1+json")
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return mutate.Annotations(img, annotations).(v1.Image)
}

func (d *docker) push(tag string, img v1.Image) string {
	d.t.Helper()
	ref, err := name.NewTag(d.host + "/org/app:" + tag)
	if err != nil {
		d.t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(d.server.Client().Transport)); err != nil {
		d.t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		d.t.Fatal(err)
	}
	d.asked()
	return digest.String()
}

func (d *docker) origin() ImageOrigin {
	return ImageOrigin{URL: "oci://" + d.host + "/org/app", Insecure: true}
}

// filesOf packs files by name.
func filesOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	w := tar.NewWriter(gz)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func fluxLayer(t *testing.T, files map[string]string) v1.Layer {
	return static.NewLayer(filesOf(t, files), fluxMediaType)
}

func pullImage(t *testing.T, i *Images, o ImageOrigin, ref ImageReference, options ImageOptions, last *Snapshot) *Snapshot {
	t.Helper()
	found, err := i.Resolve(t.Context(), o, ref, options.MediaType)
	if err != nil {
		t.Fatal(err)
	}
	s, err := i.Fetch(t.Context(), o, found, options, last)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestImages(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	first := d.push("v1.0.0", image(t, map[string]string{
		"org.opencontainers.image.revision": "main@sha1:aa", "org.opencontainers.image.created": "2026-01-02T03:04:05Z",
	}, fluxLayer(t, map[string]string{"a.yaml": "1", "dir/b.yaml": "2", "logo.png": "x"})))
	dir := filepath.Join(t.TempDir(), "images")
	i := NewImages(dir, plenty, time.Now)
	s := pullImage(t, i, d.origin(), ImageReference{Tag: "v1.0.0"}, ImageOptions{}, nil)
	if s.Revision != "v1.0.0@"+first || s.OriginRevision != "main@sha1:aa" || s.Metadata["org.opencontainers.image.created"] == "" || s.File != first+".tar.gz" ||
		!s.Time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("snapshot %+v is not the image", s)
	}
	if diff := cmp.Diff([]string{"a.yaml", "dir/b.yaml"}, walk(t, s, "")); diff != "" {
		t.Errorf("files by the default rules: -want, +got:\n%s", diff)
	}
	if read(t, s, "dir/b.yaml") != "2" {
		t.Error("a file has other content")
	}
	if _, ok := s.Packed(); ok {
		t.Error("an unpacked layer is served as it came")
	}
	if asked := d.asked(); times(asked, "HEAD /v2/org/app/manifests/v1.0.0") != 1 || times(asked, "GET /v2/org/app/manifests/"+first) != 1 || times(asked, "GET /v2/org/app/blobs/") != 1 {
		t.Errorf("requests %q, want one HEAD, one manifest and one layer", asked)
	}

	// The same image again is one HEAD, on the connection that is there.
	if again := pullImage(t, i, d.origin(), ImageReference{Tag: "v1.0.0"}, ImageOptions{}, s); again != s {
		t.Error("the same image is another snapshot")
	}
	if asked := d.asked(); !slices.Equal(asked, []string{"HEAD /v2/org/app/manifests/v1.0.0"}) {
		t.Errorf("requests for what is known: %q", asked)
	}
	// Others that name it share it, with rules of their own.
	ignore := "a.yaml"
	other := pullImage(t, i, d.origin(), ImageReference{Digest: first}, ImageOptions{Ignore: &ignore}, nil)
	if asked := d.asked(); len(asked) != 0 {
		t.Errorf("requests of another object: %q", asked)
	}
	if other.Revision != first || other.Digest == s.Digest {
		t.Errorf("snapshot %+v is not the same image with other rules", other)
	}
	if diff := cmp.Diff([]string{"dir/b.yaml", "logo.png"}, walk(t, other, "")); diff != "" {
		t.Errorf("files by its own rules: -want, +got:\n%s", diff)
	}
	// A new digest of the same tag.
	second := d.push("v1.0.0", image(t, nil, fluxLayer(t, map[string]string{"a.yaml": "2", ".sourceignore": "*.txt", "note.txt": "x"})))
	next := pullImage(t, i, d.origin(), ImageReference{Tag: "v1.0.0"}, ImageOptions{}, s)
	if next.Revision != "v1.0.0@"+second || read(t, next, "a.yaml") != "2" || read(t, s, "a.yaml") != "1" {
		t.Errorf("snapshot %+v is not the new image, or the old one has changed", next)
	}
	if diff := cmp.Diff([]string{".sourceignore", "a.yaml"}, walk(t, next, "")); diff != "" {
		t.Errorf("files by the rules in the layer: -want, +got:\n%s", diff)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files %v are left over, %v", left, err)
	}
	// Nobody needs the first image any more.
	s, other = nil, nil
	if pulls, connections := alive(&i.pulls, 1), alive(&i.registries, 1); pulls != 1 || connections != 1 {
		t.Errorf("%d images and %d connections are kept, want those of the one snapshot", pulls, connections)
	}
	runtime.KeepAlive(next)
}

// TestImagePackedAsFlux: what an image becomes is what source-controller stores.
func TestImagePackedAsFlux(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	ignore := "!logo.png\n/x/*.md\n"
	for name, tc := range map[string]struct {
		reason string
		files  map[string]string
		ignore *string
	}{
		"Defaults": {"no rules at all", map[string]string{"a.yaml": "1", "logo.png": "x", ".git/config": "x", "d/e/f.yaml": "2", ".github/x.yaml": "1"}, nil},
		"Own":      {"rules of the object", map[string]string{"a.yaml": "1", "logo.png": "x", "x/README.md": "x"}, &ignore},
		"Within":   {"rules in the layer", map[string]string{"a.yaml": "1", "d/.sourceignore": "*.yaml\n!keep.yaml", "d/x.yaml": "1", "d/keep.yaml": "2", "logo.png": "x"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d.push("latest", image(t, nil, fluxLayer(t, tc.files)))
			s := pullImage(t, NewImages(t.TempDir(), plenty, time.Now), d.origin(), ImageReference{}, ImageOptions{Ignore: tc.ignore}, nil)
			dir := t.TempDir()
			if err := os.Chmod(dir, directoryMode); err != nil {
				t.Fatal(err)
			}
			for name, content := range tc.files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), directoryMode); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), fileMode); err != nil {
					t.Fatal(err)
				}
			}
			if want, got := names(t, byFlux(t, dir, tc.ignore)), names(t, pack(t, s)); !slices.Equal(want, got) {
				t.Errorf("%s: files: -Flux, +packed:\n%s", tc.reason, cmp.Diff(want, got))
			}
			if sumOf(byFlux(t, dir, tc.ignore)) != sumOf(pack(t, s)) {
				t.Errorf("%s: the archives differ", tc.reason)
			}
		})
	}
}

func TestImageLayers(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	chart := filesOf(t, map[string]string{"podinfo/Chart.yaml": "name: podinfo"})
	digest := d.push("6.6.1", image(t, map[string]string{"k": "v"}, static.NewLayer([]byte("# readme"), readmeType), static.NewLayer(chart, ChartMediaType)))
	i := NewImages(t.TempDir(), plenty, time.Now)
	s := pullImage(t, i, d.origin(), ImageReference{Tag: "6.6.1"}, ImageOptions{MediaType: ChartMediaType, Copy: true}, nil)
	file, ok := s.Packed()
	if !ok {
		t.Fatal("a copied layer is not kept as a file")
	}
	if got, err := io.ReadAll(file); err != nil || !bytes.Equal(got, chart) || s.Digest != sumOf(chart) || s.File != digest+".tar.gz" {
		t.Errorf("the layer is another one: %+v, %v", s, err)
	}
	if read(t, s, "podinfo/Chart.yaml") != "name: podinfo" {
		t.Error("a copied layer cannot be read")
	}
	as, err := s.As(About{Revision: "6.6.1", File: "podinfo-6.6.1.tgz"})
	if err != nil || as.Revision != "6.6.1" || as.File != "podinfo-6.6.1.tgz" || as.Digest != s.Digest || s.Revision != "6.6.1@"+digest {
		t.Errorf("As() = %+v, %v", as, err)
	}
	if _, err := s.As(About{File: "../x.tgz"}); err == nil {
		t.Error("As() takes a name that leads elsewhere")
	}
	// What is copied need not be a tarball; it is an error only for those that
	// want to look into it.
	s = pullImage(t, i, d.origin(), ImageReference{Tag: "6.6.1"}, ImageOptions{Copy: true}, nil)
	if file, ok := s.Packed(); !ok || file.Size() != int64(len("# readme")) {
		t.Error("the first layer is not copied as it is")
	}
	if _, err := s.ReadDir(""); ReasonOf(err) != ReasonImageLayerFailed {
		t.Errorf("ReadDir() of what is no tarball = %v", err)
	}
	for name, tc := range map[string]struct {
		reason  string
		options ImageOptions
		fails   string
	}{
		"None":  {"no layer of the type", ImageOptions{MediaType: "x/y"}, ReasonImageLayerFailed},
		"NoTar": {"the first layer is no tarball", ImageOptions{}, ReasonImageLayerFailed},
		"Large": {"a limit of one object", ImageOptions{MediaType: ChartMediaType, Copy: true, MaxBytes: 10}, ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := i.Fetch(t.Context(), d.origin(), Image{Revision: digest, Digest: digest}, tc.options, nil); ReasonOf(err) != tc.fails {
				t.Errorf("%s: Fetch() = %v (%s), want %s", tc.reason, err, ReasonOf(err), tc.fails)
			}
		})
	}
}

func newestAmong(ctx context.Context, tags []string, ref ImageReference, mediaType string) (string, error) {
	best, err := newestOf(ref, mediaType)
	if err != nil {
		return "", err
	}
	for _, tag := range tags {
		if err := best.look(ctx, tag); err != nil {
			return "", err
		}
	}
	return best.found(ref)
}

func TestImageVersions(t *testing.T) {
	tags := []string{"latest", "1.0.0", "v1.2.0", "1.10.0-rc.1", "1.9.0", "2.0.0", "1.9", "1.9.0_build.2", "prod-1.5.0", "01.3.0", "cosign.sig"}
	for name, tc := range map[string]struct {
		reason    string
		ref       ImageReference
		mediaType string
		want      string
		fails     string
	}{
		"Range":         {"the highest in a range", ImageReference{SemVer: "1.x"}, "", "1.9.0", ""},
		"Prefix":        {"a v before the number is kept", ImageReference{SemVer: "~1.2"}, "", "v1.2.0", ""},
		"Pre":           {"a pre-release only if the range has one", ImageReference{SemVer: ">=1.9.0-0 <2.0.0-0"}, "", "1.10.0-rc.1", ""},
		"Filter":        {"only those that match", ImageReference{SemVer: "*", SemVerFilter: "^1\\.0"}, "", "1.0.0", ""},
		"Chart":         {"the tag of a chart has an underscore for a plus", ImageReference{SemVer: "1.9.x"}, ChartMediaType, "1.9.0_build.2", ""},
		"Zero":          {"as Flux has it, a zero before a number", ImageReference{SemVer: "~1.3"}, "", "01.3.0", ""},
		"None":          {"nothing in the range", ImageReference{SemVer: "3.x"}, "", "", ReasonReadFailed},
		"NoRange":       {"what cannot be read", ImageReference{SemVer: "a b"}, "", "", ReasonReadFailed},
		"FilterRepeats": {"a filter that repeats what Go makes 128 MiB of", ImageReference{SemVer: "*", SemVerFilter: "(?:" + strings.Repeat(".?", 1600) + "){1000}"}, "", "", ReasonReadFailed},
		"NoFilter":      {"a filter that cannot be read", ImageReference{SemVer: "*", SemVerFilter: "("}, "", "", ReasonReadFailed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newestAmong(t.Context(), tags, tc.ref, tc.mediaType)
			if got != tc.want || (err != nil) != (tc.fails != "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Errorf("%s: newest() = %q, %v, want %q %s", tc.reason, got, err, tc.want, tc.fails)
			}
			slices.Reverse(tags)
			if again, _ := newestAmong(t.Context(), tags, tc.ref, tc.mediaType); again != got {
				t.Errorf("%s: newest() = %q in another order, before %q", tc.reason, again, got)
			}
		})
	}
	d := newDocker(t, httptest.NewServer)
	for _, tag := range []string{"1.0.0", "1.1.0"} {
		d.push(tag, image(t, nil, fluxLayer(t, map[string]string{"tag": tag})))
	}
	i := NewImages(t.TempDir(), plenty, time.Now)
	if s := pullImage(t, i, d.origin(), ImageReference{SemVer: "1.x", Tag: "1.0.0"}, ImageOptions{}, nil); read(t, s, "tag") != "1.1.0" {
		t.Errorf("%s is followed, want the range before the tag", s.Revision)
	}
	if got, err := i.Tags(t.Context(), d.origin()); err != nil || !slices.Equal(got, []string{"1.0.0", "1.1.0"}) {
		t.Errorf("Tags() = %q, %v", got, err)
	}
}

func dockerConfig(t *testing.T, host, username, password string) map[string][]byte {
	t.Helper()
	data, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{
		"auth": base64.StdEncoding.EncodeToString([]byte(username + ":" + password)),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{".dockerconfigjson": data}
}

func TestImageCredentials(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	password := "first"
	d.between(func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, ok := r.BasicAuth(); ok && u == "me" && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
		return true
	})
	i := NewImages(t.TempDir(), plenty, time.Now)
	login := &Login{Username: "me", Password: "first", Identity: "cloud"}
	for name, tc := range map[string]struct {
		reason string
		set    func(o *ImageOrigin)
		fails  string
	}{
		"Config": {"the usual Secret", func(o *ImageOrigin) { o.Secrets = []map[string][]byte{dockerConfig(t, d.host, "me", "first")} }, ""},
		"Path":   {"for a part of the registry", func(o *ImageOrigin) { o.Secrets = []map[string][]byte{dockerConfig(t, d.host+"/org", "me", "first")} }, ""},
		"Second": {"of several pull secrets one is for this registry", func(o *ImageOrigin) {
			o.Secrets = []map[string][]byte{{"unrelated": nil}, dockerConfig(t, "example.com", "x", "y"), dockerConfig(t, d.host, "me", "first")}
		}, ""},
		"Basic": {"the Secret of a HelmRepository", func(o *ImageOrigin) {
			o.Secrets = []map[string][]byte{{"username": []byte("me"), "password": []byte("first")}}
		}, ""},
		"Login":     {"a provider", func(o *ImageOrigin) { o.Login = login }, ""},
		"Anonymous": {"no credential", func(*ImageOrigin) {}, ReasonImagePullFailed},
		"Wrong":     {"another password", func(o *ImageOrigin) { o.Secrets = []map[string][]byte{dockerConfig(t, d.host, "me", "x")} }, ReasonImagePullFailed},
		"Elsewhere": {"a credential for another registry is not sent", func(o *ImageOrigin) { o.Secrets = []map[string][]byte{dockerConfig(t, "example.com", "me", "first")} }, ReasonImagePullFailed},
		"Broken":    {"what cannot be read", func(o *ImageOrigin) { o.Secrets = []map[string][]byte{{".dockerconfigjson": []byte("s3cret{")}} }, ReasonAuthenticationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			o := d.origin()
			tc.set(&o)
			_, err := i.Resolve(t.Context(), o, ImageReference{}, "")
			if (err != nil) != (tc.fails != "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Errorf("%s: Resolve() = %v, want %q", tc.reason, err, tc.fails)
			}
			if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "first")) {
				t.Errorf("%s: the credential is in %v", tc.reason, err)
			}
		})
	}
	// A login that was renewed is used on the connection that is there.
	o := d.origin()
	o.Login = login
	s := pullImage(t, i, o, ImageReference{}, ImageOptions{}, nil)
	password = "second"
	d.asked()
	o.Login = &Login{Username: "me", Password: "second", Identity: "cloud"}
	if again := pullImage(t, i, o, ImageReference{}, ImageOptions{}, s); again != s {
		t.Error("the same image is another snapshot after the login was renewed")
	}
	if asked := d.asked(); len(asked) != 1 {
		t.Errorf("requests %q after the login was renewed, want one", asked)
	}
	// Who has another credential fetches for himself.
	o.Login = &Login{Username: "me", Password: "second", Identity: "another"}
	pullImage(t, i, o, ImageReference{}, ImageOptions{}, nil)
	if asked := d.asked(); times(asked, "/blobs/") != 1 {
		t.Errorf("requests %q with another identity, want one layer", asked)
	}
}

// TestImageTokens: a registry with a service that gives out tokens.
func TestImageTokens(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	tokens := 0
	d.between(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token":
			if u, p, ok := r.BasicAuth(); !ok || u != "me" || p != "first" || r.URL.Query().Get("scope") != "repository:org/app:pull" {
				http.Error(w, "no", http.StatusUnauthorized)
				return true
			}
			tokens++
			fmt.Fprintf(w, `{"token":"t%d"}`, tokens)
			return true
		case r.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", tokens):
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="here"`, d.server.URL))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	i := NewImages(t.TempDir(), plenty, time.Now)
	o := d.origin()
	o.Secrets = []map[string][]byte{dockerConfig(t, d.host, "me", "first")}
	s := pullImage(t, i, o, ImageReference{}, ImageOptions{}, nil)
	for range 3 {
		pullImage(t, i, o, ImageReference{}, ImageOptions{}, s)
	}
	if tokens != 1 {
		t.Errorf("%d tokens were asked for, want one", tokens)
	}
	tokens++ // it has expired
	pullImage(t, i, o, ImageReference{}, ImageOptions{}, s)
	runtime.KeepAlive(s)
}

func TestImageTLS(t *testing.T) {
	d := newDocker(t, httptest.NewTLSServer)
	digest := d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.server.Certificate().Raw})
	plain := newDocker(t, httptest.NewServer)
	plain.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	for name, tc := range map[string]struct {
		reason string
		origin ImageOrigin
		fails  string
		says   string
	}{
		"CA":       {"the certificate in the Secret", ImageOrigin{URL: d.origin().URL, Certificates: map[string][]byte{"ca.crt": ca}}, "", ""},
		"Unknown":  {"nobody vouches for it", ImageOrigin{URL: d.origin().URL}, ReasonImagePullFailed, "certificate"},
		"Insecure": {"as in Flux, nobody has to", ImageOrigin{URL: d.origin().URL, Insecure: true}, "", ""},
		"Plain":    {"plain HTTP is only with spec.insecure, on loopback too", ImageOrigin{URL: plain.origin().URL}, ReasonImagePullFailed, "spec.insecure"},
		"Allowed":  {"with it", ImageOrigin{URL: plain.origin().URL, Insecure: true}, "", ""},
		"NoCA":     {"no certificate in it", ImageOrigin{URL: d.origin().URL, Certificates: map[string][]byte{"ca.crt": []byte("x")}}, ReasonAuthenticationFailed, "ca.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := NewImages(t.TempDir(), plenty, time.Now).Resolve(t.Context(), tc.origin, ImageReference{}, "")
			if (err != nil) != (tc.fails != "") || (err != nil && (ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says))) {
				t.Errorf("%s: Resolve() = %v, want %q %q", tc.reason, err, tc.fails, tc.says)
			}
			if err == nil && found.Digest != digest {
				t.Errorf("%s: digest %s, want %s", tc.reason, found.Digest, digest)
			}
		})
	}
}

func TestImageURLs(t *testing.T) {
	for name, tc := range map[string]struct{ reason, url, fails string }{
		"Scheme":   {"a scheme that is none of images", "https://example.com/a", ReasonURLInvalid},
		"Tag":      {"a tag belongs into spec.ref", "oci://example.com/a:v1", ReasonURLInvalid},
		"Digest":   {"so does a digest", "oci://example.com/a@" + sumOf(nil), ReasonURLInvalid},
		"Password": {"a credential belongs into a Secret", "oci://me:s3cret@example.com/a", ReasonURLInvalid},
		"Upper":    {"a name that no registry has", "oci://example.com/A", ReasonURLInvalid},
		"Empty":    {"nothing", "oci://", ReasonURLInvalid},
		"Dots":     {"a path that leads elsewhere", "oci://example.com/a/../b", ReasonURLInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ref := range []ImageReference{{}, {Digest: sumOf(nil)}} {
				_, err := NewImages(t.TempDir(), 1, time.Now).Resolve(t.Context(), ImageOrigin{URL: tc.url}, ref, "")
				if ReasonOf(err) != tc.fails || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("%s: Resolve() = %v, want %s", tc.reason, err, tc.fails)
				}
			}
		})
	}
}

func TestSameSite(t *testing.T) {
	for _, tc := range []struct {
		reason, a, b string
		want         bool
	}{
		{"Docker Hub", "index.docker.io", "auth.docker.io", true},
		{"GitLab of one's own", "registry.example.com:5050", "gitlab.example.com", true},
		{"the same host at another port", "registry.local:5000", "registry.local:5001", true},
		{"another domain", "registry.example.com", "registry.example.org", false},
		{"two customers of one host", "a.github.io", "b.github.io", false},
		{"two companies below one suffix", "a.co.uk", "b.co.uk", false},
		{"names of a cluster are not one site", "registry.team-a.svc.cluster.local", "evil.team-b.svc.cluster.local", false},
		{"addresses", "10.0.0.1", "10.0.0.2:5000", false},
		{"the name of an address", "127.0.0.1:5000", "localhost:5001", false},
		{"a suffix in the name", "example.com.evil.org", "example.com", false},
	} {
		if got := sameSite(tc.a, tc.b); got != tc.want {
			t.Errorf("%s: sameSite(%s, %s) = %t", tc.reason, tc.a, tc.b, got)
		}
		if sameSite(tc.a, tc.b) != sameSite(tc.b, tc.a) {
			t.Errorf("%s: it matters which is first", tc.reason)
		}
	}
}

// TestHostileRegistries: a named reason, bounded memory and time, and a
// credential that nobody else sees.
func TestHostileRegistries(t *testing.T) {
	var stolen []string
	var mu sync.Mutex
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		data, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "" || len(data) > 0 {
			stolen = append(stolen, r.Method+" "+r.URL.Path)
		}
		http.Error(w, `{"errors":[{"code":"X","message":"internal answer"}]}`, http.StatusTeapot)
	}))
	defer thief.Close()
	elsewhere := strings.Replace(thief.URL, "127.0.0.1", "localhost", 1)
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(bytes.Repeat([]byte{' '}, 64<<10)); err != nil {
				return
			}
		}
	}
	manifest := func(layer string, size int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"%s","config":{"mediaType":"x/y","size":2,"digest":"%s"},"layers":[{"mediaType":"x/y","size":%d,"digest":"%s"}]}`,
			types.OCIManifestSchema1, sumOf([]byte("{}")), size, layer)
	}
	bomb := tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 50_000_000})
	chunk := filesOf(t, map[string]string{"a": "1"})
	serve := func(body string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			w.Header().Set("Docker-Content-Digest", sumOf([]byte(body)))
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			if r.Method == http.MethodGet {
				_, _ = io.WriteString(w, body)
			}
			return true
		}
	}
	at := func(part string, f http.HandlerFunc) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, part) {
				return false
			}
			f(w, r)
			return true
		}
	}
	both := func(a, b func(w http.ResponseWriter, r *http.Request) bool) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { return a(w, r) || b(w, r) }
	}
	challenge := func(realm string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s",service="here"`, realm))
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
	}
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, to+"?X-Amz-Signature=s1gned", http.StatusTemporaryRedirect)
		}
	}
	many := map[string]string{"big": strings.Repeat("x", maxMetadataBytes)}
	d := newDocker(t, httptest.NewServer)
	d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	d.push("bomb", image(t, nil, static.NewLayer(bomb, fluxMediaType)))
	d.push("parent", image(t, nil, static.NewLayer(tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "../a", Size: 1}), fluxMediaType)))
	d.push("metadata", image(t, many, fluxLayer(t, map[string]string{"a": "1"})))
	d.push("none", image(t, nil))
	for name, tc := range map[string]struct {
		reason string
		front  func(w http.ResponseWriter, r *http.Request) bool
		ref    ImageReference
		fails  string
		says   string
	}{
		"Missing":  {"there is no such tag", nil, ImageReference{Tag: "x"}, ReasonImagePullFailed, "404"},
		"Gone":     {"there is no such digest any more", nil, ImageReference{Digest: sumOf([]byte("gone"))}, ReasonImagePullFailed, "404"},
		"NoTag":    {"a tag that is a path", nil, ImageReference{Tag: "../../x"}, ReasonImagePullFailed, "not allowed"},
		"NoDigest": {"a digest that is none", nil, ImageReference{Digest: "sha256:x"}, ReasonImagePullFailed, "digest"},
		"Bomb":     {"little to send, much to keep", nil, ImageReference{Tag: "bomb"}, ReasonLimitExceeded, "inflates"},
		"Parent":   {"a name that leads elsewhere", nil, ImageReference{Tag: "parent"}, ReasonImageLayerFailed, "elsewhere"},
		"Metadata": {"annotations that no object can hold", nil, ImageReference{Tag: "metadata"}, ReasonLimitExceeded, "annotations"},
		"NoLayers": {"nothing in it", nil, ImageReference{Tag: "none"}, ReasonImageLayerFailed, "no layers"},
		"HugeManifest": {"a manifest without end", at("/manifests/", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			if r.Method == http.MethodGet {
				endless(w, r)
			}
		}), ImageReference{}, ReasonLimitExceeded, "bytes"},
		"OtherManifest": {"a manifest that is not the one of the digest", serve(manifest(sumOf(chunk), len(chunk))), ImageReference{Digest: sumOf([]byte("x"))}, ReasonImagePullFailed, "digest"},
		"NoManifest":    {"not a manifest", serve("null"), ImageReference{}, ReasonImageLayerFailed, ""},
		"Garbage":       {"not even JSON", serve("{"), ImageReference{}, ReasonImageLayerFailed, ""},
		"Announced":     {"more is announced than may be sent", serve(manifest(sumOf(chunk), plenty+1)), ImageReference{}, ReasonLimitExceeded, "limit"},
		"EndlessLayer":  {"a layer without end", both(serve(manifest(sumOf(chunk), 1000)), at("/blobs/", endless)), ImageReference{}, ReasonImageLayerFailed, ""},
		"OtherLayer": {"a layer that is not the one of the digest", both(serve(manifest(sumOf(chunk), len(chunk))), at("/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(bytes.Repeat([]byte{1}, len(chunk)))
		})), ImageReference{}, ReasonImageLayerFailed, "sha256"},
		"Tags": {"tags without end", at("/tags/list", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "<"+r.URL.Path+"?next=1>; rel=next")
			_, _ = io.WriteString(w, `{"tags":["1.0.0"]}`)
		}), ImageReference{SemVer: "*"}, ReasonLimitExceeded, "requests"},
		"ManyTags":       {"a page of tags without end", at("/tags/list", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"tags":["`); endless(w, r) }), ImageReference{SemVer: "*"}, ReasonLimitExceeded, "bytes"},
		"Loop":           {"redirects without end", at("/manifests/", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path+"x", http.StatusFound) }), ImageReference{}, ReasonImagePullFailed, "redirects"},
		"Realm":          {"CVE-2026-44936: the credential for a token is wanted elsewhere", challenge(elsewhere + "/token"), ImageReference{}, ReasonAuthenticationFailed, "another site"},
		"MetadataRealm":  {"the address of a cloud's secrets", challenge("http://169.254.169.254/token"), ImageReference{}, ReasonImagePullFailed, "169.254.169.254"},
		"RedirectedPing": {"CVE-2026-41506: the first answer leads elsewhere", at("/v2/", redirect(elsewhere+"/v2/")), ImageReference{}, ReasonImagePullFailed, ""},
		"RedirectedBlob": {"a layer elsewhere, whose answer is not for the outside", at("/blobs/", redirect(elsewhere+"/blob")), ImageReference{}, ReasonImageLayerFailed, "418"},
		"Body": {"an error that is a book", at("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, fmt.Sprintf(`{"errors":[{"code":"DENIED","message":"%s"}]}`, strings.Repeat("x\\n", 10_000)), http.StatusForbidden)
		}), ImageReference{}, ReasonImagePullFailed, "403"},
	} {
		t.Run(name, func(t *testing.T) {
			d.between(tc.front)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			i := NewImages(t.TempDir(), plenty, time.Now)
			i.limits.inflatedBytes = 10_000_000
			o := d.origin()
			o.Secrets = []map[string][]byte{dockerConfig(t, d.host, "me", "s3cret")}
			found, err := i.Resolve(ctx, o, tc.ref, "")
			if err == nil {
				_, err = i.Fetch(ctx, o, found, ImageOptions{}, nil)
			}
			if err == nil || ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%s: %v (%s), want %s %q", tc.reason, err, ReasonOf(err), tc.fails, tc.says)
			}
			if got := Answered(err); got != (tc.says == "404") {
				t.Errorf("%s: that the registry said so is told as %t", tc.reason, got)
			}
			text := err.Error()
			if len(text) > 1000 || strings.Contains(text, "s3cret") || strings.Contains(text, "s1gned") || strings.Contains(text, "internal answer") || strings.Contains(text, "\n") {
				t.Errorf("%s: the error tells too much: %s", tc.reason, text)
			}
			if ctx.Err() != nil {
				t.Errorf("%s: it lasted a minute", tc.reason)
			}
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if len(stolen) > 0 {
		t.Errorf("the credential was sent elsewhere: %q", stolen)
	}
}

// TestRedirectedLayer: a layer is often in another place, and whoever keeps it
// there gets no credential.
func TestRedirectedLayer(t *testing.T) {
	layer := filesOf(t, map[string]string{"a": "1"})
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the credential was sent to %s", r.Host)
		}
		_, _ = w.Write(layer)
	}))
	defer store.Close()
	d := newDocker(t, httptest.NewServer)
	d.push("latest", image(t, nil, static.NewLayer(layer, fluxMediaType)))
	d.between(func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); !ok {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, strings.Replace(store.URL, "127.0.0.1", "localhost", 1)+"/blob?sig=x", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	o := d.origin()
	o.Secrets = []map[string][]byte{dockerConfig(t, d.host, "me", "s3cret")}
	if s := pullImage(t, NewImages(t.TempDir(), plenty, time.Now), o, ImageReference{}, ImageOptions{}, nil); read(t, s, "a") != "1" {
		t.Error("the layer is another one")
	}
}

func TestImageProxy(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	digest := d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	var through int
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through++
		r.URL.Host, r.RequestURI = d.host, ""
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		maps.Copy(w.Header(), res.Header)
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body)
	}))
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	// The name is known to the proxy alone.
	o := ImageOrigin{URL: "oci://registry.invalid:80/org/app", Insecure: true, Proxy: u}
	found, err := NewImages(t.TempDir(), plenty, time.Now).Resolve(t.Context(), o, ImageReference{}, "")
	if err != nil || found.Digest != digest || through == 0 {
		t.Errorf("Resolve() through a proxy = %v, %v, %d requests", found, err, through)
	}
}

func TestImageDeadline(t *testing.T) {
	d := newDocker(t, httptest.NewServer)
	release := make(chan struct{})
	defer close(release)
	d.between(func(w http.ResponseWriter, r *http.Request) bool {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := NewImages(t.TempDir(), plenty, time.Now).Resolve(ctx, d.origin(), ImageReference{}, ""); !errors.Is(err, context.Canceled) || ReasonOf(err) != ReasonImagePullFailed {
		t.Errorf("Resolve() of a registry that does not answer = %v (%s)", err, ReasonOf(err))
	}
}
