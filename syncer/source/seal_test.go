package source

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
)

// aSeal is a seal of tests.
func aSeal(t *testing.T) Seal {
	t.Helper()
	s, err := OpenSeal(filepath.Join(t.TempDir(), "key"), strings.NewReader(strings.Repeat("k", sealSize)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sealed is the URL of an artifact at a host, with its login.
func sealed(s Seal, host, at string) string {
	return "http://" + sealUser + ":" + s.password(at) + "@" + strings.TrimPrefix(host, "http://") + "/" + at
}

func TestOpenSeal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "storage", "artifacts.key")
	first, err := OpenSeal(file, strings.NewReader(strings.Repeat("a", sealSize)))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key is %v: %v", info, err)
	}
	again, err := OpenSeal(file, strings.NewReader(""))
	if err != nil || !bytes.Equal(first.key, again.key) {
		t.Errorf("after a restart the key is another one: %v", err)
	}
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSeal(file, strings.NewReader("too short")); err == nil {
		t.Error("a key was made of too few random bytes")
	}
	other, err := OpenSeal(file, strings.NewReader(strings.Repeat("b", sealSize)))
	if err != nil || bytes.Equal(first.key, other.key) {
		t.Errorf("a file that is no key was taken for one: %v", err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "no"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSeal(filepath.Join(filepath.Dir(file), "no", "key"), strings.NewReader(strings.Repeat("c", sealSize))); err == nil {
		t.Error("a key that cannot be kept was used")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), ".key-*")); len(left) > 0 {
		t.Errorf("files %v are left over", left)
	}
}

// TestWhoReadsArtifacts: the one who has the URL, of this artifact and with this key.
func TestWhoReadsArtifacts(t *testing.T) {
	seal := aSeal(t)
	s := NewStorage(t.TempDir(), "127.0.0.1:0", "artifacts.example", seal)
	artifact, err := s.PutFile(t.Context(), of("HelmRepository"), "index-1.yaml", "sha256:1", strings.NewReader("one"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutFile(t.Context(), of("HelmRepository"), "index-2.yaml", "sha256:2", strings.NewReader("two")); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	lost, err := OpenSeal(filepath.Join(t.TempDir(), "key"), strings.NewReader(strings.Repeat("x", sealSize)))
	if err != nil {
		t.Fatal(err)
	}
	login := func(user, password string) *url.Userinfo { return url.UserPassword(user, password) }
	for name, tc := range map[string]struct {
		reason string
		login  *url.Userinfo
		path   string
		want   int
	}{
		"ItsURL":        {"as consumers have it from the status", login(sealUser, seal.password(artifact.Path)), artifact.Path, http.StatusOK},
		"NoLogin":       {"who reaches the port, and may not read the source", nil, artifact.Path, http.StatusUnauthorized},
		"NoLoginOfNone": {"the answer does not tell what there is", nil, "helmrepository/ns/other/index.yaml", http.StatusUnauthorized},
		"OfAnother":     {"who may read one source does not have the others", login(sealUser, seal.password("helmrepository/ns/it/index-2.yaml")), artifact.Path, http.StatusNotFound},
		"OtherUser":     {"the user is a part of the login", login("admin", seal.password(artifact.Path)), artifact.Path, http.StatusNotFound},
		"Empty":         {"no password", login(sealUser, ""), artifact.Path, http.StatusNotFound},
		"LostKey":       {"of before the key was lost, as of an artifact that is gone", login(sealUser, lost.password(artifact.Path)), artifact.Path, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(server.URL + "/" + tc.path)
			if err != nil {
				t.Fatal(err)
			}
			u.User = tc.login
			if status, body := get(t, u.String()); status != tc.want || (status != http.StatusOK) == (string(body) == "one") {
				t.Errorf("%s: GET = %d %q, want %d", tc.reason, status, body, tc.want)
			}
		})
	}
}

// TestLoginsAreNotTold: what a consumer of ours says about an artifact has no password in it.
func TestLoginsAreNotTold(t *testing.T) {
	seal := aSeal(t)
	const at = "gitrepository/ns/a/x.tar.gz"
	server := httptest.NewServer(http.NotFoundHandler())
	gone := server.URL
	artifact := &meta.Artifact{URL: sealed(seal, server.URL, at), Digest: sumOf(nil)}
	_, err := NewArtifacts(t.TempDir(), plenty).Fetch(t.Context(), keyOf("a"), artifact)
	if !errors.Is(err, ErrArtifactNotFound) || strings.Contains(err.Error(), seal.password(at)) {
		t.Errorf("Fetch() = %v", err)
	}
	server.Close()
	artifact.URL = sealed(seal, gone, at)
	if _, err := NewArtifacts(t.TempDir(), plenty).Fetch(t.Context(), keyOf("a"), artifact); err == nil || strings.Contains(err.Error(), seal.password(at)) {
		t.Errorf("Fetch() of a server that is gone = %v", err)
	}
}
