package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

const referenceDir = "../../docs/cli"

// TestReference: docs/cli has a page for each verb, made of what the verb says of itself.
// With -update it is written anew.
func TestReference(t *testing.T) {
	root := newRoot(genericiooptions.NewTestIOStreamsDiscard())
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("bash")
	pages := map[string]string{}
	var index strings.Builder
	each(root, func(cmd *cobra.Command) {
		if cmd == root || cmd.Hidden || cmd.Name() == "help" {
			return
		}
		if cmd.Short == "" {
			t.Errorf("%s does not say what it does", cmd.CommandPath())
		}
		if cmd.Runnable() && cmd.Parent() == root && cmd.ValidArgsFunction == nil && takesArguments(cmd) {
			t.Errorf("%s completes none of its arguments", cmd.CommandPath())
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "_") + ".md"
		pages[name] = pageOf(cmd)
		fmt.Fprintf(&index, "| [`%s`](%s) | %s |\n", cmd.CommandPath(), name, cmd.Short)
	})
	pages["README.md"] = strings.NewReplacer("VERBS\n", index.String(), "CONNECTION\n", usages(connection())).Replace(referenceIndex)
	if *update {
		if err := os.RemoveAll(referenceDir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(referenceDir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range pages {
			if err := os.WriteFile(filepath.Join(referenceDir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(referenceDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, ok := pages[f.Name()]; !ok {
			t.Errorf("docs/cli/%s is of a verb that does not exist", f.Name())
		}
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(referenceDir, name))
		if err != nil {
			t.Errorf("docs/cli lacks a page: %v", err)
			continue
		}
		if diff := cmp.Diff(string(got), want); diff != "" {
			t.Errorf("docs/cli/%s is not what the verb says; run: go test ./cmd/cascade -run TestReference -update\n-is, +want:\n%s", name, diff)
		}
	}
}

const referenceIndex = `<!-- Written by TestReference of cmd/cascade. -->
# The command line

| verb | does |
|---|---|
VERBS

## What all verbs keep

* **Exit codes.** 0: done, and what was asked for is so. 1: it failed, or what it looked at is not as it should be
  (` + "`check`, `approve` without a hash, `get` without any object" + `). 2: ` + "`plan` and `diff`" + ` found that something
  would change, ` + "`why`" + ` that something is not as it should be.
* **Where answers go.** The answer is on standard output. Progress and errors are on standard error, one line each, so that a
  script reads the answer alone.
* **Colours and what moves** are for a terminal. There the marks at the beginning of a line and what is below ` + "`READY`" + ` have a colour, and a verb
  that waits says for how long in a line that goes with the next one. ` + "`NO_COLOR`" + ` with any value takes the colours, ` + "`TERM=dumb`" + ` both. A file, a pipe and
  the log of a pipeline get the same text without either. A colour says nothing that a word does not say as well.
* **What others wrote** (names, messages, logs) is printed with its control characters as escapes, so that no text of a tenant
  drives a terminal.
* **Formats.** ` + "`get` and `events`" + ` print by kubectl's printers: several objects are a List. What is not an object of Kubernetes, as a tree, is
  JSON or YAML of a form of its own; ` + "`cascade children`, `cascade plan` and `cascade diff`" + ` name its schema.
* **Watching** (` + "`--watch`" + `) goes on until it is interrupted, which is no error, also while the API server is away.
* **Completion.** ` + "`source <(cascade completion bash)`" + `, and the same for zsh, fish and PowerShell. Names of objects come from the cluster; after two
  seconds without an answer there are none.
* **kubectl.** Under the name ` + "`kubectl-cascade`" + ` the program is a plugin, with the same verbs.
* **flux** works beside it. ` + "`get`, `reconcile`, `suspend`, `resume`, `trace`, `events`, `logs`, `tree` and `diff`" + ` are for Flux's kinds, too, so that one
  program will do.

## Connection

All verbs that talk to a cluster have these flags besides their own. Without ` + "`--namespace`" + ` it is the agent's, ` + "`cascade-system`" + `.

` + "```" + `
CONNECTION
` + "```" + `
`

func takesArguments(cmd *cobra.Command) bool {
	return strings.ContainsAny(strings.TrimPrefix(cmd.Use, cmd.Name()), "<[")
}

// connection are the flags by which a cluster is reached.
func connection() *pflag.FlagSet {
	set := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	genericclioptions.NewConfigFlags(true).AddFlags(set)
	return set
}

func pageOf(cmd *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<!-- Written by TestReference of cmd/cascade. -->\n# %s\n\n", cmd.CommandPath())
	long := strings.TrimSpace(cmd.Long)
	if long == "" {
		long = cmd.Short
	}
	if !strings.HasSuffix(long, ".") {
		long += "."
	}
	fmt.Fprintf(&b, "%s\n", preformatted(long))
	if cmd.Runnable() {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", cmd.UseLine())
	}
	if example := strings.TrimRight(cmd.Example, "\n"); example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```\n%s\n```\n", example)
	}
	own, connects := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError), false
	others := connection()
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if other := others.Lookup(f.Name); other != nil && other.Usage == f.Usage {
			connects = true
			return
		}
		if f.Name != "help" {
			own.AddFlag(f)
		}
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(&b, "\n## Flags\n\n```\n%s```\n", usages(own))
	}
	if connects {
		b.WriteString("\nBesides the [flags of the connection](README.md#connection).\n")
	}
	var below []string
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			below = append(below, fmt.Sprintf("* [`%s`](%s.md): %s\n", sub.CommandPath(), strings.ReplaceAll(sub.CommandPath(), " ", "_"), sub.Short))
		}
	}
	if len(below) > 0 {
		slices.Sort(below)
		fmt.Fprintf(&b, "\n## Verbs\n\n%s", strings.Join(below, ""))
	}
	return b.String()
}

// usages are flags as --help shows them, without what depends on who asks.
func usages(set *pflag.FlagSet) string {
	if f := set.Lookup("cache-dir"); f != nil {
		f.DefValue = "$HOME/.kube/cache"
	}
	return set.FlagUsages()
}

// preformatted keeps blocks of a text that are indented, which Markdown would take for prose.
func preformatted(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if indented := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "\t"); indented != code && strings.TrimSpace(line) != "" {
			code = indented
			b.WriteString("```\n")
		}
		b.WriteString(line)
	}
	if code {
		b.WriteString("\n```")
	}
	return strings.TrimRight(b.String(), "\n")
}
