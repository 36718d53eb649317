package image

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// served is a registry on loopback, and what it was asked.
type served struct {
	repository name.Repository

	mu     sync.Mutex
	writes []string
}

// serve starts a registry. With a password it serves nobody else.
func serve(t *testing.T, password string, options ...registry.Option) *served {
	t.Helper()
	s := &served{}
	inner := registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			s.mu.Lock()
			s.writes = append(s.writes, r.Method+" "+r.URL.Path)
			s.mu.Unlock()
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	var err error
	if s.repository, err = name.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/team/cascade"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *served) written() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writes
	s.writes = nil
	return w
}

func TestPush(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		options      []registry.Option
	}{
		{"Referrers", "a registry of OCI 1.1", []registry.Option{registry.WithReferrersSupport(true)}},
		{"Fallback", "an older one, where a tag lists what refers to an image", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, digest := written(t, described)
			s := serve(t, "", tc.options...)
			l := read(t, dir)
			if err := Pushed(t.Context(), l, s.repository); err == nil || !strings.Contains(err.Error(), "push it first") {
				t.Errorf("what was not pushed is there: %v", err)
			}
			reference, err := Push(t.Context(), l, s.repository, "v1.2.0")
			if err != nil {
				t.Fatal(err)
			}
			if want := s.repository.String() + "@" + digest.String(); reference.String() != want {
				t.Errorf("reference is %s, want %s", reference, want)
			}
			if err := Pushed(t.Context(), l, s.repository); err != nil {
				t.Error(err)
			}
			tagged, err := remote.Get(s.repository.Tag("v1.2.0"))
			if err != nil || tagged.Digest != digest {
				t.Errorf("the tag is %v, %v", tagged, err)
			}
			m, err := l.Index.IndexManifest()
			if err != nil {
				t.Fatal(err)
			}
			for _, image := range m.Manifests {
				found, err := remote.Referrers(s.repository.Digest(image.Digest.String()))
				if err != nil {
					t.Fatal(err)
				}
				list, err := found.IndexManifest()
				if err != nil || len(list.Manifests) != 1 {
					t.Fatalf("%s: what refers to %s is %+v, %v", tc.reason, image.Platform, list, err)
				}
				artifact, err := remote.Image(s.repository.Digest(list.Manifests[0].Digest.String()))
				if err != nil {
					t.Fatal(err)
				}
				// The list itself has another type in the registry of the library.
				if got, err := artifact.Manifest(); err != nil || got.ArtifactType != "application/spdx+json" || got.Subject.Digest != image.Digest {
					t.Errorf("%s: to %s refers %+v, %v", tc.reason, image.Platform, got, err)
				}
			}

			// Again: nothing is sent but manifests that a registry may have lost since.
			s.written()
			if again, err := Push(t.Context(), l, s.repository, "v1.2.0"); err != nil || again != reference {
				t.Errorf("again: %s, %v", again, err)
			}
			for _, w := range s.written() {
				if strings.Contains(w, "/blobs/") {
					t.Errorf("content is sent twice: %s", w)
				}
			}
		})
	}
}

// TestPushWithCredentials: those of docker's configuration.
func TestPushWithCredentials(t *testing.T) {
	dir, _ := written(t, described)
	s := serve(t, "s3cret")
	home := t.TempDir()
	t.Setenv("DOCKER_CONFIG", home)
	if _, err := Push(t.Context(), read(t, dir), s.repository, "x"); err == nil {
		t.Fatal("a stranger could push")
	}
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, s.repository.RegistryStr(), base64.StdEncoding.EncodeToString([]byte("someone:s3cret")))
	if err := os.WriteFile(filepath.Join(home, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), read(t, dir), s.repository, "x"); err != nil {
		t.Error(err)
	}
}
