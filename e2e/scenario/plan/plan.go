// Package plan reads e2e/scenarios.txt: how long each test with control planes takes,
// and what of it make test runs. It is the one place that says so.
package plan

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// File is where the plan is, below e2e/. It has one line for each test: its name, the
// seconds that it takes on two cores, and what of it make test runs. That is "all",
// "-" for nothing, or patterns of its parts, separated by commas, as go test -run has
// them behind the name.
const File = "scenarios.txt"

// Waited is the attribute of a test that says when it had a place on the machine, and
// after how many seconds.
const Waited = "waited"

// Test is what the plan says of one.
type Test struct {
	// Seconds that it takes.
	Seconds int
	// Landing is what make test runs of it.
	Landing string
}

// Marks of Landing besides a pattern.
const (
	all  = "all"
	none = "-"
)

// Read reads the plan, by the names of tests.
func Read(file string) (map[string]Test, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the plan of tests: %w", err)
	}
	tests, err := parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	return tests, nil
}

func parse(text string) (map[string]Test, error) {
	tests := map[string]Test{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q has not three fields", strings.TrimSpace(line))
		}
		seconds, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, err
		}
		if _, twice := tests[fields[0]]; twice {
			return nil, fmt.Errorf("%s is there twice", fields[0])
		}
		tests[fields[0]] = Test{Seconds: seconds, Landing: fields[2]}
	}
	return tests, nil
}

// Pattern is what go test -run needs to run what make test runs.
func Pattern(tests map[string]Test) string {
	var patterns []string
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		switch landing := tests[name].Landing; landing {
		case none:
		case all:
			patterns = append(patterns, "^"+name+"$")
		default:
			for part := range strings.SplitSeq(landing, ",") {
				patterns = append(patterns, "^"+name+"$/"+part)
			}
		}
	}
	return strings.Join(patterns, "|")
}

// NotLanding names what make test does not run, or not all of.
func NotLanding(tests map[string]Test) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		switch tests[name].Landing {
		case all:
		case none:
			names = append(names, name)
		default:
			names = append(names, "the rest of "+name)
		}
	}
	return names
}
