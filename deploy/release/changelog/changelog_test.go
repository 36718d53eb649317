package changelog

import (
	"os"
	"strings"
	"testing"
)

const text = `# Changelog

Words about the file.

## [Unreleased]

### Added

- one

## [1.1.0] - 2026-09-01

### Fixed

- two

[1.1.0]: https://example.org/v1.1.0

## [1.0.0] - 2026-08-01
`

func TestNotes(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, version, want, says string
	}{
		"Release":  {"links that only the file needs are left out", "v1.1.0", "### Fixed\n\n- two\n", ""},
		"Early":    {"what is tried before a release has the notes of what comes", "v1.2.0-rc.1", "### Added\n\n- one\n", ""},
		"Missing":  {"no release without notes", "v1.2.0", "", "[1.2.0]"},
		"Empty":    {"nor with none", "v1.0.0", "", "there are none"},
		"OfOthers": {"a part of a number is none", "v1.1", "", "cannot find"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Notes(text, tc.version)
			if got != tc.want || (err == nil) != (tc.says == "") || (err != nil && !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%s: Notes() = %q, %v", tc.reason, got, err)
			}
		})
	}
}

// TestOurs: the repository's own file has notes for the next release.
func TestOurs(t *testing.T) {
	ours, err := os.ReadFile("../../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	notes, err := Notes(string(ours), "v999.0.0-rc.1")
	if err != nil || !strings.HasPrefix(notes, "### ") {
		t.Errorf("notes are %q, %v", notes, err)
	}
}
