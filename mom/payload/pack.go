package payload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Contents is what Pack packs.
type Contents struct {
	// Programs are files by the names that they get.
	Programs map[string]string
	// Providers are directories with a provider.yaml and manifests, in the order in which they
	// are started. The base of each is its name.
	Providers []string
}

// Pack writes a payload into a directory, in place of the one that is there. The same contents
// make the same files.
func Pack(to string, c Contents) error {
	for _, name := range []string{indexFile, programsDir, providersDir} {
		if err := os.RemoveAll(filepath.Join(to, name)); err != nil {
			return fmt.Errorf("cannot remove the old payload: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(to, programsDir), 0o755); err != nil {
		return fmt.Errorf("cannot make payload: %w", err)
	}
	index := Index{Programs: []Program{}, Providers: []string{}}
	names := make([]string, 0, len(c.Programs))
	for name := range c.Programs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		program, err := pack(c.Programs[name], filepath.Join(to, programsDir, name+compressed), name)
		if err != nil {
			return err
		}
		index.Programs = append(index.Programs, program)
	}
	for _, dir := range c.Providers {
		name := filepath.Base(dir)
		if err := copyManifests(filepath.Join(to, providersDir, name), dir); err != nil {
			return err
		}
		index.Providers = append(index.Providers, name)
	}
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode index of programs: %w", err)
	}
	// It comes last: a payload that is not complete has none.
	if err := os.WriteFile(filepath.Join(to, indexFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("cannot write index of programs: %w", err)
	}
	return nil
}

func pack(from, to, name string) (_ Program, err error) {
	in, err := os.Open(from)
	if err != nil {
		return Program{}, fmt.Errorf("cannot read program %s: %w", name, err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return Program{}, fmt.Errorf("cannot pack program %s: %w", name, err)
	}
	defer func() {
		if closed := out.Close(); err == nil && closed != nil {
			err = fmt.Errorf("cannot pack program %s: %w", name, closed)
		}
	}()
	writer, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Program{}, fmt.Errorf("cannot pack program %s: %w", name, err)
	}
	digest := sha256.New()
	size, err := io.Copy(io.MultiWriter(writer, digest), in)
	if closed := writer.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return Program{}, fmt.Errorf("cannot pack program %s: %w", name, err)
	}
	program := Program{Name: name, SHA256: hex.EncodeToString(digest.Sum(nil)), Size: size}
	return program, program.check()
}

// copyManifests copies the YAML files of a directory. Nothing else of a module is embedded.
func copyManifests(to, from string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return fmt.Errorf("cannot list manifests: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("cannot pack manifests: %w", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("cannot pack manifests: %w", err)
		}
		if name := filepath.Base(file); strings.HasPrefix(name, "kustom") {
			continue // of the module's own overlays
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o644); err != nil {
			return fmt.Errorf("cannot pack manifests: %w", err)
		}
	}
	return nil
}
