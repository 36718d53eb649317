package source

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// TestFromClone: a commit of a clone is the same snapshot as one that was fetched, with the
// ignore rules, and a clone is found from any directory of it.
func TestFromClone(t *testing.T) {
	dir := t.TempDir()
	repository, err := git.PlainInit(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := repository.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	commit := func(name, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Add(name); err != nil {
			t.Fatal(err)
		}
		who := &object.Signature{Name: "jane", When: time.Unix(1000, 0)}
		hash, err := tree.Commit("Write "+name+"\n\nand why.", &git.CommitOptions{Author: who})
		if err != nil {
			t.Fatal(err)
		}
		return hash.String()
	}
	first := commit("a/x.yaml", "one")
	commit(".sourceignore", "b/\n")
	second := commit("b/y.yaml", "two")
	if err := os.WriteFile(filepath.Join(dir, "a", "untracked.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clone, err := OpenClone(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{"HEAD": second, "HEAD~2": first, "master": second, second: second} {
		if got, err := clone.Commit(words); err != nil || got != want {
			t.Errorf("Commit(%s) = %s, %v, want %s", words, got, err, want)
		}
	}
	if _, err := clone.Commit("nothing"); err == nil {
		t.Error("a branch that does not exist is a commit")
	}
	mirrors := NewMirrors(t.TempDir(), 1<<20)
	s, err := mirrors.FromClone(t.Context(), clone, second, Origin{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Revision != "sha1:"+second || s.Commit != second || s.Subject != "Write b/y.yaml" {
		t.Errorf("the snapshot is of %s, %s: %s", s.Revision, s.Commit, s.Subject)
	}
	if data, err := s.ReadFile("a/x.yaml"); err != nil || string(data) != "one" {
		t.Errorf("a/x.yaml is %q, %v", data, err)
	}
	for _, name := range []string{"b/y.yaml", "a/untracked.yaml"} {
		if _, err := s.ReadFile(name); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	missing := plumbing.ComputeHash(plumbing.CommitObject, nil).String()
	if _, err := mirrors.FromClone(t.Context(), clone, missing, Origin{}, Options{}); err == nil || clone.Has(missing) || clone.Has("main") {
		t.Error("a commit that the clone lacks is there")
	}
	if _, err := OpenClone(t.TempDir()); !errors.Is(err, ErrNoClone) {
		t.Errorf("a directory that is in no clone is one: %v", err)
	}
}
