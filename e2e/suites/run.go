package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cascade-gitops/cascade/e2e/scenario/plan"
)

// slots is more than a suite has tests: all of them wait for a place, so that the longest of
// all suites goes first. Only places say how many run, see scenario.Alongside.
const slots = 1000

type options struct {
	suites []string
	// e2e is the directory of the suites, bin that of their programs and logs.
	e2e, bin string
	landing  bool
	pattern  string
	names    string
	jobs     int
	timeout  time.Duration
}

// run builds the suites and runs them.
func run(ctx context.Context, o options) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	tests, err := plan.Read(filepath.Join(o.e2e, plan.File))
	if err != nil {
		return err
	}
	if o.landing {
		o.pattern = plan.Pattern(tests)
	}
	if err := build(ctx, o); err != nil {
		return err
	}
	built := time.Since(begin)
	report := newReport(os.Stdout)
	errs := make([]error, len(o.suites))
	var running sync.WaitGroup
	for i, suite := range o.suites {
		running.Go(func() { errs[i] = runSuite(ctx, o, suite, report) })
	}
	running.Wait()
	if o.names != "" {
		errs = append(errs, os.WriteFile(o.names, []byte(report.lines()), 0o644))
	}
	failed := report.summary(time.Since(begin), built)
	if o.landing {
		fmt.Printf("make test-all runs these, too: %s\n", strings.Join(plan.NotLanding(tests), ", "))
	}
	if failed > 0 {
		errs = append(errs, fmt.Errorf("%d tests failed; the logs are in %s", failed, o.bin))
	}
	return errors.Join(errs...)
}

// build makes one program for each suite, under the race detector.
func build(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.bin, 0o755); err != nil {
		return fmt.Errorf("cannot build the suites: %w", err)
	}
	args := []string{"test", "-c", "-race", "-p", strconv.Itoa(o.jobs), "-o", o.bin + string(filepath.Separator)}
	for _, suite := range o.suites {
		args = append(args, "./"+suite)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = o.e2e, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cannot build the suites: %w", err)
	}
	return nil
}

// event is one of go tool test2json.
type event struct {
	Time    time.Time
	Action  string
	Test    string
	Elapsed float64
	Output  string
	Key     string
}

// runSuite runs one to its end. What it prints goes to a log as well.
func runSuite(ctx context.Context, o options, suite string, report *report) (err error) {
	log, err := os.Create(filepath.Join(o.bin, suite+".log"))
	if err != nil {
		return fmt.Errorf("cannot run suite %s: %w", suite, err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	args := []string{"-test.v=test2json", "-test.parallel=" + strconv.Itoa(slots), "-test.timeout=" + o.timeout.String()}
	if o.pattern != "" {
		args = append(args, "-test.run="+o.pattern)
	}
	tests := exec.CommandContext(ctx, filepath.Join(o.bin, suite+".test"), args...)
	tests.Dir = filepath.Join(o.e2e, suite)
	// If this process is killed, the tests end with it, and what they started with them.
	tests.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t")
	convert.Stderr = os.Stderr
	printed, err := tests.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot run suite %s: %w", suite, err)
	}
	tests.Stderr = tests.Stdout
	convert.Stdin = printed
	events, err := convert.StdoutPipe()
	if err != nil {
		return fmt.Errorf("cannot run suite %s: %w", suite, err)
	}
	for _, cmd := range []*exec.Cmd{tests, convert} {
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("cannot run suite %s: %w", suite, err)
		}
	}
	// What the tests print is read to its end before they are waited for.
	err = errors.Join(follow(events, suite, report, log), convert.Wait())
	status := tests.Wait()
	switch {
	case err != nil:
		return fmt.Errorf("cannot follow suite %s: %w", suite, err)
	case status != nil && !report.hasFailed(suite):
		return fmt.Errorf("suite %s ended without a failed test: %w; see %s", suite, status, log.Name())
	}
	return nil
}

// follow reads the events of a suite to their end.
func follow(events io.Reader, suite string, report *report, log io.Writer) error {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		if _, err := io.WriteString(log, e.Output); err != nil {
			return err
		}
		if e.Test != "" {
			report.add(suite, e)
		}
	}
}
