package main

import (
	"strings"
	"testing"
	"time"
)

// TestReport: parts and tests are told apart, a test's time begins when it had a place,
// and what failed is counted once.
func TestReport(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	for _, e := range []event{
		{Time: at(0), Action: "run", Test: "TestA"},
		{Time: at(10), Action: "attr", Test: "TestA", Key: "waited"},
		{Time: at(10), Action: "run", Test: "TestA/Part"},
		{Time: at(11), Action: "output", Test: "TestA/Part", Output: "what went wrong\n"},
		{Time: at(15), Action: "fail", Test: "TestA/Part", Elapsed: 5},
		{Time: at(16), Action: "pass", Test: "TestA/Brief", Elapsed: 1},
		{Time: at(17), Action: "fail", Test: "TestA", Elapsed: 2},
		{Time: at(17), Action: "skip", Test: "TestB"},
	} {
		r.add("suite", e)
	}
	if failed := r.summary(time.Minute, time.Second); failed != 1 || !r.hasFailed("suite") || r.hasFailed("other") {
		t.Errorf("%d failed", failed)
	}
	for _, want := range []string{
		"FAIL  suite     TestA/Part (5.0 s)\nwhat went wrong\n", "FAIL  suite     TestA (7.0 s)\n", "SKIP  suite     TestB", "3 tests in 60 s, of which 1 s to build them; 1 failed, 1 skipped\nFAIL  suite TestA/Part\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "TestA/Brief") {
		t.Errorf("a brief part has a line:\n%s", out.String())
	}
	if got, want := r.lines(), "suite TestA fail 7.0\nsuite TestA/Brief pass 1.0\nsuite TestA/Part fail 5.0\nsuite TestB skip "; !strings.HasPrefix(got, want) {
		t.Errorf("the lines are\n%s", got)
	}
}
