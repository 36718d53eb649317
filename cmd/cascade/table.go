package main

import (
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/cmd/cascade/wording"
)

// table prints rows in aligned columns, as kubectl does. What does not print is
// left out: some of the text comes from clusters below, which are not to be
// trusted with a person's terminal.
//
// The columns are aligned by cli-runtime's tab writer. Its TablePrinter pads the
// header by bytes, so that the branches of a tree shift it, and drops errors of
// writing.
func table(out io.Writer, header []string, rows [][]string) error {
	s := newStream(out)
	if header != nil {
		rows = slices.Insert(slices.Clone(rows), 0, header)
	}
	return s.print(rows...)
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return -1
}

// shortRevision cuts hashes, as the flux CLI does.
func shortRevision(revision string) string { return wording.Short(revision) }

// age of a moment, in the form of kubectl.
func age(t metav1.Time, now time.Time) string {
	return wording.Age(t, now)
}

// oneLine makes a message fit a table.
func oneLine(s string) string {
	const most = 120
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most-3]) + "..."
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
