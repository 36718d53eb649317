package source

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func of(kind string) Key {
	return Key{Kind: kind, NamespacedName: types.NamespacedName{Namespace: "ns", Name: "it"}}
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, data
}

func TestArchives(t *testing.T) {
	data := tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "podinfo/Chart.yaml", Size: 4}, tar.Header{Typeflag: tar.TypeSymlink, Name: "podinfo/link", Linkname: "Chart.yaml"})
	dir := filepath.Join(t.TempDir(), "later")
	about := About{Revision: "6.6.1", File: "podinfo-6.6.1.tgz", Metadata: map[string]string{"k": "v"}}
	s, err := NewArchives(dir, plenty, plenty).Open(t.Context(), bytes.NewReader(data), about)
	if err != nil {
		t.Fatal(err)
	}
	if s.Digest != sumOf(data) || s.Revision != "6.6.1" || s.Metadata["k"] != "v" || read(t, s, "podinfo/Chart.yaml") != "\x00\x00\x00\x00" {
		t.Errorf("snapshot %+v is not the chart", s)
	}
	if entries, err := s.ReadDir("podinfo"); err != nil || len(entries) != 1 {
		t.Errorf("ReadDir() = %v, %v, want no link", entries, err)
	}
	for range 2 {
		if file, ok := s.Packed(); !ok || file.Size() != int64(len(data)) {
			t.Errorf("Packed() = %v, %t", file, ok)
		} else if got, err := io.ReadAll(file); err != nil || !bytes.Equal(got, data) {
			t.Errorf("Packed() has other bytes, %v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files %v are left over, %v", left, err)
	}

	failing := errors.New("the network is down")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		reason string
		ctx    context.Context
		r      io.Reader
		file   string
		most   int64
		fails  string
		is     error
	}{
		"Large":     {"more than may be sent", t.Context(), bytes.NewReader(data), "a.tgz", 10, ReasonLimitExceeded, nil},
		"Bomb":      {"little to send, much to keep", t.Context(), bytes.NewReader(tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "z", Size: 5_000_000})), "a.tgz", 100_000, ReasonLimitExceeded, nil},
		"Parent":    {"CVE-2024-56514: a name that leads elsewhere", t.Context(), bytes.NewReader(tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "../a"})), "a.tgz", plenty, ReasonArtifactFailed, nil},
		"NoTarball": {"not an archive at all", t.Context(), strings.NewReader("x"), "a.tgz", plenty, ReasonArtifactFailed, nil},
		"Folder":    {"the version of a chart leads elsewhere", t.Context(), bytes.NewReader(data), "a-../../b.tgz", plenty, ReasonArtifactFailed, nil},
		"Hidden":    {"a name that no server gives out", t.Context(), bytes.NewReader(data), ".a.tgz", plenty, ReasonArtifactFailed, nil},
		"Suffix":    {"a name that is no archive's", t.Context(), bytes.NewReader(data), "a.exe", plenty, ReasonArtifactFailed, nil},
		"Reader":    {"what the reader says is kept", t.Context(), io.MultiReader(bytes.NewReader(data[:20]), errorReader{failing}), "a.tgz", plenty, ReasonArtifactFailed, failing},
		"Deadline":  {"a slow server", cancelled, bytes.NewReader(data), "a.tgz", plenty, ReasonArtifactFailed, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewArchives(dir, tc.most, tc.most).Open(tc.ctx, tc.r, About{File: tc.file})
			if err == nil || ReasonOf(err) != tc.fails || (tc.is != nil && !errors.Is(err, tc.is)) {
				t.Errorf("%s: Open() = %v (%s), want %s", tc.reason, err, ReasonOf(err), tc.fails)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("files %v are left over", left)
			}
		})
	}
}

type errorReader struct{ error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.error }

func TestStorageOfFiles(t *testing.T) {
	dir := t.TempDir()
	seal := aSeal(t)
	s := NewStorage(dir, "127.0.0.1:0", "artifacts.example", seal)
	server := httptest.NewServer(s)
	defer server.Close()
	data := tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "podinfo/Chart.yaml", Size: 4}, tar.Header{Typeflag: tar.TypeSymlink, Name: "podinfo/link", Linkname: "Chart.yaml"})
	open := func(file, revision string) *Snapshot {
		t.Helper()
		snapshot, err := NewArchives(t.TempDir(), plenty, plenty).Open(t.Context(), bytes.NewReader(data), About{Revision: revision, File: file, Metadata: map[string]string{"k": revision}})
		if err != nil {
			t.Fatal(err)
		}
		return snapshot
	}
	for _, tc := range []struct{ reason, kind, file, path, latest string }{
		{"a packaged chart", "HelmChart", "podinfo-6.6.1+2.tgz", "helmchart/ns/it/podinfo-6.6.1+2.tgz", "helmchart/ns/it/latest.tar.gz"},
		{"the layer of an image", "OCIRepository", "sha256:aa.tar.gz", "ocirepository/ns/it/sha256:aa.tar.gz", "ocirepository/ns/it/latest.tar.gz"},
		{"a kind without a URL in its status", "GitRepository", "aa.tar.gz", "gitrepository/ns/it/aa.tar.gz", ""},
	} {
		key := of(tc.kind)
		if s.Stored(key) != nil {
			t.Errorf("%s: something is stored of %v", tc.reason, key)
		}
		artifact, err := s.Put(t.Context(), key, open(tc.file, "v1"))
		if err != nil {
			t.Fatal(err)
		}
		if artifact.Path != tc.path || artifact.URL != sealed(seal, "artifacts.example", tc.path) || artifact.Digest != sumOf(data) || *artifact.Size != int64(len(data)) || artifact.Metadata["k"] != "v1" {
			t.Errorf("%s: artifact %+v is not the file", tc.reason, artifact)
		}
		if stored := s.Stored(key); stored == nil || stored.Digest != artifact.Digest {
			t.Errorf("%s: Stored() = %v", tc.reason, stored)
		}
		if status, got := get(t, sealed(seal, server.URL, tc.path)); status != 200 || !bytes.Equal(got, data) {
			t.Errorf("%s: GET = %d with other bytes", tc.reason, status)
		}
		if tc.latest == "" {
			if url := s.Latest(key); url != "" {
				t.Errorf("%s: Latest() = %s", tc.reason, url)
			}
			continue
		}
		if url := s.Latest(key); url != sealed(seal, "artifacts.example", tc.latest) {
			t.Errorf("%s: Latest() = %s", tc.reason, url)
		}
		if status, got := get(t, sealed(seal, server.URL, tc.latest)); status != 200 || !bytes.Equal(got, data) {
			t.Errorf("%s: GET of the latest = %d with other bytes", tc.reason, status)
		}
	}

	// An index is a file too; the newest and the one before are kept, and the
	// stable name leads to the newest.
	key := of("HelmRepository")
	for _, content := range []string{"one", "two", "three", "three"} {
		hex := strings.TrimPrefix(sumOf([]byte(content)), "sha256:")
		artifact, err := s.PutFile(t.Context(), key, "index-"+hex+".yaml", "sha256:"+hex, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		if artifact.Digest != "sha256:"+hex || artifact.Path != "helmrepository/ns/it/index-"+hex+".yaml" || artifact.Revision != "sha256:"+hex {
			t.Errorf("artifact %+v is not the index %s", artifact, content)
		}
		for _, path := range []string{artifact.Path, "helmrepository/ns/it/index.yaml"} {
			if status, got := get(t, sealed(seal, server.URL, path)); status != 200 || string(got) != content {
				t.Errorf("GET %s = %d %q, want %q", path, status, got, content)
			}
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "helmrepository/ns/it/*")); len(files) != artifactsKept+1 {
		t.Errorf("files %v are kept, want %d and the link", files, artifactsKept)
	}
	if err := os.Remove(filepath.Join(dir, s.Stored(key).Path)); err != nil {
		t.Fatal(err)
	}
	if stored := s.Stored(key); stored != nil {
		t.Errorf("Stored() = %v after the file is gone", stored)
	}
	for _, name := range []string{"../x.yaml", "a/b.yaml", "", ".x.yaml", "index.yaml", `a\b.yaml`, "x.html"} {
		if _, err := s.PutFile(t.Context(), key, name, "r", strings.NewReader("x")); ReasonOf(err) != ReasonArtifactFailed {
			t.Errorf("PutFile(%q) = %v", name, err)
		}
	}
}
