package docs

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// mostTerms bounds the glossary: more than a page of words nobody learns.
const mostTerms = 42

// TestGlossary: each concept has one word. The words that the glossary replaces appear
// neither in names and comments of Go files nor on pages.
func TestGlossary(t *testing.T) {
	banned, terms := glossary(t)
	if terms == 0 || terms > mostTerms {
		t.Errorf("the glossary has %d words, want at most %d", terms, mostTerms)
	}
	read := 0
	err := filepath.WalkDir("..", func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipped(at, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		find := inPage
		switch filepath.Ext(at) {
		case ".go":
			find = inGo
		case ".md":
			if at == filepath.Join("..", "docs", "glossary.md") {
				return nil
			}
		default:
			return nil
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		read++
		for _, found := range find(text, banned) {
			t.Errorf("%s:%s", strings.TrimPrefix(filepath.ToSlash(at), "../"), found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if read < 300 {
		t.Errorf("read only %d files", read)
	}
}

// TestGlossaryRefuses: the rule itself finds what it is there for.
func TestGlossaryRefuses(t *testing.T) {
	banned := map[string]string{"census": "inventory", "kin": "belongs to"}
	for name, tc := range map[string]struct {
		reason string
		text   string
		want   []string
	}{
		"Clean":      {"parts of other words are other words", "package p\n\n// kind of kindness\nvar kinds = `a kin of text`\n", nil},
		"Name":       {"a name is split where a capital letter begins", "package p\n\nvar lastCensus int\n", []string{"3: census: say inventory"}},
		"Start":      {"also at its first word", "package p\n\nvar KinOfHTTP, HTTPKin int\n", []string{"3: kin: say belongs to", "3: kin: say belongs to"}},
		"Underscore": {"and at an underscore", "package p\n\nvar the_kin int\n", []string{"3: kin: say belongs to"}},
		"Comment":    {"a comment is prose, and its lines count", "package p\n\n/* one\nThe Census. */\n", []string{"4: census: say inventory"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := inGo([]byte(tc.text), banned); !slices.Equal(got, tc.want) {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	if got := inPage([]byte("# A page\n\nwith `lastCensus`\n"), banned); !slices.Equal(got, []string{"3: census: say inventory"}) {
		t.Errorf("on a page it finds %q", got)
	}
}

// glossary reads the table: for each banned word, which one to use.
func glossary(t *testing.T) (banned map[string]string, terms int) {
	t.Helper()
	banned = map[string]string{}
	table := rows(section(t, "glossary.md", "# Glossary"), 3)
	for _, cells := range table {
		if cells[0] == "" || cells[1] == "" {
			t.Errorf("cannot read the row %q", cells)
		}
		for _, word := range words(cells[2]) {
			if banned[word] != "" {
				t.Errorf("%s has two rows", word)
			}
			banned[word] = cells[0]
		}
	}
	if len(banned) == 0 {
		t.Fatal("the glossary bans no words")
	}
	return banned, len(table)
}

// skipped are directories that have no words of ours, and the decisions, which keep
// the words of their time.
func skipped(at, name string) bool {
	return at == filepath.Join("..", "docs", "decisions") || name == "testdata" || at != ".." && strings.HasPrefix(name, ".")
}

// inGo finds banned words in the names and comments of a Go file. Strings are not
// looked at: some of them are other people's words.
func inGo(text []byte, banned map[string]string) []string {
	var found []string
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return found
		case token.IDENT, token.COMMENT:
			found = append(found, inText(literal, file.Line(pos), banned)...)
		}
	}
}

// inPage finds banned words on a page.
func inPage(text []byte, banned map[string]string) []string { return inText(string(text), 1, banned) }

func inText(text string, line int, banned map[string]string) []string {
	var found []string
	for of := range strings.Lines(text) {
		for _, word := range split(of) {
			if use := banned[word]; use != "" {
				found = append(found, fmt.Sprintf("%d: %s: say %s", line, word, use))
			}
		}
		line++
	}
	return found
}

// split returns the words of a text in lower case. A name that is written in one, as
// lastOwner or HTTPOwner, is several words.
func split(text string) []string {
	var found []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			found = append(found, strings.ToLower(string(word)))
		}
		word = word[:0]
	}
	letters := []rune(text)
	for i, r := range letters {
		if !unicode.IsLetter(r) {
			end()
			continue
		}
		if i > 0 && unicode.IsUpper(r) {
			after := i+1 < len(letters) && unicode.IsLower(letters[i+1])
			if unicode.IsLower(letters[i-1]) || unicode.IsUpper(letters[i-1]) && after {
				end()
			}
		}
		word = append(word, r)
	}
	end()
	return found
}
