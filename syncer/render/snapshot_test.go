package render

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// TestRenderSnapshot renders what a real repository holds.
func TestRenderSnapshot(t *testing.T) {
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Commit(t.Context(), "fleet", "main", "all", func(folder string) error {
		for name, content := range map[string]string{
			"apps/kustomization.yaml": "resources: [../base, linked.yaml]\n", "base/kustomization.yaml": "resources: [a.yaml]\n", "base/a.yaml": manifest("a"), "base/real.yaml": manifest("real"),
			"secrets/kustomization.yaml": "resources: [out.yaml]\n", "plain/b.yaml": manifest("b"), "plain/ignored.yaml": "no: manifest\n", ".sourceignore": "plain/ignored.yaml\n",
		} {
			at := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
				return err
			}
		}
		for name, to := range map[string]string{"apps/linked.yaml": "../base/real.yaml", "secrets/out.yaml": "../../../../../../etc/passwd", "plain/linked.yaml": "../base/a.yaml"} {
			if err := os.Symlink(to, filepath.Join(folder, name)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	snapshot, err := source.NewMirrors(t.TempDir(), 1<<20).Fetch(t.Context(), source.Origin{URL: server.HTTPURL("fleet")}, source.Reference{Branch: "main"}, source.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		"apps":  {"ConfigMap//a", "ConfigMap//real"},
		"plain": {"ConfigMap//b"},
	} {
		objects, err := objectsOf(rendered(t.Context(), snapshot, Build{Path: path}))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff(want, namesOf(objects)); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", path, diff)
		}
	}
	// A link that leaves is told by its name, not as a file that is missing.
	_, err = rendered(t.Context(), snapshot, Build{Path: "secrets"})
	if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "secrets/out.yaml") {
		t.Errorf("Render() with a link that leaves the repository = %v, want an error that names it", err)
	}
}

// TestHostileLinks: symbolic links that lead out, in circles, or far, in places
// where kustomize follows them.
func TestHostileLinks(t *testing.T) {
	server, err := gitserver.Start(t.Context(), gitserver.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		files  map[string]string // "-> x" is a link to x
		has    string            // in the error, "" for none
		want   []string
	}{
		"circle":      {"two links to each other", map[string]string{"kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": "-> b.yaml", "b.yaml": "-> a.yaml"}, "symbolic links", nil},
		"itself":      {"a link to itself", map[string]string{"kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": "-> a.yaml"}, "symbolic links", nil},
		"absolute":    {"a file of the host", map[string]string{"kustomization.yaml": "configMapGenerator: [{name: g, files: [passwd]}]\n", "passwd": "-> /etc/passwd"}, "leaves the repository", nil},
		"up":          {"the same by a way up", map[string]string{"kustomization.yaml": "secretGenerator: [{name: g, files: [k=passwd]}]\n", "passwd": "-> ../../../../../../../../etc/passwd"}, "leaves the repository", nil},
		"directory":   {"a directory of the host as a base", map[string]string{"kustomization.yaml": "resources: [host]\n", "host": "-> ../../../etc"}, "leaves the repository", nil},
		"through":     {"a file through a directory that leads out", map[string]string{"kustomization.yaml": "resources: [host/passwd]\n", "host": "-> /etc"}, "leaves the repository", nil},
		"kustomized":  {"the kustomization file itself", map[string]string{"kustomization.yaml": "-> /etc/passwd", "a.yaml": manifest("a")}, "leaves the repository", nil},
		"below":       {"that of a base", map[string]string{"kustomization.yaml": "resources: [b]\n", "b/kustomization.yaml": "-> /etc/passwd"}, "leaves the repository", nil},
		"patched":     {"a patch", map[string]string{"kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p}]\n", "a.yaml": manifest("a"), "p": "-> /proc/self/environ"}, "leaves the repository", nil},
		"dangling":    {"nothing is at its end", map[string]string{"kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": "-> gone.yaml"}, "a.yaml", nil},
		"parent":      {"a base that is a link to what names it", map[string]string{"kustomization.yaml": "resources: [b]\n", "b/kustomization.yaml": "resources: [c]\n", "b/c": "-> .."}, "b/c", nil},
		"walked":      {"a plain directory is not left by a link", map[string]string{"a.yaml": manifest("a"), "l.yaml": "-> /etc/passwd", "d": "-> .."}, "", []string{"ConfigMap//a"}},
		"base":        {"a link to a base that is there", map[string]string{"kustomization.yaml": "resources: [l]\n", "l": "-> b", "b/kustomization.yaml": "resources: [a.yaml]\n", "b/a.yaml": manifest("a")}, "", []string{"ConfigMap//a"}},
		"chain":       {"links that lead to links", map[string]string{"kustomization.yaml": "resources: [a.yaml]\n", "a.yaml": "-> b.yaml", "b.yaml": "-> c.yaml", "c.yaml": manifest("a")}, "", []string{"ConfigMap//a"}},
		"longest":     {"more of them than anyone needs", links(20), "symbolic links", nil},
		"generatedin": {"a generator that reads a link inside", map[string]string{"kustomization.yaml": "configMapGenerator: [{name: g, files: [x], options: {disableNameSuffixHash: true}}]\n", "x": "-> y", "y": "text"}, "", []string{"ConfigMap//g"}},
	}
	if _, err := server.Commit(t.Context(), "fleet", "main", "all", func(folder string) error {
		for name, tc := range cases {
			for file, content := range tc.files {
				at := filepath.Join(folder, name, file)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					return err
				}
				var err error
				if to, ok := strings.CutPrefix(content, "-> "); ok {
					err = os.Symlink(to, at)
				} else {
					err = os.WriteFile(at, []byte(content), 0o644)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	snapshot, err := source.NewMirrors(t.TempDir(), 1<<20).Fetch(t.Context(), source.Origin{URL: server.HTTPURL("fleet")}, source.Reference{Branch: "main"}, source.Options{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			objects, err := objectsOf(rendered(t.Context(), snapshot, Build{Path: name}))
			if tc.has == "" {
				if diff := cmp.Diff(tc.want, namesOf(objects)); err != nil || diff != "" {
					t.Errorf("%s\nRender(): %v, -want, +got:\n%s", tc.reason, err, diff)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.has) || strings.Contains(err.Error(), "root:x:0") {
				t.Errorf("%s\nRender() = %v, %v, want an error that names %q", tc.reason, namesOf(objects), err, tc.has)
			}
		})
	}
}

// links are n links, each to the next.
func links(n int) map[string]string {
	files := map[string]string{"kustomization.yaml": "resources: [l0.yaml]\n"}
	for i := range n {
		files[fmt.Sprintf("l%d.yaml", i)] = fmt.Sprintf("-> l%d.yaml", i+1)
	}
	files[fmt.Sprintf("l%d.yaml", n)] = manifest("a")
	return files
}

// unreadable is a tree in which nothing of one name can be read for a while.
type unreadable struct {
	tree
	name string
}

var errDisk = errors.New("input/output error")

func (u unreadable) Stat(name string) (bool, string, error) {
	if u.at(name) == u.name {
		return false, "", errDisk
	}
	return u.tree.Stat(name)
}

// TestUnknownIsNotAbsent: INV5. A kustomization file, or a component, that
// cannot be read now must not make another, smaller rendering.
func TestUnknownIsNotAbsent(t *testing.T) {
	files := tree{"kustomization.yaml": "resources: [a.yaml, b.yaml]\nnamePrefix: x-\n", "a.yaml": manifest("a"), "b.yaml": manifest("b"), "c/kustomization.yaml": "kind: Component\n"}
	for name, b := range map[string]Build{"kustomization.yaml": {}, "c": {Components: []string{"c"}, IgnoreMissingComponents: true}} {
		if objects, err := objectsOf(rendered(t.Context(), unreadable{files, name}, b)); !errors.Is(err, errDisk) {
			t.Errorf("Render() while %s cannot be read = %v, %v, want the error", name, namesOf(objects), err)
		}
	}
}
