package report

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a report, in bytes and in entries. What a child reports goes into its Child,
// and from there into the report of its parent: one field that is too long, or that the
// API server refuses, would keep all others from being told.
const (
	// accepted is the longest report that a parent reads.
	accepted = 256 << 10
	// longest is the longest report that Compute makes.
	longest = 96 << 10

	maxTierRows = 100
	maxFailing  = 10
	maxBrought  = 20
	// maxNames bounds each list of counts, with the entry of all others.
	maxNames = 20
	// maxClusters bounds how many clusters are counted.
	maxClusters = 10_000_000
	// maxFaults bounds how many faults of a kind are counted, and maxFaultsNamed how many
	// objects with one are named: there is room for those that do not let the tier be ready.
	maxFaults      = 10_000_000
	maxFaultsNamed = 3

	maxAgent = 128
	// maxRevision is that of four or five sources in full.
	maxRevision = 256
	maxName     = 512
	maxReason   = 256
	maxMessage  = 2000
	// maxRowMessage bounds the message of one of many rows.
	maxRowMessage = 256
	// maxPath is that of a row: a few names of clusters.
	maxPath = 1024
	// maxDepth is how many clusters may be above one another.
	maxDepth = 16
	// maxLabel is that of a namespace and of a kind, maxObjectName that of a name.
	maxLabel      = 63
	maxObjectName = 253
	// maxWord bounds a version, an owner, a provider and a region.
	maxWord = 64
)

// Cut bounds a text at a whole letter. The API server replaces half a letter, and
// then the text would differ from ours in every comparison.
func Cut(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}

// bounded is a text as a report may have it: at most so long, and without letters of
// which JSON makes six, so that its length bounds that of its encoding.
func bounded(s string, most int) string {
	if !plain(s) {
		s = strings.Map(func(r rune) rune {
			if r == utf8.RuneError || !prints(r) {
				return ' '
			}
			return r
		}, s)
	}
	return Cut(s, most)
}

// plain reports whether a text needs no replacement.
func plain(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || !prints(r) {
			return false
		}
	}
	return true
}

func prints(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) }

// encodedSize is the length of a text in JSON, as encode writes it.
func encodedSize(s string) int {
	n := len(s) + len(`""`)
	for i := range len(s) {
		switch s[i] {
		case '"', '\\', '\n', '\t':
			n++
		}
	}
	return n
}
