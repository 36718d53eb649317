package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// ownerInterval is how often the owner is looked at: a read of one small file.
const ownerInterval = time.Second

// owner is a process known by its id and its start, since ids are used again.
type owner struct {
	pid   int
	start string
}

func newOwner(pid int) (owner, error) {
	start, err := startOf(pid)
	if err != nil {
		return owner{}, fmt.Errorf("cannot watch owner %d: %w", pid, err)
	}
	return owner{pid: pid, start: start}, nil
}

// wait returns errEnd once the owner is gone, and nil if ctx ends before.
func (o owner) wait(ctx context.Context) error {
	ticker := time.NewTicker(ownerInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if start, err := startOf(o.pid); err != nil || start != o.start {
				return errEnd
			}
		}
	}
}

// errGone is returned for a process that has ended, collected or not.
var errGone = errors.New("the process has ended")

// startOf returns when a living process started, in the kernel's own unit.
func startOf(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", errGone
	}
	// The second field is the name in parentheses and may hold anything,
	// parentheses and blanks included: count the fields after the last one.
	_, after, found := cutLast(string(data), ")")
	fields := strings.Fields(after)
	const state, start = 0, 19
	if !found || len(fields) <= start {
		return "", fmt.Errorf("cannot read state of process %d: unknown format", pid)
	}
	// A zombie runs nothing; only its parent has not asked for it yet.
	if fields[state] == "Z" || fields[state] == "X" {
		return "", errGone
	}
	return fields[start], nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
