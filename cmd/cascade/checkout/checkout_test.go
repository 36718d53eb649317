package checkout

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/plumbing/transport/ssh"
	gossh "golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

func server(t *testing.T) (*gitserver.Server, Remote) {
	t.Helper()
	s, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir(), Username: "git", Password: "secret", TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	return s, Remote{URL: s.HTTPURL("fleet"), Branch: "main", Auth: &http.BasicAuth{Username: "git", Password: "secret"}, CA: s.CA()}
}

// change writes one file, once.
func write(name, text string) func(fs.FS) (Decision, error) {
	return func(files fs.FS) (Decision, error) {
		if old, err := fs.ReadFile(files, name); err == nil && string(old) == text {
			return Decision{}, nil
		}
		return Decision{Changes: map[string][]byte{name: []byte(text)}, Message: "Write " + name}, nil
	}
}

func has(t *testing.T, r Remote, name, want string) {
	t.Helper()
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	got, err := fs.ReadFile(tree.Files(), name)
	if want == "" && !errors.Is(err, fs.ErrNotExist) || want != "" && string(got) != want {
		t.Errorf("%s is %q, want %q: %v", name, got, want, err)
	}
}

func do(t *testing.T, r Remote, decide func(fs.FS) (Decision, error)) (head string, pushed bool) {
	t.Helper()
	tree, pushed, err := Change(t.Context(), r, Author{"Ann", "ann@example.com"}, time.Now, decide)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	return tree.Head(), pushed
}

// TestChange: an empty repository gets its first commit; without a change there is none; a
// file is removed.
func TestChange(t *testing.T) {
	_, r := server(t)
	first, pushed := do(t, r, write("a/b.yaml", "one\n"))
	if !pushed || first == "" {
		t.Fatalf("nothing was pushed to an empty repository: %q", first)
	}
	has(t, r, "a/b.yaml", "one\n")
	if again, pushed := do(t, r, write("a/b.yaml", "one\n")); pushed || again != first {
		t.Errorf("without a change there is commit %s", again)
	}
	if second, pushed := do(t, r, write(".gitignore", "ignored\n")); !pushed || second == first {
		t.Error("a change makes no commit")
	}
	do(t, r, write("ignored/c.yaml", "one\n"))
	has(t, r, "ignored/c.yaml", "one\n")
	do(t, r, func(fs.FS) (Decision, error) {
		return Decision{Changes: map[string][]byte{"a/b.yaml": nil}, Message: "Remove"}, nil
	})
	has(t, r, "a/b.yaml", "")
}

// TestRace: a push that lost a race is decided anew, over what the other one pushed. One that
// always loses is given up, and what others pushed stands.
func TestRace(t *testing.T) {
	s, r := server(t)
	other := func(text string) {
		if _, err := s.Commit(t.Context(), "fleet", "main", "Other", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "other.yaml"), []byte(text), 0o644)
		}); err != nil {
			t.Fatal(err)
		}
	}
	calls := 0
	racing := func(until int) func(fs.FS) (Decision, error) {
		return func(files fs.FS) (Decision, error) {
			if calls++; calls <= until {
				other(strings.Repeat("x", calls))
			}
			return write("mine.yaml", "mine\n")(files)
		}
	}
	do(t, r, racing(2))
	if calls != 3 {
		t.Errorf("it was decided %d times", calls)
	}
	has(t, r, "mine.yaml", "mine\n")
	has(t, r, "other.yaml", "xx")

	do(t, r, func(fs.FS) (Decision, error) {
		return Decision{Changes: map[string][]byte{"mine.yaml": nil}, Message: "Again"}, nil
	})
	calls = 10
	if _, _, err := Change(t.Context(), r, Author{"Ann", "ann@example.com"}, time.Now, racing(1000)); !errors.Is(err, errRaced) {
		t.Errorf("a race that is always lost: %v", err)
	}
	if calls != 13 {
		t.Errorf("it was decided %d times", calls-10)
	}
	has(t, r, "mine.yaml", "")
}

// TestPushBranch: a commit for a person to merge goes to a branch that is new. One that is there is
// somebody's, and stays where it is, also if it could be moved on to the commit.
func TestPushBranch(t *testing.T) {
	_, r := server(t)
	do(t, r, write("a.yaml", "promoted\n"))
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := tree.git.PushContext(t.Context(), &git.PushOptions{
		RemoteName: remoteName, Auth: r.Auth, CABundle: r.CA, RefSpecs: []config.RefSpec{"refs/heads/main:refs/heads/production"},
	}); err != nil {
		t.Fatal(err)
	}
	do(t, r, write("a.yaml", "not promoted\n"))
	production, upgrade := r, r
	production.Branch, upgrade.Branch = "production", "upgrade"
	r.PushBranch = production.Branch
	if _, _, err := Change(t.Context(), r, Author{"Ann", "ann@example.com"}, time.Now, write("mine.yaml", "mine\n")); err == nil || !strings.Contains(err.Error(), "it has a branch production already") {
		t.Errorf("a branch that is there: %v", err)
	}
	has(t, production, "a.yaml", "promoted\n")
	r.PushBranch = upgrade.Branch
	do(t, r, write("mine.yaml", "mine\n"))
	has(t, upgrade, "mine.yaml", "mine\n")
	has(t, r, "mine.yaml", "")
}

// TestPrecedes: what a clone has is before its head, and what it lacks came after.
func TestPrecedes(t *testing.T) {
	_, r := server(t)
	first, _ := do(t, r, write("a", "1"))
	second, _ := do(t, r, write("a", "2"))
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	third, _ := do(t, r, write("a", "3"))
	for commit, want := range map[string]bool{first: true, second: false, third: false, "": false} {
		if got := tree.Precedes(commit); got != want {
			t.Errorf("commit %q precedes %s: %t, want %t", commit, second, got, want)
		}
	}
}

// TestRefuses: what is wrong with a repository is said.
func TestRefuses(t *testing.T) {
	s, r := server(t)
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	if _, err := s.Commit(t.Context(), "fleet", "main", "Begin", func(dir string) error {
		return errors.Join(os.WriteFile(filepath.Join(dir, "a"), nil, 0o644), os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")))
	}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason string
		change func(*Remote)
		decide func(fs.FS) (Decision, error)
		want   string
	}{
		"NoBranch":   {"a branch that is not there", func(r *Remote) { r.Branch = "none" }, nil, "it has no branch none"},
		"Login":      {"a wrong password", func(r *Remote) { r.Auth = &http.BasicAuth{Username: "git", Password: "wrong"} }, nil, "authentication required"},
		"Repository": {"no such repository", func(r *Remote) { r.URL = s.HTTPURL("none") }, nil, "not found"},
		"CA":         {"a server that nobody vouches for", func(r *Remote) { r.CA = nil }, nil, "certificate"},
		"Decision":   {"who decides refuses", nil, func(fs.FS) (Decision, error) { return Decision{}, errors.New("not so") }, "not so"},
		"Outside":    {"a link leads out of the repository", nil, write("link/outside.yaml", "x"), "escapes"},
	} {
		t.Run(name, func(t *testing.T) {
			r := r
			if tc.change != nil {
				tc.change(&r)
			}
			decide := tc.decide
			if decide == nil {
				decide = write("a", "b")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, _, err := Change(ctx, r, Author{"Ann", "ann@example.com"}, time.Now, decide); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
	if _, err := os.Stat(outside); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file outside of the clone was written")
	}
}

// TestMayPush: whoever may only read is told before there is a commit; nothing is pushed.
func TestMayPush(t *testing.T) {
	s, r := server(t)
	do(t, r, write("a", "one\n"))
	reading, err := s.ReadKey("fleet")
	if err != nil {
		t.Fatal(err)
	}
	auth, err := ssh.NewPublicKeys("git", reading, "")
	if err != nil {
		t.Fatal(err)
	}
	auth.HostKeyCallback = gossh.InsecureIgnoreHostKey() //nolint:gosec // a server of this test
	for name, tc := range map[string]struct {
		reason string
		remote Remote
		// meanwhile somebody else pushes.
		meanwhile, refused bool
	}{
		"May":   {"the login may write", r, false, false},
		"Moved": {"it may, and somebody else did", r, true, false},
		"Reads": {"a deploy key of flux bootstrap", Remote{URL: s.SSHURL("fleet"), Branch: "main", Auth: auth}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := Clone(t.Context(), tc.remote)
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			if tc.meanwhile {
				do(t, r, write("other", name))
			}
			before := headOf(t, r)
			if err := tree.MayPush(t.Context()); (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "must be allowed to write there") {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if now := headOf(t, r); now != before {
				t.Errorf("%s: the branch went from %s to %s", tc.reason, before, now)
			}
		})
	}
	if err := s.Create(t.Context(), "empty"); err != nil {
		t.Fatal(err)
	}
	r.URL = s.HTTPURL("empty")
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := tree.MayPush(t.Context()); err != nil {
		t.Errorf("an empty repository has no branch to write to: %v", err)
	}
}

// headOf is the commit of a branch.
func headOf(t *testing.T, r Remote) string {
	t.Helper()
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	return tree.Head()
}

// TestSilent: a server that takes the connection of SSH and says nothing is waited for no longer than the context allows.
func TestSilent(t *testing.T) {
	_, r := server(t)
	do(t, r, write("a", "one\n"))
	tree, err := Clone(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	auth := &ssh.PublicKeys{User: "git", Signer: signer}
	auth.HostKeyCallback = gossh.InsecureIgnoreHostKey() //nolint:gosec // a server of this test
	connected := make(chan struct{}, 100)
	tree.remote = Remote{URL: silent(t, connected), Branch: "main", Auth: auth}
	if err := tree.git.DeleteRemote(remoteName); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.git.CreateRemote(&config.RemoteConfig{Name: remoteName, URLs: []string{tree.remote.URL}}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(context.Context) error{
		"Clone":   func(ctx context.Context) error { _, err := Clone(ctx, tree.remote); return err },
		"MayPush": tree.MayPush,
		"Push":    tree.push,
	} {
		for len(connected) > 0 {
			<-connected // of the call before
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		<-connected
		cancel()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the server says nothing") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: nobody ends the wait", name)
		}
	}
}

// silent is a server that takes connections, tells of each, and says nothing.
func silent(t *testing.T, connected chan<- struct{}) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			connected <- struct{}{}
		}
	}()
	return "ssh://git@" + listener.Addr().String() + "/fleet"
}
