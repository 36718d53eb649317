package source

import (
	"path"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// FuzzNames: whatever a bucket or an archive names its files, they are below the
// root, and a name is either a file or a directory.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"a\na/b", "../a", "a/../b\nb", "a//b\na/b", "/a", `a\b`, "./a\na", "a/.\na", "", "..", "a/..b", "x\x00y"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, all string) {
		root := &folder{}
		var kept []string
		for name := range strings.SplitSeq(all, "\n") {
			at, err := inside(name)
			if err != nil || strings.Count(at, "/") > maxDepth {
				continue
			}
			if at != path.Clean("/" + at)[1:] || at == ".." || strings.HasPrefix(at, "../") || strings.HasPrefix(at, "/") {
				t.Fatalf("inside(%q) = %q", name, at)
			}
			if root.put(at, &node{mode: filemode.Regular}) == nil {
				kept = append(kept, at)
			}
		}
		n, err := root.node(0)
		if err != nil {
			t.Fatal(err)
		}
		s := &Snapshot{root: n, rules: &rules{id: "none"}}
		for _, at := range kept {
			if dir, _, err := s.Stat(at); err != nil || dir {
				t.Errorf("Stat(%q) = %t, %v, want a file", at, dir, err)
			}
		}
	})
}

// FuzzSites: who is the same site does not depend on the order, and a site is
// its own.
func FuzzSites(f *testing.F) {
	f.Add("registry.example.com:5000", "auth.example.com")
	f.Add("a.github.io", "b.github.io")
	f.Add("[::1]:80", "::1")
	f.Fuzz(func(t *testing.T, a, b string) {
		if sameSite(a, b) != sameSite(b, a) {
			t.Errorf("sameSite(%q, %q) depends on the order", a, b)
		}
		if !sameSite(a, a) {
			t.Errorf("%q is not its own site", a)
		}
	})
}
