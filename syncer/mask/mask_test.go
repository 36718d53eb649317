package mask

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

func TestError(t *testing.T) {
	cause := errors.New("cause")
	for name, c := range map[string]struct {
		reason    string
		err       error
		sensitive []string
		want      string
	}{
		"value":   {"a Secret's value reached the error of a library", fmt.Errorf("cannot parse hunter22: %w", cause), []string{"hunter22"}, "cannot parse *****: cause"},
		"several": {"each of them, each time", fmt.Errorf("abcd efgh abcd: %w", cause), []string{"abcd", "efgh"}, "***** ***** *****: cause"},
		"short":   {"a value of a letter would make every message unreadable", fmt.Errorf("a plain message: %w", cause), []string{"a"}, "a plain message: cause"},
		"newline": {"substitution takes newlines out", fmt.Errorf("cannot parse hunter22 hunter22line: %w", cause), []string{"hunter22\n", "hunter22\nline"}, "cannot parse ***** *****: cause"},
		"lines":   {"a parser quotes one line", fmt.Errorf("line 2: MIIEpAIBAAKC: %w", cause), []string{"-----BEGIN-----\nMIIEpAIBAAKC\n"}, "line 2: *****: cause"},
		"go":      {"as %q writes it", fmt.Errorf("bad %q: %w", "pass\"wo\\rd\tend", cause), []string{"pass\"wo\\rd\tend"}, "bad \"*****\": cause"},
		"twice":   {"an error in an error", fmt.Errorf("bad %q: %w", fmt.Sprintf("%q", `pa"ss\word`), cause), []string{`pa"ss\word`}, `bad "\"*****\"": cause`},
		"json":    {"as an API server writes it", fmt.Errorf(`bad "a\u003cb\u0026c": %w`, cause), []string{"a<b&c"}, `bad "*****": cause`},
		"yaml":    {"in single quotes", fmt.Errorf("bad 'it''s me': %w", cause), []string{"it's me"}, "bad '*****': cause"},
		"base64":  {"as a Secret has it", fmt.Errorf("bad aHVudGVyMjI=: %w", cause), []string{"hunter22"}, "bad *****: cause"},
		"overlap": {"one is a part of another", fmt.Errorf("hunter22extra: %w", cause), []string{"hunter22", "hunter22extra"}, "*****: cause"},
		"none":    {"nothing sensitive, nothing changed", fmt.Errorf("plain: %w", cause), nil, "plain: cause"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Error(c.err, c.sensitive)
			if got.Error() != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
			if !errors.Is(got, cause) {
				t.Errorf("the error lost its cause")
			}
		})
	}
	if Error(nil, []string{"abcd"}) != nil {
		t.Error("no error became one")
	}
}

// TestMany: a tenant chooses how many values there are, and how long they are. One text takes a bounded time, and no
// memory for what is not in it.
func TestMany(t *testing.T) {
	many := make([]string, 100_000)
	for i := range many {
		many[i] = fmt.Sprintf("v%d", i+1000)
	}
	for name, c := range map[string]struct {
		reason     string
		values     []string
		text, want string
	}{
		"Values":   {"a data set has so many", many, "cannot apply v50000", "cannot apply *****"},
		"Lines":    {"each line of a file is looked for", []string{strings.Repeat("a line of words\n", 100_000) + "-----BEGIN-----\n"}, "line 1: -----BEGIN-----", "line 1: *****"},
		"Long":     {"a value that is longer than the text is not in it", []string{strings.Repeat("x", 8<<20), "hunter22"}, "bad hunter22", "bad *****"},
		"TooMany":  {"a long text, in which so many would be looked for", many, strings.Repeat("a long text ", 10_000) + "v50000", withheld},
		"Unlisted": {"any text may have one of them", []string{"hunter22", Unlisted}, "bad hunter33", withheld},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := Texts(c.values)(c.text)
			runtime.ReadMemStats(&after)
			if got != c.want {
				t.Errorf("%s: got %.100q, want %q", c.reason, got, c.want)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
				t.Errorf("%s: %d MiB of memory were used", c.reason, took>>20)
			}
		})
	}
}
