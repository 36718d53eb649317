package main

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sigstore/cosign/v3/pkg/cosign"
)

// run is a call of the command line.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestCommands: an image is made, pushed and signed by the commands of the Makefile.
func TestCommands(t *testing.T) {
	self, dir := payload(t), t.TempDir()
	layout := filepath.Join(dir, "image")
	digest, err := run(t, "image", "--binary", "amd64="+self, "--binary", "arm64="+self, "--to", layout, "--version", "v1.2.0",
		"--revision", "0123", "--source", "https://example.org/cascade", "--created", "1788264000")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	repository := strings.TrimPrefix(server.URL, "http://") + "/team/cascade"

	key := filepath.Join(dir, "cosign.key")
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte("s3cret"), nil })
	if err := errors.Join(err, os.WriteFile(key, keys.PrivateBytes, 0o600)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COSIGN_PASSWORD", "s3cret")
	sign := []string{"sign", "--layout", layout, "--repository", repository, "--key", key}
	if _, err := run(t, sign...); err == nil || !strings.Contains(err.Error(), "push it first") {
		t.Errorf("what was not pushed is signed: %v", err)
	}
	reference, err := run(t, "push", "--layout", layout, "--repository", repository)
	if err != nil || reference != repository+"@"+digest {
		t.Fatalf("pushed as %q, %v; the digest is %q", reference, err, digest)
	}
	for _, want := range []string{" signed\n", " was signed before\n"} {
		out, err := run(t, sign...)
		// The index, two images, and two documents of each.
		if err != nil || strings.Count(out, want) != 7 || strings.Count(out, "\n") != 7 {
			t.Errorf("%v, printed:\n%s", err, out)
		}
	}
	if _, err := run(t, "push", "--layout", layout, "--repository", "cascade", "--tag", "x"); err == nil || !strings.Contains(err.Error(), "host/path") {
		t.Errorf("a repository without a host: %v", err)
	}
	if out, err := run(t, "notes", "--version", "v0.1.0-rc.1", "--sources", "../.."); err != nil || !strings.HasPrefix(out, "### ") {
		t.Errorf("notes are %q, %v", out, err)
	}
	if _, err := run(t, "rootfs", "--binary", self, "--to", filepath.Join(dir, "rootfs")); err != nil {
		t.Error(err)
	}
}
