package wording

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPlain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, text string
		most         int
		want         string
	}{
		"Text":     {"what is text stays", "cannot apply: <b>no</b> & 日本", 100, "cannot apply: <b>no</b> & 日本"},
		"Lines":    {"it is one line", " a\n\tb  c\n", 100, "a b c"},
		"Terminal": {"what a terminal obeys is shown", "a\x1b[2Jb", 100, `a\u001b[2Jb`},
		"Bidi":     {"nothing turns the direction", "a\u202eb", 100, `a\u202eb`},
		"Hidden":   {"nothing is invisible", "a\u200bb", 100, `a\u200bb`},
		"Cut":      {"it is bounded", "abcdef", 4, "abc…"},
		"Fits":     {"what fits is not cut", "abcd", 4, "abcd"},
		"Long":     {"what is much too long is cut before it is looked at", strings.Repeat("é", 1000), 4, "ééé…"},
		"Invalid":  {"bytes that are no text", "a\xffb", 100, "a\ufffdb"},
		"Empty":    {"nothing", "", 4, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Plain(tc.text, tc.most); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("a\x1b[2J\u202e\n b", 5)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 1 || most > 10000 {
			return
		}
		got := Plain(text, most)
		if n := utf8.RuneCountInString(got); n > most {
			t.Errorf("%d characters of %d", n, most)
		}
		for _, r := range got {
			if Commands(r) {
				t.Errorf("%q has %q", got, r)
			}
		}
	})
}

func TestArgument(t *testing.T) {
	for word, want := range map[string]string{
		"main@sha1:0123":  "main@sha1:0123",
		"":                "''",
		"a b":             "'a b'",
		"x;rm -rf $HOME'": `'x;rm -rf $HOME'\'''`,
		"-n":              "-n",
	} {
		if got := Argument(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
