package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/deploy/release/signature"
)

// script stands for the program of this machine.
const script = `#!/bin/sh
case "$1" in
version) echo "cascade v1.2.0" ;;
completion) echo "completion for $2" ;;
install) printf -- '---\nkind: CustomResourceDefinition\nmetadata: {name: a}\n---\nkind: Deployment\nimage: %s\n---\nkind: CustomResourceDefinition\nmetadata: {name: b}\n' "$4" ;;
esac
`

// payload stands for the agent in an image: a small program of Go, of whose modules
// documents can be made.
func payload(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cascade")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", file, "./sbom/testdata/program")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return file
}

// bench is a checkout with what the Makefile has built in it.
func bench(t *testing.T) assets {
	t.Helper()
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	for name, text := range map[string]string{
		"CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-09-01\n\n### Added\n\n- all\n",
		"LICENSE":      "license", "bin/cascade": script,
		"bin/platforms/linux-amd64/cascade": "a", "bin/platforms/linux-arm64/cascade": "b", "bin/platforms/windows-amd64/cascade.exe": "c",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o755), os.WriteFile(at(name), []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	o := imageOptions{binaries: map[string]string{"amd64": payload(t)}, layout: at("bin/image"), created: 1_788_264_000}
	o.description.Version, o.description.Revision, o.description.Source = "v1.2.0", "0123", "https://example.org/cascade"
	if _, err := o.write(); err != nil {
		t.Fatal(err)
	}
	return assets{
		version: "v1.2.0", created: time.Unix(o.created, 0).UTC(), dir: at("bin/release"), sources: root, program: at("bin/cascade"),
		platforms: at("bin/platforms"), layout: at("bin/image"), repository: "example.org/team/cascade", source: "https://example.org/cascade",
		downloads: "https://example.org/v1.2.0",
	}
}

func (a assets) names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (a assets) content(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAssets(t *testing.T) {
	a := bench(t)
	if err := a.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cascade-completion.bash", "cascade-completion.fish", "cascade-completion.ps1", "cascade-completion.zsh",
		"cascade_v1.2.0_linux_amd64.cdx.json", "cascade_v1.2.0_linux_amd64.spdx.json", "cascade_v1.2.0_linux_amd64.tar.gz",
		"cascade_v1.2.0_linux_arm64.tar.gz", "cascade_v1.2.0_windows_amd64.zip", "checksums.txt", "crds.yaml", "install.yaml", "krew.yaml",
		"kubectl-cascade_v1.2.0_linux_amd64.tar.gz", "kubectl-cascade_v1.2.0_linux_arm64.tar.gz", "kubectl-cascade_v1.2.0_windows_amd64.zip", "notes.md",
	}
	if diff := cmp.Diff(want, a.names(t)); diff != "" {
		t.Errorf("files: -want, +got:\n%s", diff)
	}
	if got := a.content(t, "notes.md"); got != "### Added\n\n- all\n" {
		t.Errorf("notes are %q", got)
	}
	if got := a.content(t, "cascade-completion.ps1"); got != "completion for powershell\n" {
		t.Errorf("the completion of PowerShell is %q", got)
	}
	if got := a.content(t, "install.yaml"); !strings.Contains(got, "image: example.org/team/cascade:v1.2.0@sha256:") {
		t.Errorf("install.yaml does not name the image by its digest:\n%s", got)
	}
	if got := a.content(t, "crds.yaml"); got != "---\nkind: CustomResourceDefinition\nmetadata: {name: a}\n---\nkind: CustomResourceDefinition\nmetadata: {name: b}\n" {
		t.Errorf("crds.yaml is\n%s", got)
	}
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", "--strict", "checksums.txt")
	check.Dir = a.dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	if lines := strings.Count(a.content(t, "checksums.txt"), "\n"); lines != len(want)-1 {
		t.Errorf("%d checksums of %d files", lines, len(want)-1)
	}

	// The manifest of krew says the checksums that the archives have.
	var plugin struct {
		Spec struct {
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal([]byte(a.content(t, "krew.yaml")), &plugin); err != nil {
		t.Fatal(err)
	}
	for _, p := range plugin.Spec.Platforms {
		line := p.SHA256 + "  " + strings.TrimPrefix(p.URI, "https://example.org/v1.2.0/") + "\n"
		if !strings.Contains(a.content(t, "checksums.txt"), line) || !strings.HasPrefix(p.Bin, "kubectl-cascade") {
			t.Errorf("krew installs %+v", p)
		}
	}
}

// TestAssetsAgain: the same release made twice is the same, and nothing of an older one
// is left.
func TestAssetsAgain(t *testing.T) {
	a := bench(t)
	if err := a.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := a.content(t, "checksums.txt")
	if err := os.WriteFile(filepath.Join(a.dir, "old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, a.content(t, "checksums.txt")); diff != "" {
		t.Errorf("-first, +second:\n%s", diff)
	}
}

func TestSignedChecksums(t *testing.T) {
	a := bench(t)
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte("s3cret"), nil })
	if err != nil {
		t.Fatal(err)
	}
	a.key = filepath.Join(a.sources, "cosign.key")
	public := filepath.Join(a.sources, "cosign.pub")
	if err := errors.Join(os.WriteFile(a.key, keys.PrivateBytes, 0o600), os.WriteFile(public, keys.PublicBytes, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COSIGN_PASSWORD", "s3cret")
	if err := a.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, err := signature.PublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := signature.VerifyFile(t.Context(), filepath.Join(a.dir, "checksums.txt"), []byte(a.content(t, "checksums.txt.sigstore.json")), key); err != nil {
		t.Error(err)
	}
}

// TestChart: the agent's chart is part of the release when it is part of the checkout.
func TestChart(t *testing.T) {
	a := bench(t)
	dir := filepath.Join(a.sources, "deploy", "charts", "cascade")
	values, err := os.ReadFile(filepath.Join("..", "charts", "cascade", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "values.yaml"), values, 0o600),
		os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte("apiVersion: v2\nname: cascade\nversion: 0.0.0\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := a.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(a.names(t), "cascade-1.2.0.tgz") {
		t.Errorf("files are %q", a.names(t))
	}
}

func TestAssetsRefused(t *testing.T) {
	good := bench(t)
	for name, tc := range map[string]struct {
		reason string
		change func(*assets)
		says   string
	}{
		"Notes":    {"nobody knows what is new", func(a *assets) { a.version = "v1.3.0" }, "[1.3.0]"},
		"Early":    {"nothing is new since the last release", func(a *assets) { a.version = "v1.2.0-rc.1" }, "cannot use the notes"},
		"Program":  {"a program that was not built", func(a *assets) { a.program += "x" }, "cannot run cascade version"},
		"Layout":   {"an image that was not made", func(a *assets) { a.layout += "x" }, "make image"},
		"Platform": {"something else among the programs", func(a *assets) { a.platforms = filepath.Dir(a.platforms) }, "is not that of a platform"},
	} {
		t.Run(name, func(t *testing.T) {
			a := good
			tc.change(&a)
			if err := a.write(context.Background()); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
	a := good
	if err := os.WriteFile(a.program, bytes.ReplaceAll([]byte(script), []byte("v1.2.0"), []byte("v1.1.0")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.write(t.Context()); err == nil || !strings.Contains(err.Error(), "VERSION=v1.2.0") {
		t.Errorf("a program of another version is released: %v", err)
	}
	if err := os.WriteFile(a.program, bytes.ReplaceAll([]byte(script), []byte("%s"), []byte("other")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := a.write(t.Context()); err == nil || !strings.Contains(err.Error(), "the image is not") {
		t.Errorf("manifests of another image are released: %v", err)
	}
}

func TestDated(t *testing.T) {
	if _, err := dated(0); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("a release without a time: %v", err)
	}
}
