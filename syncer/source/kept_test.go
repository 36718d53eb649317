package source

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"k8s.io/apimachinery/pkg/types"
)

// contentsOf is a store in memory.
type contentsOf map[id]string

func (c contentsOf) list(node) (listing, error) { return nil, fmt.Errorf("it is no directory") }

func (c contentsOf) open(n node) (io.ReadCloser, int64, error) {
	text := c[n.id]
	return io.NopCloser(strings.NewReader(text)), int64(len(text)), nil
}

// add puts a file or link into a folder.
func (c contentsOf) add(t *testing.T, to *folder, name string, mode filemode.FileMode, text string) {
	t.Helper()
	n := node{mode: mode, in: c, id: sha256.Sum256([]byte(text))}
	c[n.id] = text
	if err := to.put(name, &n); err != nil {
		t.Fatal(err)
	}
}

// ruled makes a snapshot of a folder.
func ruled(t *testing.T, from *folder, own *string) *Snapshot {
	t.Helper()
	root, err := from.node(0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Snapshot{
		Revision: "main@sha1:1", OriginRevision: "origin", Commit: "1", Digest: "sha256:x", File: "1.tar.gz", Metadata: map[string]string{"a": "b"},
		Subject: "Subject", Time: time.Unix(1_700_000_000, 0).UTC(), root: root,
	}
	if s.rules, err = newRules(s, own, MaxEntries, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// told is all that a snapshot tells.
func told(t *testing.T, s *Snapshot) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintln(&b, s.Revision, s.OriginRevision, s.Commit, s.Digest, s.File, s.Metadata, s.Subject, s.Time.UTC())
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := s.ReadDir(dir)
		if err != nil {
			fmt.Fprintf(&b, "%q: %v\n", dir, err)
		}
		for _, e := range entries {
			at := join(dir, e.Name)
			fmt.Fprintf(&b, "%q %t %t\n", at, e.Dir, e.Link)
			if e.Dir {
				walk(at)
			} else if data, err := s.ReadFile(at); err != nil {
				fmt.Fprintf(&b, "%q: %v\n", at, err)
			} else {
				fmt.Fprintf(&b, "%q\n", data)
			}
		}
	}
	walk("")
	if err := s.Ignored("", func(name string, read func() ([]byte, error)) bool {
		data, err := read()
		fmt.Fprintf(&b, "ignored %q %q %v\n", name, data, err)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if packed, ok := s.Packed(); ok {
		data, err := io.ReadAll(packed)
		fmt.Fprintf(&b, "packed %q %v\n", data, err)
	}
	return b.String()
}

var (
	keptKey = Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "apps", Name: "shop"}}
	keptUID = types.UID("1")
)

// kept puts a snapshot and returns what another process gets.
func kept(t *testing.T, dir string, s *Snapshot) *Snapshot {
	t.Helper()
	if err := NewKept(dir, 1<<20).Put(t.Context(), keptKey, keptUID, s, ""); err != nil {
		t.Fatal(err)
	}
	got, err := NewKept(dir, 1<<20).Get(t.Context(), keptKey, keptUID, s.Revision, "")
	if err != nil || got == nil {
		t.Fatalf("Get() = %v, %v", got, err)
	}
	return got
}

// TestKeptOfLongName: a name of Kubernetes may have nearly as many bytes as that of a file.
func TestKeptOfLongName(t *testing.T) {
	for _, n := range []int{243, 244, 249, 253} {
		dir := t.TempDir()
		one := Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "apps", Name: strings.Repeat("a", n-1) + "1"}}
		two := one
		two.Name = strings.Repeat("a", n-1) + "2"
		k, s := NewKept(dir, 1<<20), ruled(t, &folder{}, nil)
		if err := k.Put(t.Context(), one, keptUID, s, ""); err != nil {
			t.Errorf("of %d bytes: Put() = %v", n, err)
		}
		if got, err := NewKept(dir, 1<<20).Get(t.Context(), one, keptUID, s.Revision, ""); err != nil || got == nil {
			t.Errorf("of %d bytes: Get() = %v, %v", n, got, err)
		}
		if got, err := k.Get(t.Context(), two, keptUID, s.Revision, ""); err != nil || got != nil {
			t.Errorf("of %d bytes: Get() of another one = %v, %v", n, got, err)
		}
		for range 2 { // the second time nothing is there, which is no error
			if err := k.Remove(one); err != nil {
				t.Errorf("of %d bytes: Remove() = %v: its object would stay for ever", n, err)
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "gitrepository", "apps")); err == nil && len(left) != 0 {
			t.Errorf("of %d bytes: %v is left over", n, left)
		}
	}
}

func TestKept(t *testing.T) {
	own := "/own\n"
	for _, tc := range []struct {
		reason string
		own    *string
		files  map[string]string
		links  map[string]string
	}{
		{"an empty tree is one", nil, nil, nil},
		{"files, empty ones and equal ones", nil, map[string]string{"a": "", "b/c": "text", "b/d": "text", "b/e/f": "other"}, nil},
		{"a link is followed, to a file and to a directory; one that leads nowhere leads nowhere", nil, map[string]string{"a/b": "text"},
			map[string]string{"file": "a/b", "dir": "a", "gone": "c"}},
		{"what is ignored is known to be there: by the tree, by the object, by default", &own,
			map[string]string{".sourceignore": "*.txt\n!kept.txt\n", "a.txt": "1", "kept.txt": "2", "own": "3", "below/.sourceignore": "/x\n", "below/x": "4", "x": "5"}, nil},
		{"without rules the default ones hold", nil, map[string]string{"a.jpg": "1", ".github/x": "2", "a": "3"}, nil},
		{"names are bytes", nil, map[string]string{"\xff\\ \n": "1", "tree/": "2", "end": "3", "snapshot.json": "4", strings.Repeat("long", 60): "5"}, nil},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			contents, root := contentsOf{}, &folder{}
			for name, text := range tc.files {
				contents.add(t, root, strings.TrimSuffix(name, "/"), filemode.Regular, text)
			}
			for name, to := range tc.links {
				contents.add(t, root, name, filemode.Symlink, to)
			}
			s := ruled(t, root, tc.own)
			got := kept(t, t.TempDir(), s)
			if want, got := told(t, s), told(t, got); got != want {
				t.Errorf("what is kept is\n%s\nand was\n%s", got, want)
			}
			if s.Rules() == "default" && got.Rules() != "default" {
				t.Errorf("the rules are %s and were %s", got.Rules(), s.Rules())
			}
		})
	}
}

// TestKeptArchive: what came as a file is kept as that file, without rules.
func TestKeptArchive(t *testing.T) {
	contents, root := contentsOf{}, &folder{}
	contents.add(t, root, "chart/Chart.yaml", filemode.Regular, "name: x")
	var file bytes.Buffer
	if err := Pack(t.Context(), &file, ruled(t, root, nil)); err != nil {
		t.Fatal(err)
	}
	s, err := NewArchives(t.TempDir(), 1<<20, 1<<20).Open(t.Context(), &file, About{Revision: "1.0.0", File: "x-1.0.0.tgz"})
	if err != nil {
		t.Fatal(err)
	}
	if want, got := told(t, s), told(t, kept(t, t.TempDir(), s)); got != want {
		t.Errorf("what is kept is\n%s\nand was\n%s", got, want)
	}
}

// TestKeptTrees: random trees come back as they were.
func TestKeptTrees(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 1))
		contents, root := contentsOf{}, &folder{}
		modes := []filemode.FileMode{filemode.Regular, filemode.Executable, filemode.Deprecated, filemode.Symlink}
		for i := range random.IntN(40) {
			name := fmt.Sprint("f", i)
			for range random.IntN(4) {
				name = fmt.Sprint("d", random.IntN(3)) + "/" + name
			}
			text := strings.Repeat("x", random.IntN(5))
			mode := modes[random.IntN(len(modes))]
			if mode == filemode.Symlink {
				text = []string{"../d1", "d0/f1", "/abs", "../../..", "f0"}[random.IntN(5)]
			}
			contents.add(t, root, name, mode, text)
		}
		s := ruled(t, root, nil)
		if want, got := told(t, s), told(t, kept(t, t.TempDir(), s)); got != want {
			t.Fatalf("seed %d: what is kept is\n%s\nand was\n%s", seed, got, want)
		}
	}
}

// TestKeptIsWhole: a file that is cut off, or of which a byte is another one, is never a
// smaller tree: objects would be taken for removed from the source.
func TestKeptIsWhole(t *testing.T) {
	contents, root := contentsOf{}, &folder{}
	for i := range 20 {
		contents.add(t, root, fmt.Sprintf("dir%d/file%d", i%3, i), filemode.Regular, fmt.Sprint("text", i))
	}
	s := ruled(t, root, nil)
	dir := t.TempDir()
	want := told(t, kept(t, dir, s))
	name := filepath.Join(dir, "gitrepository", "apps", "shop.tar.gz")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := NewKept(dir, 1<<20).Get(context.WithoutCancel(t.Context()), keptKey, keptUID, s.Revision, "")
		if err == nil && got != nil && told(t, got) != want {
			t.Fatalf("%s: it is\n%s", what, told(t, got))
		}
	}
	for n := range whole {
		try(fmt.Sprintf("cut off after %d bytes", n), whole[:n])
		changed := slices.Clone(whole)
		changed[n] ^= 0x10
		try(fmt.Sprintf("byte %d is another", n), changed)
	}
}

// TestKeptOfAnother: nothing is kept of another object, revision or version of the form,
// and a source that is gone leaves nothing.
func TestKeptOfAnother(t *testing.T) {
	s := ruled(t, &folder{}, nil)
	dir := t.TempDir()
	kept(t, dir, s)
	k := NewKept(dir, 1<<20)
	none := func(reason string, key Key, uid types.UID, revision string) {
		t.Helper()
		if got, err := k.Get(t.Context(), key, uid, revision, ""); got != nil || err != nil {
			t.Errorf("%s: Get() = %v, %v", reason, got, err)
		}
	}
	none("the object was created again", keptKey, "2", s.Revision)
	none("the status has another revision", keptKey, keptUID, "main@sha1:2")
	none("another source", Key{Kind: "Bucket", NamespacedName: keptKey.NamespacedName}, keptUID, s.Revision)
	if err := k.Remove(keptKey); err != nil {
		t.Fatal(err)
	}
	none("the source is gone", keptKey, keptUID, s.Revision)
	if err := k.Remove(keptKey); err != nil {
		t.Errorf("it is gone already: %v", err)
	}
}

// TestKeptOnce: the same snapshot is written once by one process.
func TestKeptOnce(t *testing.T) {
	s := ruled(t, &folder{}, nil)
	dir := t.TempDir()
	k := NewKept(dir, 1<<20)
	name := filepath.Join(dir, "gitrepository", "apps", "shop.tar.gz")
	for range 2 {
		if err := k.Put(t.Context(), keptKey, keptUID, s, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, 0); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(name); err != nil || info.Size() != 0 {
		t.Errorf("it was written again: %v, %v", info, err)
	}
	if err := k.Put(t.Context(), keptKey, keptUID, s.Named("other@sha1:1"), ""); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Get(t.Context(), keptKey, keptUID, "other@sha1:1", ""); got == nil || err != nil {
		t.Errorf("another revision: Get() = %v, %v", got, err)
	}
}

// TestKeptWithin: what is too large is not kept, and what was kept before stays.
func TestKeptWithin(t *testing.T) {
	contents, root := contentsOf{}, &folder{}
	contents.add(t, root, "large", filemode.Regular, strings.Repeat("x", 4096))
	large, small := ruled(t, root, nil), ruled(t, &folder{}, nil)
	k := NewKept(t.TempDir(), 4096)
	if err := k.Put(t.Context(), keptKey, keptUID, small, ""); err != nil {
		t.Fatal(err)
	}
	if err := k.Put(t.Context(), keptKey, keptUID, large, ""); ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("Put() = %v", err)
	}
	if got, err := k.Get(t.Context(), keptKey, keptUID, small.Revision, ""); got == nil || err != nil {
		t.Errorf("Get() = %v, %v", got, err)
	}
}
