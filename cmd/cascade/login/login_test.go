package login

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/ssh"
	"github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/cascade-gitops/cascade/cmd/cascade/checkout"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

const hostLine = "example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n"

func noScan(string) ([]byte, error) { return nil, errors.New("the server was asked") }

func newKey(t *testing.T) []byte {
	t.Helper()
	pair, err := ssh.NewEd25519Generator().Generate()
	if err != nil {
		t.Fatal(err)
	}
	return pair.PrivateKey
}

// TestNew: what the Secret has afterwards.
func TestNew(t *testing.T) {
	given, inCluster := newKey(t), newKey(t)
	for name, tc := range map[string]struct {
		reason string
		url    string
		given  Given
		has    map[string][]byte
		scan   Scan
		want   map[string]string
		made   bool
	}{
		"Public":   {"nothing is said", "https://example.com/a", Given{}, nil, noScan, map[string]string{}, false},
		"Password": {"a login of HTTPS", "https://example.com/a", Given{Username: "ann", Password: "x", CA: []byte("ca")}, nil, noScan, map[string]string{"username": "ann", "password": "x", "ca.crt": "ca"}, false},
		"Token":    {"a token has no name", "https://example.com/a", Given{Password: "x"}, nil, noScan, map[string]string{"username": "git", "password": "x"}, false},
		"Again":    {"the login of the cluster is used again", "https://example.com/a", Given{}, map[string][]byte{"username": []byte("ann"), "password": []byte("x"), "caFile": []byte("ca")}, noScan, map[string]string{"username": "ann", "password": "x", "ca.crt": "ca"}, false},
		"Renewed":  {"what is said counts", "https://example.com/a", Given{Username: "bob", Password: "y"}, map[string][]byte{"username": []byte("ann"), "password": []byte("x")}, noScan, map[string]string{"username": "bob", "password": "y"}, false},
		"Made":     {"without a key one is made, and the server is asked for its own", "ssh://git@example.com/a", Given{}, nil, func(string) ([]byte, error) { return []byte(hostLine), nil }, map[string]string{"identity": "*", "identity.pub": "*", "known_hosts": hostLine}, true},
		"Key":      {"a key and a known server", "ssh://git@example.com/a", Given{PrivateKey: given, KnownHosts: []byte(hostLine)}, map[string][]byte{"identity": inCluster}, noScan, map[string]string{"identity": string(given), "identity.pub": "*", "known_hosts": hostLine}, false},
		"KeyAgain": {"key and server of the cluster are used again", "ssh://git@example.com/a", Given{}, map[string][]byte{"identity": inCluster, "known_hosts": []byte(hostLine)}, noScan, map[string]string{"identity": string(inCluster), "identity.pub": "*", "known_hosts": hostLine}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := New(tc.url, tc.given, tc.has, tc.scan)
			if err != nil {
				t.Fatal(err)
			}
			got := slices.Sorted(maps.Keys(l.Data))
			if want := slices.Sorted(maps.Keys(tc.want)); !slices.Equal(got, want) {
				t.Errorf("%s: the Secret has %v, want %v", tc.reason, got, want)
			}
			for key, want := range tc.want {
				if want != "*" && string(l.Data[key]) != want {
					t.Errorf("%s: %s of the Secret is not as wanted", tc.reason, key)
				}
			}
			if (l.Made != "") != tc.made || tc.made && !strings.HasPrefix(l.Made, "ssh-ed25519 ") {
				t.Errorf("%s: the key that was made is %q", tc.reason, l.Made)
			}
			if (l.Pinned != "") != tc.made {
				t.Errorf("%s: the server's key that is kept is %q", tc.reason, l.Pinned)
			}
			if _, _, err := l.Auth(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestElsewhere: another server gets no password.
func TestElsewhere(t *testing.T) {
	web := map[string][]byte{"username": []byte("ann"), "password": []byte("x"), "bearerToken": []byte("y"), "ca.crt": []byte("ca")}
	shell := map[string][]byte{"identity": []byte("key"), "password": []byte("phrase"), "known_hosts": []byte(hostLine)}
	for name, tc := range map[string]struct {
		reason string
		url    string
		data   map[string][]byte
		want   []string
	}{
		"Password": {"it would be given away", "https://other.example/a", web, nil},
		"ForKey":   {"nor is it the phrase of a key", "ssh://git@other.example/a", web, nil},
		"Key":      {"a key is shown by its public half, and the server is not known yet", "ssh://git@other.example/a", shell, []string{"identity", "password"}},
		"KeyToWeb": {"a phrase is no password", "https://other.example/a", shell, nil},
	} {
		if got := slices.Sorted(maps.Keys(Elsewhere(tc.url, tc.data))); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %s: it keeps %v, want %v", name, tc.reason, got, tc.want)
		}
	}
}

// TestNewRefuses: no error has what is secret.
func TestNewRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		url    string
		given  Given
		want   string
	}{
		"InURL":      {"it would be in Git", "https://ann:hunter2@example.com/a", Given{}, "GIT_PASSWORD"},
		"NameInURL":  {"half of it", "https://hunter2@example.com/a", Given{}, "GIT_PASSWORD"},
		"SSHInURL":   {"by SSH", "ssh://git:hunter2@example.com/a", Given{}, "GIT_PASSWORD"},
		"Clear":      {"a password in the clear", "http://example.com/a", Given{Password: "hunter2"}, "in the clear"},
		"SCP":        {"a URL as git writes it", "git@example.com:team/a.git", Given{}, "ssh://git@example.com/team/a.git"},
		"Scheme":     {"another scheme", "git://example.com/a", Given{}, "must be https://"},
		"None":       {"a path", "/srv/a", Given{}, "must be https://"},
		"NoPassword": {"a name alone", "https://example.com/a", Given{Username: "ann"}, "without a password"},
		"KeyForHTTP": {"a key for HTTPS", "https://example.com/a", Given{PrivateKey: []byte("hunter2")}, "must begin with ssh://"},
		"CAForSSH":   {"an authority for SSH", "ssh://git@example.com/a", Given{CA: []byte("x")}, "--known-hosts-file"},
		"NoKey":      {"a key that is none", "ssh://git@example.com/a", Given{PrivateKey: []byte("hunter2")}, "cannot read the private key"},
		"NoServer":   {"a server that does not answer", "ssh://git@example.com/a", Given{}, "the server was asked"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.url, tc.given, nil, noScan)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: the error has what is secret: %v", tc.reason, err)
			}
		})
	}
}

// TestServers: both logins open a repository of a real server, and another server under the
// same name is refused.
func TestServers(t *testing.T) {
	key := newKey(t)
	start := func(options gitserver.Options) *gitserver.Server {
		options.Username, options.Password, options.TLS = "ann", "secret", true
		s, err := gitserver.Start(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start(gitserver.Options{Root: t.TempDir(), ClientKey: key})
	if err := s.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), "fleet", "main", "Begin", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	opens := func(url string, data map[string][]byte) error {
		l, err := InUse(url, data)
		if err != nil {
			t.Fatal(err)
		}
		auth, ca, err := l.Auth()
		if err != nil {
			t.Fatal(err)
		}
		tree, err := checkout.Clone(t.Context(), checkout.Remote{URL: url, Branch: "main", Auth: auth, CA: ca})
		if err == nil {
			tree.Close()
		}
		return err
	}
	web, err := New(s.HTTPURL("fleet"), Given{Username: "ann", Password: "secret", CA: s.CA()}, nil, noScan)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := New(s.SSHURL("fleet"), Given{PrivateKey: key}, nil, ScanHost)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(opens(s.HTTPURL("fleet"), web.Data), opens(s.SSHURL("fleet"), shell.Data)); err != nil {
		t.Error(err)
	}
	if auth, _, err := web.Auth(); err != nil || auth.(*http.BasicAuth).Password != "secret" {
		t.Errorf("the password is lost: %v", err)
	}
	url, address, root := s.SSHURL("fleet"), s.SSHAddress(), filepath.Dir(t.TempDir())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := start(gitserver.Options{Root: filepath.Join(root, "other"), ClientKey: key, SSHAddress: address})
	defer other.Close()
	if err := opens(url, shell.Data); err == nil || !strings.Contains(err.Error(), "knownhosts: key mismatch") {
		t.Errorf("another server is taken for the first: %v", err)
	}
}
