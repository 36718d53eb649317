package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/sourceignore"
	"github.com/fluxcd/pkg/sourceignore/gitignore"
	fluxtar "github.com/fluxcd/pkg/tar"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// checkout writes a commit's files with the modes that Flux gives them.
func checkout(t *testing.T, o *origin, branch string) string {
	t.Helper()
	dir := t.TempDir()
	o.git("", "--work-tree="+dir, "read-tree", branch)
	o.git("", "--work-tree="+dir, "checkout-index", "--all", "--force")
	if err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := os.FileMode(fileMode)
		if d.IsDir() {
			mode = directoryMode
		} else if info.Mode()&0o111 != 0 {
			mode = executableMode
		}
		return os.Chmod(at, mode)
	}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// byFlux packs a directory with Flux's own library and rules.
func byFlux(t *testing.T, dir string, ignore *string) []byte {
	t.Helper()
	domain := strings.Split(dir, string(filepath.Separator))
	patterns, err := sourceignore.LoadIgnorePatterns(dir, domain)
	if err != nil {
		t.Fatal(err)
	}
	if ignore != nil {
		patterns = append(patterns, sourceignore.ReadPatterns(strings.NewReader(*ignore), domain)...)
	}
	var matcher gitignore.Matcher
	if len(patterns) > 0 {
		matcher = sourceignore.NewMatcher(append(sourceignore.VCSPatterns(domain), patterns...))
	} else {
		matcher = sourceignore.NewDefaultMatcher(nil, domain)
	}
	var out bytes.Buffer
	if _, err := fluxtar.Tar(dir, &out, fluxtar.WithFilter(func(p string, fi os.FileInfo) bool {
		return matcher.Match(strings.Split(p, string(filepath.Separator)), fi.IsDir())
	})); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func pack(t *testing.T, s *Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Pack(t.Context(), &out, s); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestPackEqualsFlux is also the test of the ignore rules: what is packed is
// what Flux finds by walking a directory with its own library.
func TestPackEqualsFlux(t *testing.T) {
	o := serve(t, gitserver.Options{})
	files := map[string]string{
		"a.yaml": "a", "run.sh": "-> a.yaml", "dir/b.yaml": "b", "dir/sub/c.yaml": "c", "dir/sub/d.txt": "d", "dir-x/e.yaml": "e", "dir.yaml": "x",
		"pic.jpg": "j", "docs/pic.png": "p", "docs/readme.md": "r", ".github/w.yaml": "w", "x/.github/y.yaml": "y", ".gitignore": "*.yaml\n", "x/.gitattributes": "z",
		"x/.sops.yaml": "s", "unié/ü.yaml": "u", "sp ace/f.yaml": "f", "deep/" + strings.Repeat("long-name/", 12) + "g.yaml": "g", "big": strings.Repeat("0123456789", 50_000), "-x/h.yaml": "h",
	}
	o.commit("plain", files)
	o.git("", "symbolic-ref", "HEAD", "refs/heads/plain")
	o.commit("filed", map[string]string{".sourceignore": "# rules\n/docs\n*.txt\ndir/\n!dir/b.yaml\n", "x/.sourceignore": "!y.yaml\n", "dir/sub/.sourceignore": "!d.txt\n/c.yaml\n", "-x/.sourceignore": "*\n!/h.yaml\n"})
	o.commit("comments", map[string]string{".sourceignore": "# only\n\n"})
	tree := o.git("", "ls-tree", "plain") + "\n160000 commit " + strings.Repeat("1", 40) + "\tmodule\n100755 blob " + o.git("x", "hash-object", "-w", "--stdin") + "\texecute\n"
	o.git("", "update-ref", "refs/heads/modes", o.git("", "commit-tree", "-m", "x", o.git(tree, "mktree")))
	rules := func(s string) *string { return &s }
	m := mirrors(t)
	for name, tc := range map[string]struct {
		reason, branch string
		ignore         *string
	}{
		"Defaults":   {"nothing said", "plain", nil},
		"Empty":      {"nothing said in many words", "plain", rules("")},
		"Comments":   {"the same", "plain", rules("# nothing\n \n")},
		"Modes":      {"executables and submodules", "modes", nil},
		"Files":      {"rules in the tree, at several places", "filed", nil},
		"OnlyComm":   {"a file of rules without one", "comments", nil},
		"Own":        {"rules of the object", "plain", rules("/*\n!/dir\n")},
		"OwnBack":    {"a file of an excluded directory is taken back", "plain", rules("dir/\n!dir/sub/c.yaml\n")},
		"OwnAndTree": {"those of the object come last", "filed", rules("!/docs/readme.md\nx\n")},
		"Globs":      {"all that a pattern may be", "plain", rules("**/sub/*.txt\ndir?x\n/[a-c].yaml\ndeep/**/g.yaml\n*.md \n\\#x\n")},
		"Nothing":    {"an archive of nothing but its root", "plain", rules("*\n")},
		"EveryDir":   {"all directories, and one file of them", "plain", rules("*/\n!dir/sub/d.txt\n")},
		"Crossed":    {"taken back and excluded again", "plain", rules("*\n!*.yaml\ndir\n!dir/sub/\n")},
		"DirOnly":    {"a pattern for directories does not take a file", "plain", rules("big/\na.yaml/\n")},
		"Malformed":  {"a pattern that cannot be read takes nothing", "plain", rules("[\ndir[\n")},
	} {
		t.Run(name, func(t *testing.T) {
			s := fetchWith(t, m, o.url(), Reference{Branch: tc.branch}, Options{Ignore: tc.ignore})
			got, want := pack(t, s), byFlux(t, checkout(t, o, tc.branch), tc.ignore)
			if !bytes.Equal(got, want) {
				t.Errorf("%s\narchive: -Flux, +us:\n%s", tc.reason, cmp.Diff(names(t, want), names(t, got)))
			}
			// What is read one by one is what is packed.
			var packed []string
			for _, name := range names(t, got) {
				if file, ok := strings.CutPrefix(name, "- "); ok {
					packed = append(packed, strings.Fields(file)[0])
				}
			}
			var walked []string
			for _, name := range walk(t, s, "") {
				if _, n, err := s.resolve(filepath.Dir(name)); err != nil {
					t.Fatal(err)
				} else if entries, err := n.list(); err != nil {
					t.Fatal(err)
				} else if e, _ := entries.find(filepath.Base(name)); e.mode.IsRegular() || e.mode == 0o100755 {
					walked = append(walked, strings.Fields(name)[0])
				}
			}
			slices.Sort(packed)
			slices.Sort(walked)
			if diff := cmp.Diff(packed, walked); diff != "" {
				t.Errorf("%s\nfiles: -packed, +read:\n%s", tc.reason, diff)
			}
		})
	}
}

// names lists an archive: d or -, the name, the mode and the size.
func names(t *testing.T, archive []byte) []string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		kind := "-"
		if h.FileInfo().IsDir() {
			kind = "d"
		}
		out = append(out, fmt.Sprintf("%s %s %o %d", kind, h.Name, h.Mode, h.Size))
	}
}

// tarball makes an archive of headers; a body follows those with a size.
func tarball(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	w := tar.NewWriter(gz)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o600
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func keyOf(name string) Key {
	return Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "ns", Name: name}}
}

func TestArtifacts(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a.yaml": "1", "dir/b.yaml": "2", "dir/same.yaml": "1", ".sops.yaml": "x"})
	git := fetch(t, mirrors(t), o.url(), onMain, nil)
	archive := pack(t, git)
	var requests atomic.Int32
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = w.Write(archive)
	}))
	defer server.Close()
	dir := t.TempDir()
	a := NewArtifacts(dir, plenty)
	announced := func(path, revision string) *meta.Artifact {
		return &meta.Artifact{URL: server.URL + path, Digest: sumOf(archive), Revision: revision, Metadata: map[string]string{originRevision: "main@sha1:origin"}}
	}
	s, err := a.Fetch(t.Context(), keyOf("a"), announced("/x", "r1"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(walk(t, git, ""), walk(t, s, "")); diff != "" {
		t.Errorf("files: -packed, +unpacked:\n%s", diff)
	}
	if read(t, s, "dir/b.yaml") != "2" || read(t, s, "dir/same.yaml") != "1" || s.OriginRevision != "main@sha1:origin" || s.Revision != "r1" {
		t.Errorf("snapshot %+v does not have what was packed", s)
	}
	_, one, _ := s.Stat("a.yaml")
	_, other, _ := s.Stat("dir/b.yaml")
	if _, same, _ := s.Stat("dir/same.yaml"); one != same || one == other {
		t.Errorf("hashes %s, %s and %s, want equal ones for equal content", one, same, other)
	}
	if again, _ := a.Fetch(t.Context(), keyOf("a"), announced("/x", "r1")); again != s {
		t.Error("the same artifact is another snapshot")
	}
	// Another revision or source with the same digest is the same archive.
	if next, err := a.Fetch(t.Context(), keyOf("a"), announced("/x", "r2")); err != nil || next == s || next.Revision != "r2" {
		t.Errorf("Fetch() of a new revision = %v, %v", next, err)
	}
	if _, err := a.Fetch(t.Context(), keyOf("b"), announced("/x", "r2")); err != nil || requests.Load() != 1 {
		t.Errorf("%d requests for one digest, %v", requests.Load(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files %v are left over, %v", left, err)
	}
	// Many at the same time are one request.
	archive = tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "./x/y.yaml", Size: 3})
	var waiting sync.WaitGroup
	for i := range 20 {
		waiting.Go(func() {
			if s, err := a.Fetch(t.Context(), keyOf(fmt.Sprint("many", i)), announced("/slow", "r3")); err != nil || read(t, s, "x/y.yaml") != "\x00\x00\x00" {
				t.Errorf("Fetch() beside others: %v", err)
			}
		})
	}
	for requests.Load() < 2 {
		runtime.Gosched()
	}
	close(release)
	waiting.Wait()
	if requests.Load() != 2 {
		t.Errorf("%d requests for two digests", requests.Load())
	}
	a.Forget(keyOf("a"))
	if a.newest[keyOf("a")].Snapshot != nil {
		t.Error("Forget() keeps the snapshot")
	}
	// Nobody needs the first archive any more.
	s = nil
	a.Forget(keyOf("b"))
	runtime.GC()
	runtime.GC()
	a.archives.mu.Lock()
	defer a.archives.mu.Unlock()
	if known := len(a.archives.kept); known != 2 {
		t.Errorf("%d archives are known, want 2", known)
	}
}

// TestArtifactMoves: a URL that has nothing is told of, although the content is known.
func TestArtifactMoves(t *testing.T) {
	data := tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1})
	var sent atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		sent.Add(1)
		_, _ = w.Write(data)
	}))
	defer server.Close()
	a := NewArtifacts(t.TempDir(), plenty)
	var first *Snapshot
	for _, step := range []struct {
		reason, key, path, revision string
		there                       bool
		requests                    int32
	}{
		{"it is fetched", "a", "/x", "r1", true, 1},
		{"the same content is announced where nothing is", "a", "/gone", "r1", false, 1},
		{"it is asked for again each time", "a", "/gone", "r1", false, 1},
		{"another source announces it there", "b", "/gone", "r1", false, 1},
		{"and so does a new revision", "a", "/gone", "r2", false, 1},
		{"it is back where it was", "a", "/x", "r1", true, 1},
		{"it has moved to where it is", "a", "/y", "r1", true, 2},
		{"nothing has changed", "a", "/y", "r1", true, 2},
	} {
		s, err := a.Fetch(t.Context(), keyOf(step.key), &meta.Artifact{URL: server.URL + step.path, Digest: sumOf(data), Revision: step.revision})
		if (err == nil) != step.there || err != nil && !errors.Is(err, ErrArtifactNotFound) {
			t.Fatalf("%s: Fetch() = %v", step.reason, err)
		}
		if sent.Load() != step.requests {
			t.Errorf("%s: the server was asked %d times for what it has, want %d", step.reason, sent.Load(), step.requests)
		}
		if first == nil {
			first = s
		}
	}
	if read(t, first, "a") != "\x00" {
		t.Error("the first snapshot has lost its content")
	}
}

func TestArtifactFailures(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1} }
	many := make([]tar.Header, 0, 200)
	for i := range 200 {
		many = append(many, file(fmt.Sprint(i)))
	}
	for name, tc := range map[string]struct {
		reason string
		data   []byte
		status int
		digest string
		fails  string
	}{
		"Whole":     {"the ordinary case", tarball(t, file("a")), 200, "", ""},
		"NotFound":  {"it was collected, or its server is not ready", nil, 404, sumOf(nil), ReasonArtifactFailed},
		"Broken":    {"the server has a problem", nil, 500, sumOf(nil), ReasonArtifactFailed},
		"Digest":    {"somebody changed it on the way", tarball(t, file("a")), 200, sumOf([]byte("x")), ReasonArtifactFailed},
		"NoDigest":  {"a digest that is none", tarball(t, file("a")), 200, "sha256:x", ReasonArtifactFailed},
		"NoTarball": {"not an archive at all", []byte("x"), 200, "", ReasonArtifactFailed},
		"CutOff":    {"half of an archive", tarball(t, file("a"))[:40], 200, "", ReasonArtifactFailed},
		"Parent":    {"CVE-2024-56514: a name that leads elsewhere", tarball(t, file("../a")), 200, "", ReasonArtifactFailed},
		"Deeper":    {"the same on the way", tarball(t, file("a/../../b")), 200, "", ReasonArtifactFailed},
		"Absolute":  {"the same from the root", tarball(t, file("/etc/x")), 200, "", ReasonArtifactFailed},
		"Backslash": {"a separator elsewhere", tarball(t, file(`a\..\b`)), 200, "", ReasonArtifactFailed},
		"Both":      {"a name that is a file and a directory", tarball(t, file("a"), file("a/b")), 200, "", ReasonArtifactFailed},
		"Device":    {"neither file nor directory", tarball(t, tar.Header{Typeflag: tar.TypeFifo, Name: "f"}), 200, "", ReasonArtifactFailed},
		"Large":     {"more than may be sent", tarball(t, file("a"), tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("x", 90), Size: 60_000_000}), 200, "", ReasonLimitExceeded},
		"Bomb":      {"CVE-2024-29893: little to send, much to keep", tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 5_000_000}), 200, "", ReasonLimitExceeded},
		"Entries":   {"more files than anybody needs", tarball(t, many...), 200, "", ReasonLimitExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				_, _ = w.Write(tc.data)
			}))
			defer server.Close()
			dir := t.TempDir()
			a := NewArtifacts(dir, 50_000)
			a.limits.inflatedBytes, a.limits.entriesMost = 2_000_000, 100
			if tc.digest == "" {
				tc.digest = sumOf(tc.data)
			}
			_, err := a.Fetch(t.Context(), keyOf("a"), &meta.Artifact{URL: server.URL + "/x.tar.gz", Digest: tc.digest})
			if (err == nil) != (tc.fails == "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Fatalf("%s\nFetch() = %v, want reason %q", tc.reason, err, tc.fails)
			}
			if errors.Is(err, ErrArtifactNotFound) != (tc.status == 404) {
				t.Errorf("%s\nFetch() = %v, want it to be not found only if the server says so", tc.reason, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%s\nfiles %v are left over, %v", tc.reason, left, err)
			}
		})
	}
	t.Run("Links", func(t *testing.T) {
		data := tarball(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "/etc/passwd"}, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}, file("a"))
		s, err := unpack(t.Context(), bytes.NewReader(data), t.TempDir(), plenty, 10)
		if err != nil {
			t.Fatal(err)
		}
		if entries, _ := s.root.list(); len(entries) != 1 {
			t.Errorf("%d entries, want only the file: links are left out", len(entries))
		}
	})
	t.Run("URL", func(t *testing.T) {
		for _, u := range []string{"", "file:///etc/passwd", "ftp://h/x", "http:///x", "://"} {
			if _, err := NewArtifacts(t.TempDir(), 10).Fetch(t.Context(), keyOf("a"), &meta.Artifact{URL: u, Digest: sumOf(nil)}); ReasonOf(err) != ReasonArtifactFailed {
				t.Errorf("Fetch(%q) = %v, want reason %s", u, err, ReasonArtifactFailed)
			}
		}
		if _, err := NewArtifacts(t.TempDir(), 10).Fetch(t.Context(), keyOf("a"), nil); !errors.Is(err, ErrArtifactNotFound) {
			t.Errorf("Fetch() of no artifact = %v", err)
		}
	})
	t.Run("Localhost", func(t *testing.T) {
		data := tarball(t, file("a"))
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
		defer server.Close()
		t.Setenv("SOURCE_CONTROLLER_LOCALHOST", strings.TrimPrefix(server.URL, "http://"))
		if _, err := NewArtifacts(t.TempDir(), plenty).Fetch(t.Context(), keyOf("a"), &meta.Artifact{URL: "http://source-controller.flux-system.svc/x", Digest: sumOf(data)}); err != nil {
			t.Errorf("Fetch() = %v, want it from the host in the environment", err)
		}
	})
}

func TestStorage(t *testing.T) {
	o := serve(t, gitserver.Options{})
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	m := mirrors(t)
	first := fetch(t, m, o.url(), onMain, nil)
	dir := t.TempDir()
	seal := aSeal(t)
	s := NewStorage(dir, "127.0.0.1:0", "source-controller.flux-system.svc.cluster.local.", seal)
	key := keyOf("repo")
	put := func(snapshot *Snapshot) *meta.Artifact {
		t.Helper()
		artifact, err := s.Put(t.Context(), key, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		return artifact
	}
	artifact := put(first)
	want := "gitrepository/ns/repo/" + commit + ".tar.gz"
	if artifact.Path != want || artifact.URL != sealed(seal, "source-controller.flux-system.svc.cluster.local.", want) || artifact.Digest != sumOf(pack(t, first)) ||
		*artifact.Size != int64(len(pack(t, first))) || artifact.Revision != first.Revision {
		t.Errorf("artifact %+v is not as Flux has it", artifact)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	get := func(path string) (int, []byte) {
		t.Helper()
		// With the login that the path would have: it is the path that is refused.
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.SetBasicAuth(sealUser, seal.password(strings.TrimPrefix(request.URL.Path, "/")))
		res, err := http.DefaultClient.Do(request)
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
	if status, data := get("/" + want); status != 200 || sumOf(data) != artifact.Digest {
		t.Errorf("GET = %d, digest %s, want %s", status, sumOf(data), artifact.Digest)
	}
	// What we serve, we can consume.
	artifact.URL = sealed(seal, server.URL, want)
	if fetched, err := NewArtifacts(t.TempDir(), plenty).Fetch(t.Context(), key, artifact); err != nil || read(t, fetched, "a.yaml") != "1" {
		t.Errorf("Fetch() of our own artifact: %v", err)
	}
	for name, content := range map[string]string{"secret.tar.gz": "s", "gitrepository/ns/repo/.new.tar.gz": "n", "gitrepository/ns/repo/x.txt": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside.tar.gz")
	if err := os.WriteFile(outside, []byte("o"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "gitrepository/ns/repo/link.tar.gz")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/", "/gitrepository/ns/repo/", "/gitrepository/ns/repo", "/secret.tar.gz", "/gitrepository/ns/repo/.new.tar.gz", "/gitrepository/ns/repo/x.txt",
		"/gitrepository/ns/repo/link.tar.gz", "/gitrepository/ns/..%2f..%2fsecret.tar.gz", "/gitrepository/ns/%2e%2e/secret.tar.gz", "/gitrepository/ns/repo/..%2f..%2f..%2f..%2fetc/passwd", "//etc/passwd", "/gitrepository/ns/repo/%00.tar.gz"} {
		if status, data := get(path); status != 404 {
			t.Errorf("GET %s = %d %q, want 404", path, status, data)
		}
	}
	if res, err := http.Post(server.URL+"/"+want, "", nil); err != nil || res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST = %v, %v", res, err)
	}
	for _, name := range []string{"link.tar.gz", "x.txt", ".new.tar.gz"} {
		if err := os.Remove(filepath.Join(dir, "gitrepository/ns/repo", name)); err != nil {
			t.Fatal(err)
		}
	}

	// The same snapshot is not packed again, unless its file is gone.
	info, _ := os.Stat(filepath.Join(dir, want))
	put(first)
	if again, _ := os.Stat(filepath.Join(dir, want)); !os.SameFile(info, again) {
		t.Error("an unchanged snapshot was packed again")
	}
	if err := os.Remove(filepath.Join(dir, want)); err != nil {
		t.Fatal(err)
	}
	if again := put(first); again.Digest != artifact.Digest {
		t.Error("what was lost is packed again as something else")
	}
	// The newest two are kept.
	for i := range 3 {
		o.commit("main", map[string]string{"a.yaml": fmt.Sprint("v", i)})
		artifact = put(fetch(t, m, o.url(), onMain, nil))
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "gitrepository/ns/repo/*")); len(files) != artifactsKept {
		t.Errorf("%d archives are kept, want %d", len(files), artifactsKept)
	}
	if _, err := os.Stat(filepath.Join(dir, artifact.Path)); err != nil {
		t.Errorf("the current archive: %v", err)
	}
	if err := s.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "gitrepository/ns/repo")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove(): %v", err)
	}
	// A deadline ends packing, and nothing half is left.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Put(ctx, key, first); !errors.Is(err, context.Canceled) {
		t.Errorf("Put() after its deadline = %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "gitrepository/ns/repo/.*")); len(files) != 0 {
		t.Errorf("files %v are left over", files)
	}
	if !s.NeedLeaderElection() {
		t.Error("two agents would serve")
	}
}
