package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// mostDecided bounds the record of what is decided, which is in an annotation. A person is asked once
// more about what is beyond that.
const mostDecided = 500

// decided are objects whose removal is decided, by their short ids, with those of their UIDs.
type decided map[string]string

// parseDecided reads what Facts.Decisions wrote. What somebody else did decides nothing.
func parseDecided(text string) decided {
	d := decided{}
	for ; len(text) >= 2*shortLength; text = text[2*shortLength:] {
		d[text[:shortLength]] = text[shortLength : 2*shortLength]
	}
	return d
}

func (d decided) has(e Entry, uid string) bool { return d[short(e)] == shorten(uid) }

// Decisions is what is to be known of the removals that are decided when the next plan is made: of what a
// plan puts last, or was approved to delete and could not, and what one before did, as far as it is among keep,
// and still to be deleted. What is declared again, or by another owner, is forgotten: its next removal may be an
// accident. So is what a confirmation was for, which may be taken back. A plan that was not made, or is superseded,
// tells nothing.
func (f Facts) Decisions(p Plan, keep []Entry) string {
	before, next := parseDecided(f.Decided), decided{}
	still, now := slices.Clone(p.Unknown), slices.Clone(p.Last)
	for _, d := range p.Deletes {
		still = append(still, d.Entry)
		if !p.Held && p.Hash == f.Approved && !d.Confirmed {
			now = append(now, d.Entry)
		}
	}
	for _, e := range keep {
		uid, known := before[short(e)]
		switch {
		case slices.Contains(now, e):
			next[short(e)] = shorten(f.Live[e].UID)
		case known && slices.Contains(still, e):
			next[short(e)] = uid
		}
	}
	var text strings.Builder
	ids := slices.Sorted(maps.Keys(next))
	for _, id := range ids[:min(len(ids), mostDecided)] {
		text.WriteString(id + next[id])
	}
	return text.String()
}

// shorten makes a short id of what identifies something.
func shorten(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:shortLength/2])
}
