// Package docs has the tests that hold the documentation to the code.
package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// section returns the text of a page below one heading, up to the next of the same
// rank.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut("\n"+string(data), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	rank, _, _ := strings.Cut(heading, " ")
	text, _, _ := strings.Cut(rest, "\n"+rank+" ")
	return text
}

// rows returns the cells of the tables in a text, without the rows of headers.
func rows(text string, columns int) [][]string {
	var found [][]string
	header := true
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			header = true
			continue
		}
		if header || strings.HasPrefix(line, "|-") {
			header = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == columns {
			found = append(found, cells)
		}
	}
	return found
}

var codeWord = regexp.MustCompile("`([^`]+)`")

// words are the ones of a cell that are written as code.
func words(cell string) []string {
	var found []string
	for _, m := range codeWord.FindAllStringSubmatch(cell, -1) {
		found = append(found, m[1])
	}
	return found
}
