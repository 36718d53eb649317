// Package shown reads what pages of the documentation show: their blocks of code, and the
// commands in these and in sentences. It is for tests, which hold that against the program and
// against API servers. A page is written as people write one; package e2e/pages reads those that
// are run as they stand.
//
// Failure model: what is no Markdown that the pages use is prose.
package shown

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Block is a block of code.
type Block struct {
	// Line of its first line of code, from 1.
	Line int
	// Language of the fence; empty without one.
	Language string
	// Mark is what the comment in the line above says: <!-- part of a Layer -->.
	Mark string
	// Text without the indentation that all lines have.
	Text string
}

var comment = regexp.MustCompile(`^\s*<!-- (.*) -->$`)

// Blocks reads the blocks of a page, and its prose, in which the lines of blocks are empty.
func Blocks(page string) (blocks []Block, prose string) {
	var open *Block
	var rest strings.Builder
	fenced, blank, mark := false, true, ""
	end := func() {
		if open != nil {
			open.Text = dedented(open.Text)
			blocks = append(blocks, *open)
		}
		open = nil
	}
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		fence, isFence := strings.CutPrefix(trimmed, "```")
		switch {
		case fenced && isFence:
			end()
			fenced = false
		case fenced:
			open.Text += line + "\n"
		case isFence:
			end()
			open, fenced = &Block{Line: i + 2, Language: fence, Mark: mark}, true
		case strings.HasPrefix(line, "    ") && (open != nil || blank):
			if open == nil {
				open = &Block{Line: i + 1, Mark: mark}
			}
			open.Text += line + "\n"
		case trimmed == "" && open != nil:
			open.Text += "\n"
		default:
			end()
			rest.WriteString(line)
		}
		if m := comment.FindStringSubmatch(line); m != nil {
			mark = m[1]
		} else if trimmed != "" {
			mark = ""
		}
		blank = trimmed == ""
		rest.WriteString("\n")
	}
	end()
	return blocks, rest.String()
}

// dedented takes off what all lines begin with, and empty lines at the end.
func dedented(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	common := -1
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			continue
		}
		if n := len(line) - len(strings.TrimLeft(line, " ")); common < 0 || n < common {
			common = n
		}
	}
	for i := range lines {
		lines[i] = lines[i][min(max(common, 0), len(lines[i])):]
	}
	return strings.Join(lines, "\n") + "\n"
}

// Command is one command, as a shell reads it.
type Command struct {
	Line int
	// Words of the program and its arguments.
	Words []string
	// Whole: it stands in a block, for a reader to copy. Otherwise it is a part of a sentence.
	Whole bool
}

var (
	// span is code in a sentence; it may go on in the next line.
	span        = regexp.MustCompile("`([^`]+)`")
	placeholder = regexp.MustCompile(`<[^<>|&;]*>`)
	assignment  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// Commands reads the commands of these programs on a page: in its blocks, and in the code of
// its sentences. Of a block of console only lines with a prompt are commands.
func Commands(page string, programs ...string) []Command {
	var found []Command
	blocks, prose := Blocks(page)
	for _, b := range blocks {
		if b.Language == "go" || b.Language == "yaml" {
			continue
		}
		// pending is a command whose line goes on in the next.
		pending, began := "", 0
		for i, line := range strings.Split(b.Text, "\n") {
			text, prompted := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			switch {
			case pending != "":
				text = strings.TrimPrefix(text, "> ")
			case b.Language == "console" && !prompted:
				continue // what a command prints
			default:
				began = b.Line + i
			}
			if before, goesOn := strings.CutSuffix(text, `\`); goesOn {
				pending += before
				continue
			}
			text, pending = pending+text, ""
			// How a verb is used, of which the program itself takes care; a picture.
			if strings.HasSuffix(text, "[flags]") || strings.ContainsAny(text, "─▶") {
				continue
			}
			for _, words := range simple(text) {
				if slices.Contains(programs, words[0]) {
					found = append(found, Command{began, words, true})
				}
			}
		}
	}
	for _, m := range span.FindAllStringSubmatchIndex(prose, -1) {
		line := 1 + strings.Count(prose[:m[2]], "\n")
		for _, words := range simple(prose[m[2]:m[3]]) {
			if len(words) > 1 && slices.Contains(programs, words[0]) {
				found = append(found, Command{line, words, false})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Command) int { return a.Line - b.Line })
	return found
}

// IsAssignment reports whether a word gives a variable a value.
func IsAssignment(word string) bool { return assignment.MatchString(word) }

// simple splits a line as a shell does: at operators, with quotes, without comments,
// variables before the program, and redirections. What stands for something else, as <name>,
// is a word; what may be left out, as [--kind Child], is there.
func simple(line string) [][]string {
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
			commands = append(commands, simple(inner)...)
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
			// A number before it is what is redirected.
			if _, err := strconv.Atoi(word.String()); err == nil {
				word.Reset()
				inWord = false
			}
			endWord()
			redirected = true
			if i+1 < len(runes) && runes[i+1] == '&' {
				i++
			}
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

// Pages are all pages below a directory, but for those of decisions, which speak of their
// time, and those that tests of the program plant.
func Pages(root string) ([]string, error) {
	var pages []string
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
		if filepath.Ext(at) == ".md" && filepath.Base(filepath.Dir(at)) != "decisions" {
			pages = append(pages, at)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot find pages: %w", err)
	}
	return pages, nil
}
