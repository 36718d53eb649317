package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteFiles writes files below a directory.
func WriteFiles(dir string, files map[string]string) error {
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ChangeFiles writes files below a directory; one without content is removed.
func ChangeFiles(dir string, files map[string]string) error {
	written := map[string]string{}
	for name, text := range files {
		if text != "" {
			written[name] = text
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return WriteFiles(dir, written)
}

// ReplaceIn replaces a text in a file, which must have it.
func ReplaceIn(file, before, after string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), before) {
		return fmt.Errorf("%s does not have %q", file, before)
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(data), before, after)), 0o644)
}
