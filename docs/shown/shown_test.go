package shown

import (
	"slices"
	"testing"
)

func TestBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, page string
		want         []Block
		prose        string
	}{
		"Fenced":   {"", "a\n\n```yaml\nb: c\n```\nd\n", []Block{{Line: 4, Language: "yaml", Text: "b: c\n"}}, "a\n\n\n\n\nd\n\n"},
		"Indented": {"a line that is empty is in it", "a\n\n    b\n\n      c\n\nd\n", []Block{{Line: 3, Text: "b\n\n  c\n"}}, "a\n\n\n\n\n\nd\n\n"},
		"InAList":  {"the indentation of the list is not in the block", "1. a\n\n   ```yaml\n   b:\n     c: d\n   ```\n", []Block{{Line: 4, Language: "yaml", Text: "b:\n  c: d\n"}}, "1. a\n\n\n\n\n\n\n"},
		"GoesOn":   {"a line of a paragraph that is indented", "a\n    b\n", nil, "a\n    b\n\n"},
		"Marked": {"by the line above, and no further", "<!-- part of a Layer -->\n```yaml\na: b\n```\n\n```yaml\nc: d\n```\n",
			[]Block{{Line: 3, Language: "yaml", Mark: "part of a Layer", Text: "a: b\n"}, {Line: 7, Language: "yaml", Text: "c: d\n"}}, "<!-- part of a Layer -->\n\n\n\n\n\n\n\n\n"},
		"NoEnd": {"to the end of the page", "```\na\n", []Block{{Line: 2, Text: "a\n"}}, "\n\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			blocks, prose := Blocks(tc.page)
			if !slices.Equal(blocks, tc.want) || prose != tc.prose {
				t.Errorf("%s\ngot %+v and %q\nwant %+v and %q", tc.reason, blocks, prose, tc.want, tc.prose)
			}
		})
	}
}

func TestSimple(t *testing.T) {
	for line, want := range map[string][][]string{
		`A=b p 'q r' "s t" # u`:              {{"p", "q r", "s t"}},
		`p | q && r; s > t 2>&1`:             {{"p"}, {"q"}, {"r"}, {"s"}},
		`p <name> -n <a b> [--kind Child]`:   {{"p", "x", "-n", "x", "--kind", "Child"}},
		`a=$(p q) r "$(s t)" 'no $(u)' v#w`:  {{"p", "q"}, {"s", "t"}, {"r", "x", "no $(u)", "v#w"}},
		`p --set a=b <x/y>... --to=<c d>:80`: {{"p", "--set", "a=b", "x...", "--to=x:80"}},
	} {
		got := simple(line)
		if !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s is %q, want %q", line, got, want)
		}
	}
}
