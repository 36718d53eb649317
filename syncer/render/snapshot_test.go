package render

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cascade-gitops/cascade/e2e/gitserver"
	"github.com/cascade-gitops/cascade/syncer/source"
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
		objects, err := objectsOf(Render(t.Context(), snapshot, Build{Path: path}))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if diff := cmp.Diff(want, namesOf(objects)); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", path, diff)
		}
	}
	// A link that leaves is told by its name, not as a file that is missing.
	_, err = Render(t.Context(), snapshot, Build{Path: "secrets"})
	if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "secrets/out.yaml") {
		t.Errorf("Render() with a link that leaves the repository = %v, want an error that names it", err)
	}
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
		if objects, err := objectsOf(Render(t.Context(), unreadable{files, name}, b)); !errors.Is(err, errDisk) {
			t.Errorf("Render() while %s cannot be read = %v, %v, want the error", name, namesOf(objects), err)
		}
	}
}
