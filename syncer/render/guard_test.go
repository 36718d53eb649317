package render

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/kyaml/kio"
)

// laughs is YAML of which each level holds the one before it width times.
func laughs(levels, width int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "a0: &a0 [%s]\n", strings.TrimSuffix(strings.Repeat("x,", width), ","))
	for i := 1; i < levels; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), width), ","))
	}
	return b.String()
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		yaml    string
		refused bool
	}{
		"Empty":         {"nothing is not hostile", "", false},
		"Ordinary":      {"what people write", manifest("a", "k", "v"), false},
		"SelfReference": {"threat V1: kills the process, cannot be recovered from", "data: &a {k: *a}\n", true},
		"SelfInList":    {"the same by way of a list", "data: &a [1, *a]\n", true},
		"SelfInKey":     {"an alias may be a key as well", "data: &a {? *a : v}\n", true},
		"Merge":         {"a merge key is followed like any alias", "data: &a\n  <<: *a\n", true},
		"Mutual":        {"a longer way round", "a: &a {b: &b {c: *a}}\n", true},
		"Laughs":        {"threat V2: 389 bytes become gigabytes", laughs(9, 9), true},
		"FewLaughs":     {"aliases that expand to something reasonable are YAML like any other", laughs(4, 5), false},
		"Anchors":       {"people share blocks this way", "a: &shared {x: 1}\nb: *shared\nc:\n  <<: *shared\n", false},
		"Deep":          {"recursion over the depth costs stack", strings.Repeat("[", 2*MaxDepth) + strings.Repeat("]", 2*MaxDepth), true},
		"DeepMaps":      {"the same with maps", strings.Repeat("{a: ", 2*MaxDepth) + strings.Repeat("}", 2*MaxDepth), true},
		"DeepBlocks":    {"the same without a bracket, as indentation", deepBlocks(2 * MaxDepth), true},
		"DeepList":      {"the same in one line, as a list", strings.Repeat("- ", 2*MaxDepth) + "x\n", true},
		"DeepKeys":      {"the same as keys of keys", strings.Repeat("? ", 2*MaxDepth) + "x\n", true},
		"DeepMixed":     {"the same in turns", strings.Repeat("- ? ", MaxDepth) + "x\n", true},
		"DeepTabs":      {"a tab is no indentation: the library refuses it", strings.Repeat("-\t", 2*MaxDepth) + "x\n", false},
		"DeepHalves":    {"half of it as indentation, half as brackets", deepBlocks(MaxDepth*3/5) + strings.Repeat(" ", MaxDepth*3/5) + strings.Repeat("[", MaxDepth*3/5) + strings.Repeat("]", MaxDepth*3/5) + "\n", true},
		"DeepEnough":    {"far below the limit", deepBlocks(100), false},
		"SecondOf":      {"a stream has more than one document", manifest("a") + "---\ndata: &a {k: *a}\n", true},
		"AfterBroken":   {"kyaml splits before it parses, so a broken document does not protect those after it", "a: [\n---\ndata: &a {k: *a}\n", true},
		"AfterDots":     {"no reader goes on after dots without a new separator", "a: 1\n...\ndata: &a {k: *a}\n", false},
		"AfterDotsAnew": {"with one they do", "a: 1\n...\n---\ndata: &a {k: *a}\n", true},
		"SameLine":      {"a document may begin in the line of its separator", "a: 1\n--- &a {k: *a}\n", true},
		"InBlockScalar": {
			"kyaml splits at a separator in a block scalar too, where a YAML parser sees text",
			"text: |\n  line\n---\ndata: &a {k: *a}\n", true,
		},
		"IndentedSeparator": {"an indented separator is text to both", "text: |\n  ---\n  data: &a {k: *a}\n", false},
		"CarriageReturns":   {"other line ends are line ends too", "a: 1\r\n---\r\ndata: &a {k: *a}\r\n", true},
		"ByteOrderMark":     {"UTF-16 is YAML too", utf16("data: &a {k: *a}\n"), true},
		"HTML":              {"generators take files of any kind", "<a href=\"?x=1&y=2\">&amp;</a>\n", false},
		"Shell":             {"the same", "#!/bin/sh\nexec 2>&1\ncmd && other &\n", false},
		"Binary":            {"the same", "\x00\x01&\xff\xfe[[[[{{{{\x00", false},
		"Text":              {"an ampersand in a value is no anchor", "url: http://x/?a=1&b=2\n", false},
		"Twice":             {"YAML libraries report each pair of the same fields", strings.Repeat("a: 1\n", 2*MaxTwice), true},
		"TwiceInBraces":     {"keys in braces need no colon", "a: {" + strings.Repeat("a,", 2*MaxTwice) + "}\n", true},
		"ManyInBraces":      {"YAML libraries compare each field with each", "a: {" + numbers(2*MaxKeys) + "}\n", true},
		"FewInBraces":       {"far below the limits", "a: [" + strings.Repeat("{a,b},", 2*MaxTwice) + "{" + numbers(2*MaxTwice) + "}]\n", false},
		"Undefined":         {"a syntax error is for the library to report", "a: *nowhere & &\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check([]byte(tc.yaml))
			if got := errors.Is(err, ErrHostile); got != tc.refused || (err != nil && !got) {
				t.Errorf("%s\nCheck() = %v, want it refused: %t", tc.reason, err, tc.refused)
			}
		})
	}
}

// numbers from 0 on, with commas.
func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()
}

func deepBlocks(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func utf16(s string) string {
	out := []byte{0xff, 0xfe}
	for _, c := range []byte(s) {
		out = append(out, c, 0)
	}
	return string(out)
}

// FuzzCheck: whatever passes the guard must not crash the process or take it
// over when kyaml reads it as kustomize does. A recoverable panic is an error of
// the one rendering and is fine.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		manifest("a", "k", "v"), "data: &a {k: *a}\n", laughs(4, 4), "a: &a\n  <<: *a\n", "a: [\n---\n--- &a {k: *a}\n",
		"a: 1\n---\n---\t&a {k: *a}\n", "kind: List\nitems:\n- &a {b: 1}\n- *a\n", deepBlocks(20), "? ? ? a\n", "%YAML 1.1\n---\n&a [*a]\n", "!!binary &a\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		added, err := Added(data)
		if err != nil || added > 10_000 {
			return
		}
		_ = guarded(func() error {
			_, err := kio.FromBytes(data)
			return err
		})
	})
}

// TestNodes: what is counted of a text is no less than what a parser makes of it.
func TestNodes(t *testing.T) {
	const n = 1000
	for _, text := range []string{
		"a: {" + strings.Repeat("b,", n) + "}", "a: {" + strings.Repeat("b: c,", n) + "}", "a: [" + strings.Repeat("b,", n) + "]", "a: [" + strings.Repeat("b:,", n) + "]",
		strings.Repeat("- a\n", n), strings.Repeat("-\n", n), strings.Repeat("-\r", n), strings.Repeat("-\ta\r", n), strings.Repeat("- a\r\n", n),
		strings.Repeat("-\u0085", n), strings.Repeat("-\u2028", n), strings.Repeat("-\u2029", n), strings.Repeat("? a\n", n), strings.Repeat("?\r", n),
		strings.Repeat("- - - a\n", n), strings.Repeat("- a: b\n", n), strings.Repeat("- ? a\n", n), strings.Repeat("- [{}]\n", n), strings.Repeat("---\n", n), strings.Repeat("---\r", n), strings.Repeat("--- a\n", n),
		utf16(strings.Repeat("- a\n", n)), utf16(strings.Repeat("-\r", n)),
	} {
		made := 0
		var count func(n *yaml.Node)
		count = func(n *yaml.Node) {
			made++
			for _, child := range n.Content {
				count(child)
			}
		}
		decoder := yaml.NewDecoder(strings.NewReader(text))
		for {
			var doc yaml.Node
			if err := decoder.Decode(&doc); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Logf("%.20q: %v", text, err)
				}
				break
			}
			count(&doc)
		}
		if counted := Nodes([]byte(text)); counted+10 < made {
			t.Errorf("%.20q is %d nodes, and counted as %d", text, made, counted)
		}
	}
}

// TestCheckManifests: what aliases add counts for all documents together, as all of them are kept.
func TestCheckManifests(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, yaml string
		refused      bool
	}{
		"Ordinary": {"what people write", manifest("a", "k", "v"), false},
		"Aliases":  {"one document is below the bound", laughs(6, 9), false},
		"Together": {"two of them are not", laughs(6, 9) + "---\n" + laughs(6, 9), true},
		"Cycle":    {"what Check refuses", "a: &a [*a]", true},
		"Dense":    {"without any alias", "a: [" + strings.Repeat("b,", MaxNodes) + "]", true},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := CheckManifests([]byte(tc.yaml))
			if errors.Is(err, ErrHostile) != tc.refused || (err == nil) == tc.refused || err == nil && n < strings.Count(tc.yaml, "\n") {
				t.Errorf("%s: CheckManifests() = %d, %v", tc.reason, n, err)
			}
		})
	}
	if n, err := CheckManifests([]byte(laughs(6, 9))); err != nil || n < MaxNodes/2 {
		t.Errorf("CheckManifests() = %d, %v, want those that aliases add among them", n, err)
	}
}

// TestCheckWithin: nodes are counted with those that aliases add.
func TestCheckWithin(t *testing.T) {
	const most = 10_000
	for name, tc := range map[string]struct {
		reason  string
		yaml    string
		refused bool
	}{
		"Few":      {"what people write", manifest("a", "k", "v"), false},
		"Flat":     {"a list of short texts", "a: [" + strings.Repeat("b,", most) + "]", true},
		"Braces":   {"in braces each text is two", "a: {" + strings.Repeat("b,", most*6/10) + "}", true},
		"Laughs":   {"what aliases add", laughs(5, 9), true},
		"Anchors":  {"aliases that add little", laughs(3, 9), false},
		"Infinite": {"what Check refuses", "data: &a {k: *a}\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := CheckWithin([]byte(tc.yaml), most); errors.Is(err, ErrHostile) != tc.refused {
				t.Errorf("%s: CheckWithin() = %v", tc.reason, err)
			}
		})
	}
}
