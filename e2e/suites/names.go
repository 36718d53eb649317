package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// compareCommand fails if a test of OLD is not in NEW. Each is a list of files,
// separated by commas.
func compareCommand(args []string) error {
	flags := flag.NewFlagSet("compare", flag.ExitOnError)
	renamed := flags.String("renamed", "", "a file with an old name and a new one in each line")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("compare needs two lists of files, OLD and NEW")
	}
	var lists [2]map[string]int
	for i := range lists {
		found := map[test]bool{}
		for file := range strings.SplitSeq(flags.Arg(i), ",") {
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("cannot read names of tests: %w", err)
			}
			maps.Copy(found, names(string(data)))
		}
		lists[i] = count(found)
	}
	renames := map[string]string{}
	if *renamed != "" {
		data, err := os.ReadFile(*renamed)
		if err != nil {
			return fmt.Errorf("cannot read renamed tests: %w", err)
		}
		if renames, err = parseRenames(string(data)); err != nil {
			return err
		}
	}
	missing, added := compare(lists[0], lists[1], renames)
	for _, name := range added {
		fmt.Println("added  ", name)
	}
	for _, name := range missing {
		fmt.Println("missing", name)
	}
	fmt.Printf("%d names before, %d now, %d added, %d missing\n", len(lists[0]), len(lists[1]), len(added), len(missing))
	if len(missing) > 0 {
		return fmt.Errorf("%d tests are not there any more", len(missing))
	}
	return nil
}

// test is one in a package, which is a suite where suites wrote the list.
type test struct{ pkg, name string }

var (
	listed  = regexp.MustCompile(`^(?:Test|Fuzz|Example)\w*$`)
	running = regexp.MustCompile(`^\s*=== RUN\s+(\S+)$`)
	ended   = regexp.MustCompile(`^(?:ok|FAIL|---|\?)\s+(\S+\.\S+)\s`)
	written = regexp.MustCompile(`^(\S+) ((?:Test|Fuzz|Example)\S*) (?:pass|fail|skip) [0-9.-]+$`)
)

// names reads the names of tests from what go test or suites printed. go test says
// after the tests of a package which it was.
func names(text string) map[test]bool {
	found := map[test]bool{}
	var pending []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		var e struct{ Action, Package, Test string }
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
			if e.Action == "run" {
				found[test{e.Package, e.Test}] = true
			}
			continue
		}
		if m := written.FindStringSubmatch(line); m != nil {
			found[test{m[1], m[2]}] = true
		} else if m := running.FindStringSubmatch(line); m != nil {
			pending = append(pending, m[1])
		} else if listed.MatchString(line) {
			pending = append(pending, line)
		} else if m := ended.FindStringSubmatch(line + " "); m != nil {
			for _, name := range pending {
				found[test{m[1], name}] = true
			}
			pending = nil
		}
	}
	for _, name := range pending {
		found[test{"", name}] = true
	}
	return found
}

// count forgets the packages: tests may move between them. What go test makes of the
// same name given twice, TestX#01, stays apart.
func count(found map[test]bool) map[string]int {
	counts := map[string]int{}
	for t := range found {
		if t.name != "TestMain" {
			counts[t.name]++
		}
	}
	return counts
}

func parseRenames(text string) (map[string]string, error) {
	renames := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("cannot parse renamed tests: %q is not two names", strings.TrimSpace(line))
		}
		renames[fields[0]] = fields[1]
	}
	return renames, nil
}

// compare says which names of old are not in now, and which are new. A rename of a
// test is one of its parts, too, unless they have one of their own.
func compare(old, now map[string]int, renames map[string]string) (missing, added []string) {
	left := maps.Clone(now)
	for name, n := range old {
		to := name
		for from := name; from != ""; from = from[:max(0, strings.LastIndexByte(from, '/'))] {
			if renamed, ok := renames[from]; ok {
				to = renamed + strings.TrimPrefix(name, from)
				break
			}
		}
		if left[to] < n {
			missing = append(missing, name)
		}
		left[to] -= n
	}
	for name, n := range left {
		if n > 0 {
			added = append(added, name)
		}
	}
	slices.Sort(missing)
	slices.Sort(added)
	return missing, added
}
