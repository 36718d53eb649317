package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestPlain: what a terminal would take for a command is written so that it can be read.
func TestPlain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		writes []string
		want   string
	}{
		"Text":      {"text stays, in any language", []string{"apps\tbereit ✓\nгород\n"}, "apps\tbereit ✓\nгород\n"},
		"Escape":    {"a sequence that clears the screen", []string{"a\x1b[2Jb"}, `a\x1b[2Jb`},
		"C1":        {"the same in one character", []string{"a\u009b2Jb"}, `a\x9b2Jb`},
		"Return":    {"it would write over the line", []string{"PruneBlocked\rReady"}, `PruneBlocked\x0dReady`},
		"Direction": {"a name that reads backwards", []string{"a\u202etxt"}, `a\u202etxt`},
		"Invalid":   {"bytes that are no text", []string{"a\xffb"}, `a\xffb`},
		"Split":     {"a character comes in two writes", []string{"a\xe2", "\x9c\x93b"}, "a✓b"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := &plain{to: &out}
			for _, text := range tc.writes {
				if n, err := p.Write([]byte(text)); err != nil || n != len(text) {
					t.Fatalf("Write() = %d, %v", n, err)
				}
			}
			if out.String() != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, out.String(), tc.want)
			}
		})
	}
}

// TestColours: marks of our own are coloured where a line begins, and nothing that others wrote
// becomes a command.
func TestColours(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		writes []string
		want   string
	}{
		"Good":   {"it is done", []string{"✔ applied\n"}, "\x1b[32m✔\x1b[39m applied\n"},
		"Bad":    {"it failed, and what waits for it has no mark of its own", []string{"✗ a: b\n  → c ✗\n"}, "\x1b[31m✗\x1b[39m a: b\n  → c ✗\n"},
		"Held":   {"a person decides", []string{"a\n⚠ b"}, "a\n\x1b[33m⚠\x1b[39m b"},
		"Inside": {"a mark in a message is text, however it is written", []string{"message: ", "✔ all is well"}, "message: ✔ all is well"},
		"Split":  {"a mark comes in two writes", []string{"\xe2\x9c", "\x94 x"}, "\x1b[32m✔\x1b[39m x"},
		"Escape": {"sequences of others stay what can be read", []string{"✔ \x1b[31mred\n"}, "\x1b[32m✔\x1b[39m \\x1b[31mred\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := &plain{to: &out, colours: true}
			for _, text := range tc.writes {
				if _, err := p.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, out.String(), tc.want)
			}
		})
	}
}

var sequences = regexp.MustCompile("\x1b\\[[0-9]+m")

// TestColoursOfVerbs: on a terminal the answers of get, tree and why have colours, and are the
// same without them; nowhere else are there any.
func TestColoursOfVerbs(t *testing.T) {
	unknown := child("fleet", "new", conditions("Ready", metav1.ConditionUnknown, "Progressing", "", time.Minute), nil)
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(append(fleet(t), unknown, beat(v1alpha1.AgentNamespace, 0))...).Build()
	verbs := map[string]func(*cli) error{
		"get": func(c *cli) error {
			chosen, err := choose("children")
			if err != nil {
				return err
			}
			return c.get(t.Context(), cl, chosen, newGetOptions())
		},
		"tree": func(c *cli) error {
			view, err := newTreeView("", "", "", 0)
			if err != nil {
				return err
			}
			return c.tree(t.Context(), cl, c.streams.Out, view, treeOptions{})
		},
		"why": func(c *cli) error { return ignore(c.why(whyFacts(t), nil, "text"), errSomething) },
	}
	for name, verb := range verbs {
		t.Run(name, func(t *testing.T) {
			said := map[bool]string{}
			for _, colours := range []bool{true, false} {
				var out bytes.Buffer
				c := &cli{
					streams: genericiooptions.IOStreams{Out: &plain{to: &out, colours: colours}, ErrOut: &plain{to: &out}}, flags: genericclioptions.NewConfigFlags(true),
					now: func() time.Time { return noon },
				}
				if err := verb(c); err != nil {
					t.Fatal(err)
				}
				said[colours] = out.String()
			}
			// A column of cells that are as wide with their colours as without has the same place.
			if stripped := sequences.ReplaceAllString(said[true], ""); squeezed(stripped) != squeezed(said[false]) {
				t.Errorf("without its colours it is\n%s\nwant\n%s", stripped, said[false])
			}
			if strings.Contains(said[false], "\x1b") || !strings.Contains(said[true], string(sequence(nil, red))) {
				t.Errorf("colours are not where they are to be: %q, %q", said[true], said[false])
			}
			if strings.Count(said[true], "\x1b")%2 != 0 {
				t.Errorf("a colour has no end: %q", said[true])
			}
			golden(t, "colours-"+name+".txt", strings.ReplaceAll(said[true], "\x1b", "ESC"))
		})
	}
}

// ignore is an error, but for one that is expected.
func ignore(err, expected error) error {
	if err == expected { //nolint:errorlint // the verb returns it as it is
		return nil
	}
	return err
}

// squeezed is a text with one space where there are several.
func squeezed(text string) string { return regexp.MustCompile(" +").ReplaceAllString(text, " ") }

// TestTreeWatchColours: a tree that is printed again has its colours too.
func TestTreeWatchColours(t *testing.T) {
	s := &sheet{colours: true}
	if err := table(s, []string{"NAME", "READY"}, [][]string{{"a", "True"}, {"b\ufdd2", "False"}}); err != nil {
		t.Fatal(err)
	}
	var colours, none bytes.Buffer
	if err := s.show(&plain{to: &colours, colours: true}); err != nil {
		t.Fatal(err)
	}
	if err := s.show(&none); err != nil {
		t.Fatal(err)
	}
	if got := colours.String(); !strings.Contains(got, "\x1b[32mTrue\x1b[39m") || !strings.Contains(got, "\x1b[31mFalse\x1b[39m") || strings.ContainsAny(got, "\ufdd0\ufdd2") {
		t.Errorf("on a terminal it is %q", got)
	}
	if strings.ContainsAny(none.String(), "\x1b\ufdd0\ufdd2") {
		t.Errorf("elsewhere it is %q", none.String())
	}
}

// TestNoTerminal: what is no terminal gets neither colours nor lines that move, whatever the
// environment says.
func TestNoTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("CLICOLOR_FORCE", "1")
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it is read by nobody
	if p := newPlain(file); p.colours || p.moves {
		t.Errorf("a file is %+v", p)
	}
	for _, tc := range []struct {
		system string
		env    map[string]string
		want   bool
	}{
		{"linux", map[string]string{"TERM": "xterm"}, true},
		{"linux", map[string]string{"TERM": "dumb"}, false},
		{"windows", nil, false},
		{"windows", map[string]string{"WT_SESSION": "1"}, true},
	} {
		if got := understands(tc.system, func(key string) string { return tc.env[key] }); got != tc.want {
			t.Errorf("a terminal of %s with %v understands: %t", tc.system, tc.env, got)
		}
	}
}

// TestProgress: a line that moves is written once a second, and goes before anything else is
// written; it is not there for whoever is no terminal.
func TestProgress(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		moves  bool
		want   string
	}{
		"Terminal": {"it is told", true, "\r\x1b[K◎ waiting for agent, 0s\r\x1b[K◎ waiting for agent, 1s\r\x1b[K► no node\n\r\x1b[K◎ waiting for agent, 1s\r\x1b[K"},
		"Log":      {"only what stays is written", false, "► no node\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			now := noon
			c := &cli{streams: genericiooptions.IOStreams{ErrOut: &plain{to: &out, moves: tc.moves}}, now: func() time.Time { return now }}
			p := c.progress("agent")
			p.tick(now)
			now = now.Add(900 * time.Millisecond)
			p.tick(now)
			now = now.Add(200 * time.Millisecond)
			p.tick(now)
			c.say("no node")
			p.tick(now)
			p.end()
			p.end()
			if out.String() != tc.want {
				t.Errorf("%s: %q, want %q", tc.reason, out.String(), tc.want)
			}
		})
	}
}

// TestTerminalCloses: a program whose terminal closes does what is to be done at its end, such as
// giving a lock back, however often that is said.
func TestTerminalCloses(t *testing.T) {
	if os.Getenv("CASCADE_TEST_TERMINAL") != "" {
		ctx, stop := untilTold()
		defer stop()
		fmt.Println("up")
		<-ctx.Done()
		fmt.Println("ending:", context.Cause(ctx))
		_, _ = io.Copy(io.Discard, os.Stdin) // until the other process has seen that
		fmt.Println("ended")
		return
	}
	defer signal.Reset(syscall.SIGHUP)
	for name, tc := range map[string]struct {
		reason string
		// dispose is how the program gets the signal: one that is caught here has its default there.
		dispose func()
		tell    []os.Signal
		want    string
	}{
		"Closes": {"it is told by the shell and by the kernel", func() { signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) },
			[]os.Signal{syscall.SIGHUP, syscall.SIGHUP}, "ending: hangup signal received"},
		"NoHup": {"it goes on until it is told otherwise", func() { signal.Ignore(syscall.SIGHUP) },
			[]os.Signal{syscall.SIGHUP, syscall.SIGTERM, syscall.SIGHUP}, "ending: terminated signal received"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.dispose()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTerminalCloses$")
			cmd.Env = append(os.Environ(), "CASCADE_TEST_TERMINAL=1")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			next := func(want string) {
				if !lines.Scan() || lines.Text() != want {
					t.Errorf("%s: it says %q, want %q", tc.reason, lines.Text(), want)
				}
			}
			tell := func(signals []os.Signal) {
				for _, s := range signals {
					if err := cmd.Process.Signal(s); err != nil {
						t.Error(err)
					}
				}
			}
			last := len(tc.tell) - 1
			next("up")
			tell(tc.tell[:last])
			next(tc.want)
			tell(tc.tell[last:])
			if err := in.Close(); err != nil {
				t.Error(err)
			}
			next("ended")
			if _, err := io.Copy(io.Discard, out); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: it ended with %v", tc.reason, err)
			}
		})
	}
}
