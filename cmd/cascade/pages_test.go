package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cascade-gitops/cascade/docs/shown"
)

// programs whose commands are looked for.
var programs = []string{"cascade", "kubectl-cascade", "make", "kubectl", "flux", "helm", "clusterctl", "git"}

// TestPages: each command that a page shows is one that the program, or the Makefile, has: verb,
// flags and how many arguments it takes. What prose names of one has to have its verb and
// flags. Pages that other tests run command by command are held to the same.
func TestPages(t *testing.T) {
	targets := makeTargets(t)
	count := map[string]int{}
	pages, err := shown.Pages(filepath.Join("..", ".."))
	if err != nil || len(pages) < 80 {
		t.Fatalf("there are %d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range shown.Commands(string(text), programs...) {
			var problem string
			// The program is a plugin of kubectl as well.
			if c.Words[0] == "kubectl" && len(c.Words) > 1 && c.Words[1] == "cascade" {
				c.Words = c.Words[1:]
			}
			switch c.Words[0] {
			case "cascade", "kubectl-cascade":
				problem = unknown(c)
			case "make":
				problem = notMade(targets, c)
			}
			count[c.Words[0]]++
			if problem != "" {
				t.Errorf("%s:%d: %s: %s", strings.TrimPrefix(filepath.ToSlash(page), "../../"), c.Line, strings.Join(c.Words, " "), problem)
			}
		}
	}
	for program, least := range map[string]int{"cascade": 250, "make": 40, "kubectl": 15} {
		if count[program] < least {
			t.Errorf("pages have only %d commands of %s: they are read in another way than they are written", count[program], program)
		}
	}
	t.Logf("%v", count)
}

// TestPagesRefuses: the rule itself finds what it is there for.
func TestPagesRefuses(t *testing.T) {
	targets := map[string]bool{"test": true}
	for name, tc := range map[string]struct {
		reason, page string
		want         []string
	}{
		"Good": {"prompts, variables, pipes, comments, placeholders and lines that go on",
			"    $ A=b cascade get all -A \\\n        --status-selector ready=false | grep x # and cascade nonsense\n" +
				"    cascade approve prune <name> -n <namespace> [--kind Child]\n    make test P=2\n", nil},
		"Verb":      {"", "    cascade gett all\n", []string{"1: there is no verb gett"}},
		"Below":     {"a verb of a verb", "    cascade rollout stat base\n", []string{"1: there is no verb rollout stat"}},
		"Flag":      {"", "```console\n$ cascade tree --dept 2\ncascade nonsense is output\n```\n", []string{"2: unknown flag: --dept"}},
		"Value":     {"a flag has the type that it has", "    cascade tree --depth two\n", []string{`1: invalid argument "two" for "--depth" flag: strconv.ParseInt: parsing "two": invalid syntax`}},
		"Arguments": {"", "    cascade approve prune\n", []string{"1: accepts 1 arg(s), received 0"}},
		"Prose":     {"which may name a verb without what it takes", "Run `cascade approve prune`, or `cascade approve prne`, with\n`cascade tree --wide`, `cascade approve prune --hash`.\n", []string{"1: there is no verb approve prne", "2: unknown flag: --wide"}},
		"Pipe":      {"behind another program", "    cat x | cascade nonsense\n", []string{"1: there is no verb nonsense"}},
		"Nested": {"in a substitution", "    x=$(cascade nonsense) cascade tree --output \"$(cascade other)\" --none\n",
			[]string{"1: there is no verb nonsense", "1: there is no verb other", "1: unknown flag: --none"}},
		"Make": {"", "    make tests\n\n`make more`\n", []string{"1: there is no target tests", "3: there is no target more"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range shown.Commands(tc.page, programs...) {
				problem := ""
				switch c.Words[0] {
				case "cascade":
					problem = unknown(c)
				case "make":
					problem = notMade(targets, c)
				}
				if problem != "" {
					got = append(got, fmt.Sprintf("%d: %s", c.Line, problem))
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// unknown says what the program does not have of a command; empty: nothing.
func unknown(c shown.Command) string {
	root := newRoot(genericiooptions.NewTestIOStreamsDiscard())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("bash")
	cmd, rest, err := root.Find(c.Words[1:])
	if err != nil || cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return "there is no verb " + c.Words[1]
	}
	if !c.Whole && len(rest) > 0 && takesValue(cmd, rest[len(rest)-1]) {
		rest = append(slices.Clone(rest), "x")
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	args := cmd.Flags().Args()
	if hasVerbs(cmd) && len(args) > 0 && args[0] != "..." {
		return "there is no verb " + strings.TrimPrefix(cmd.CommandPath(), "cascade ") + " " + args[0]
	}
	if !c.Whole || hasVerbs(cmd) {
		return ""
	}
	if err := cmd.ValidateArgs(args); err != nil {
		return err.Error()
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err.Error()
	}
	return ""
}

// takesValue: a sentence may name a flag without what it is set to.
func takesValue(cmd *cobra.Command, word string) bool {
	name, is := strings.CutPrefix(word, "--")
	f := cmd.Flags().Lookup(name)
	return is && f != nil && f.NoOptDefVal == ""
}

// hasVerbs: the command does nothing but by its verbs.
func hasVerbs(cmd *cobra.Command) bool { return cmd.HasSubCommands() && !cmd.Runnable() }

// makeTargets are those of the Makefile.
func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(text), -1) {
		targets[m[1]] = true
	}
	if len(targets) < 20 {
		t.Fatalf("the Makefile has only %d targets", len(targets))
	}
	return targets
}

func notMade(targets map[string]bool, c shown.Command) string {
	for _, word := range c.Words[1:] {
		if !shown.IsAssignment(word) && !strings.HasPrefix(word, "-") && !targets[word] {
			return "there is no target " + word
		}
	}
	return ""
}
