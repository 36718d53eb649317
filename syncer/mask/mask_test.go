package mask

import (
	"errors"
	"fmt"
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
