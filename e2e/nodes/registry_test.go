package nodes

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// images is a registry on loopback. Whoever pushes, and whoever pulls what is below private,
// has to log in.
type images struct {
	server *httptest.Server
	auth   authn.Basic
}

const private = "private"

func startRegistry(t *testing.T) *images {
	t.Helper()
	r := &images{auth: authn.Basic{Username: "puller", Password: "secret of the registry"}}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user, password, _ := req.BasicAuth()
		reads := req.Method == http.MethodGet || req.Method == http.MethodHead
		public := reads && req.URL.Path != "/v2/" && !strings.HasPrefix(req.URL.Path, "/v2/"+private+"/")
		if !public && (user != r.auth.Username || password != r.auth.Password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, req)
	}))
	t.Cleanup(r.server.Close)
	return r
}

func (r *images) address() string { return r.server.Listener.Addr().String() }

// config is what docker login would write for a registry.
func (r *images) config(t *testing.T, address string) []byte {
	t.Helper()
	text, err := json.Marshal(map[string]any{"auths": map[string]any{address: map[string]string{"username": r.auth.Username, "password": r.auth.Password}}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// release pushes bin/image as make push does, and returns its digest.
func (r *images) release(t *testing.T, bin string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), r.config(t, r.address()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "release-tool"), "push", "--layout", filepath.Join(bin, "image"),
		"--repository", r.address()+"/"+private+"/cascade")
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cannot push the image: %v: %s", err, out)
	}
	_, digest, found := strings.Cut(strings.TrimSpace(string(out)), "@")
	if !found {
		t.Fatalf("make push would print %q, which has no digest", out)
	}
	return digest
}

// push pushes an image that everybody may pull.
func (r *images) push(t *testing.T, repository string, image v1.Image) {
	t.Helper()
	tag, err := name.NewTag(r.address() + "/public/" + repository + ":1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, image, remote.WithAuth(&r.auth), remote.WithContext(t.Context())); err != nil {
		t.Fatalf("cannot push %s: %v", tag, err)
	}
}

// fromScratch is an image with programs and nothing else, by their paths.
func fromScratch(t *testing.T, programs map[string]string, entrypoint ...string) v1.Image {
	t.Helper()
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, path := range slices.Sorted(maps.Keys(programs)) {
		program, err := os.ReadFile(programs[path])
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(program))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(program); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", Config: v1.Config{Entrypoint: entrypoint}, RootFS: rootFS(t, image),
	})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func rootFS(t *testing.T, image v1.Image) v1.RootFS {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config.RootFS
}

// sandbox is the image that pods have their namespaces from.
const sandbox = "registry.site.test/pause:1"

// archive writes an image as docker save does.
func archive(t *testing.T, image v1.Image, reference string) string {
	t.Helper()
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, image); err != nil {
		t.Fatal(fmt.Errorf("cannot write image %s: %w", reference, err))
	}
	return file
}
