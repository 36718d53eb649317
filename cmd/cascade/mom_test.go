package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindMom(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		beside, path bool
		want         string
	}{
		"Beside": {"both were unpacked into one directory", true, true, "beside"},
		"Path":   {"they were installed by a packager", false, true, "path"},
		"None":   {"it is a download of its own", false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, place := range []struct {
				name  string
				there bool
			}{{"beside", tc.beside}, {"path", tc.path}} {
				if err := os.Mkdir(filepath.Join(dir, place.name), 0o755); err != nil {
					t.Fatal(err)
				}
				if !place.there {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, place.name, momProgram), nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", filepath.Join(dir, "path"))
			got, err := findMom(filepath.Join(dir, "beside"))
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), "make mom") {
					t.Errorf("%s: got %s, %v", tc.reason, got, err)
				}
				return
			}
			if err != nil || got != filepath.Join(dir, tc.want, momProgram) {
				t.Errorf("%s: got %s, %v", tc.reason, got, err)
			}
		})
	}
}
