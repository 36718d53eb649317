package pattern

import (
	"regexp/syntax"
	"strings"
	"testing"
)

func TestCompile(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, text string
		fails        string
	}{
		"Version":   {"what people write", `^v?(?P<major>\d+)\.(\d+)\.(\d+)(-rc\.\d+)?$`, ""},
		"Digest":    {"a repeat of one class", `^sha256-[a-f0-9]{64}\.(sig|att|sbom)$`, ""},
		"Thousand":  {"the most that Go repeats", `^\w{1,1000}$`, ""},
		"Letters":   {"a large class that repeats is there once", `\p{L}{0,500}`, ""},
		"Literal":   {"the longest text", strings.Repeat("a", mostBytes), ""},
		"Options":   {"the most options", strings.Repeat("ab|", 1300) + "c", ""},
		"Long":      {"a text is bounded", strings.Repeat("a", mostBytes+1), "more than 4096 bytes"},
		"None":      {"what is no expression", "(", "missing closing"},
		"Repeats":   {"a short text that is three million steps", "(?:" + strings.Repeat(".?", 1600) + "){1000}", "repeats too much"},
		"Open":      {"the same without a most", "(?:" + strings.Repeat("a", 1600) + "){1000,}", "repeats too much"},
		"Optional":  {"what may be left out is made as well", "(?:abcdef){0,1000}", "repeats too much"},
		"Nested":    {"repeats of repeats", "(?:(?:abcdef){30}){33}", "repeats too much"},
		"Classes":   {"large classes take memory without repeats", strings.Repeat(`\pL`, 1300), "repeats too much"},
		"Multiples": {"what Go refuses itself", "((a{100}){100}){100}", "invalid repeat count"},
	} {
		t.Run(name, func(t *testing.T) {
			re, steps, err := Compile(tt.text)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("%s: Compile() = %v, want an error with %q", tt.reason, err, tt.fails)
				}
				return
			}
			if err != nil || re.String() != tt.text {
				t.Fatalf("%s: Compile() = %v, %v", tt.reason, re, err)
			}
			parsed, _ := syntax.Parse(tt.text, syntax.Perl)
			prog, _ := syntax.Compile(parsed.Simplify())
			if len(prog.Inst) > steps+2 {
				t.Errorf("%s: %d instructions were made of %d steps", tt.reason, len(prog.Inst), steps)
			}
		})
	}
}
