package plan

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario/subtests"
)

func TestPattern(t *testing.T) {
	tests, err := parse("# comment\nTestA 10 all\nTestB 20 -\n\nTestC 30 ^Wall$,^Rows$/^(One|Two)$\n")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Pattern(tests), `^TestA$|^TestC$/^Wall$|^TestC$/^Rows$/^(One|Two)$`; got != want {
		t.Errorf("the pattern is %q, want %q", got, want)
	}
	if got, want := NotLanding(tests), []string{"TestB", "the rest of TestC"}; !slices.Equal(got, want) {
		t.Errorf("not landing: %q, want %q", got, want)
	}
}

func TestRefused(t *testing.T) {
	for reason, text := range map[string]string{
		"a field is missing": "TestA 10\n", "a field is too many": "TestA 10 all more\n", "seconds are no number": "TestA ten all\n", "a test is there twice": "TestA 1 all\nTestA 2 -\n",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s, and it is read", reason)
		}
	}
}

// TestEveryTestIsPlanned: the plan has the tests of the suites and no others, and of
// their parts it names some that are there.
func TestEveryTestIsPlanned(t *testing.T) {
	tests, err := Read(filepath.Join("..", "..", File))
	if err != nil {
		t.Fatal(err)
	}
	mains, err := filepath.Glob(filepath.Join("..", "..", "*", "main_test.go"))
	if err != nil || len(mains) < 5 {
		t.Fatalf("there are suites %q: %v", mains, err)
	}
	suites := map[string]*subtests.Package{}
	for _, main := range mains {
		suite, err := subtests.Parse(filepath.Dir(main))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range suite.Tests() {
			suites[name] = suite
			if _, ok := tests[name]; !ok {
				t.Errorf("%s has %s, which is not in %s", filepath.Dir(main), name, File)
			}
		}
	}
	for name, test := range tests {
		suite := suites[name]
		if suite == nil {
			t.Errorf("%s has %s, which no suite has", File, name)
			continue
		}
		if test.Landing == all || test.Landing == none {
			continue
		}
		parts := suite.Names(name)
		for pattern := range strings.SplitSeq(test.Landing, ",") {
			for _, part := range named(name, pattern) {
				if !slices.Contains(parts, part) {
					t.Errorf("%s has %s, which is no part of the test", File, part)
				}
			}
		}
	}
}

// named are the parts of a test that a pattern names one by one.
func named(test, pattern string) []string {
	names := []string{test}
	for level := range strings.SplitSeq(pattern, "/") {
		var deeper []string
		for _, name := range names {
			for _, word := range regexp.MustCompile(`\w+`).FindAllString(level, -1) {
				deeper = append(deeper, name+"/"+word)
			}
		}
		names = deeper
	}
	return names
}
