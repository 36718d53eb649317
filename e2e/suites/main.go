// Command suites runs the suites of end-to-end tests, all at the same time, and
// reports each test when it ends. A suite is a directory of e2e/ with a file
// main_test.go. How many tests have control planes at the same time is for
// scenario.Alongside to say; here every suite just begins.
//
//	suites [-landing] [-run PATTERN] [-names FILE] [SUITE...]
//	suites compare [-renamed FILE] OLD NEW
//
// With -landing only what scenarios.txt marks is run. It ends with the first error
// that has nothing to do with tests, and with status 1 if a test failed.
//
// compare reads names of tests, as -names writes them or as go test prints them with
// -list, -v or -json, and fails if one of OLD is not in NEW.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == "compare" {
		err = compareCommand(os.Args[2:])
	} else {
		err = runCommand(ctx, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suites:", err)
		os.Exit(1)
	}
}

func runCommand(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("suites", flag.ExitOnError)
	flags.BoolVar(&o.landing, "landing", false, "run only what make test runs, as scenarios.txt says")
	flags.StringVar(&o.pattern, "run", "", "run only tests that match, as go test -run does")
	flags.StringVar(&o.names, "names", "", "write the name, the result and the seconds of each test to this file")
	flags.IntVar(&o.jobs, "p", 2, "how many programs are built at the same time")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Hour, "time for all of it, which is more than one hour on two cores")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	o.e2e, o.bin = filepath.Join(root, "e2e"), filepath.Join(root, "bin", "suites")
	if o.suites = flags.Args(); len(o.suites) == 0 {
		if o.suites, err = findSuites(o.e2e); err != nil {
			return err
		}
	}
	return run(ctx, o)
}

// findRoot finds the repository from any directory below it.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "e2e", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("cannot find the root of the repository")
		}
	}
}

func findSuites(e2e string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(e2e, "*", "main_test.go"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("cannot find suites below %s: %w", e2e, err)
	}
	var suites []string
	for _, file := range files {
		suites = append(suites, filepath.Base(filepath.Dir(file)))
	}
	return suites, nil
}
