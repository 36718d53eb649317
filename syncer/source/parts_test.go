package source

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/fluxcd/pkg/git/signature"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

func TestSemVer(t *testing.T) {
	o := serve(t, gitserver.Options{})
	old := o.commit("main", map[string]string{"a.yaml": "old"})
	tip := o.commit("main", map[string]string{"a.yaml": "new"})
	for tag, commit := range map[string]string{"v1.0.0": old, "1.2.0": old, "v1.10.0": tip, "2.0.0-rc.1": tip, "v3": tip, "3.0": tip, "latest": tip, "0.9.0+a": tip, "0.9.0+b": old, "2025.12.11": old, "2026.01.05": tip, "v2026.02.03-rc.1": old} {
		o.git("", "tag", tag, commit)
	}
	// Another second, so that the commits have an order.
	later := o.git("", "commit-tree", "-m", "later", o.git("", "rev-parse", "main^{tree}"))
	o.git("", "tag", "-a", "-m", "x", "v1.9.9", later)
	for name, tc := range map[string]struct {
		reason   string
		ref      Reference
		revision string
		fails    bool
	}{
		"Range":       {"numbers are compared as numbers", Reference{SemVer: ">=1.0.0 <2.0.0"}, "v1.10.0@sha1:" + tip, false},
		"Wildcard":    {"an x stands for any", Reference{SemVer: "1.2.x"}, "1.2.0@sha1:" + old, false},
		"Annotated":   {"the revision names the commit, not the tag object", Reference{SemVer: "~1.9"}, "v1.9.9@sha1:" + later, false},
		"Prerelease":  {"only a range that names one takes one", Reference{SemVer: ">=1.0.0-0 <2000"}, "2.0.0-rc.1@sha1:" + tip, false},
		"NoPre":       {"others do not", Reference{SemVer: "<2000"}, "v1.10.0@sha1:" + tip, false},
		"Partial":     {"v3 and 3.0 are no versions, as in Flux", Reference{SemVer: ">=3.0.0-0 <4.0.0"}, "", true},
		"ZeroPadded":  {"a date with zeros is a version, as in Flux", Reference{SemVer: ">=2025.0.0"}, "2026.01.05@sha1:" + tip, false},
		"ZeroPre":     {"with a v and a prerelease as well", Reference{SemVer: ">=2025.0.0-0"}, "v2026.02.03-rc.1@sha1:" + old, false},
		"None":        {"nothing in the range", Reference{SemVer: "9.x"}, "", true},
		"Malformed":   {"a range that is none", Reference{SemVer: "one"}, "", true},
		"BeforeTag":   {"the order of precedence", Reference{SemVer: "1.2.0", Tag: "v1.0.0", Branch: "main"}, "1.2.0@sha1:" + old, false},
		"AfterName":   {"the same", Reference{SemVer: "1.2.0", Name: "refs/tags/v1.0.0"}, "refs/tags/v1.0.0@sha1:" + old, false},
		"AfterCommit": {"the same", Reference{SemVer: "1.2.0", Commit: tip}, "sha1:" + tip, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), o.url(), tc.ref, Options{}, nil)
			if (err != nil) != tc.fails {
				t.Fatalf("%s\nFetch() = %v, want failure: %t", tc.reason, err, tc.fails)
			}
			if err == nil && s.Revision != tc.revision {
				t.Errorf("%s\nrevision %s, want %s", tc.reason, s.Revision, tc.revision)
			}
		})
	}
}

// TestBuildMetadata: tags that differ in nothing that has an order.
func TestBuildMetadata(t *testing.T) {
	o := serve(t, gitserver.Options{})
	commit := o.commit("main", map[string]string{"a.yaml": "1"})
	tree := o.git("", "rev-parse", commit+"^{tree}")
	raw := func(second int) string {
		return o.git(fmt.Sprintf("tree %s\nauthor n <e> %d +0000\ncommitter n <e> %d +0000\n\nx\n", tree, second, second), "hash-object", "-t", "commit", "-w", "--stdin")
	}
	first, newest := raw(1000), raw(3000)
	o.git("", "tag", "1.0.0+z", first)
	o.git("", "tag", "1.0.0+a", newest)
	o.git("", "tag", "1.0.0+b", raw(2000))
	m := mirrors(t)
	s := fetch(t, m, o.url(), Reference{SemVer: "1.x"}, nil)
	if s.Commit != newest {
		t.Errorf("revision %s, want the newest commit %s", s.Revision, newest)
	}
	if again := fetch(t, m, o.url(), Reference{SemVer: "1.x"}, s); again != s {
		t.Error("nothing changed, and there is a new snapshot")
	}
}

type signers struct {
	pgp, ssh         signature.Signer
	keyRing, sshKeys string
}

func newSigners(t *testing.T) signers {
	t.Helper()
	entity, err := openpgp.NewEntity("n", "", "e@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	var s signers
	var ring bytes.Buffer
	w, err := armor.Encode(&ring, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.Serialize(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.keyRing = ring.String()
	if s.pgp, err = signature.NewOpenPGPSigner(entity); err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	if s.ssh, err = signature.NewSSHSigner(pem.EncodeToMemory(block), nil); err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	s.sshKeys = "# comment\n" + string(ssh.MarshalAuthorizedKey(key))
	return s
}

// signedCommit writes a commit with a signature of its content.
func (o *origin) signedCommit(by signature.Signer, tree, more string, change func(signed string) string) string {
	o.t.Helper()
	head := "tree " + tree + "\n" + more + "author n <e> 1000 +0000\ncommitter n <e> 1000 +0000\n"
	const body = "\nsubject\n\nbody\n"
	armoured, err := by.Sign(strings.NewReader(head + body))
	if err != nil {
		o.t.Fatal(err)
	}
	header := "gpgsig " + strings.ReplaceAll(strings.TrimSpace(string(armoured)), "\n", "\n ") + "\n"
	return o.git(change(head+header+body), "hash-object", "-t", "commit", "-w", "--stdin", "--literally")
}

func TestVerify(t *testing.T) {
	o := serve(t, gitserver.Options{})
	good, bad := newSigners(t), newSigners(t)
	plain := o.commit("main", map[string]string{"a.yaml": "1"})
	tree := o.git("", "rev-parse", plain+"^{tree}")
	other := o.git("", "rev-parse", o.commit("other", map[string]string{"evil.yaml": "1"})+"^{tree}")
	same := func(s string) string { return s }
	both := good.keyRing
	refer := func(name, commit string) Reference {
		o.git("", "update-ref", "refs/heads/"+name, commit)
		return Reference{Branch: name}
	}
	tagged := func(name, commit string, by signature.Signer) Reference {
		payload := "object " + commit + "\ntype commit\ntag " + name + "\ntagger n <e> 1000 +0000\n\nmessage\n"
		armoured, err := by.Sign(strings.NewReader(payload))
		if err != nil {
			t.Fatal(err)
		}
		o.git("", "update-ref", "refs/tags/"+name, o.git(payload+strings.TrimSpace(string(armoured))+"\n", "hash-object", "-t", "tag", "-w", "--stdin", "--literally"))
		return Reference{Tag: name}
	}
	o.git("", "tag", "light", plain)
	o.git("", "tag", "-a", "-m", "x", "unsigned", plain)
	pgp, sshSigned := o.signedCommit(good.pgp, tree, "", same), o.signedCommit(good.ssh, tree, "", same)
	keys := Verification{Head: true, KeyRings: []string{bad.keyRing, both}, AuthorizedKeys: []string{bad.sshKeys, good.sshKeys}}
	tags := Verification{Tag: true, KeyRings: keys.KeyRings, AuthorizedKeys: keys.AuthorizedKeys}
	all := Verification{Head: true, Tag: true, KeyRings: keys.KeyRings, AuthorizedKeys: keys.AuthorizedKeys}
	for name, tc := range map[string]struct {
		reason string
		ref    Reference
		want   Verification
		fails  string
	}{
		"PGP":       {"the ordinary case", refer("pgp", pgp), keys, ""},
		"SSH":       {"the other kind", refer("ssh", sshSigned), keys, ""},
		"Stranger":  {"somebody else's signature", refer("stranger", o.signedCommit(bad.pgp, tree, "", same)), Verification{Head: true, KeyRings: []string{good.keyRing}}, ReasonInvalidCommitSignature},
		"NoPGPKeys": {"a signature of a kind that there are no keys for", refer("pgp", pgp), Verification{Head: true, AuthorizedKeys: []string{good.sshKeys}}, ReasonInvalidCommitSignature},
		"NoSSHKeys": {"the same", refer("ssh", sshSigned), Verification{Head: true, KeyRings: []string{good.keyRing}}, ReasonInvalidCommitSignature},
		"Unsigned":  {"no signature at all", Reference{Branch: "main"}, keys, ReasonInvalidCommitSignature},
		"Changed":   {"one byte of the message", refer("changed", o.signedCommit(good.pgp, tree, "", func(s string) string { return strings.Replace(s, "body", "b0dy", 1) })), keys, ReasonInvalidCommitSignature},
		"OtherTree": {"another tree under an old signature", refer("swapped", o.signedCommit(good.pgp, tree, "", func(s string) string { return strings.Replace(s, tree, other, 1) })), keys, ReasonInvalidCommitSignature},
		"TwoSigs": {"which of the two counts, readers disagree", refer("twice", o.signedCommit(good.pgp, tree, "", func(s string) string {
			return strings.Replace(s, "\n\nsubject", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n AA==\n -----END PGP SIGNATURE-----\n\nsubject", 1)
		})), keys, ReasonInvalidCommitSignature},
		"LateHeader": {"a signature hidden in the message is none", refer("late", o.signedCommit(good.pgp, tree, "", func(s string) string { return strings.Replace(s, "gpgsig ", "\ngpgsig ", 1) })), keys, ReasonInvalidCommitSignature},
		"Tag":        {"a signed tag of an unsigned commit", tagged("v1", plain, good.pgp), tags, ""},
		"TagBySSH":   {"the other kind", tagged("v2", plain, good.ssh), tags, ""},
		"TagAndHead": {"both", tagged("v3", sshSigned, good.pgp), all, ""},
		"TagOnly":    {"both wanted, one signed", tagged("v1", plain, good.pgp), all, ReasonInvalidCommitSignature},
		"BadTag":     {"a stranger's tag", tagged("v4", sshSigned, bad.pgp), Verification{Tag: true, KeyRings: []string{good.keyRing}}, ReasonInvalidTagSignature},
		"NoTag":      {"a branch has no tag: no commit can mend that", Reference{Branch: "main"}, tags, ReasonInvalidVerificationMode},
		"LightTag":   {"a tag without an object; the next may have one", Reference{Tag: "light"}, tags, ReasonInvalidGitObject},
		"PlainTag":   {"a tag object without a signature", Reference{Tag: "unsigned"}, tags, ReasonInvalidGitObject},
		"TagByName":  {"a tag by its full name is a tag", func() Reference { tagged("v5", plain, good.pgp); return Reference{Name: "refs/tags/v5"} }(), tags, ""},
		"TagByRange": {"and by a range", func() Reference { tagged("v7.0.1", plain, good.pgp); return Reference{SemVer: "7.x"} }(), tags, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), o.url(), tc.ref, Options{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			message, err := s.Verify(tc.want)
			if (err == nil) != (tc.fails == "") || (err != nil && ReasonOf(err) != tc.fails) {
				t.Fatalf("%s\nVerify() = %v, want reason %q", tc.reason, err, tc.fails)
			}
			if err == nil && !strings.HasPrefix(message, "verified signature of\n\t- ") {
				t.Errorf("%s\nmessage %q", tc.reason, message)
			}
		})
	}
	// Headers that two readers take for two trees make no snapshot at all.
	two := o.signedCommit(good.pgp, tree, "tree "+other+"\n", same)
	if s, err := mirrors(t).Fetch(t.Context(), o.url(), refer("two", two), Options{}, nil); err == nil {
		t.Errorf("Fetch() of a commit with two trees = %v, want an error (CVE-2026-45022)", s)
	}
	// A tag that comes after its commit is fetched as well.
	m := mirrors(t)
	fetch(t, m, o.url(), Reference{Branch: "main"}, nil)
	if _, err := fetch(t, m, o.url(), tagged("v6", plain, good.pgp), nil).Verify(tags); err != nil {
		t.Errorf("Verify() of a tag on a commit that was here before: %v", err)
	}
}

func FuzzSplitCommit(f *testing.F) {
	f.Add([]byte("tree x\ngpgsig a\n b\nauthor c\n\nbody\n"))
	f.Add([]byte("\n\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, raw []byte) {
		payload, armour, err := splitCommit(raw)
		if err != nil {
			return
		}
		// Nothing is signed that is not there, in its order.
		rest := raw
		for line := range bytes.Lines(payload) {
			i := bytes.Index(rest, line)
			if i < 0 {
				t.Fatalf("payload %q of %q has a line that is not in it", payload, raw)
			}
			rest = rest[i+len(line):]
		}
		if armour == "" && !bytes.Contains(raw, []byte("gpgsig")) && !bytes.Equal(payload, raw) {
			t.Fatalf("payload %q of an unsigned commit %q", payload, raw)
		}
	})
}

func fetchWith(t *testing.T, m *Mirrors, o Origin, ref Reference, options Options) *Snapshot {
	t.Helper()
	s, err := m.Fetch(t.Context(), o, ref, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSparseCheckout(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{"a/x.yaml": "1", "a/b/y.yaml": "2", "a2/z.yaml": "3", "c/d/e.yaml": "4", "c/f.yaml": "5", "root.yaml": "6"})
	for name, tc := range map[string]struct {
		reason string
		dirs   []string
		want   []string
		fails  bool
	}{
		"None":    {"everything", nil, []string{"a/b/y.yaml", "a/x.yaml", "a2/z.yaml", "c/d/e.yaml", "c/f.yaml", "root.yaml"}, false},
		"Dir":     {"a directory with all below", []string{"./c/d"}, []string{"c/d/e.yaml"}, false},
		"Slash":   {"with its slash it is that one directory", []string{"a/"}, []string{"a/b/y.yaml", "a/x.yaml"}, false},
		"Prefix":  {"as in Flux it is a prefix of paths", []string{"a"}, []string{"a/b/y.yaml", "a/x.yaml", "a2/z.yaml"}, false},
		"Two":     {"two of them", []string{"a/b", "c"}, []string{"a/b/y.yaml", "c/d/e.yaml", "c/f.yaml"}, false},
		"Missing": {"each has to be there: a typo is no empty source", []string{"a", "nowhere"}, nil, true},
		"Partial": {"a part of a name is no directory", []string{"c/d/e.y"}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), o.url(), onMain, Options{SparseCheckout: tc.dirs}, nil)
			if (err != nil) != tc.fails {
				t.Fatalf("%s\nFetch() = %v, want failure: %t", tc.reason, err, tc.fails)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tc.want, walk(t, s, "")); diff != "" {
				t.Errorf("%s\nfiles: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	m := mirrors(t)
	whole, part := fetchWith(t, m, o.url(), onMain, Options{}), fetchWith(t, m, o.url(), onMain, Options{SparseCheckout: []string{"c"}})
	_, one, _ := whole.Stat("c/d")
	_, two, _ := part.Stat("c/d")
	if one != two || one == "" || whole.Digest == part.Digest {
		t.Errorf("c/d has the hashes %q and %q, the snapshots the digests %s and %s; want the same directory in two snapshots", one, two, whole.Digest, part.Digest)
	}
}

func TestInclude(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("inner", map[string]string{"dir/a.yaml": "a", "dir/skip.yaml": "s", "dir/link": "-> a.yaml", "dir/sub/b.yaml": "b", "pic.jpg": "j", "deep/keep.yaml": "k", "deep/low/skip.yaml": "s", "deep/low/z.yaml": "z"})
	o.git("", "symbolic-ref", "HEAD", "refs/heads/inner")
	o.commit("main", map[string]string{"dir": "", "pic.jpg": "", "deep": "", "own/x.yaml": "x", "link": "-> own"})
	o.git("", "update-ref", "-d", "refs/heads/none")
	m := mirrors(t)
	ignore := "skip.yaml\n"
	inner := fetchWith(t, m, o.url(), Reference{Branch: "inner"}, Options{Ignore: &ignore})
	base := walk(t, fetchWith(t, m, o.url(), onMain, Options{}), "")
	for name, tc := range map[string]struct {
		reason   string
		from, to string
		want     []string
		fails    bool
	}{
		"Dir":      {"a directory as it would be packed: no links, nothing ignored", "dir", "in", []string{"in/a.yaml", "in/sub/b.yaml"}, false},
		"Below":    {"what is ignored further down only", "deep", "in", []string{"in/keep.yaml", "in/low/z.yaml"}, false},
		"Deep":     {"directories on the way are made", "./dir/sub", "one/two/three", []string{"one/two/three/b.yaml"}, false},
		"Beside":   {"into a directory that is there", "dir/sub", "own/more", []string{"own/more/b.yaml"}, false},
		"File":     {"a single file", "dir/a.yaml", "own/a.yaml", []string{"own/a.yaml"}, false},
		"Outside":  {"a path that leads up stays inside", "dir/sub", "../../up", []string{"up/b.yaml"}, false},
		"Occupied": {"what is there is not mixed with what comes", "dir", "own", nil, true},
		"Root":     {"the same", "dir", ".", nil, true},
		"OverFile": {"a directory in a file's place", "dir", "own/x.yaml", nil, true},
		"Through":  {"a way through a link", "dir", "link/x", nil, true},
		"Missing":  {"nothing to include", "nowhere", "in", nil, true},
		"Ignored":  {"what is ignored there is not there", "dir/skip.yaml", "in", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := m.Fetch(t.Context(), o.url(), onMain, Options{Include: []Include{{Name: "inner", Snapshot: inner, From: tc.from, To: tc.to}}}, nil)
			if tc.fails {
				if ReasonOf(err) != ReasonCopyFailure || err == nil {
					t.Errorf("%s\nFetch() = %v, want reason %s", tc.reason, err, ReasonCopyFailure)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\nFetch(): %v", tc.reason, err)
			}
			got := map[string]bool{}
			for _, file := range walk(t, s, "") {
				got[file] = true
			}
			for _, file := range base {
				delete(got, file)
			}
			want := map[string]bool{}
			for _, file := range tc.want {
				want[file] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\nadded files: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	// What is asked for besides the revision tells snapshots apart.
	with := func(s *Snapshot, last *Snapshot) *Snapshot {
		t.Helper()
		out, err := m.Fetch(t.Context(), o.url(), onMain, Options{Include: []Include{{Name: "inner", Snapshot: s, From: "deep", To: "in"}}}, last)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := with(inner, nil)
	if with(inner, first) != first {
		t.Error("nothing changed, and there is a new snapshot")
	}
	o.commit("inner", map[string]string{"deep/keep.yaml": "changed"})
	changed := with(fetchWith(t, m, o.url(), Reference{Branch: "inner"}, Options{Ignore: &ignore}), first)
	if changed == first || read(t, changed, "in/keep.yaml") != "changed" || changed.Digest == first.Digest {
		t.Error("a change of what is included is not seen")
	}
	_, before, _ := first.Stat("own")
	_, after, _ := changed.Stat("own")
	if before != after {
		t.Error("a directory that the include does not touch changed its hash")
	}
}

// tornStore has one directory, which cannot be listed for a while.
type tornStore struct {
	entries listing
	fails   error
}

func (s *tornStore) list(node) (listing, error) { return s.entries, s.fails }

func (s *tornStore) open(node) (io.ReadCloser, int64, error) {
	return nil, 0, errors.New("it is a directory")
}

// TestIncludeUnreadable: a directory that cannot be read is not taken for one that is ignored: it would be left out until something
// changes.
func TestIncludeUnreadable(t *testing.T) {
	file := node{mode: filemode.Regular, id: id{1}}
	torn := &tornStore{entries: listing{{"prod", compose(listing{{"a.yaml", file}})}}}
	s := &Snapshot{root: compose(listing{{"clusters", node{mode: filemode.Dir, id: id{2}, in: torn}}, {"other.yaml", file}})}
	ignore := "/*\n!/clusters/prod"
	var err error
	if s.rules, err = newRules(s, &ignore, MaxEntries, nil); err != nil {
		t.Fatal(err)
	}
	include := Include{Name: "common", Snapshot: s, To: "common"}
	torn.fails = errors.New("too many open files")
	if _, err := include.into(compose(nil)); !errors.Is(err, torn.fails) {
		t.Errorf("into() of what cannot be read = %v, want %v", err, torn.fails)
	}
	torn.fails = nil
	got, err := include.into(compose(nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&Snapshot{root: got}).resolve("common/clusters/prod/a.yaml"); err != nil {
		t.Errorf("once it can be read: %v", err)
	}
	if _, _, err := (&Snapshot{root: got}).resolve("common/other.yaml"); err == nil {
		t.Error("what is ignored was included")
	}
}

func TestSubmodules(t *testing.T) {
	const user, password = "user", "pass-word"
	o := serve(t, gitserver.Options{Username: user, Password: password})
	secret := map[string][]byte{"username": []byte(user), "password": []byte(password)}
	from := func(repository string) Origin { return Origin{URL: o.HTTPURL(repository), Secret: secret} }
	add := func(repository string) *origin {
		t.Helper()
		if err := o.Create(t.Context(), repository); err != nil {
			t.Fatal(err)
		}
		return o
	}
	// in runs git in another repository.
	in := func(repository, input string, args ...string) string {
		t.Helper()
		return o.git(input, append([]string{"--git-dir=" + filepath.Join(o.root, repository+".git")}, args...)...)
	}
	pin := func(repository, modules string, entries ...string) string {
		t.Helper()
		blob := in(repository, modules, "hash-object", "-w", "--stdin")
		tree := in(repository, "100644 blob "+blob+"\t.gitmodules\n"+strings.Join(entries, "\n")+"\n", "mktree", "--missing")
		commit := in(repository, "", "commit-tree", "-m", "x", tree)
		in(repository, "", "update-ref", "refs/heads/main", commit)
		return commit
	}
	add("team/leaf")
	blob := in("team/leaf", "leaf", "hash-object", "-w", "--stdin")
	leaf := in("team/leaf", "", "commit-tree", "-m", "x", in("team/leaf", "100644 blob "+blob+"\tleaf.yaml\n", "mktree"))
	in("team/leaf", "", "update-ref", "refs/heads/main", leaf)
	add("team/middle")
	middle := pin("team/middle", "[submodule \"l\"]\n\tpath = l\n\turl = ../leaf.git\n", "160000 commit "+leaf+"\tl")
	pinned := func(url string) Origin {
		t.Helper()
		pin(repository, "[submodule \"m\"]\n\tpath = m\n\turl = "+url+"\n", "160000 commit "+middle+"\tm")
		return from(repository)
	}
	for name, tc := range map[string]struct {
		reason, url string
		fails       bool
	}{
		"Relative":      {"the usual way, and its own submodule as well", "../middle.git", false},
		"Absolute":      {"the same host by its whole URL: the credential is for it", o.HTTPURL("team/middle"), false},
		"File":          {"a path of the agent's own disk", "file:///etc", true},
		"Path":          {"the same", "/etc", true},
		"Ext":           {"git's way to run a command", "ext::sh -c id", true},
		"Option":        {"CVE-2025-21613", "ssh://-oProxyCommand=x/y", true},
		"OtherHTTP":     {"plain http at another host", "http://127.0.0.1:1/x", true},
		"Unparsable":    {"no URL", "https://%zz", true},
		"LeadsAway":     {"a relative URL stays at its host", "../../../../../../etc", true},
		"MissingCommit": {"a repository that does not have the commit", "../leaf.git", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := mirrors(t).Fetch(t.Context(), pinned(tc.url), onMain, Options{Submodules: true}, nil)
			if tc.fails {
				if err == nil || ReasonOf(err) == ReasonURLInvalid {
					t.Errorf("%s\nFetch() = %v, want a failure that a commit can end", tc.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\nFetch(): %v", tc.reason, err)
			}
			if got := read(t, s, "m/l/leaf.yaml"); got != "leaf" {
				t.Errorf("%s\nm/l/leaf.yaml is %q", tc.reason, got)
			}
		})
	}
	t.Run("LoginInURL", func(t *testing.T) {
		for _, written := range []string{"../middle.git", o.HTTPURL("team/middle")} {
			at := pinned(written)
			at.URL, at.Secret = strings.Replace(at.URL, "://", "://"+user+":"+password+"@", 1), nil
			if s := fetchWith(t, mirrors(t), at, onMain, Options{Submodules: true}); read(t, s, "m/l/leaf.yaml") != "leaf" {
				t.Errorf("a submodule at %s has not what it should have", written)
			}
		}
	})
	t.Run("Pinned", func(t *testing.T) {
		m := mirrors(t)
		first := fetchWith(t, m, pinned("../middle.git"), onMain, Options{Submodules: true})
		before := o.Requests("team/middle")
		pin(repository, "[submodule \"m\"]\n\tpath = m\n\turl = ../middle.git\n", "160000 commit "+middle+"\tm", "100644 blob "+in(repository, "x", "hash-object", "-w", "--stdin")+"\tx.yaml")
		second := fetchWith(t, m, from(repository), onMain, Options{Submodules: true})
		if after := o.Requests("team/middle"); after != before {
			t.Errorf("a commit that pins the same submodule cost requests %+v after %+v", after, before)
		}
		_, one, _ := first.Stat("m")
		_, two, _ := second.Stat("m")
		if one != two || one == "" {
			t.Errorf("the submodule has the hashes %q and %q", one, two)
		}
	})
	t.Run("Recursion", func(t *testing.T) {
		// A chain deeper than the limit.
		below, at := leaf, "team/leaf"
		for i := range maxSubmoduleDepth + 1 {
			next := fmt.Sprint("team/chain", i)
			add(next)
			below, at = pin(next, "[submodule \"l\"]\n\tpath = l\n\turl = ../"+strings.TrimPrefix(at, "team/")+".git\n", "160000 commit "+below+"\tl"), next
		}
		if _, err := mirrors(t).Fetch(t.Context(), from(at), onMain, Options{Submodules: true}, nil); ReasonOf(err) != ReasonLimitExceeded {
			t.Errorf("Fetch() of submodules without end = %v, want reason %s", err, ReasonLimitExceeded)
		}
	})
	t.Run("OtherHost", func(t *testing.T) {
		got, err := (Origin{URL: "https://a.example/x/y.git", Secret: secret, Login: &Login{Password: password}}).submodule("https://b.example/x/y.git")
		if err != nil || got.Secret != nil || got.Login != nil {
			t.Errorf("submodule() = %+v, %v, want no credential at another host", got, err)
		}
	})
	t.Run("Short", func(t *testing.T) {
		key := map[string][]byte{"identity": []byte("key"), "known_hosts": []byte("hosts")}
		for written, want := range map[string]Origin{
			"git@git.example:org/base.git":          {URL: "ssh://git@git.example/org/base.git", Secret: key},
			"git@git.example:/org/base.git":         {URL: "ssh://git@git.example/org/base.git", Secret: key},
			"git.example:org/base.git":              {URL: "ssh://git@git.example/org/base.git", Secret: key},
			"git@elsewhere.example:org/base.git":    {URL: "ssh://git@elsewhere.example/org/base.git"},
			"git@git.example:org/base#x?y":          {URL: "ssh://git@git.example/org/base%23x%3Fy", Secret: key},
			"-oProxyCommand=x:y":                    {},
			"git@-oProxyCommand=x:y":                {},
			"git@git.example:-x":                    {},
			"git@git.example:":                      {},
			"ext::sh -c id":                         {},
			"/etc:x":                                {},
			"file:///etc":                           {},
			"git@a b:x":                             {},
			"ssh://git@git.example/org/base.git":    {URL: "ssh://git@git.example/org/base.git", Secret: key},
			"ssh://git@git.example:22/org/base.git": {URL: "ssh://git@git.example:22/org/base.git"},
		} {
			got, err := (Origin{URL: "ssh://git@git.example/org/fleet", Secret: key}).submodule(written)
			if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want.URL != "") || err != nil && ReasonOf(err) != ReasonGitOperationFailed {
				t.Errorf("submodule(%q): %v, -want +got:\n%s", written, err, diff)
			}
		}
	})
	if _, err := fetchWith(t, mirrors(t), pinned("../middle.git"), onMain, Options{}).ReadDir("m"); err == nil {
		t.Error("a submodule that was not asked for is there")
	}
}
