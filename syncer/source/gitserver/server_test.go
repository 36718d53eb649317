package gitserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"
)

func start(t *testing.T, options Options) *Server {
	t.Helper()
	if options.Root == "" {
		options.Root = t.TempDir()
	}
	s, err := Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// withContent returns a server with one commit in the repository team/fleet.
func withContent(t *testing.T, options Options) (s *Server, commit string) {
	t.Helper()
	s = start(t, options)
	if err := s.Create(t.Context(), "team/fleet"); err != nil {
		t.Fatal(err)
	}
	return s, commitFile(t, s, "main", "a.yaml", "one")
}

func commitFile(t *testing.T, s *Server, branch, name, content string) string {
	t.Helper()
	commit, err := s.Commit(t.Context(), "team/fleet", branch, "write "+name, func(folder string) error {
		return os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	return commit
}

// git runs a client with nothing of the machine's configuration.
func git(t *testing.T, folder string, extra []string, args ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir = folder
	command.Env = append(environment(), extra...)
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func header(value string) []string {
	return []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=http.extraHeader", "GIT_CONFIG_VALUE_0=Authorization: " + value}
}

func withLogin(url, login string) string {
	return strings.Replace(url, "://", "://"+login+"@", 1)
}

func TestHTTPCredentials(t *testing.T) {
	s, commit := withContent(t, Options{Username: "cascade", Password: "right", BearerToken: "token-1"})
	url := s.HTTPURL("team/fleet")
	for _, test := range []struct {
		reason, url string
		env         []string
		ok          bool
	}{
		{"right password", withLogin(url, "cascade:right"), nil, true},
		{"wrong password", withLogin(url, "cascade:wrong"), nil, false},
		{"wrong user", withLogin(url, "other:right"), nil, false},
		{"no credentials", url, nil, false},
		{"right token", url, header("Bearer token-1"), true},
		{"wrong token", url, header("Bearer token-2"), false},
		{"empty token", url, header("Bearer "), false},
		{"the token is no password", withLogin(url, "cascade:token-1"), nil, false},
	} {
		t.Run(test.reason, func(t *testing.T) {
			tree := filepath.Join(t.TempDir(), "tree")
			out, err := git(t, "", test.env, "clone", "--quiet", test.url, tree)
			if (err == nil) != test.ok {
				t.Fatalf("clone: %v: %s", err, out)
			}
			if !test.ok {
				return
			}
			if head, err := git(t, tree, nil, "rev-parse", "HEAD"); head != commit {
				t.Errorf("HEAD %s, %v; want %s", head, err, commit)
			}
			if out, err := git(t, tree, nil, "commit", "--quiet", "--allow-empty", "-m", test.reason); err != nil {
				t.Fatalf("commit: %v: %s", err, out)
			}
			if out, err := git(t, tree, test.env, "push", "--quiet", "origin", "HEAD:refs/heads/push"); err != nil {
				t.Errorf("push: %v: %s", err, out)
			}
			if out, err := git(t, tree, test.env, "push", "--quiet", "--delete", "origin", "push"); err != nil {
				t.Errorf("push: %v: %s", err, out)
			}
		})
	}
	t.Run("the status is 401", func(t *testing.T) {
		response, err := http.Get(url + "/info/refs?service=git-upload-pack")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("status %s, challenge %q", response.Status, response.Header.Get("WWW-Authenticate"))
		}
	})
}

func TestTLS(t *testing.T) {
	s, commit := withContent(t, Options{TLS: true, BearerToken: "token"})
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, s.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := git(t, "", append(header("Bearer token"), "GIT_SSL_CAINFO="+ca), "ls-remote", s.HTTPURL("team/fleet"), "main")
	if err != nil || !strings.HasPrefix(out, commit) {
		t.Errorf("ls-remote: %v: %s", err, out)
	}
	if out, err := git(t, "", header("Bearer token"), "ls-remote", s.HTTPURL("team/fleet")); err == nil {
		t.Errorf("ls-remote without the authority: %s", out)
	}
}

// TestPut: other contents of one file, and all else as it was.
func TestPut(t *testing.T) {
	s, first := withContent(t, Options{})
	other := commitFile(t, s, "main", "b.yaml", "two")
	put, err := s.Put(t.Context(), "team/fleet", "main", "Put", map[string]string{"b.yaml": "three", "new/c.yaml": "four"})
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	if out, err := git(t, "", nil, "clone", "--quiet", s.HTTPURL("team/fleet"), tree); err != nil {
		t.Fatalf("clone: %v: %s", err, out)
	}
	if out, err := git(t, tree, nil, "log", "--format=%H"); err != nil || strings.TrimSpace(out) != strings.Join([]string{put, other, first}, "\n") {
		t.Errorf("the branch has %v %s", err, out)
	}
	for file, want := range map[string]string{"b.yaml": "three", "new/c.yaml": "four"} {
		if got, err := os.ReadFile(filepath.Join(tree, file)); err != nil || string(got) != want {
			t.Errorf("%s has %q: %v", file, got, err)
		}
	}
	if _, err := s.Put(t.Context(), "team/other", "main", "Put", nil); err == nil {
		t.Error("a repository that is not there has a commit")
	}
}

func TestCommits(t *testing.T) {
	s, first := withContent(t, Options{})
	second := commitFile(t, s, "main", "b.yaml", "two")
	onBranch := commitFile(t, s, "next", "c.yaml", "three")
	if first == second || second == onBranch {
		t.Fatal("commits repeat")
	}
	tree := filepath.Join(t.TempDir(), "tree")
	if out, err := git(t, "", nil, "clone", "--quiet", "--branch=next", s.HTTPURL("team/fleet"), tree); err != nil {
		t.Fatalf("clone: %v: %s", err, out)
	}
	out, err := git(t, tree, nil, "log", "--format=%H %an <%ae>")
	who := " Cascade demo <demo@cascade.dev>"
	if want := onBranch + who + "\n" + second + who + "\n" + first + who; err != nil || out != want {
		t.Errorf("log: %v:\n%s\nwant:\n%s", err, out, want)
	}
	t.Run("a folder replaces everything", func(t *testing.T) {
		folder := t.TempDir()
		if err := os.MkdirAll(filepath.Join(folder, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "deep", "d.yaml"), []byte("four"), 0o644); err != nil {
			t.Fatal(err)
		}
		commit, err := s.CommitDir(t.Context(), "team/fleet", "main", "replace", folder)
		if err != nil {
			t.Fatal(err)
		}
		out, err := git(t, filepath.Join(s.root, "team/fleet.git"), nil, "ls-tree", "-r", "--name-only", commit)
		if err != nil || out != "deep/d.yaml" {
			t.Errorf("files %q, %v; want deep/d.yaml", out, err)
		}
	})
	t.Run("nothing changed", func(t *testing.T) {
		if _, err := s.Commit(t.Context(), "team/fleet", "main", "same", func(string) error { return nil }); err == nil {
			t.Error("a commit without a change succeeded")
		}
		if _, err := s.Commit(t.Context(), "team/fleet", "main", "empty", nil); err != nil {
			t.Errorf("an empty commit on purpose: %v", err)
		}
	})
	t.Run("the change fails", func(t *testing.T) {
		broken := errors.New("broken")
		if _, err := s.Commit(t.Context(), "team/fleet", "main", "x", func(string) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
	t.Run("a commit by its name", func(t *testing.T) {
		empty := t.TempDir()
		if out, err := git(t, empty, nil, "init", "--quiet"); err != nil {
			t.Fatalf("init: %v: %s", err, out)
		}
		if out, err := git(t, empty, nil, "fetch", "--quiet", "--depth=1", s.HTTPURL("team/fleet"), first); err != nil {
			t.Errorf("fetch: %v: %s", err, out)
		}
	})
}

func TestLargePush(t *testing.T) {
	s, _ := withContent(t, Options{})
	// More than http.postBuffer, so that git sends it in chunks, and without
	// a pattern, so that it does not shrink.
	noise := make([]byte, 3<<20)
	for i, state := 0, uint32(1); i < len(noise); i++ {
		state = state*1664525 + 1013904223
		noise[i] = byte(state >> 24)
	}
	commitFile(t, s, "main", "noise", string(noise))
}

// client writes what ssh needs and returns the variable that makes git use it.
func client(t *testing.T, s *Server, key []byte, knownHosts string) []string {
	t.Helper()
	folder := t.TempDir()
	for name, data := range map[string][]byte{"key": key, "known_hosts": []byte(knownHosts)} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"GIT_SSH_COMMAND=ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes" +
		" -o UserKnownHostsFile=" + filepath.Join(folder, "known_hosts") + " -i " + filepath.Join(folder, "key")}
}

func TestSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Fatalf("the system's ssh client is needed: run make prerequisites: %v", err)
	}
	extra, signer, err := privateKey("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _, err := privateKey("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	s, commit := withContent(t, Options{AuthorizedKeys: append([]byte("# comment\n"), gossh.MarshalAuthorizedKey(signer.PublicKey())...)})
	own, err := s.DeployKey("team/fleet")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := s.DeployKey("team/other")
	if err != nil {
		t.Fatal(err)
	}
	other := start(t, Options{})
	wrongHost := strings.Replace(other.KnownHosts(), other.SSHAddress()[strings.LastIndex(other.SSHAddress(), ":"):], s.SSHAddress()[strings.LastIndex(s.SSHAddress(), ":"):], 1)
	for _, test := range []struct {
		reason string
		env    []string
		url    string
		ok     bool
	}{
		{"the server's client key", client(t, s, s.ClientKey(), s.KnownHosts()), s.SSHURL("team/fleet"), true},
		{"an authorized key", client(t, s, extra, s.KnownHosts()), s.SSHURL("team/fleet"), true},
		{"a key of this repository", client(t, s, own, s.KnownHosts()), s.SSHURL("team/fleet"), true},
		{"a key of another repository", client(t, s, foreign, s.KnownHosts()), s.SSHURL("team/fleet"), false},
		{"a stranger's key", client(t, s, stranger, s.KnownHosts()), s.SSHURL("team/fleet"), false},
		{"the client refuses an unknown host", client(t, s, s.ClientKey(), ""), s.SSHURL("team/fleet"), false},
		{"the client refuses a changed host", client(t, s, s.ClientKey(), wrongHost), s.SSHURL("team/fleet"), false},
		{"another user", client(t, s, s.ClientKey(), s.KnownHosts()), strings.Replace(s.SSHURL("team/fleet"), "git@", "root@", 1), false},
		{"no such repository", client(t, s, s.ClientKey(), s.KnownHosts()), s.SSHURL("team/none"), false},
	} {
		t.Run(test.reason, func(t *testing.T) {
			tree := filepath.Join(t.TempDir(), "tree")
			out, err := git(t, "", test.env, "clone", "--quiet", test.url, tree)
			if (err == nil) != test.ok {
				t.Fatalf("clone: %v: %s", err, out)
			}
			if !test.ok {
				return
			}
			if head, _ := git(t, tree, nil, "rev-parse", "HEAD"); head != commit {
				t.Errorf("HEAD %s, want %s", head, commit)
			}
			if out, err := git(t, tree, test.env, "push", "--quiet", "origin", "HEAD:refs/heads/by-ssh"); err != nil {
				t.Errorf("push: %v: %s", err, out)
			}
		})
	}
	if got, want := s.Requests("team/fleet").Sessions, 3; got != want {
		t.Errorf("%d sessions, want %d", got, want)
	}
}

func TestConfinement(t *testing.T) {
	s, _ := withContent(t, Options{})
	outside := t.TempDir()
	if out, err := git(t, "", nil, "init", "--quiet", "--bare", filepath.Join(outside, "secret.git")); err != nil {
		t.Fatalf("init: %v: %s", err, out)
	}
	if err := os.Symlink(filepath.Join(outside, "secret.git"), filepath.Join(s.root, "link.git")); err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(s.root, filepath.Join(outside, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"", ".", "..", ".git", up, "team/../../" + filepath.Base(outside) + "/secret", "team/../team/fleet",
		filepath.Join(outside, "secret"), "link", "team", "team//fleet", "team/fleet\x00", `team\fleet`,
	} {
		if _, folder, err := s.resolve(name); err == nil && name != filepath.Join(outside, "secret") {
			t.Errorf("name %q leads to %s", name, folder)
		} else if err == nil {
			t.Errorf("absolute name %q leads to %s", name, folder)
		}
	}
	for _, path := range []string{
		"/link.git/info/refs?service=git-upload-pack",
		"/../" + filepath.Base(outside) + "/secret.git/info/refs?service=git-upload-pack",
		"/%2e%2e/" + filepath.Base(outside) + "/secret.git/info/refs?service=git-upload-pack",
		"/team/fleet.git/HEAD", "/team/fleet.git/config", "/team/fleet.git/objects/info/packs", "/",
	} {
		if status := rawStatus(t, s, path); status != "404" {
			t.Errorf("GET %s: status %s, want 404", path, status)
		}
	}
	for _, command := range [][]string{nil, {"sh"}, {"git-upload-archive", "team/fleet.git"}, {"git", "gc", "x"}, {"git-upload-pack"}, {"git-upload-pack", "--help", "x"}} {
		if service, _, err := parseCommand(command); err == nil {
			t.Errorf("command %q runs %s", command, service)
		}
	}
}

func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                    nil,
		"git-upload-pack 'team/fleet.git'":    {"git-upload-pack", "team/fleet.git"},
		"git  upload-pack \t\"a b\" ''":       {"git", "upload-pack", "a b", ""},
		`git-upload-pack 'it'\''s' a\ b "\""`: {"git-upload-pack", "it's", "a b", `"`},
		`git-upload-pack 'a\b`:                {"git-upload-pack", `a\b`},
	} {
		if got := splitWords(line); !slices.Equal(got, want) {
			t.Errorf("%q is split into %q, want %q", line, got, want)
		}
	}
}

// rawStatus sends a path as it is, which http.Client would clean.
func rawStatus(t *testing.T, s *Server, path string) string {
	t.Helper()
	connection, err := net.Dial("tcp", s.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if _, err := fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(connection)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(answer))
	if len(words) < 2 {
		t.Fatalf("answer %q", answer)
	}
	return words[1]
}

func TestTraffic(t *testing.T) {
	s, _ := withContent(t, Options{})
	before := s.Requests("team/fleet")
	if out, err := git(t, "", nil, "ls-remote", s.HTTPURL("team/fleet")); err != nil {
		t.Fatalf("ls-remote: %v: %s", err, out)
	}
	polled := s.Requests("team/fleet")
	want := before
	want.Discoveries++
	want.Lists++
	if polled != want {
		t.Errorf("after ls-remote %+v, want %+v", polled, want)
	}
	if out, err := git(t, "", nil, "clone", "--quiet", s.HTTPURL("team/fleet.git"), filepath.Join(t.TempDir(), "tree")); err != nil {
		t.Fatalf("clone: %v: %s", err, out)
	}
	want.Discoveries++
	want.Lists++
	want.Fetches++
	if got := s.Requests("/team/fleet.git"); got != want {
		t.Errorf("after clone %+v, want %+v", got, want)
	}
	if got := s.Requests("../x"); got != (Traffic{}) {
		t.Errorf("of no repository %+v", got)
	}
}

func TestCreate(t *testing.T) {
	s := start(t, Options{})
	if err := s.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), "fleet.git"); err == nil {
		t.Error("a repository was created twice")
	}
	if err := s.Create(t.Context(), "../fleet"); err == nil {
		t.Error("a repository was created outside")
	}
}

// TestOutage closes a server and starts another in its place.
func TestOutage(t *testing.T) {
	s, commit := withContent(t, Options{})
	url, known := s.HTTPURL("team/fleet"), s.KnownHosts()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := git(t, "", nil, "ls-remote", url); err == nil {
		t.Errorf("ls-remote of a closed server: %s", out)
	}
	again := start(t, Options{Root: s.root, HTTPAddress: s.HTTPAddress(), SSHAddress: s.SSHAddress(), HostKey: s.HostKey(), ClientKey: s.ClientKey()})
	if again.KnownHosts() != known {
		t.Errorf("host %q, want %q", again.KnownHosts(), known)
	}
	if !bytes.Equal(again.ClientKey(), s.ClientKey()) {
		t.Error("the client key changed")
	}
	if out, err := git(t, "", nil, "ls-remote", url, "main"); err != nil || !strings.HasPrefix(out, commit) {
		t.Errorf("ls-remote: %v: %s", err, out)
	}
}

// TestClose closes a server in the middle of requests that would never end.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Create(ctx, "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, "fleet", "main", "first", nil); err != nil {
		t.Fatal(err)
	}
	// The body promises more than it holds: git waits for the rest.
	hanging, err := net.Dial("tcp", s.HTTPAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hanging.Close() }()
	if _, err := fmt.Fprintf(hanging, "POST /fleet.git/git-upload-pack HTTP/1.1\r\nHost: x\r\n"+
		"Content-Type: application/x-git-upload-pack-request\r\nContent-Length: 100000\r\n\r\n0fff%0600d", 0); err != nil {
		t.Fatal(err)
	}
	// One that never logs in, and one whose git waits for a request.
	silent, err := net.Dial("tcp", s.SSHAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	signer, err := gossh.ParsePrivateKey(s.ClientKey())
	if err != nil {
		t.Fatal(err)
	}
	shell, err := gossh.Dial("tcp", s.SSHAddress(), &gossh.ClientConfig{
		User: sshUser, Auth: []gossh.AuthMethod{gossh.PublicKeys(signer)}, HostKeyCallback: gossh.FixedHostKey(s.host.PublicKey()),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shell.Close() }()
	session, err := shell.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	input, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("git-receive-pack '/fleet.git'"); err != nil {
		t.Fatal(err)
	}
	within(t, "two git processes", func() bool { return len(processes(t, root)) >= 2 })

	begin := time.Now()
	cancel()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("Close took %s", took)
	}
	if left := processes(t, root); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	_ = input.Close()
	_ = shell.Close()
	within(t, "goroutines gone", func() bool {
		http.DefaultClient.CloseIdleConnections()
		return runtime.NumGoroutine() <= before
	})
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func within(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("not in time: %s\n%s", what, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// processes are those that work in or below folder.
func processes(t *testing.T, folder string) []string {
	t.Helper()
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		if target, err := os.Readlink(entry); err == nil && strings.HasPrefix(target, folder) {
			found = append(found, entry+" "+target)
		}
	}
	return found
}
