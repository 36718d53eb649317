// Package pages reads the code blocks of pages of the documentation, so that tests can run
// them as a reader would.
//
// A block is fenced, and its language says what it is: console has commands after "$ ", which
// lines after "> " continue, each with what it prints; yaml is a manifest. If the line of text
// before a yaml block ends with a name in backticks and a colon, it is the content of that file.
//
// No block goes unseen: a comment above the fence is the only way to tell a test that it
// cannot run one, <!-- not run: reason -->, and tests count these. <!-- fails --> says that
// the last command of a block ends with an error.
//
// Failure model: what this grammar does not have is an error with its line.
package pages

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Block is one fenced block.
type Block struct {
	// Line of the opening fence, from 1.
	Line     int
	Language string
	Text     string
	// File has this content, if the text before says so.
	File string
	// NotRun is why a test cannot run it; empty: it can.
	NotRun string
	// Fails: the last command ends with an error.
	Fails bool
	// Commands of a console block.
	Commands []Command
}

// Command is one command, with what it prints.
type Command struct {
	// Line of the prompt.
	Line int
	// Text of all its lines, without prompts.
	Text string
	// Output as the page has it; empty, or with a line break at its end.
	Output string
}

const (
	fence  = "```"
	prompt = "$ "
	more   = "> "
)

var (
	comment = regexp.MustCompile(`^<!-- (.*) -->$`)
	isFile  = regexp.MustCompile("`([^` ]+)`:$")
)

// Read reads the blocks of a page.
func Read(file string) ([]Block, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read page: %w", err)
	}
	blocks, err := Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read page %s: %w", file, err)
	}
	return blocks, nil
}

// Parse reads the blocks of the text of a page.
func Parse(text string) ([]Block, error) {
	var blocks []Block
	var open *Block
	// said is the last line before a fence that is not blank, mark the comment after it.
	said, mark, blank := "", "", true
	for i, line := range strings.Split(text, "\n") {
		number := i + 1
		switch {
		case open != nil && line == fence:
			if err := open.finish(); err != nil {
				return nil, err
			}
			blocks = append(blocks, *open)
			open, said, mark = nil, "", ""
		case open != nil:
			open.Text += line + "\n"
		case strings.HasPrefix(line, fence):
			open = &Block{Line: number, Language: strings.TrimPrefix(line, fence)}
			if err := open.marked(mark); err != nil {
				return nil, err
			}
			if m := isFile.FindStringSubmatch(said); m != nil && open.Language == "yaml" {
				open.File = m[1]
			}
		case blank && strings.HasPrefix(line, "    "):
			return nil, fmt.Errorf("line %d: a block without a fence is not read", number)
		case comment.MatchString(line):
			mark = comment.FindStringSubmatch(line)[1]
		case strings.TrimSpace(line) != "":
			if mark != "" {
				return nil, fmt.Errorf("line %d: comment %q stands above no block", number, mark)
			}
			said = line
		}
		blank = strings.TrimSpace(line) == ""
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block has no end", open.Line)
	}
	return blocks, nil
}

// marked takes what the comment above says.
func (b *Block) marked(mark string) error {
	reason, notRun := strings.CutPrefix(mark, "not run: ")
	switch {
	case mark == "":
	case mark == "fails":
		b.Fails = true
	case notRun && reason != "":
		b.NotRun = reason
	default:
		return fmt.Errorf("line %d: comment %q says nothing to a test", b.Line, mark)
	}
	return nil
}

// finish takes a block apart when it is complete.
func (b *Block) finish() error {
	switch b.Language {
	case "console":
	case "yaml":
		if b.Fails {
			return fmt.Errorf("line %d: only commands fail", b.Line)
		}
		return nil
	default:
		return fmt.Errorf("line %d: the language of a block is console or yaml, not %q", b.Line, b.Language)
	}
	for i, line := range strings.SplitAfter(strings.TrimSuffix(b.Text, "\n"), "\n") {
		number, last := b.Line+1+i, len(b.Commands)-1
		text, first := strings.CutPrefix(line, prompt)
		next, goesOn := strings.CutPrefix(line, more)
		switch {
		case first:
			b.Commands = append(b.Commands, Command{Line: number, Text: text})
		case last < 0:
			return fmt.Errorf("line %d: there is no command before it", number)
		case goesOn && b.Commands[last].Output == "":
			b.Commands[last].Text += next
		default:
			b.Commands[last].Output += strings.TrimSuffix(line, "\n") + "\n"
		}
	}
	for i := range b.Commands {
		b.Commands[i].Text = strings.TrimSuffix(b.Commands[i].Text, "\n")
	}
	return nil
}

// Console is the text of a console block with these commands.
func Console(commands []Command) string {
	var text strings.Builder
	for _, c := range commands {
		text.WriteString(prompt + strings.ReplaceAll(c.Text, "\n", "\n"+more) + "\n" + c.Output)
	}
	return text.String()
}

// Replace puts blocks in the place of those that a page has, in their order.
func Replace(page string, blocks []Block) (string, error) {
	before, err := Parse(page)
	if err != nil {
		return "", err
	}
	if len(before) != len(blocks) {
		return "", fmt.Errorf("cannot replace %d blocks by %d", len(before), len(blocks))
	}
	lines := strings.SplitAfter(page, "\n")
	var text strings.Builder
	at := 0
	for i, b := range before {
		text.WriteString(strings.Join(lines[at:b.Line], ""))
		text.WriteString(blocks[i].Text)
		at = b.Line + strings.Count(b.Text, "\n")
	}
	text.WriteString(strings.Join(lines[at:], ""))
	return text.String(), nil
}
