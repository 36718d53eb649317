package artifact

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// special are the characters by which a path is a pattern.
const special = `*?[{\`

// pattern matches paths as Flux's globs do: * and ? are within a directory, ** is any number
// of directories, [a-c] and {a,b} are alternatives. It is a regular expression of Go's, which
// no path makes it match slower than in proportion to the lengths of both.
type pattern struct {
	text string
	re   *regexp.Regexp
}

// parsePattern reads a pattern of a whole path.
func parsePattern(text string) (*pattern, error) {
	t := translator{rest: text}
	if err := t.run(); err != nil {
		return nil, fmt.Errorf("cannot use pattern %q: %w", text, err)
	}
	re, err := regexp.Compile(`(?s)\A(?:` + t.out.String() + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("cannot use pattern %q: it is not valid", text)
	}
	return &pattern{text: text, re: re}, nil
}

// matches reports whether a path matches.
func (p *pattern) matches(effort *source.Effort, path string) (bool, error) {
	if err := effort.Spend(1 + len(p.text)*len(path)>>6); err != nil {
		return false, err
	}
	return p.re.MatchString(path), nil
}

// translator writes a pattern as a regular expression.
type translator struct {
	rest string
	out  strings.Builder
	// groups has for each group that is open whether its alternatives are at the beginning of
	// a name.
	groups []bool
}

var errUnclosed = errors.New("a bracket is not closed")

func (t *translator) run() error {
	begins := true // what follows is the beginning of a name
	for t.rest != "" {
		c := t.rest[0]
		switch {
		case strings.HasPrefix(t.rest, "/**") && endsName(t.rest[3:], len(t.groups) > 0):
			t.out.WriteString(`(?:/.*)?`)
			t.rest, begins = t.rest[3:], false
		case begins && strings.HasPrefix(t.rest, "**/"):
			t.out.WriteString(`(?:.*/)?`)
			t.rest = t.rest[3:]
		case begins && strings.HasPrefix(t.rest, "**") && endsName(t.rest[2:], len(t.groups) > 0):
			t.out.WriteString(`.*`)
			t.rest, begins = t.rest[2:], false
		case c == '*':
			t.out.WriteString(`[^/]*`)
			t.rest, begins = strings.TrimLeft(t.rest, "*"), false
		case c == '?':
			t.out.WriteString(`[^/]`)
			t.rest, begins = t.rest[1:], false
		case c == '[':
			if err := t.class(); err != nil {
				return err
			}
			begins = false
		case c == '{':
			t.out.WriteString(`(?:`)
			t.groups = append(t.groups, begins)
			t.rest = t.rest[1:]
		case c == ',' && len(t.groups) > 0:
			t.out.WriteByte('|')
			t.rest, begins = t.rest[1:], t.groups[len(t.groups)-1]
		case c == '}' && len(t.groups) > 0:
			t.out.WriteByte(')')
			t.groups = t.groups[:len(t.groups)-1]
			t.rest, begins = t.rest[1:], false
		case c == '\\':
			if len(t.rest) == 1 {
				return errors.New("it ends with a backslash")
			}
			t.rest = t.rest[1:]
			t.literal()
			begins = false
		default:
			begins = c == '/'
			t.literal()
		}
	}
	if len(t.groups) > 0 {
		return errUnclosed
	}
	return nil
}

// endsName reports whether what follows two stars ends the name that they are.
func endsName(rest string, inGroup bool) bool {
	return rest == "" || rest[0] == '/' || inGroup && (rest[0] == ',' || rest[0] == '}')
}

// literal writes the next character for itself.
func (t *translator) literal() {
	for n := range t.rest {
		if n > 0 {
			t.out.WriteString(regexp.QuoteMeta(t.rest[:n]))
			t.rest = t.rest[n:]
			return
		}
	}
	t.out.WriteString(regexp.QuoteMeta(t.rest))
	t.rest = ""
}

// class writes the characters in brackets, which never match what separates directories.
func (t *translator) class() error {
	t.rest = t.rest[1:]
	t.out.WriteByte('[')
	if strings.HasPrefix(t.rest, "!") || strings.HasPrefix(t.rest, "^") {
		t.out.WriteString("^/")
		t.rest = t.rest[1:]
	}
	for first := true; ; first = false {
		if !first && strings.HasPrefix(t.rest, "]") {
			t.rest = t.rest[1:]
			t.out.WriteByte(']')
			return nil
		}
		low, err := t.member()
		if err != nil {
			return err
		}
		high := low
		if strings.HasPrefix(t.rest, "-") && !strings.HasPrefix(t.rest, "-]") {
			t.rest = t.rest[1:]
			if high, err = t.member(); err != nil {
				return err
			}
		}
		switch {
		case low > high:
			return errors.New("a range in brackets ends before it begins")
		case low <= '/' && '/' <= high:
			return errors.New("what separates directories is in brackets")
		}
		fmt.Fprintf(&t.out, `\x{%x}-\x{%x}`, low, high)
	}
}

// member is the next character of a class.
func (t *translator) member() (rune, error) {
	t.rest = strings.TrimPrefix(t.rest, `\`)
	for _, r := range t.rest {
		t.rest = t.rest[len(string(r)):]
		return r, nil
	}
	return 0, errUnclosed
}

// split returns the directory that all that a pattern matches is in, and whether it is a
// pattern at all.
func split(text string) (dir string, glob bool) {
	at := strings.IndexAny(text, special)
	if at < 0 {
		return "", false
	}
	return text[:max(0, strings.LastIndexByte(text[:at], '/'))], true
}
