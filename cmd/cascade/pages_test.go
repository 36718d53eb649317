package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// TestPages: each command that a page shows is one that the program, or the Makefile, has: verb,
// flags and how many arguments it takes. What prose names of one has to have its verb and
// flags. Pages that other tests run command by command are held to the same.
func TestPages(t *testing.T) {
	targets := makeTargets(t)
	shown := map[string]int{}
	for _, page := range pageFiles(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commandsOf(string(text)) {
			var problem string
			switch c.words[0] {
			case "cascade", "kubectl-cascade":
				problem = unknown(c)
			case "make":
				problem = notMade(targets, c)
			}
			shown[c.words[0]]++
			if problem != "" {
				t.Errorf("%s:%d: %s: %s", strings.TrimPrefix(filepath.ToSlash(page), "../../"), c.line, strings.Join(c.words, " "), problem)
			}
		}
	}
	for program, least := range map[string]int{"cascade": 250, "make": 40, "kubectl": 15} {
		if shown[program] < least {
			t.Errorf("pages have only %d commands of %s: they are read in another way than they are written", shown[program], program)
		}
	}
	t.Logf("%v", shown)
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
			for _, c := range commandsOf(tc.page) {
				problem := ""
				switch c.words[0] {
				case "cascade":
					problem = unknown(c)
				case "make":
					problem = notMade(targets, c)
				}
				if problem != "" {
					got = append(got, fmt.Sprintf("%d: %s", c.line, problem))
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// pageFiles are all pages of the repository but those that tests plant.
func pageFiles(t *testing.T) []string {
	t.Helper()
	var pages []string
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if at == filepath.Join(root, "bin") || at == filepath.Join(root, "cmd") || at != root && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		// The decisions speak of their time.
		if filepath.Ext(at) == ".md" && filepath.Base(filepath.Dir(at)) != "decisions" {
			pages = append(pages, at)
		}
		return nil
	})
	if err != nil || len(pages) < 80 {
		t.Fatalf("there are %d pages: %v", len(pages), err)
	}
	return pages
}

// shownCommand is a command that a page has.
type shownCommand struct {
	line  int
	words []string
	// whole: it stands in a block, for a reader to copy. Otherwise it is a part of a sentence.
	whole bool
}

var (
	programs = []string{"cascade", "kubectl-cascade", "make", "kubectl", "flux", "helm", "clusterctl", "git"}
	// span is code in a sentence; it may go on in the next line.
	span        = regexp.MustCompile("`([^`]+)`")
	placeholder = regexp.MustCompile(`<[^<>|&;]*>`)
	assignment  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// commandsOf reads the commands of a page: of its blocks, and of the code in its sentences.
func commandsOf(page string) []shownCommand {
	var found []shownCommand
	var prose strings.Builder
	fence, language, blank := "", "", true
	// pending is a command whose line goes on in the next.
	pending, began := "", 0
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		code := fence != "" || pending != ""
		switch {
		case fence != "" && trimmed == "```":
			fence, pending = "", ""
		case fence == "" && strings.HasPrefix(trimmed, "```"):
			fence, language = "```", strings.TrimPrefix(trimmed, "```")
			code = true
		case fence == "" && strings.HasPrefix(line, "    ") && (blank || pending != "" || i > 0 && strings.HasPrefix(lines[i-1], "    ")):
			code, language = true, ""
			fallthrough
		case fence != "":
			if language == "go" || language == "yaml" {
				break
			}
			text, prompted := strings.CutPrefix(trimmed, "$ ")
			if pending == "" && language == "console" && !prompted {
				break // what a command prints
			}
			if pending == "" {
				began = i + 1
			} else {
				text = strings.TrimPrefix(text, "> ")
			}
			if before, goesOn := strings.CutSuffix(text, `\`); goesOn {
				pending += before
				break
			}
			text, pending = pending+text, ""
			found = append(found, wholeCommands(text, began)...)
		}
		if !code {
			prose.WriteString(line)
		}
		prose.WriteString("\n")
		blank = trimmed == ""
	}
	text := prose.String()
	for _, m := range span.FindAllStringSubmatchIndex(text, -1) {
		line := 1 + strings.Count(text[:m[2]], "\n")
		for _, words := range simpleCommands(text[m[2]:m[3]]) {
			if len(words) > 1 && slices.Contains(programs, words[0]) {
				found = append(found, shownCommand{line, words, false})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b shownCommand) int { return a.line - b.line })
	return found
}

func wholeCommands(text string, line int) []shownCommand {
	var found []shownCommand
	// How a verb is used, of which the program itself takes care; a picture.
	if strings.HasSuffix(text, "[flags]") || strings.ContainsAny(text, "─▶") {
		return nil
	}
	for _, words := range simpleCommands(text) {
		if slices.Contains(programs, words[0]) {
			found = append(found, shownCommand{line, words, true})
		}
	}
	return found
}

// simpleCommands splits a line as a shell does: at operators, with quotes, without comments,
// variables before the program, and redirections. What stands for something else, as <name>,
// is a word; what may be left out, as [--kind Child], is there.
func simpleCommands(line string) [][]string {
	line = placeholder.ReplaceAllString(line, "x")
	var commands [][]string
	var words []string
	var word strings.Builder
	quote, inWord, redirected := rune(0), false, false
	endWord := func() {
		if inWord && !redirected && (len(words) > 0 || !assignment.MatchString(word.String())) {
			words = append(words, word.String())
		}
		if inWord {
			redirected = false
		}
		word.Reset()
		inWord = false
	}
	end := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words, redirected = nil, false
	}
	runes := []rune(line)
scan:
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case quote != '\'' && r == '$' && i+1 < len(runes) && runes[i+1] == '(':
			inner := string(runes[i+2:])
			inner = inner[:max(0, strings.Index(inner, ")"))]
			commands = append(commands, simpleCommands(inner)...)
			i += 2 + len([]rune(inner))
			word.WriteString("x")
			inWord = true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '#' && !inWord:
			break scan
		case r == '|', r == '&', r == ';', r == '(', r == ')', r == '\n':
			end()
		case r == '>', r == '<':
			endWord()
			redirected = true
		case r == '[', r == ']':
			endWord()
		case r == ' ', r == '\t':
			endWord()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	end()
	return commands
}

// unknown says what the program does not have of a command; empty: nothing.
func unknown(c shownCommand) string {
	root := newRoot(genericiooptions.NewTestIOStreamsDiscard())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("bash")
	cmd, rest, err := root.Find(c.words[1:])
	if err != nil || cmd == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return "there is no verb " + c.words[1]
	}
	if !c.whole && len(rest) > 0 && takesValue(cmd, rest[len(rest)-1]) {
		rest = append(slices.Clone(rest), "x")
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err.Error()
	}
	args := cmd.Flags().Args()
	if hasVerbs(cmd) && len(args) > 0 && args[0] != "..." {
		return "there is no verb " + strings.TrimPrefix(cmd.CommandPath(), "cascade ") + " " + args[0]
	}
	if !c.whole || hasVerbs(cmd) {
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

func notMade(targets map[string]bool, c shownCommand) string {
	for _, word := range c.words[1:] {
		if !assignment.MatchString(word) && !strings.HasPrefix(word, "-") && !targets[word] {
			return "there is no target " + word
		}
	}
	return ""
}
