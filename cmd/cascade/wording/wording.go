// Package wording is how revisions, ages, commands and the texts of others are written for
// people.
//
// It is pure. Names and messages come from Git and from clusters below, and are hostile:
// Plain takes from them what a terminal or a reader would take for something else than
// text, and bounds them.
package wording

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

var longHash = regexp.MustCompile(`\b(sha1|sha256):([0-9a-f]{8})[0-9a-f]+`)

// Short cuts the hashes in a text, as the flux CLI does.
func Short(revision string) string { return longHash.ReplaceAllString(revision, "$1:$2") }

// Age of a moment, in the form of kubectl; a dash for one that is unknown.
func Age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// Commands reports whether a terminal takes a character for a command: a control
// character, or one that changes the direction of what follows.
func Commands(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)
}

// Plain is a text on one line, with at most so many characters, of which none commands a
// terminal or hides another one. What was cut ends in an ellipsis.
func Plain(text string, most int) string {
	// What is cut anyway is not looked at: a character has at most four bytes.
	cut := len(text) > 8*most
	if cut {
		text = text[:8*most]
	}
	var out []rune
	space := false
	for _, r := range text {
		switch {
		case unicode.IsSpace(r):
			space = len(out) > 0
			continue
		case space:
			out = append(out, ' ')
			space = false
		}
		switch {
		case Commands(r), !unicode.IsPrint(r):
			out = append(out, []rune(fmt.Sprintf(`\u%04x`, r))...)
		default:
			out = append(out, r)
		}
		if len(out) > most {
			cut = true
			break
		}
	}
	if cut {
		out = append(out[:max(0, min(len(out), most)-1)], '…')
	}
	return string(out)
}

var plainArgument = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=-]+$`)

// Argument is a word of a command as a shell takes it, whatever is in it: names of branches
// may have in them what a shell would carry out.
func Argument(word string) string {
	if plainArgument.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
