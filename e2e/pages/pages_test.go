package pages

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const page = "# Page\n\nDo this:\n\n" +
	"```console\n$ one\nprinted\n\n$ two <<EOF\n> more\n> EOF\n> quoted\n```\n\n" +
	"Save this as `a/b.yaml`:\n\n```yaml\nkind: A\n```\n\n" +
	"<!-- not run: needs a cloud -->\n```console\n$ three\n```\n\n" +
	"<!-- fails -->\n```console\n$ four\n```\nThe end.\n"

func TestParse(t *testing.T) {
	got, err := Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	want := []Block{
		{Line: 5, Language: "console", Text: "$ one\nprinted\n\n$ two <<EOF\n> more\n> EOF\n> quoted\n", Commands: []Command{
			{Line: 6, Text: "one", Output: "printed\n\n"}, {Line: 9, Text: "two <<EOF\nmore\nEOF\nquoted"},
		}},
		{Line: 17, Language: "yaml", Text: "kind: A\n", File: "a/b.yaml"},
		{Line: 22, Language: "console", Text: "$ three\n", NotRun: "needs a cloud", Commands: []Command{{Line: 23, Text: "three"}}},
		{Line: 27, Language: "console", Text: "$ four\n", Fails: true, Commands: []Command{{Line: 28, Text: "four"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	for i, b := range got {
		if b.Language == "console" && Console(b.Commands) != b.Text {
			t.Errorf("block %d is written as\n%s", i, Console(b.Commands))
		}
	}
	got[0].Text = "$ other\n"
	replaced, err := Replace(page, got)
	if err != nil || replaced != strings.Replace(page, want[0].Text, "$ other\n", 1) {
		t.Errorf("%v: the page becomes\n%s", err, replaced)
	}
}

// TestNothingGoesUnseen: what no test would run is an error.
func TestNothingGoesUnseen(t *testing.T) {
	for _, tc := range []struct{ reason, page, want string }{
		{"another language", "```sh\nrm -rf .\n```\n", "line 1: the language of a block is console or yaml"},
		{"no language", "```\nx\n```\n", "line 1: the language of a block"},
		{"no fence", "Do:\n\n    cascade install\n", "line 3: a block without a fence"},
		{"a reason that nobody gives", "<!-- not run: -->\n```yaml\na: b\n```\n", "line 2: comment \"not run:\" says nothing"},
		{"a comment that is misspelt", "<!-- notrun: x -->\n```yaml\na: b\n```\n", "says nothing to a test"},
		{"a comment that is not above a block", "<!-- fails -->\n\ntext\n```yaml\na: b\n```\n", "stands above no block"},
		{"a manifest that fails", "<!-- fails -->\n```yaml\na: b\n```\n", "only commands fail"},
		{"output of nobody", "```console\nprinted\n```\n", "line 2: there is no command before it"},
		{"no end", "```console\n$ a\n", "line 1: the block has no end"},
	} {
		if _, err := Parse(tc.page); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: it is %v, want %q", tc.reason, err, tc.want)
		}
	}
}

func TestShell(t *testing.T) {
	s, err := NewShell(t.TempDir(), []string{"PATH=/usr/bin:/bin", "HOME=/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, tc := range []struct {
		reason, command, want string
		code                  int
	}{
		{"a directory is entered", "mkdir a && cd a && A=b", "", 0},
		{"and stays, as variables do", "echo ${PWD##*/} $A", "a b\n", 0},
		{"errors are printed as well, in their place", "echo x; echo y >&2; false", "x\ny\n", 1},
		{"what ends without a line break", "printf x", "x", 0},
		{"a command that reads does not get what comes next", "cat; cat <<'EOF'\n$A\nEOF", "$A\n", 0},
	} {
		if out, code, err := s.Run(t.Context(), tc.command); err != nil || out != tc.want || code != tc.code {
			t.Errorf("%s: it prints %q and ends with %d: %v", tc.reason, out, code, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := s.Run(ctx, "sleep 1000"); err == nil {
		t.Error("a command that does not end is waited for")
	}
}

func TestSteady(t *testing.T) {
	for _, tc := range []struct{ reason, a, b string }{
		{"another commit", "main@sha1:b2a5ae01", "main@sha1:000c1ffd8831d625af843d1781e90995a1789259"},
		{"another version", "agent devel: 1 of 1", "agent v0.1.0: 1 of 1"},
		{"wider columns and another age", "podinfo   1/1     1            1           35s", "podinfo 1/1 1 1 2m3s"},
		{"another pod", "pod cascade-584d65569c-j6t85", "pod cascade-7f9b8c6d5-bbcdf"},
		{"it waits for two", "► waiting for pods: a\ndone\n", "► waiting for pods: a\n► waiting for pods: b\ndone\n"},
		{"another address", "ClusterIP   10.96.13.114   <none>", "ClusterIP 10.107.3.4 <none>"},
	} {
		if a, b := Steady(tc.a), Steady(tc.b); a != b {
			t.Errorf("%s: %q is not %q", tc.reason, a, b)
		}
	}
	if Steady("1 of 1 replicas") == Steady("0 of 1 replicas") {
		t.Error("a number that counts is taken for one that varies")
	}
}
