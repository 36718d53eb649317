package scenario

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Release is the program of another commit.
type Release struct {
	// Dir has the program, cascade.
	Dir string
	// CRDs of the kinds that its agent reconciles.
	CRDs []*unstructured.Unstructured
}

// Commits whose programs tests build.
const (
	// BeforeRecords is a commit before the record of a child was in the child alone: what a
	// parent applied stood in the Child and in one ConfigMap of the child for all layers.
	BeforeRecords = "a8138001f760a517ea970bd60d72bed0b246e805"
	// BeforeValues is one before what an agent is told was one set of values.
	BeforeValues = "c06ebe2c19a3c9fa5889e55ea0dd0618ab51c644"
)

// Earlier builds the program of a commit of this repository, once: it is kept in bin, by
// the name of the commit. That needs the history down to the commit.
func Earlier(t *testing.T, commit string) Release {
	t.Helper()
	dir := Path(t, "bin", "earlier", commit)
	if _, err := os.Stat(dir); err != nil {
		buildEarlier(t, commit, dir)
	}
	files, err := filepath.Glob(filepath.Join(dir, "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no CRDs: %v; delete it, and it is built again", dir, err)
	}
	release := Release{Dir: dir}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := ssautil.ReadObjects(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("cannot parse %s: %v", file, err)
		}
		release.CRDs = append(release.CRDs, objects...)
	}
	return release
}

// buildEarlier builds a commit into a directory, which is there when all of it is.
func buildEarlier(t *testing.T, commit, dir string) {
	t.Helper()
	root := Path(t)
	if _, err := output(t.Context(), root, "git", "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Fatalf("commit %s is not in the history of this clone, and the test builds it: run `git fetch --unshallow`, or `git fetch origin %s`: %v", commit, commit, err)
	}
	t.Logf("building the program of %s; this takes a few minutes", commit)
	tree, made := t.TempDir(), dir+".new"
	archive := filepath.Join(t.TempDir(), "tree.tar")
	for _, step := range [][]string{
		{root, "git", "archive", "-o", archive, commit, "--", ".", ":(exclude)e2e"},
		{tree, "tar", "-xf", archive},
		// As the Makefile builds the program of this commit.
		{tree, "env", "CGO_ENABLED=0", "GOFLAGS=-trimpath", "go", "build", "-p", "2", "-tags", "disable_grpc_modules", "-ldflags", "-s -w -X main.releaseVersion=" + commit[:7], "-o", filepath.Join(made, "cascade"), "./cmd/cascade"},
		{tree, "cp", "-r", "deploy/crds", filepath.Join(made, "crds")},
		{root, "mv", made, dir},
	} {
		if step[1] == "env" {
			if err := os.RemoveAll(made); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := output(t.Context(), step[0], step[1:]...); err != nil {
			t.Fatalf("cannot build the program of %s: %s: %v\n%s", commit, strings.Join(step[1:], " "), err, text)
		}
	}
}

// output runs a program in a directory and returns what it printed.
func output(ctx context.Context, dir string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	return string(text), err
}
