package source

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/rekor/pkg/generated/client/tlog"
	"golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

const repository = "team/fleet"

// plenty is a pack limit that no test reaches by chance.
const plenty = 64 << 20

// origin is a running server with one empty repository.
type origin struct {
	*gitserver.Server
	t    *testing.T
	root string
}

func serve(t *testing.T, options gitserver.Options) *origin {
	t.Helper()
	options.Root = t.TempDir()
	s, err := gitserver.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Create(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	return &origin{Server: s, t: t, root: options.Root}
}

// commit writes files, where a content that begins with "-> " is a link, and
// one that is empty is removed.
func (o *origin) commit(branch string, files map[string]string) string {
	o.t.Helper()
	commit, err := o.Commit(o.t.Context(), repository, branch, "change things\n\nfor a reason", func(folder string) error {
		for name, content := range files {
			at := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			_ = os.Remove(at)
			var err error
			if to, link := strings.CutPrefix(content, "-> "); link {
				err = os.Symlink(to, at)
			} else if content != "" {
				err = os.WriteFile(at, []byte(content), 0o644)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return commit
}

// git runs in the bare repository itself and returns the output.
func (o *origin) git(input string, args ...string) string {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), "git", append([]string{"--git-dir=" + filepath.Join(o.root, repository+".git")}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=n", "GIT_AUTHOR_EMAIL=e", "GIT_COMMITTER_NAME=n", "GIT_COMMITTER_EMAIL=e"}
	cmd.Stdin = strings.NewReader(input)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		o.t.Fatalf("git %v: %v: %s", args, err, complaint.String())
	}
	return strings.TrimSpace(string(out))
}

func (o *origin) url() Origin { return Origin{URL: o.HTTPURL(repository)} }

// ending is a context that ends when it was asked so many times whether it did.
type ending struct {
	context.Context
	end  func()
	left atomic.Int64
}

func endsAfter(t *testing.T, asked int64) *ending {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(end)
	e := &ending{Context: ctx, end: end}
	e.left.Store(asked)
	return e
}

func (e *ending) Err() error {
	if e.left.Add(-1) < 0 {
		e.end()
	}
	return e.Context.Err()
}

// TestInterrupted: a fetch that ends in the middle, wherever that is, has no commit without
// its files: the next one brings what is missing. The library writes the objects of a thin
// pack one after the other, and the commit first.
func TestInterrupted(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a": "one", "same": "the same"})
	random := make([]byte, 64<<10)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	base := mirrors(t)
	fetch(t, base, o.url(), onMain, nil)
	want := o.commit("main", map[string]string{"b": string(random[:32<<10]), "c": string(random[32<<10:])})

	whole := endsAfter(t, 1<<40)
	if _, err := base.Fetch(whole, o.url(), onMain, Options{}, nil); err != nil {
		t.Fatal(err)
	}
	asked, cut := 1<<40-whole.left.Load(), 0
	for k := asked - 1; k > 0 && k > asked-24; k -= 2 {
		m := mirrors(t)
		// What came before is from another time, as the current commit is not to be here.
		fetch(t, m, o.url(), Reference{Commit: o.git("", "rev-parse", "main~1")}, nil)
		if _, err := m.Fetch(endsAfter(t, k), o.url(), onMain, Options{}, nil); err != nil {
			cut++
		}
		s := fetch(t, m, o.url(), onMain, nil)
		if s.Commit != want {
			t.Fatalf("commit %s, want %s", s.Commit, want)
		}
		for _, name := range []string{"a", "b", "c", "same"} {
			if _, err := s.ReadFile(name); err != nil {
				t.Errorf("after a fetch that ended at step %d of %d: %v", k, asked, err)
			}
		}
	}
	if cut == 0 {
		t.Error("no fetch ended in the middle: the test shows nothing")
	}
}

var onMain = Reference{Branch: "main"}

func mirrors(t *testing.T) *Mirrors {
	t.Helper()
	return NewMirrors(t.TempDir(), plenty)
}

func fetch(t *testing.T, m *Mirrors, o Origin, ref Reference, last *Snapshot) *Snapshot {
	t.Helper()
	s, err := m.Fetch(t.Context(), o, ref, Options{}, last)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, s *Snapshot, name string) string {
	t.Helper()
	data, err := s.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestReferences(t *testing.T) {
	o := serve(t, gitserver.Options{})
	old := o.commit("main", map[string]string{"a.yaml": "old"})
	tip := o.commit("main", map[string]string{"a.yaml": "new"})
	side := o.commit("side", map[string]string{"a.yaml": "side"})
	o.git("", "tag", "light", old)
	o.git("", "tag", "-a", "-m", "annotated", "heavy", old)
	o.git("", "update-ref", "refs/changes/1/head", old)
	for name, tc := range map[string]struct {
		reason   string
		ref      Reference
		revision string
		content  string
		fails    string
	}{
		"Branch":         {"the ordinary case", onMain, "main@sha1:" + tip, "new", ""},
		"OtherBranch":    {"a branch beside", Reference{Branch: "side"}, "side@sha1:" + side, "side", ""},
		"LightTag":       {"a tag that is a commit", Reference{Tag: "light"}, "light@sha1:" + old, "old", ""},
		"AnnotatedTag":   {"a tag that is an object of its own: the revision has to name the commit", Reference{Tag: "heavy"}, "heavy@sha1:" + old, "old", ""},
		"Name":           {"any reference by its full name", Reference{Name: "refs/changes/1/head"}, "refs/changes/1/head@sha1:" + old, "old", ""},
		"CommitTip":      {"a commit that a branch points to", Reference{Commit: tip}, "sha1:" + tip, "new", ""},
		"CommitOld":      {"a commit that no reference points to, as a pin does after some time", Reference{Branch: "main", Commit: old}, "main@sha1:" + old, "old", ""},
		"CommitFirst":    {"Flux's order of precedence: commit, name, tag, branch", Reference{Branch: "side", Tag: "heavy", Name: "refs/heads/side", Commit: tip}, "side@sha1:" + tip, "new", ""},
		"NameBeforeTag":  {"the same", Reference{Name: "refs/heads/main", Tag: "light"}, "refs/heads/main@sha1:" + tip, "new", ""},
		"TagFirst":       {"the same", Reference{Tag: "light", Branch: "main"}, "light@sha1:" + old, "old", ""},
		"DefaultBranch":  {"without a reference it is master, as in Flux", Reference{}, "", "", ReasonGitOperationFailed},
		"MissingBranch":  {"a typo must not be taken for an empty repository", Reference{Branch: "mian"}, "", "", ReasonGitOperationFailed},
		"MissingTag":     {"the same for tags", Reference{Tag: "v9"}, "", "", ReasonGitOperationFailed},
		"MissingCommit":  {"a commit that the server does not have", Reference{Commit: strings.Repeat("1", 40)}, "", "", ReasonGitOperationFailed},
		"ShortCommit":    {"an abbreviation may mean another commit tomorrow", Reference{Commit: tip[:8]}, "", "", ReasonGitOperationFailed},
		"BranchOfPrefix": {"part of a name is not the name", Reference{Branch: "mai"}, "", "", ReasonGitOperationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), o.url(), tc.ref, Options{}, nil)
			if tc.fails != "" {
				if err == nil || ReasonOf(err) != tc.fails {
					t.Fatalf("%s\nFetch() = %v, %v, want reason %s", tc.reason, s, err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\nFetch(): %v", tc.reason, err)
			}
			if s.Revision != tc.revision || s.Subject != "change things" {
				t.Errorf("%s\nrevision %q, subject %q, want %q and the first line", tc.reason, s.Revision, s.Subject, tc.revision)
			}
			if got := read(t, s, "a.yaml"); got != tc.content {
				t.Errorf("%s\na.yaml is %q, want %q", tc.reason, got, tc.content)
			}
		})
	}
}

// TestTipsOnly: a server that gives out tips, and no commits before them, is asked for the history
// of the branch, as one that gives out neither.
func TestTipsOnly(t *testing.T) {
	o := serve(t, gitserver.Options{})
	first := o.commit("main", map[string]string{"a.yaml": "first"})
	second := o.commit("main", map[string]string{"a.yaml": "second"})
	o.commit("main", map[string]string{"a.yaml": "third"})
	hidden := o.commit("aside", map[string]string{"a.yaml": "hidden"})
	o.git("", "update-ref", "refs/hidden/tip", hidden)
	o.git("", "update-ref", "-d", "refs/heads/aside")
	o.git("", "config", "uploadpack.hideRefs", "refs/hidden")
	o.git("", "config", "uploadpack.allowReachableSHA1InWant", "false")
	o.git("", "config", "uploadpack.allowTipSHA1InWant", "true")
	shell := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}}
	before := o.Requests(repository).Fetches
	for name, from := range map[string]Origin{"HTTP": o.url(), "SSH": shell} {
		m := mirrors(t)
		var last *Snapshot
		for _, want := range []struct{ content, commit string }{{"first", first}, {"second", second}, {"hidden", hidden}} {
			s, err := m.Fetch(t.Context(), from, Reference{Branch: "main", Commit: want.commit}, Options{}, last)
			if err != nil {
				t.Errorf("%s: the %s commit: %v", name, want.content, err)
				continue
			}
			if last = s; read(t, s, "a.yaml") != want.content {
				t.Errorf("%s: read %q, want %q", name, read(t, s, "a.yaml"), want.content)
			}
		}
		if _, err := m.Fetch(t.Context(), from, Reference{Branch: "main", Commit: strings.Repeat("1", 40)}, Options{}, last); err == nil {
			t.Errorf("%s: a commit that the server does not have was fetched", name)
		}
	}
	// By HTTP git cannot tell tips from others: the history is asked for in vain only.
	if got := o.Requests(repository).Fetches - before; got > 5 {
		t.Errorf("%d requests for packs by HTTP, want no more than one for each commit, and one more", got)
	}
}

// TestCommitOfAnyBranch: a commit without a branch is found on any, also where the server gives out no single commits, and so is one
// of what is followed by its name, and one that an annotated tag is on.
func TestCommitOfAnyBranch(t *testing.T) {
	o := serve(t, gitserver.Options{})
	commit := func(branch, content string) string { return o.commit(branch, map[string]string{"a.yaml": content}) }
	commit("main", "begin")
	old := commit("master", "old")
	onMain := commit("main", "on main")
	tagged := commit("aside", "tagged")
	o.git("", "tag", "-a", "-m", "x", "v1", tagged)
	onRelease := commit("release", "on release")
	pulled := commit("pull", "pulled")
	o.git("", "tag", "moved", commit("moved", "moved"))
	onTag := o.git("", "rev-parse", "moved")
	for _, branch := range []string{"master", "main", "release", "pull", "moved"} {
		commit(branch, "the tip of "+branch)
	}
	o.git("", "tag", "--force", "moved", "refs/heads/moved")
	o.git("", "update-ref", "refs/pull/1/head", "pull")
	for _, gone := range []string{"aside", "pull", "moved"} {
		o.git("", "update-ref", "-d", "refs/heads/"+gone)
	}
	o.git("", "symbolic-ref", "HEAD", "refs/heads/main")
	o.git("", "config", "uploadpack.allowReachableSHA1InWant", "false")
	shell := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}}
	for from, origin := range map[string]Origin{"HTTP": o.url(), "SSH": shell} {
		for name, tt := range map[string]struct {
			reason string
			ref    Reference
			want   string
		}{
			"Master":    {"the branch that is followed where none is named", Reference{Commit: old}, "old"},
			"Default":   {"the default branch, beside a master that was left behind", Reference{Commit: onMain}, "on main"},
			"Other":     {"another branch", Reference{Commit: onRelease}, "on release"},
			"Gone":      {"the branch that is named was deleted", Reference{Branch: "merged", Commit: onRelease}, "on release"},
			"Name":      {"a reference that is no branch", Reference{Name: "refs/pull/1/head", Commit: pulled}, "pulled"},
			"Tag":       {"a tag that was moved", Reference{Tag: "moved", Commit: onTag}, "moved"},
			"Peeled":    {"a commit of no branch that an annotated tag is on", Reference{Commit: tagged}, "tagged"},
			"Nowhere":   {"a commit that no reference leads to", Reference{Commit: pulled}, ""},
			"Elsewhere": {"a commit that is not on the branch that is named", Reference{Branch: "main", Commit: onRelease}, ""},
			"Zero":      {"no commit", Reference{Commit: strings.Repeat("0", 40)}, ""},
		} {
			s, err := mirrors(t).Fetch(t.Context(), origin, tt.ref, Options{}, nil)
			if (err == nil) != (tt.want != "") {
				t.Errorf("%s, %s: %s: Fetch() = %v", from, name, tt.reason, err)
			} else if err == nil && read(t, s, "a.yaml") != tt.want {
				t.Errorf("%s, %s: %s: read %q, want %q", from, name, tt.reason, read(t, s, "a.yaml"), tt.want)
			}
		}
		// A submodule is pinned to a commit without a branch.
		mir, dial, err := mirrors(t).mirror(origin)
		if err != nil {
			t.Fatal(err)
		}
		if gen, err := mir.exactly(t.Context(), dial, plumbing.NewHash(onRelease)); err != nil || !gen.complete(plumbing.NewHash(onRelease)) {
			t.Errorf("%s: a submodule: %v", from, err)
		}
	}
}

// TestTagsOfOneVersion: the newest commit of the tags of one version counts, whatever it takes
// to look at all of them: SSH serves one request for each connection.
func TestTagsOfOneVersion(t *testing.T) {
	o := serve(t, gitserver.Options{})
	tag := func(name, content string, at int, annotated bool) string {
		o.commit("main", map[string]string{"a.yaml": content})
		who := fmt.Sprintf("n <e> %d +0000", at)
		commit := o.git(fmt.Sprintf("tree %s\nauthor %s\ncommitter %s\n\n%s\n", o.git("", "rev-parse", "main^{tree}"), who, who, name), "hash-object", "-t", "commit", "-w", "--stdin")
		if annotated {
			o.git("", "tag", "-a", "-m", "annotated", name, commit)
		} else {
			o.git("", "tag", name, commit)
		}
		return commit
	}
	tag("1.2.3", "old", 1_000_000_000, true)
	newest := tag("1.2.3+b", "newest", 1_200_000_000, false)
	tag("v1.2.3", "between", 1_100_000_000, true)
	shell := Origin{URL: o.SSHURL(repository), Secret: map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}}
	for name, from := range map[string]Origin{"HTTP": o.url(), "SSH": shell} {
		m := mirrors(t)
		s := fetch(t, m, from, Reference{SemVer: "1.2.x"}, nil)
		if s.Commit != newest || read(t, s, "a.yaml") != "newest" {
			t.Errorf("%s: commit %s with %q, want %s", name, s.Commit, read(t, s, "a.yaml"), newest)
		}
		if again := fetch(t, m, from, Reference{SemVer: "1.2.x"}, s); again != s {
			t.Errorf("%s: nothing changed, and there is another snapshot", name)
		}
	}
}

func TestEmptyRepository(t *testing.T) {
	o := serve(t, gitserver.Options{})
	if _, err := mirrors(t).Fetch(t.Context(), o.url(), onMain, Options{}, nil); ReasonOf(err) != ReasonEmptyRepository {
		t.Errorf("Fetch() = %v, want reason %s: it says what to do, other than a missing branch", err, ReasonEmptyRepository)
	}
}

func TestCredentials(t *testing.T) {
	const password, token = "right-password", "right-token"
	o := serve(t, gitserver.Options{Username: "user", Password: password, BearerToken: token, TLS: true})
	o.commit("main", map[string]string{"a.yaml": "1"})
	secured := func(kv ...string) map[string][]byte {
		m := map[string][]byte{"ca.crt": o.CA()}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = []byte(kv[i+1])
		}
		return m
	}
	for name, tc := range map[string]struct {
		reason string
		secret map[string][]byte
		fails  string
		url    *url.Userinfo
	}{
		"Password":      {"the ordinary case, over TLS with a CA of one's own", secured("username", "user", "password", password), "", nil},
		"Token":         {"a bearer token, with the line end that an editor leaves", secured("bearerToken", token+"\n"), "", nil},
		"WrongPassword": {"the reason tells people where to look", secured("username", "user", "password", "wrong-password"), ReasonAuthenticationFailed, nil},
		"WrongToken":    {"the same", secured("bearerToken", "wrong-password"), ReasonAuthenticationFailed, nil},
		"None":          {"the same", secured(), ReasonAuthenticationFailed, nil},
		"NoCA":          {"a certificate nobody vouches for is refused, whoever sits behind it", map[string][]byte{"username": []byte("user"), "password": []byte(password)}, ReasonGitOperationFailed, nil},
		"BrokenCA":      {"a CA that is none must not mean no CA", map[string][]byte{"ca.crt": []byte("x"), "username": []byte("user"), "password": []byte(password)}, ReasonAuthenticationFailed, nil},
		"BrokenPair":    {"a client certificate without its key", secured("tls.crt", "x"), ReasonAuthenticationFailed, nil},
		"URL":           {"Flux takes a login from the URL", secured(), "", url.UserPassword("user", password)},
		"URLAndSecret":  {"what the Secret has comes first", secured("username", "user", "password", password), "", url.UserPassword("other", "wrong-password")},
		"URLAndToken":   {"the same", secured("bearerToken", token), "", url.UserPassword("other", "wrong-password")},
		"URLHasUser":    {"one from here, one from there", secured("password", password), "", url.User("user")},
		"URLIsWrong":    {"the password stays out of the message", secured(), ReasonAuthenticationFailed, url.UserPassword("user", "wrong-password")},
		"URLNoCA":       {"the same, where the connection fails", nil, ReasonGitOperationFailed, url.UserPassword("wrong-password", password)},
	} {
		t.Run(name, func(t *testing.T) {
			at, _ := url.Parse(o.HTTPURL(repository))
			at.User = tc.url
			_, err := mirrors(t).Fetch(t.Context(), Origin{URL: at.String(), Secret: tc.secret}, onMain, Options{}, nil)
			if (err == nil) != (tc.fails == "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Fatalf("%s\nFetch(): %v, want reason %q", tc.reason, err, tc.fails)
			}
			if err != nil && (strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "wrong-password")) {
				t.Errorf("%s\nthe error shows a credential: %v", tc.reason, err)
			}
		})
	}
}

func TestSSH(t *testing.T) {
	o, stranger := serve(t, gitserver.Options{}), serve(t, gitserver.Options{})
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	_, key, _ := strings.Cut(stranger.KnownHosts(), " ")
	host, _, _ := strings.Cut(o.KnownHosts(), " ")
	for name, tc := range map[string]struct {
		reason string
		secret map[string][]byte
		fails  string
	}{
		"Known":       {"the ordinary case", map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(o.KnownHosts())}, ""},
		"OtherKey":    {"somebody else answers in the host's name (CVE-2025-23390)", map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(host + " " + key)}, ReasonGitOperationFailed},
		"UnknownHost": {"a host nobody named is not trusted on first use", map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte(stranger.KnownHosts())}, ReasonGitOperationFailed},
		"NoHosts":     {"without known_hosts nothing is sent at all", map[string][]byte{"identity": o.ClientKey()}, ReasonAuthenticationFailed},
		"NoIdentity":  {"nor without a key", map[string][]byte{"known_hosts": []byte(o.KnownHosts())}, ReasonAuthenticationFailed},
		"BrokenKey":   {"a key that is none", map[string][]byte{"identity": []byte("x"), "known_hosts": []byte(o.KnownHosts())}, ReasonAuthenticationFailed},
		"BrokenHosts": {"known_hosts that are none", map[string][]byte{"identity": o.ClientKey(), "known_hosts": []byte("x")}, ReasonAuthenticationFailed},
		"ForeignKey":  {"a key that the server does not accept", map[string][]byte{"identity": stranger.ClientKey(), "known_hosts": []byte(o.KnownHosts())}, ReasonAuthenticationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), Origin{URL: o.SSHURL(repository), Secret: tc.secret}, onMain, Options{}, nil)
			if (err == nil) != (tc.fails == "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Fatalf("%s\nFetch(): %v (reason %s), want reason %q", tc.reason, err, ReasonOf(err), tc.fails)
			}
			if err == nil && s.Commit != commit {
				t.Errorf("%s\ncommit %s, want %s", tc.reason, s.Commit, commit)
			}
		})
	}
}

func TestRefusedURLs(t *testing.T) {
	for name, tc := range map[string]struct{ reason, url string }{
		"File":       {"a path of the agent's own disk", "file:///etc"},
		"Relative":   {"go-git reads this as a path of the disk", "/etc"},
		"Git":        {"a protocol without authentication", "git://127.0.0.1/x"},
		"SCP":        {"Flux does not accept the short form either", "git@127.0.0.1:x"},
		"Ext":        {"git's way to run a command", "ext::sh -c id"},
		"DashPath":   {"CVE-2025-21613: reads as an option on the other side", "ssh://git@127.0.0.1/--upload-pack=x"},
		"DashHost":   {"the same for ssh", "ssh://-oProxyCommand=x/y"},
		"NoHost":     {"nothing to ask", "https:///x"},
		"Empty":      {"nothing at all", ""},
		"Unparsable": {"the error must not repeat what it could not read", "https://hidden-word:%zz@x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mirrors(t).Fetch(t.Context(), Origin{URL: tc.url}, onMain, Options{}, nil)
			if ReasonOf(err) != ReasonURLInvalid || err == nil {
				t.Errorf("%s\nFetch(%q) = %v, want reason %s", tc.reason, tc.url, err, ReasonURLInvalid)
			}
			if err != nil && strings.Contains(err.Error(), "hidden-word") {
				t.Errorf("%s\nthe error shows the password: %v", tc.reason, err)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	o := serve(t, gitserver.Options{Username: "user", Password: "secret"})
	o.commit("main", map[string]string{"a.yaml": "1"})
	secret := map[string][]byte{"username": []byte("user"), "password": []byte("secret")}

	var asked atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.WriteHeader(404) }))
	defer thief.Close()
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL+r.URL.RequestURI(), http.StatusFound)
	}))
	defer away.Close()
	_, err := mirrors(t).Fetch(t.Context(), Origin{URL: away.URL + "/x.git", Secret: secret}, onMain, Options{}, nil)
	if err == nil || asked.Load() != 0 {
		t.Errorf("Fetch() = %v, and %d requests at the other host; want none (CVE-2026-41506)", err, asked.Load())
	}

	// Where nothing is sent that is secret, another host is as good, as in Flux.
	public := serve(t, gitserver.Options{})
	commit := public.commit("main", map[string]string{"a.yaml": "1"})
	vanity := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, public.HTTPURL(repository)+strings.TrimPrefix(r.URL.RequestURI(), "/x"), http.StatusMovedPermanently)
	}))
	defer vanity.Close()
	if s, err := mirrors(t).Fetch(t.Context(), Origin{URL: vanity.URL + "/x"}, onMain, Options{}, nil); err != nil || s.Commit != commit {
		t.Errorf("Fetch() of a public repository at another host: %v", err)
	}
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: strings.Replace(vanity.URL, "://", "://user:secret@", 1) + "/x"}, onMain, Options{}, nil); err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("Fetch() with a login in the URL: %v, want it refused", err)
	}
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.RequestURI(), http.StatusFound)
	}))
	defer loop.Close()
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: loop.URL + "/x"}, onMain, Options{}, nil); err == nil || !strings.Contains(err.Error(), "more than 5 redirects") {
		t.Errorf("Fetch() of a server that redirects without end: %v", err)
	}
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, public.HTTPURL(repository)+strings.TrimPrefix(r.URL.RequestURI(), "/x"), http.StatusFound)
	}))
	defer front.Close()
	ca := map[string][]byte{"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})}
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: front.URL + "/x", Secret: ca}, onMain, Options{}, nil); err == nil || !strings.Contains(err.Error(), "is not https") {
		t.Errorf("Fetch() from https to http: %v, want it refused", err)
	}

	// Hosts do redirect from an old name of a repository to its new one.
	target, _ := url.Parse("http://" + o.HTTPAddress())
	proxy := httputil.NewSingleHostReverseProxy(target)
	moved := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/old.git/") {
			http.Redirect(w, r, strings.Replace(r.URL.RequestURI(), "/old.git/", "/"+repository+".git/", 1), http.StatusMovedPermanently)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer moved.Close()
	if _, err := mirrors(t).Fetch(t.Context(), Origin{URL: moved.URL + "/old.git", Secret: secret}, onMain, Options{}, nil); err != nil {
		t.Errorf("Fetch() from a repository that moved on its host: %v", err)
	}
}

// random content cannot be compressed.
func random(t *testing.T, n int) string {
	t.Helper()
	data := make([]byte, n)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestIncremental(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"big": random(t, 300_000), "a.yaml": "1"})
	target, _ := url.Parse("http://" + o.HTTPAddress())
	var received atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Body = counted{r.Body, &received}
		return nil
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	from := Origin{URL: front.URL + "/" + repository + ".git"}
	m := mirrors(t)

	first := fetch(t, m, from, onMain, nil)
	if n := received.Load(); n < 300_000 {
		t.Fatalf("the first fetch received %d bytes: this measures nothing", n)
	}
	before := o.Requests(repository)
	received.Store(0)
	if again := fetch(t, m, from, onMain, first); again != first {
		t.Error("an unchanged repository made a new snapshot")
	}
	if after := o.Requests(repository); after.Fetches != before.Fetches || after.Discoveries != before.Discoveries+1 {
		t.Errorf("an unchanged repository cost %+v after %+v, want one discovery", after, before)
	}
	// Another object with the same origin shares what is there.
	if fetch(t, m, from, onMain, nil); o.Requests(repository).Fetches != before.Fetches {
		t.Error("a second object of the same origin fetched again")
	}
	o.commit("main", map[string]string{"a.yaml": "2"})
	received.Store(0)
	second := fetch(t, m, from, onMain, first)
	if n := received.Load(); n > 20_000 {
		t.Errorf("a small commit received %d bytes, want only the difference", n)
	}
	if got := read(t, second, "a.yaml"); got != "2" {
		t.Errorf("a.yaml is %q, want 2", got)
	}
	if got := read(t, first, "a.yaml"); got != "1" {
		t.Errorf("a.yaml of the earlier snapshot is %q, want 1: a snapshot does not change", got)
	}
	if len(read(t, second, "big")) != 300_000 {
		t.Error("big is incomplete")
	}
	if first.Digest == second.Digest {
		t.Error("two contents have one digest")
	}
}

// TestSharedLists: those who wait for their turns at one repository share a list of references that
// was asked for after they came, and one pack where they want the same commit.
func TestSharedLists(t *testing.T) {
	o := serve(t, gitserver.Options{})
	old := o.commit("main", map[string]string{"a.yaml": "old"})
	refs := []Reference{onMain, onMain, onMain}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		o.git("", "update-ref", "refs/heads/"+name, old)
		refs = append(refs, Reference{Branch: name})
	}
	target, _ := url.Parse("http://" + o.HTTPAddress())
	proxy := httputil.NewSingleHostReverseProxy(target)
	answered, pass := make(chan struct{}), make(chan struct{})
	var lists, packs atomic.Int64
	var measured atomic.Bool
	proxy.ModifyResponse = func(r *http.Response) error {
		switch {
		case !measured.Load():
		case r.Request.Method == http.MethodPost:
			packs.Add(1)
		case lists.Add(1) == 1:
			close(answered)
			<-pass
		}
		return nil
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	from := Origin{URL: front.URL + "/" + repository + ".git"}
	m := mirrors(t)
	var last []*Snapshot
	for _, ref := range refs {
		last = append(last, fetch(t, m, from, ref, nil))
	}
	mir, _, err := m.mirror(from)
	if err != nil {
		t.Fatal(err)
	}

	measured.Store(true)
	var fetching sync.WaitGroup
	first := make(chan *Snapshot, 1)
	fetching.Go(func() {
		s, err := m.Fetch(t.Context(), from, onMain, Options{}, last[0])
		if err != nil {
			t.Errorf("the first: %v", err)
		}
		first <- s
	})
	<-answered
	// What the first is answered has nothing of this commit, of which the others were told.
	commit := o.commit("main", map[string]string{"a.yaml": "new"})
	got := make([]*Snapshot, len(refs))
	for i, ref := range refs {
		fetching.Go(func() {
			var err error
			if got[i], err = m.Fetch(t.Context(), from, ref, Options{}, last[i]); err != nil {
				t.Errorf("%+v: %v", ref, err)
			}
		})
	}
	for mir.waiting.Load() < int64(len(refs)) {
		time.Sleep(time.Millisecond)
	}
	close(pass)
	fetching.Wait()

	if s := <-first; s != last[0] {
		t.Error("the first has something else than it was answered")
	}
	for i, ref := range refs {
		switch {
		case got[i] == nil:
		case ref == onMain && got[i].Commit != commit:
			t.Errorf("main is at %s, want %s: the list was asked for before it was pushed", got[i].Commit, commit)
		case ref != onMain && got[i] != last[i]:
			t.Errorf("%s did not change, and has another snapshot", ref.Branch)
		}
	}
	// That of the first, that of one who waited, and that of whoever needs a pack.
	if lists.Load() > 3 || packs.Load() != 1 {
		t.Errorf("%d lists and %d packs were asked for, want 3 and 1 at most", lists.Load(), packs.Load())
	}
	if mir.adv != nil {
		t.Error("a list is kept that nobody waits for")
	}
}

// TestMultiACK: Azure DevOps refuses requests for a pack that do not ask for one of the
// forms of multi_ack, and what it answers to those that do is understood.
func TestMultiACK(t *testing.T) {
	o := serve(t, gitserver.Options{})
	first := o.commit("main", map[string]string{"big": random(t, 300_000), "a.yaml": "1"})
	target, _ := url.Parse("http://" + o.HTTPAddress())
	var received, requests atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Body = counted{r.Body, &received}
		return nil
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			requests.Add(1)
			body, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Contains(body, []byte(" multi_ack")) {
				http.Error(w, "TF401041: Clients must support multi-ack", http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	// The program of git itself answers by SSH, if it is asked as Azure DevOps wants to be.
	shell := serveSSH(t, rsaKey(t, 2048), nil, func(c ssh.Channel) {
		cmd := exec.CommandContext(t.Context(), "git-upload-pack", filepath.Join(o.root, repository+".git"))
		in, err := cmd.StdinPipe()
		if err != nil {
			return
		}
		cmd.Stdout = countedWriter{c, &received}
		if cmd.Start() != nil {
			return
		}
		body, _ := io.ReadAll(c)
		requests.Add(1)
		if string(body) != "0000" && !bytes.Contains(body, []byte(" multi_ack")) {
			_ = cmd.Process.Kill()
		}
		_, _ = in.Write(body)
		_ = in.Close()
		_ = cmd.Wait()
	})
	for name, from := range map[string]Origin{"HTTP": {URL: front.URL + "/" + repository + ".git"}, "SSH": shell} {
		t.Run(name, func(t *testing.T) {
			m := mirrors(t)
			before := fetch(t, m, from, Reference{Commit: first, Branch: "main"}, nil)
			o.commit("main", map[string]string{"a.yaml": name})
			received.Store(0)
			after := fetch(t, m, from, onMain, before)
			if n := received.Load(); n > 20_000 {
				t.Errorf("a small commit received %d bytes, want only the difference", n)
			}
			if got := read(t, after, "a.yaml"); got != name {
				t.Errorf("a.yaml is %q, want %s", got, name)
			}
			if got := read(t, after, "big"); len(got) != 300_000 {
				t.Errorf("big has %d bytes: it is incomplete", len(got))
			}
			requests.Store(0)
			if in, err := m.Contains(t.Context(), from, after.Commit, first, ""); err != nil || !in {
				t.Errorf("Contains() = %t, %v, want the first commit in the history of the last", in, err)
			}
			if requests.Load() == 0 {
				t.Error("the server was not asked: this proves nothing")
			}
		})
	}
}

type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

type countedWriter struct {
	io.Writer
	n *atomic.Int64
}

func (c countedWriter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.Writer.Write(p)
}

func TestDigest(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "1"})
	m := mirrors(t)
	first := fetch(t, m, o.url(), onMain, nil)
	if _, err := o.Commit(t.Context(), repository, "main", "nothing", nil); err != nil {
		t.Fatal(err)
	}
	second := fetch(t, m, o.url(), onMain, first)
	if first.Revision == second.Revision || first.Digest != second.Digest {
		t.Errorf("an empty commit has revision %s and digest %s after %s and %s, want the same digest: nothing has to be applied", second.Revision, second.Digest, first.Revision, first.Digest)
	}
}

func TestForcedPush(t *testing.T) {
	o := serve(t, gitserver.Options{})
	old := o.commit("main", map[string]string{"a.yaml": "1"})
	o.commit("main", map[string]string{"a.yaml": "2"})
	m := mirrors(t)
	second := fetch(t, m, o.url(), onMain, nil)
	o.git("", "update-ref", "refs/heads/main", old)
	if got := read(t, fetch(t, m, o.url(), onMain, second), "a.yaml"); got != "1" {
		t.Errorf("a.yaml is %q after the branch was set back, want 1", got)
	}
}

func TestLimits(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"big": random(t, 100_000), "a.yaml": "1"})
	small := NewMirrors(t.TempDir(), 50_000)
	if _, err := small.Fetch(t.Context(), o.url(), onMain, Options{}, nil); ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("Fetch() = %v, want reason %s", err, ReasonLimitExceeded)
	}
	o.commit("main", map[string]string{"big": "", "zeros": strings.Repeat("\x00", MaxFileBytes+1), "full": strings.Repeat("\x00", MaxFileBytes)})
	// What failed is no obstacle once the cause is gone; and a file of zeros is
	// small in a pack.
	s := fetch(t, small, o.url(), onMain, nil)
	if _, err := s.ReadFile("zeros"); ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("ReadFile() of a file above the limit = %v, want reason %s", err, ReasonLimitExceeded)
	}
	if got := read(t, s, "full"); len(got) != MaxFileBytes {
		t.Errorf("a file of exactly the limit has %d bytes", len(got))
	}
}

func TestDeadline(t *testing.T) {
	entered := make(chan struct{})
	tarpit := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	defer tarpit.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	if _, err := mirrors(t).Fetch(ctx, Origin{URL: tarpit.URL + "/x"}, onMain, Options{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch() = %v, want it to end with its context", err)
	}
}

// switched asks a server that switches protocols, and ends a test which that holds.
func switched(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- ask(ctx) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("got no error")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
}

// TestSwitchedProtocols: a server that answers 101 and says nothing more, over a connection that no
// deadline reaches, holds nothing and nobody else. Where an operation has several requests, each of
// them may be the one.
func TestSwitchedProtocols(t *testing.T) {
	var part atomic.Value // of the path of the request that is answered so
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, part.Load().(string)) {
			_, _ = io.WriteString(w, "{}")
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, c) // until the client hangs up
	}))
	defer s.Close()
	part.Store("/")
	m := mirrors(t)
	for range 2 {
		// The second one needs the turn of the first.
		switched(t, func(ctx context.Context) error {
			_, err := m.Fetch(ctx, Origin{URL: s.URL + "/x"}, onMain, Options{}, nil)
			return err
		})
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	logins, err := NewLogins(10, time.Hour, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	switched(t, func(ctx context.Context) error {
		_, err := logins.GitHubApp(ctx, s.URL+"/x", map[string][]byte{"githubAppID": []byte("7"), "githubAppInstallationID": []byte("42"), "githubAppBaseURL": []byte(s.URL),
			"githubAppPrivateKey": pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})}, nil, nil)
		return err
	})
	log, err := logAt(s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	switched(t, func(ctx context.Context) error {
		_, err := log.Tlog.GetLogInfo(tlog.NewGetLogInfoParamsWithContext(ctx))
		return err
	})
	for _, at := range []string{"/v2/", "/manifests/"} {
		part.Store(at)
		switched(t, func(ctx context.Context) error {
			_, err := NewImages(t.TempDir(), 1<<20, time.Now).Resolve(ctx, ImageOrigin{URL: "oci://" + strings.TrimPrefix(s.URL, "http://") + "/org/app", Insecure: true}, ImageReference{Tag: "latest"}, "")
			return err
		})
	}
}

// TestSlowServer: a server may take for its answer what spec.timeout leaves it.
func TestSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers sync.WaitGroup
		defer servers.Wait()
		transport := transportTo(nil, nil)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			servers.Go(func() {
				defer far.Close()
				if _, err := http.ReadRequest(bufio.NewReader(far)); err != nil {
					return
				}
				time.Sleep(4 * time.Minute)
				_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			})
			return near, nil
		}
		for timeout, want := range map[time.Duration]error{5 * time.Minute: nil, 3 * time.Minute: context.DeadlineExceeded} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://slow", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := transport.RoundTrip(req)
			if !errors.Is(err, want) {
				t.Errorf("an answer after 4 minutes within %s: %v, want %v", timeout, err, want)
			}
			if err == nil {
				_ = res.Body.Close()
			}
		}
	})
}

func TestSnapshotFiles(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{
		"a.yaml": "a", "dir/b.yaml": "b", "dir/sub/c.yaml": "c",
		"in": "-> dir/b.yaml", "indir": "-> dir", "chain": "-> in", "dir/up": "-> ../a.yaml",
		"out": "-> ../../etc/passwd", "absolute": "-> /etc/passwd", "dir/out": "-> ../../x", "circle": "-> circle", "dangling": "-> nowhere",
		"run.sh": "#!/bin/sh\n",
	})
	// A submodule is an entry that names a commit of another repository.
	tree := o.git("", "ls-tree", "main") + "\n160000 commit " + strings.Repeat("1", 40) + "\tmodule\n"
	commit := o.git("", "commit-tree", "-m", "with submodule", o.git(tree, "mktree"))
	o.git("", "update-ref", "refs/heads/main", commit)
	s := fetch(t, mirrors(t), o.url(), onMain, nil)

	for name, tc := range map[string]struct {
		reason  string
		path    string
		content string
		absent  bool
		refused bool
	}{
		"File":          {"the ordinary case", "a.yaml", "a", false, false},
		"Rooted":        {"the root is the repository", "/dir/b.yaml", "b", false, false},
		"Unclean":       {"paths are cleaned, and never lead out", "../dir/./sub/../b.yaml", "b", false, false},
		"Link":          {"a link inside of the repository", "in", "b", false, false},
		"LinkedDir":     {"a link to a directory on the way", "indir/sub/c.yaml", "c", false, false},
		"Chain":         {"a link to a link", "chain", "b", false, false},
		"Up":            {"a link upwards, but inside", "dir/up", "a", false, false},
		"Out":           {"a link that leaves must not be followed, and not be taken for absent", "out", "", false, true},
		"OutFromBelow":  {"the same from a directory", "dir/out", "", false, true},
		"Absolute":      {"the same by an absolute path", "absolute", "", false, true},
		"Circle":        {"a link to itself ends", "circle", "", false, true},
		"Dangling":      {"a link to nothing", "dangling", "", true, false},
		"Missing":       {"what is not there", "nowhere", "", true, false},
		"BelowFile":     {"a file has nothing below it", "a.yaml/x", "", true, false},
		"Directory":     {"a directory is no file", "dir", "", true, false},
		"Submodule":     {"a submodule is not fetched; it is as if it were not there", "module", "", true, false},
		"BelowOfModule": {"nor is what is below", "module/x", "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := s.ReadFile(tc.path)
			if errors.Is(err, fs.ErrNotExist) != tc.absent || (err != nil) != (tc.absent || tc.refused) {
				t.Fatalf("%s\nReadFile(%q): %v, want absent: %t, refused: %t", tc.reason, tc.path, err, tc.absent, tc.refused)
			}
			if string(data) != tc.content {
				t.Errorf("%s\nReadFile(%q) = %q, want %q", tc.reason, tc.path, data, tc.content)
			}
		})
	}
	want := []Entry{
		{Name: "a.yaml"}, {Name: "absolute", Link: true}, {Name: "chain", Link: true}, {Name: "circle", Link: true}, {Name: "dangling", Link: true},
		{Name: "dir", Dir: true}, {Name: "in", Link: true}, {Name: "indir", Link: true}, {Name: "out", Link: true}, {Name: "run.sh"},
	}
	got, err := s.ReadDir("")
	if err != nil {
		t.Fatal(err)
	}
	// The submodule is left out.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadDir(): -want, +got:\n%s", diff)
	}
	if dir, _, err := s.Stat("indir"); err != nil || !dir {
		t.Errorf("Stat() of a link to a directory = %t, %v, want a directory", dir, err)
	}
	if _, err := s.ReadDir("a.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadDir() of a file = %v", err)
	}
	_, one, _ := s.Stat("a.yaml")
	_, other, _ := s.Stat("dir/b.yaml")
	if one == other || one == "" {
		t.Errorf("Stat() gives hashes %q and %q for two contents", one, other)
	}
}

func TestIgnore(t *testing.T) {
	o := serve(t, gitserver.Options{})
	files := map[string]string{"a.yaml": "a", "pic.jpg": "j", "x/pic.jpg": "j", "x/b.yaml": "b", ".github/c.yaml": "c", "docs/d.yaml": "d"}
	o.commit("plain", files)
	o.git("", "symbolic-ref", "HEAD", "refs/heads/plain")
	o.commit("filed", map[string]string{".sourceignore": "/docs\n", "x/.sourceignore": "b.yaml\n"})
	spec, nothing, back := "*.yaml\n!/a.yaml\n", "!*\n", "*\n!x/b.yaml\n"
	for name, tc := range map[string]struct {
		reason string
		branch string
		ignore *string
		want   []string
	}{
		"Defaults":       {"as in Flux: pictures and CI files are no part of a source", "plain", nil, []string{"a.yaml", "docs/d.yaml", "x/b.yaml"}},
		"Spec":           {"spec.ignore replaces the defaults; a later line may take back an earlier", "plain", &spec, []string{"a.yaml", "pic.jpg", "x/pic.jpg"}},
		"Files":          {".sourceignore replaces the defaults, each for its own directory", "filed", nil, []string{".github/c.yaml", ".sourceignore", "a.yaml", "pic.jpg", "x/.sourceignore", "x/pic.jpg"}},
		"SpecAndFiles":   {"both count", "filed", new(string), []string{".github/c.yaml", ".sourceignore", "a.yaml", "pic.jpg", "x/.sourceignore", "x/pic.jpg"}},
		"SpecEmptyPlain": {"rules without a pattern are none: the defaults stay, as in Flux", "plain", new(string), []string{"a.yaml", "docs/d.yaml", "x/b.yaml"}},
		"SpecNothing":    {"a pattern that takes nothing is a way to have everything", "plain", &nothing, []string{".github/c.yaml", "a.yaml", "docs/d.yaml", "pic.jpg", "x/b.yaml", "x/pic.jpg"}},
		"TakenBack":      {"as in Flux and other than in git, a file of an excluded directory may be taken back", "plain", &back, []string{"x/b.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), o.url(), Reference{Branch: tc.branch}, Options{Ignore: tc.ignore}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, walk(t, s, "")); diff != "" {
				t.Errorf("%s\nfiles: -want, +got:\n%s", tc.reason, diff)
			}
			for name := range files {
				_, _, err := s.Stat(name)
				listed := strings.Contains("\n"+strings.Join(tc.want, "\n")+"\n", "\n"+name+"\n")
				if (err == nil) != listed {
					t.Errorf("%s\nStat(%s) = %v, want it as it is listed: %t", tc.reason, name, err, listed)
				}
			}
		})
	}
}

func walk(t *testing.T, s *Snapshot, dir string) []string {
	t.Helper()
	entries, err := s.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		at := strings.TrimPrefix(dir+"/"+e.Name, "/")
		if e.Dir {
			out = append(out, walk(t, s, at)...)
		} else {
			out = append(out, at)
		}
	}
	return out
}

func TestIgnoreChange(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "a"})
	m := mirrors(t)
	first := fetch(t, m, o.url(), onMain, nil)
	all := "*\n"
	second, err := m.Fetch(t.Context(), o.url(), onMain, Options{Ignore: &all}, first)
	if err != nil {
		t.Fatal(err)
	}
	if got := walk(t, second, ""); len(got) != 0 {
		t.Errorf("files %v, want none: another spec.ignore is another snapshot of the same commit", got)
	}
	if first.Digest == second.Digest {
		t.Error("two contents have one digest")
	}
}

// TestHostileTree: a server may send trees that git itself would not write.
func TestHostileTree(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "a"})
	blob := o.git("x: y", "hash-object", "-w", "--stdin")
	entry := func(mode, name, hash string) string {
		raw := make([]byte, 20)
		for i := range raw {
			_, _ = fmt.Sscanf(hash[2*i:2*i+2], "%02x", &raw[i])
		}
		return mode + " " + name + "\x00" + string(raw)
	}
	literal := func(content string) string {
		return o.git(content, "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
	}
	follow := func(tree string) {
		o.git("", "update-ref", "refs/heads/main", o.git("", "commit-tree", "-m", "x", tree))
	}
	leaf := literal(entry("100644", "a.yaml", blob))
	for name, content := range map[string]string{
		"Parent": entry("40000", "..", leaf), "Dot": entry("40000", ".", leaf), "Git": entry("40000", ".git", leaf), "Slash": entry("100644", "a/../../b", blob),
	} {
		t.Run(name, func(t *testing.T) {
			follow(literal(content))
			s, err := mirrors(t).Fetch(t.Context(), o.url(), onMain, Options{}, nil)
			if err != nil {
				return // refused as a whole
			}
			for _, file := range walk(t, s, "") {
				if strings.Contains(file, "..") || strings.Contains(file, ".git/") {
					t.Errorf("the snapshot lists %s", file)
				}
			}
		})
	}
	t.Run("Bomb", func(t *testing.T) {
		// Ten names for one tree, seven times over: some hundred bytes, ten
		// million files.
		tree := leaf
		for range 7 {
			var b strings.Builder
			for i := range 10 {
				b.WriteString(entry("40000", fmt.Sprint("d", i), tree))
			}
			tree = literal(b.String())
		}
		follow(tree)
		m := mirrors(t)
		m.limits.entriesMost = 20_000
		if _, err := m.Fetch(t.Context(), o.url(), onMain, Options{}, nil); ReasonOf(err) != ReasonLimitExceeded {
			t.Errorf("Fetch() = %v, want reason %s", err, ReasonLimitExceeded)
		}
	})
}

// TestLostObjects: unknown is not absent. Something that cleans temporary
// directories must not look like a commit that deleted everything.
func TestLostObjects(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"dir/sub/a.yaml": random(t, 4000)})
	m := mirrors(t)
	s := fetch(t, m, o.url(), onMain, nil)
	// Nothing of it is in memory but the root of the tree.
	fresh := openGeneration(s.git.gen.dir)
	listed, err := s.root.list()
	if err != nil {
		t.Fatal(err)
	}
	root := listing{}
	for _, e := range listed {
		e.in = fresh
		root = append(root, e)
	}
	fresh.listings.put(s.root.id, root, 1)
	s.root.in, s.git.gen = fresh, fresh
	if err := os.RemoveAll(m.dir); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"ReadFile": second(s.ReadFile("dir/sub/a.yaml")),
		"ReadDir":  second(s.ReadDir("dir/sub")),
		"Stat":     second(false, func() error { _, _, err := s.Stat("dir/sub"); return err }()),
	} {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of what was lost: %v, want an error that does not say absent", name, err)
		}
	}
	if _, err := s.ReadFile("nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile of what never was: %v, want it to say absent", err)
	}
	// The next fetch brings them back, although the commit is the same.
	again := fetch(t, m, o.url(), onMain, s)
	if read(t, again, "dir/sub/a.yaml") == "" {
		t.Error("the file is empty after the next fetch")
	}
}

func second[T any](_ T, err error) error { return err }

func TestGenerations(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "0", "big": random(t, 10_000)})
	m := mirrors(t)
	m.limits.packsMost = 2
	kept := fetch(t, m, o.url(), onMain, nil)
	last := kept
	for i := range packsLate*m.limits.packsMost + 2 {
		o.commit("main", map[string]string{"a.yaml": fmt.Sprint(i + 1)})
		last = fetch(t, m, o.url(), onMain, last)
		if got := read(t, last, "a.yaml"); got != fmt.Sprint(i+1) {
			t.Fatalf("a.yaml is %q after commit %d", got, i+1)
		}
	}
	if kept.git.gen == last.git.gen {
		t.Fatal("the mirror did not start afresh: this tests nothing")
	}
	if got := read(t, kept, "a.yaml"); got != "0" || len(read(t, kept, "big")) != 10_000 {
		t.Errorf("a snapshot of an old generation reads %q, want what it always was", got)
	}
	dirs := func() int {
		found, err := filepath.Glob(filepath.Join(m.dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	collect := func(want int) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for dirs() != want {
			if time.Now().After(deadline) {
				t.Fatalf("%d generations are on disk, want %d", dirs(), want)
			}
			runtime.GC()
			runtime.Gosched()
		}
	}
	collect(2) // the kept one and the current one
	read(t, kept, "big")
	runtime.KeepAlive(kept)
	kept = nil
	collect(1)
	read(t, last, "big")
	runtime.KeepAlive(last)
	runtime.KeepAlive(m)
}

// TestRenewed: a mirror with many packs begins again when a look finds nothing new, and not
// while somebody waits for a commit. A look that cannot do that is none that fails.
func TestRenewed(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "0", "big": random(t, 10_000)})
	m := mirrors(t)
	m.limits.packsMost = 3
	last := fetch(t, m, o.url(), onMain, nil)
	mir := last.git.gen.owner
	push := func(text string) {
		t.Helper()
		o.commit("main", map[string]string{"a.yaml": text})
		last = fetch(t, m, o.url(), onMain, last)
		if got := read(t, last, "a.yaml"); got != text {
			t.Fatalf("a.yaml is %q, want %q", got, text)
		}
	}
	look := func() {
		t.Helper()
		if again := fetch(t, m, o.url(), onMain, last); again != last {
			t.Fatal("a look that finds nothing new has another snapshot")
		}
	}
	first := mir.current
	push("1")
	look()
	if mir.current != first {
		t.Error("the mirror began again with two packs")
	}
	for i := range 4 {
		push(fmt.Sprint(i + 2))
	}
	if mir.current != first {
		t.Error("the mirror began again while somebody waited")
	}
	most := m.limits.packBytes
	m.limits.packBytes = 1000
	look()
	if mir.current != first {
		t.Error("the mirror began again, and could not")
	}
	m.limits.packBytes = most
	for i := range 3 {
		push(fmt.Sprint(i + 6))
	}
	look()
	if mir.current == first || mir.packs != 1 {
		t.Errorf("the mirror has %d packs, and the generation of before: %t", mir.packs, mir.current == first)
	}
	if got := read(t, last, "big"); len(got) != 10_000 {
		t.Errorf("the snapshot of before reads %d bytes", len(got))
	}
	push("9")
	if last.git.gen == first || mir.packs != 2 {
		t.Errorf("the commit after that is of the generation of before, or %d packs are more than it needs", mir.packs)
	}
}

func TestLeftOvers(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "1"})
	dir := t.TempDir()
	left := filepath.Join(dir, o.url().key(), "9", "objects")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	s := fetch(t, NewMirrors(dir, plenty), o.url(), onMain, nil)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed process left is still there: %v", err)
	}
	if got := read(t, s, "a.yaml"); got != "1" {
		t.Errorf("a.yaml is %q", got)
	}
}

func TestConcurrency(t *testing.T) {
	o := serve(t, gitserver.Options{})
	content := random(t, 20_000)
	o.commit("main", map[string]string{"a.yaml": "0", "dir/b": content})
	m := mirrors(t)
	m.limits.packsMost = 2
	s := fetch(t, m, o.url(), onMain, nil)
	ctx, stop := context.WithCancel(t.Context())
	var readers, fetchers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if data, err := s.ReadFile("dir/b"); err != nil || string(data) != content {
					t.Errorf("ReadFile() while the mirror fetches: %d bytes, %v", len(data), err)
					return
				}
				if _, err := s.ReadDir("dir"); err != nil {
					t.Errorf("ReadDir() while the mirror fetches: %v", err)
					return
				}
			}
		})
	}
	for i := range 5 {
		o.commit("main", map[string]string{"a.yaml": fmt.Sprint(i + 1)})
		for range 3 {
			fetchers.Go(func() {
				if _, err := m.Fetch(t.Context(), o.url(), onMain, Options{}, nil); err != nil {
					t.Errorf("Fetch() beside others: %v", err)
				}
			})
		}
		fetchers.Wait()
	}
	stop()
	readers.Wait()
}

func TestOtherCredentialIsOtherMirror(t *testing.T) {
	a := Origin{URL: "https://h/x", Secret: map[string][]byte{"username": []byte("a"), "password": []byte("p")}}
	for name, b := range map[string]Origin{
		"Password": {URL: a.URL, Secret: map[string][]byte{"username": []byte("a"), "password": []byte("q")}},
		"Shifted":  {URL: a.URL, Secret: map[string][]byte{"username": []byte("ap")}},
		"None":     {URL: a.URL},
		"URL":      {URL: "https://h/y", Secret: a.Secret},
	} {
		if a.key() == b.key() {
			t.Errorf("%s: two origins share one mirror: one could read what only the other may", name)
		}
	}
}

func TestSnapshots(t *testing.T) {
	s := NewSnapshots()
	var told []string
	s.OnChange(func(k Key) { told = append(told, k.Name) })
	key := Key{Kind: "GitRepository"}
	key.Name = "a"
	one, two := &Snapshot{Revision: "1"}, &Snapshot{Revision: "2"}
	for _, put := range []*Snapshot{one, one, two, nil} {
		s.Put(key, put)
		if s.Get(key) != put {
			t.Errorf("Get() is not what was put")
		}
	}
	if diff := cmp.Diff([]string{"a", "a"}, told); diff != "" {
		t.Errorf("listeners were told (twice: of the first, of the change): -want, +got:\n%s", diff)
	}
}
