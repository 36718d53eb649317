package artifact

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestComposeEqualsCopy: what is composed of trees is what copies of the same files on a disk
// come to, for random trees and operations, and its digest tells contents apart.
func TestComposeEqualsCopy(t *testing.T) {
	digests := map[string]string{}
	refused, done := 0, 0
	for seed := range uint64(250) {
		random := rand.New(rand.NewPCG(seed, 76))
		trees := map[string]map[string]string{"a": randomTree(random), "b": randomTree(random)}
		g := generator()
		for range 1 + random.IntN(5) {
			g.Spec.OutputArtifacts[0].Copy = append(g.Spec.OutputArtifacts[0].Copy, randomCopy(random))
		}
		what := fmt.Sprintf("seed %d: %+v of %q", seed, g.Spec.OutputArtifacts[0].Copy, trees)
		want, wantErr := copyOnDisk(t, g, trees)
		got, err := composeAll(t, g, plenty, map[string]*source.Snapshot{"a": snapshotOf(t, "a", trees["a"]), "b": snapshotOf(t, "b", trees["b"])})
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%s: compose() = %v, copying %v", what, err, wantErr)
		}
		if err != nil {
			refused++
			continue
		}
		done++
		files := filesOf(t, got)
		if !maps.Equal(files, want) {
			t.Fatalf("%s:\nfiles %q\nwant  %q", what, files, want)
		}
		content := fmt.Sprintf("%q", files) // maps are printed by their keys
		if known, ok := digests[content]; ok && known != got.Digest {
			t.Errorf("%s: the same files have two digests", what)
		}
		digests[content] = got.Digest
	}
	seen := map[string]string{}
	for content, digest := range digests {
		if other, ok := seen[digest]; ok {
			t.Errorf("%s and %s have one digest", content, other)
		}
		seen[digest] = content
	}
	if done < 60 || refused < 20 {
		t.Errorf("%d were composed, and %d refused: the table is of little use", done, refused)
	}
}

func randomTree(r *rand.Rand) map[string]string {
	dirs := []string{"", "d/", "d/e/", "f/"}
	files := map[string]string{}
	for range 1 + r.IntN(8) {
		files[dirs[r.IntN(len(dirs))]+[]string{"x.yaml", "y.yaml", "z.md"}[r.IntN(3)]] = fmt.Sprint(r.IntN(5))
	}
	return files
}

func randomCopy(r *rand.Rand) generatorv1.CopyOperation {
	c := generatorv1.CopyOperation{
		From: "@" + []string{"a", "b"}[r.IntN(2)] + "/" + []string{"**", "", "d/**", "d/", "d", "d/e", "x.yaml", "d/x.yaml", "*.yaml", "d/*.yaml", "d/**/x.yaml", "**/z.md", "f/?.yaml", "{d,f}/*", "*", "?/**", "d/*", "**/?"}[r.IntN(18)],
		To:   "@artifact/" + []string{"", "", "o/", "o/", "o", "o/p", "x.yaml", "d/e/", "d"}[r.IntN(9)],
	}
	if r.IntN(3) == 0 {
		c.Exclude = [][]string{{"*.md"}, {"e/**"}, {"**/x.yaml"}, {"d/x.yaml"}, {"*.yaml", "nothing"}, {"e"}, {"d/e"}}[r.IntN(7)]
	}
	return c
}

// copyOnDisk carries the copy operations out with files.
func copyOnDisk(t *testing.T, g *generatorv1.ArtifactGenerator, trees map[string]map[string]string) (map[string]string, error) {
	t.Helper()
	out := t.TempDir()
	for _, op := range g.Spec.OutputArtifacts[0].Copy {
		alias, from, _ := strings.Cut(strings.TrimPrefix(op.From, "@"), "/")
		to := strings.TrimPrefix(op.To, "@artifact/")
		files := trees[alias]
		glob := strings.ContainsAny(from, "*?{")
		from = strings.TrimSuffix(from, "/")
		base, lost := from, path.Dir(from)
		if glob {
			base, lost = path.Dir(from[:strings.IndexAny(from, "*?{")]+"x"), "."
			if from == base+"/**" {
				lost = base
			}
		}
		if from == "" {
			base, lost = ".", "."
		}
		// What is selected: one level of what /** is about, with all that is in it.
		selects := func(at string) bool {
			if !glob {
				return at == from || from == ""
			}
			for _, dir := range []string{"d", "f"} {
				one := strings.Split(strings.Replace(from, "{d,f}", dir, 1), "/")
				if one[len(one)-1] == "**" {
					one[len(one)-1] = "*"
				}
				if naive(one, strings.Split(at, "/")) {
					return true
				}
			}
			return false
		}
		excluded := func(at string) bool {
			for _, x := range op.Exclude {
				parts := strings.Split(x, "/")
				below, _ := strings.CutPrefix(at, base+"/")
				if len(parts) == 1 && naive(parts, []string{path.Base(at)}) || naive(parts, strings.Split(at, "/")) || naive(parts, strings.Split(below, "/")) {
					return true
				}
			}
			return false
		}
		some, kept := false, false
		for _, full := range slices.Sorted(maps.Keys(files)) {
			parts := strings.Split(full, "/")
			selected, left := -1, false
			for n := range parts {
				at := strings.Join(parts[:n+1], "/")
				if selected < 0 {
					if !selects(at) {
						continue
					}
					selected, some = n, true
					// A directory that is named is not excluded itself.
					left = (glob || n == len(parts)-1 || from == "") && excluded(at)
					kept = kept || !left
					continue
				}
				left = left || excluded(at)
			}
			if selected < 0 || left {
				continue
			}
			at, err := filepath.Rel(lost, full)
			if err != nil {
				t.Fatal(err)
			}
			at = filepath.Join(out, to, at)
			if !glob && full == from {
				if info, err := os.Stat(filepath.Join(out, to)); !strings.HasSuffix(to, "/") && (err != nil || !info.IsDir()) {
					at = filepath.Join(out, to)
				}
			}
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				return nil, err
			}
			if err := os.WriteFile(at, []byte(files[full]), 0o600); err != nil {
				return nil, err
			}
		}
		if !some || glob && !kept {
			return nil, fs.ErrNotExist
		}
	}
	got := map[string]string{}
	err := filepath.WalkDir(out, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(at)
		name, _ := filepath.Rel(out, at)
		got[name] = string(data)
		return err
	})
	return got, err
}
