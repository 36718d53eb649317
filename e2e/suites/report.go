package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/e2e/scenario/plan"
)

// brief is how long a part of a test takes at most that is not worth a line.
const brief = 5 * time.Second

// report prints results as they come, and remembers them.
type report struct {
	mu     sync.Mutex
	out    io.Writer
	tests  []result
	output map[string][]string
	// began is when a test that is no part of another had what it waited for.
	began map[string]time.Time
}

type result struct {
	suite, test, status string
	took                time.Duration
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string][]string{}, began: map[string]time.Time{}}
}

// add takes note of an event of a test. What a test printed is shown if it failed.
func (r *report) add(suite string, e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Action {
	case "output":
		r.output[e.Test] = append(r.output[e.Test], e.Output)
	case "run":
		r.began[e.Test] = e.Time
	case "attr":
		if e.Key == plan.Waited {
			r.began[e.Test] = e.Time
		}
	case "pass", "fail", "skip":
		// What go test says leaves out the parts that run beside each other.
		took := time.Duration(e.Elapsed * float64(time.Second))
		if !strings.Contains(e.Test, "/") {
			took = e.Time.Sub(r.began[e.Test])
		}
		r.tests = append(r.tests, result{suite, e.Test, e.Action, took})
		if e.Action == "pass" && strings.Contains(e.Test, "/") && took < brief {
			break
		}
		fmt.Fprintf(r.out, "%s  %-9s %s (%.1f s)\n", strings.ToUpper(e.Action), suite, e.Test, took.Seconds())
		if e.Action != "pass" {
			fmt.Fprint(r.out, strings.Join(r.output[e.Test], ""))
		}
	}
}

func (r *report) hasFailed(suite string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.tests, func(t result) bool { return t.suite == suite && t.status == "fail" })
}

// lines are the results, sorted by name.
func (r *report) lines() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.tests, func(a, b result) int { return cmp.Or(cmp.Compare(a.suite, b.suite), cmp.Compare(a.test, b.test)) })
	var b strings.Builder
	for _, t := range r.tests {
		fmt.Fprintf(&b, "%s %s %s %.1f\n", t.suite, t.test, t.status, t.took.Seconds())
	}
	return b.String()
}

// summary prints how many there were and what failed, and returns how many that are.
// A part that failed is counted, and not again the test that it is of.
func (r *report) summary(all, built time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed []string
	tests, skipped := 0, 0
	for _, t := range r.tests {
		isParent := slices.ContainsFunc(r.tests, func(part result) bool { return part.suite == t.suite && strings.HasPrefix(part.test, t.test+"/") })
		if isParent {
			continue
		}
		tests++
		switch t.status {
		case "skip":
			skipped++
		case "fail":
			failed = append(failed, t.suite+" "+t.test)
		}
	}
	for _, t := range r.tests {
		// A test may fail although all its parts passed.
		name := t.suite + " " + t.test
		if t.status == "fail" && !slices.ContainsFunc(failed, func(f string) bool { return f == name || strings.HasPrefix(f, name+"/") }) {
			failed = append(failed, name)
		}
	}
	fmt.Fprintf(r.out, "\n%d tests in %.0f s, of which %.0f s to build them; %d failed, %d skipped\n", tests, all.Seconds(), built.Seconds(), len(failed), skipped)
	for _, name := range failed {
		fmt.Fprintln(r.out, "FAIL ", name)
	}
	return len(failed)
}
