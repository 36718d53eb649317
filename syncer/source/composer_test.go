package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

func composer(t *testing.T) *Composer {
	t.Helper()
	return NewComposer(t.TempDir(), plenty)
}

// compositionOf puts pieces of a snapshot, by their paths, where they are to be.
func compositionOf(t *testing.T, c *Composer, s *Snapshot, from map[string]string) *Snapshot {
	t.Helper()
	composition := c.Begin(NewEffort(t.Context(), 1_000_000))
	for at, to := range from {
		p, err := s.Piece(at)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := composition.Put(to, p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := composition.End(func(digest string) About { return About{Revision: "latest@" + digest, File: "x.tar.gz"} })
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestComposer: of a repository is taken what its artifact has, directories by their hash,
// and the same files have the same digest wherever they come from.
func TestComposer(t *testing.T) {
	o := serve(t, gitserver.Options{})
	o.commit("main", map[string]string{
		"app/a.yaml": "a", "app/deep/b.yaml": "b", "app/link.yaml": "-> a.yaml", "whole/c.yaml": "c", "whole/d/e.yaml": "e",
		"app/notes/x.md": "notes", ".sourceignore": "*.md\n", "outside": "-> ../..",
	})
	m := mirrors(t)
	s := fetch(t, m, o.url(), Reference{Branch: "main"}, nil)
	c := composer(t)
	got := compositionOf(t, c, s, map[string]string{"app": "", "whole": "in/whole"})
	want := map[string]string{"a.yaml": "a", "deep/b.yaml": "b", "in/whole/c.yaml": "c", "in/whole/d/e.yaml": "e"}
	for name, text := range want {
		if data := read(t, got, name); data != text {
			t.Errorf("%s has %q", name, data)
		}
	}
	if n, err := got.Files(); err != nil || n != len(want) {
		t.Errorf("there are %d files, want %d: %v", n, len(want), err)
	}
	for _, absent := range []string{"link.yaml", "notes", "notes/x.md"} {
		if _, _, err := got.Stat(absent); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v; links and what is ignored are not packed", absent, err)
		}
	}
	for from, to := range map[string]string{"whole": "in/whole", "app/deep": "deep", "app/a.yaml": "a.yaml"} {
		_, before, err1 := s.Stat(from)
		_, after, err2 := got.Stat(to)
		if err1 != nil || err2 != nil || before != after {
			t.Errorf("%s is %s, and as %s it is %s (%v, %v): it is not taken as it is", from, before, to, after, err1, err2)
		}
	}
	for _, at := range []string{"app/link.yaml", "outside", "outside/x", "app/notes/x.md", "nothing"} {
		if _, err := s.Piece(at); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Piece(%s) = %v", at, err)
		}
	}

	// The same by another way.
	var packed bytes.Buffer
	if err := Pack(t.Context(), &packed, got); err != nil {
		t.Fatal(err)
	}
	archive, err := NewArchives(t.TempDir(), plenty, plenty).Open(t.Context(), &packed, About{Revision: "x", File: "x.tar.gz"})
	if err != nil {
		t.Fatal(err)
	}
	if again := compositionOf(t, c, archive, map[string]string{"": ""}); again.Digest != got.Digest {
		t.Errorf("digest %s from an archive, %s from Git", again.Digest, got.Digest)
	}

	// A commit that changes nothing of it.
	o.commit("main", map[string]string{"other.yaml": "x", "app/notes/y.md": "more", "app/link.yaml": "-> deep/b.yaml"})
	next := fetch(t, m, o.url(), Reference{Branch: "main"}, s)
	if again := compositionOf(t, composer(t), next, map[string]string{"app": "", "whole": "in/whole"}); again.Digest != got.Digest {
		t.Error("a commit that changes none of its files changes the digest")
	}
	o.commit("main", map[string]string{"app/deep/b.yaml": "B"})
	last := fetch(t, m, o.url(), Reference{Branch: "main"}, next)
	if again := compositionOf(t, c, last, map[string]string{"app": "", "whole": "in/whole"}); again.Digest == got.Digest {
		t.Error("a commit that changes one of its files leaves the digest")
	}
}

// TestComposerBounds: what compositions cost is bounded.
func TestComposerBounds(t *testing.T) {
	o := serve(t, gitserver.Options{})
	files := map[string]string{"big": strings.Repeat("x", 1<<20)}
	for _, name := range strings.Fields("a b c d e f g h i j") {
		files["dir/"+name+"/x"] = name
	}
	o.commit("main", files)
	s := fetch(t, mirrors(t), o.url(), Reference{Branch: "main"}, nil)
	dir, err := s.Piece("dir")
	if err != nil {
		t.Fatal(err)
	}

	effort := NewEffort(t.Context(), 200)
	c := composer(t).Begin(effort)
	for range 100 {
		if _, err = c.Put("to", dir); err != nil {
			break
		}
		if err = c.Write("to/more/x", []byte("x")); err != nil {
			break
		}
		err = effort.Each(dir, func(string, Piece) (bool, error) { return true, nil })
		if err != nil {
			break
		}
	}
	if ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("the effort has no end: %v", err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := NewEffort(ended, 1<<20).Spend(1 << 12); !errors.Is(err, context.Canceled) {
		t.Errorf("Spend() = %v after the end", err)
	}

	written := composer(t).Begin(NewEffort(t.Context(), 1_000_000))
	for n := range 8 {
		if err = written.Write(string(rune('a'+n)), bytes.Repeat([]byte{byte(n)}, 8<<20)); err != nil {
			break
		}
	}
	if ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("what is written has no end: %v", err)
	}

	// A file a hundred times is nothing, until it is packed.
	big, err := s.Piece("big")
	if err != nil {
		t.Fatal(err)
	}
	copies := composer(t).Begin(NewEffort(t.Context(), 10_000_000))
	for n := range 2000 {
		if _, err := copies.Put(fmt.Sprintf("in/%d/%d", n%200, n/200), big); err != nil {
			t.Fatal(err)
		}
	}
	got, err := copies.End(func(string) About { return About{File: "x.tar.gz"} })
	if err != nil {
		t.Fatal(err)
	}
	if err := Pack(t.Context(), io.Discard, got); ReasonOf(err) != ReasonLimitExceeded {
		t.Errorf("a megabyte becomes gigabytes: %v", err)
	}
}
