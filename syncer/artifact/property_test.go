package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
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
		From: "@" + []string{"a", "b"}[r.IntN(2)] + "/" + []string{"**", "", "d/**", "d/", "d", "d/e", "x.yaml", "d/x.yaml", "*.yaml", "d/*.yaml", "d/**/x.yaml", "**/z.md", "f/?.yaml", "{d,f}/*"}[r.IntN(14)],
		To:   "@artifact/" + []string{"", "", "o/", "o/", "o", "o/p", "x.yaml", "d/e/"}[r.IntN(8)],
	}
	if r.IntN(3) == 0 {
		c.Exclude = [][]string{{"*.md"}, {"e/**"}, {"**/x.yaml"}, {"d/x.yaml"}, {"*.yaml", "nothing"}}[r.IntN(5)]
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
		into := to == "" || strings.HasSuffix(to, "/")
		files := trees[alias]
		some := false
		put := func(full, below, at string) error {
			some = true
			for _, x := range op.Exclude {
				parts := strings.Split(x, "/")
				if len(parts) == 1 {
					if naive(parts, []string{filepath.Base(full)}) {
						return nil
					}
				} else if naive(parts, strings.Split(full, "/")) || naive(parts, strings.Split(below, "/")) {
					return nil
				}
			}
			at = filepath.Join(out, at)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				return err
			}
			return os.WriteFile(at, []byte(files[full]), 0o600)
		}
		var err error
		for _, full := range slices.Sorted(maps.Keys(files)) {
			switch {
			case strings.ContainsAny(from, "*?{"):
				base := from[:strings.IndexAny(from, "*?{")]
				base = base[:strings.LastIndex(base, "/")+1]
				matches := false
				for _, alternative := range [][2]string{{"{d,f}", "d"}, {"{d,f}", "f"}} {
					matches = matches || naive(strings.Split(strings.Replace(from, alternative[0], alternative[1], 1), "/"), strings.Split(full, "/"))
				}
				if matches {
					err = errors.Join(err, put(full, strings.TrimPrefix(full, base), filepath.Join(to, strings.TrimPrefix(full, base))))
				}
			case full == from:
				at := to
				if into {
					at = filepath.Join(to, filepath.Base(full))
				}
				err = errors.Join(err, put(full, filepath.Base(full), at))
			case from == "" || strings.HasPrefix(full, strings.TrimSuffix(from, "/")+"/"):
				dir := strings.TrimSuffix(from, "/")
				below := strings.TrimPrefix(strings.TrimPrefix(full, dir), "/")
				at := filepath.Join(to, below)
				if into && dir != "" {
					at = filepath.Join(to, filepath.Base(dir), below)
				}
				err = errors.Join(err, put(full, below, at))
			}
		}
		if !some {
			err = errors.Join(err, fs.ErrNotExist)
		}
		if err != nil {
			return nil, err
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
