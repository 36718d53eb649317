package main

import (
	"bytes"
	"testing"
)

// TestPlain: what a terminal would take for a command is written so that it can be read.
func TestPlain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		writes []string
		want   string
	}{
		"Text":      {"text stays, in any language", []string{"apps\tbereit ✓\nгород\n"}, "apps\tbereit ✓\nгород\n"},
		"Escape":    {"a sequence that clears the screen", []string{"a\x1b[2Jb"}, `a\x1b[2Jb`},
		"C1":        {"the same in one character", []string{"a\u009b2Jb"}, `a\x9b2Jb`},
		"Return":    {"it would write over the line", []string{"PruneBlocked\rReady"}, `PruneBlocked\x0dReady`},
		"Direction": {"a name that reads backwards", []string{"a\u202etxt"}, `a\u202etxt`},
		"Invalid":   {"bytes that are no text", []string{"a\xffb"}, `a\xffb`},
		"Split":     {"a character comes in two writes", []string{"a\xe2", "\x9c\x93b"}, "a✓b"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := &plain{to: &out}
			for _, text := range tc.writes {
				if n, err := p.Write([]byte(text)); err != nil || n != len(text) {
					t.Fatalf("Write() = %d, %v", n, err)
				}
			}
			if out.String() != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, out.String(), tc.want)
			}
		})
	}
}
