//go:build linux

package payload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// packed is a payload with one program and one provider.
func packed(t *testing.T, program string) (*Payload, string) {
	t.Helper()
	dir, to := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"program": program, "one/provider.yaml": "name: one\n", "one/crds.yaml": "a: b\n", "one/kustomization.yaml": "no\n", "one/README.md": "no\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	err := Pack(to, Contents{Programs: map[string]string{"tool": filepath.Join(dir, "program")}, Providers: []string{filepath.Join(dir, "one")}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(os.DirFS(to))
	if err != nil {
		t.Fatal(err)
	}
	return p, to
}

func TestUnpack(t *testing.T) {
	const program = "#!/bin/sh\necho hello\n"
	for name, tc := range map[string]struct {
		reason string
		before func(t *testing.T, file string)
	}{
		"Empty": {"a first use", func(*testing.T, string) {}},
		"There": {"a second use", func(t *testing.T, file string) { write(t, file, program, programMode) }},
		"Broken": {"a disk that was full, or somebody who wrote there", func(t *testing.T, file string) {
			write(t, file, strings.Replace(program, "hello", "HELLO", 1), programMode)
		}},
		"Short": {"a copy that ended early", func(t *testing.T, file string) { write(t, file, program[:5], programMode) }},
		"Mode":  {"a file that may be changed is not trusted", func(t *testing.T, file string) { write(t, file, program, 0o755) }},
		"Link": {"a link leads to what nobody verified", func(t *testing.T, file string) {
			if err := os.Symlink("/bin/true", file); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := packed(t, program)
			cache := t.TempDir()
			dir := filepath.Join(cache, p.ID())
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			tc.before(t, filepath.Join(dir, "tool"))
			got, err := p.Unpack(t.Context(), cache)
			if err != nil || got != dir {
				t.Fatalf("%s: %s, %v", tc.reason, got, err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "tool"))
			if err != nil || string(text) != program {
				t.Errorf("%s: %q, %v", tc.reason, text, err)
			}
			info, err := os.Lstat(filepath.Join(dir, "tool"))
			if err != nil || info.Mode() != programMode {
				t.Errorf("%s: mode %v, %v", tc.reason, info.Mode(), err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("%s: %v is left, %v", tc.reason, left, err)
			}
		})
	}
}

func write(t *testing.T, file, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Run("OthersWrite", func(t *testing.T) {
		p, _ := packed(t, "x")
		cache := t.TempDir()
		dir := filepath.Join(cache, p.ID())
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Unpack(t.Context(), cache); err == nil || !strings.Contains(err.Error(), "others may write there") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Damaged", func(t *testing.T) {
		p, to := packed(t, "first")
		_, other := packed(t, "other")
		text, err := os.ReadFile(filepath.Join(other, programsDir, "tool"+compressed))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(to, programsDir, "tool"+compressed), string(text), 0o644)
		cache := t.TempDir()
		if _, err := p.Unpack(t.Context(), cache); err == nil || !strings.Contains(err.Error(), "this build is damaged") {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(filepath.Join(cache, p.ID(), "tool")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a program that is not what it should be is there: %v", err)
		}
	})
	t.Run("Ended", func(t *testing.T) {
		p, _ := packed(t, "first")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Unpack(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOpen(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for name, tc := range map[string]struct{ reason, index, want string }{
		"NoJSON":   {"a file that is cut", `{"programs": [`, "cannot parse index"},
		"Outside":  {"a name must not lead out of the cache", `{"programs": [{"name": "../sh", "sha256": "` + digest + `", "size": 1}]}`, "no name of a file"},
		"Dot":      {"nor be the cache itself", `{"programs": [{"name": ".", "sha256": "` + digest + `", "size": 1}]}`, "no name of a file"},
		"NoDigest": {"what is not known cannot be verified", `{"programs": [{"name": "a", "sha256": "12", "size": 1}]}`, "no digest"},
		"Size":     {"a size bounds what is written", `{"programs": [{"name": "a", "sha256": "` + digest + `", "size": 99999999999}]}`, "too many"},
		"Provider": {"a provider is a directory of the payload", `{"providers": ["a/../.."]}`, "no name of a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(fstest.MapFS{indexFile: {Data: []byte(tc.index)}})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
	if _, err := Open(fstest.MapFS{}); !errors.Is(err, ErrEmpty) {
		t.Errorf("a build without programs: %v", err)
	}
}

func TestPack(t *testing.T) {
	first, dir := packed(t, "same")
	second, _ := packed(t, "same")
	if first.ID() != second.ID() {
		t.Error("the same contents make two payloads")
	}
	third, _ := packed(t, "other")
	if first.ID() == third.ID() {
		t.Error("two payloads have one name")
	}
	if !first.Has("tool") || first.Has("none") {
		t.Errorf("programs are %v", first.Index.Programs)
	}
	entries, err := os.ReadDir(filepath.Join(dir, providersDir, "one"))
	if err != nil || len(entries) != 2 {
		t.Errorf("of a provider there are %v, %v", entries, err)
	}
}
