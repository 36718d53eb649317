package artifact

import (
	"path"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source"
)

func TestPattern(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, pattern string
		match, not      []string
	}{
		"Literal":     {"no pattern at all", "a/b.yaml", []string{"a/b.yaml"}, []string{"a/bxyaml", "a/b.yaml/c", "b.yaml"}},
		"Star":        {"within a directory", "a/*.yaml", []string{"a/b.yaml", "a/.yaml"}, []string{"a/b/c.yaml", "b.yaml"}},
		"Dotfile":     {"names that begin with a dot are names", "*", []string{".hidden", "a"}, []string{"a/b"}},
		"Question":    {"one character, of whatever length", "a?", []string{"ab", "aü"}, []string{"a", "a/", "abc"}},
		"Stars":       {"any number of directories, with the one that is named", "a/**", []string{"a", "a/b", "a/b/c"}, []string{"ab", "b/a"}},
		"StarsFirst":  {"also none", "**/a.yaml", []string{"a.yaml", "b/a.yaml", "b/c/a.yaml"}, []string{"ba.yaml", "a.yaml/b"}},
		"StarsMiddle": {"also none", "a/**/b", []string{"a/b", "a/x/b", "a/x/y/b"}, []string{"ab", "a/xb", "a/b/c"}},
		"StarsOnly":   {"everything", "**", []string{"a", "a/b"}, nil},
		"StarsInName": {"two stars that are no name are one", "a**b", []string{"ab", "axb"}, []string{"a/b"}},
		"StarsTwice":  {"the second adds nothing", "a/**/**/b", []string{"a/b", "a/x/b"}, []string{"ab"}},
		"Class":       {"one of several", "[a-c]x[!0-9]", []string{"axy", "cx-"}, []string{"dxy", "ax1", "ax/"}},
		"ClassOdd":    {"characters of regular expressions", "[.\\]^]", []string{".", "]", "^"}, []string{"a"}},
		"Braces":      {"alternatives", "{a,b/c}.y{a,}ml", []string{"a.yaml", "b/c.yml"}, []string{"b.yaml", "c.yaml"}},
		"BracesStars": {"with any number of directories in them", "{**/a,b/**}", []string{"a", "x/y/a", "b", "b/c"}, []string{"xa", "c"}},
		"Nested":      {"alternatives in alternatives", "{a,{b,c}d}", []string{"a", "bd", "cd"}, []string{"b", "ad"}},
		"Comma":       {"outside of braces it is a comma", "a,b", []string{"a,b"}, []string{"a"}},
		"Escaped":     {"a backslash takes the meaning away", `a\*\{b`, []string{"a*{b"}, []string{"ab"}},
		"Regular":     {"no regular expression", "a.(b)+$", []string{"a.(b)+$"}, []string{"axb"}},
		"Newline":     {"names may have any character", "a*b", []string{"a\nb"}, nil},
		"Bytes":       {"that need not be text", "a?b", []string{"a\xffb"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parsePattern(tc.pattern)
			if err != nil {
				t.Fatal(err)
			}
			for want, paths := range map[bool][]string{true: tc.match, false: tc.not} {
				for _, at := range paths {
					if got, err := p.matches(source.NewEffort(t.Context(), plenty), at); err != nil || got != want {
						t.Errorf("%s: %q matches %q: %t, %v", tc.reason, tc.pattern, at, got, err)
					}
				}
			}
		})
	}
	for _, bad := range []string{"[", "[a", "[]", "[a-", "[!", "{a", "{a,{b}", `a\`, "[a/b]", "[.-0]", "[b-a]", "[!a/]"} {
		if _, err := parsePattern(bad); err == nil {
			t.Errorf("pattern %q is taken", bad)
		}
	}
}

// naive matches without braces, by the definition and in exponential time.
func naive(pattern, name []string) bool {
	if len(pattern) == 0 {
		return len(name) == 0
	}
	if pattern[0] == "**" {
		return naive(pattern[1:], name) || len(name) > 0 && naive(pattern, name[1:])
	}
	if len(name) == 0 {
		return false
	}
	ok, err := path.Match(pattern[0], name[0])
	return err == nil && ok && naive(pattern[1:], name[1:])
}

// FuzzPattern: a pattern is refused, or matches as it is defined, and never panics.
func FuzzPattern(f *testing.F) {
	for _, seed := range [][2]string{{"a/**/b*", "a/x/bc"}, {"**", "a"}, {"[a-c]?", "bx"}, {"{a,b}/**", "a/b"}, {`\*`, "*"}, {"a/***/b", "a/b"}, {"**/**", "x"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		if len(text) > 64 || len(name) > 64 {
			return
		}
		p, err := parsePattern(text)
		if err != nil {
			return
		}
		got, err := p.matches(source.NewEffort(t.Context(), plenty), name)
		if err != nil {
			t.Fatal(err)
		}
		// What path.Match and its definition have in common.
		parts := strings.Split(text, "/")
		if strings.ContainsAny(text, "{}[]\\") || strings.Count(text, "**") > 4 || name == "" || strings.HasPrefix(name, "/") || strings.Contains(name, "//") ||
			strings.HasPrefix(text, "/") || strings.Contains(text, "//") || strings.HasSuffix(text, "/") || strings.HasSuffix(name, "/") {
			return
		}
		for n, part := range parts {
			if part != "**" {
				for strings.Contains(part, "**") {
					part = strings.ReplaceAll(part, "**", "*")
				}
				parts[n] = part
			}
		}
		if want := naive(parts, strings.Split(name, "/")); got != want {
			t.Errorf("%q matches %q: %t, want %t", text, name, got, want)
		}
	})
}

// FuzzInside: no path or pattern leads elsewhere.
func FuzzInside(f *testing.F) {
	for _, seed := range []string{"a/b", "../a", "a/../../b", "/a", "./a//b/", "..", "a/..", "...", "a\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := inside(text)
		if err != nil {
			return
		}
		if got != "" && (path.IsAbs(got) || path.Clean(got) != got || got == ".." || strings.HasPrefix(got, "../")) {
			t.Errorf("inside(%q) = %q", text, got)
		}
		if again, err := inside(got); err != nil || again != got {
			t.Errorf("inside(%q) = %q, and then %q, %v", text, got, again, err)
		}
	})
}
