package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFindMom(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		beside, path bool
		want         string
	}{
		"Beside": {"both were unpacked into one directory", true, true, "beside"},
		"Path":   {"they were installed by a packager", false, true, "path"},
		"None":   {"it is a download of its own", false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, place := range []struct {
				name  string
				there bool
			}{{"beside", tc.beside}, {"path", tc.path}} {
				if err := os.Mkdir(filepath.Join(dir, place.name), 0o755); err != nil {
					t.Fatal(err)
				}
				if !place.there {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, place.name, momProgram), nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", filepath.Join(dir, "path"))
			got, err := findMom(filepath.Join(dir, "beside"))
			if tc.want == "" {
				if err == nil || !strings.Contains(err.Error(), "make mom") {
					t.Errorf("%s: got %s, %v", tc.reason, got, err)
				}
				return
			}
			if err != nil || got != filepath.Join(dir, tc.want, momProgram) {
				t.Errorf("%s: got %s, %v", tc.reason, got, err)
			}
		})
	}
}

// TestRunMom: the program says how it ended, also where it was told to end.
func TestRunMom(t *testing.T) {
	const untilTold = "trap 'exit %' TERM; : > \"$1\"; while :; do sleep 0.01; done"
	for name, tc := range map[string]struct {
		reason, script string
		stop           bool
		want           error
	}{
		"Stopped":  {"it saved, and stopped as it was told", strings.Replace(untilTold, "%", "0", 1), true, nil},
		"Unsaved":  {"it was told to stop, and could not save", strings.Replace(untilTold, "%", "3", 1), true, errNotReady},
		"Ended":    {"it did what it was to do", "exit 0", false, nil},
		"Failed":   {"it has said why", "exit 1", false, errNotReady},
		"NotThere": {"there is nothing to run", "", false, fs.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program, up := filepath.Join(dir, momProgram), filepath.Join(dir, "up")
			if tc.script != "" {
				if err := os.WriteFile(program, []byte("#!/bin/sh\n"+tc.script+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- runMom(ctx, program, []string{up}) }()
			if tc.stop {
				for there := false; !there; {
					select {
					case err := <-ended:
						t.Fatalf("%s: it ended with %v", tc.reason, err)
					case <-time.After(time.Millisecond):
						_, err := os.Stat(up)
						there = err == nil
					}
				}
				cancel()
			}
			if err := <-ended; !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("%s: it ended with %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}
