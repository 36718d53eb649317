package cause

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cascade-gitops/cascade/remote/report"
)

// plain is a text of somebody else as an Explanation has it: one line, bounded, without
// characters that a terminal or a page takes for more than text.
func plain(s string) string {
	// What is cut off need not be looked at, however long it is. Each letter of the rest
	// takes at most four bytes, and words are as far apart as their author liked.
	const most = 16 * mostMessage
	if len(s) > most {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
	return report.Cut(strings.Join(strings.Fields(s), " "), mostMessage)
}

// ObjectOf reads Kind/namespace/name of an object in a tier; ok is false for a text that is
// no such name.
func ObjectOf(tier, text string) (o Object, ok bool) { return object(tier, text) }

// object reads the name of an object as reports have it: Kind/namespace/name. ok is false
// for a text that is no such name: it comes from another tier.
func object(tier, text string) (o Object, ok bool) {
	kind, rest, _ := strings.Cut(text, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	if !isKind(kind) || !isName(namespace) || !isName(name) {
		return Object{}, false
	}
	return Object{Tier: tier, Kind: kind, Namespace: namespace, Name: name}, true
}

func isKind(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

func isName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' {
			return false
		}
	}
	return s != "" && len(s) <= 253
}
