package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// HandOverBound is how long an object is kept for an owner that declares it and does
// not take it over, whatever else is to be handed over meanwhile. It does
// not apply to protected objects that are known to be declared, nor to what the owner gets once a Rollout lets it:
// these are kept as long as they are declared.
const HandOverBound = 10 * time.Minute

// Of HandOverBound, handOverLeft is left at least when a process looks first, and time after
// handOverSeen in which it does not look is no part.
const (
	handOverLeft = 5 * time.Minute
	handOverSeen = time.Minute
)

// handsOver reports whether what was read about an object makes it one that another
// owner is to take over.
func (l Live) handsOver() bool {
	return l.State == Present && l.Owned && !l.Exempt && !l.Recreated && l.Claimed == "" && !l.Deleting && !l.Again && l.HandOver != ""
}

// waits tells since when the objects wait that are to be handed over now.
func (f Facts) waits() Waits {
	var pending []Entry
	for _, e := range Candidates(f.Owned, f.Rendered) {
		if f.Live[e].handsOver() {
			pending = append(pending, e)
		}
	}
	return Waiting(pending, f.HandOver, f.Now)
}

// Overdue reports whether all objects of a record have been kept for others as long as they are kept.
func Overdue(record *v1alpha1.HandOver, now time.Time) bool {
	return record != nil && now.Sub(record.Since.Time) >= HandOverBound
}

// superseded reports whether the owner declares something else by now than what was
// rendered. One that is being deleted declares nothing.
func (f Facts) superseded() bool {
	if f.Asked {
		return false
	}
	for _, e := range Candidates(f.Owned, f.Rendered) {
		if f.Live[e].Again {
			return true
		}
	}
	return false
}

// Waits tell since when objects are kept for others, by their ids.
type Waits map[string]time.Time

// Waiting tells it of some objects. before is the record of the plan before: what it knows has waited
// since then, whatever came or went meanwhile. One of an earlier version, or of many objects, knows only all of them
// together.
func Waiting(kept []Entry, before *v1alpha1.HandOver, now time.Time) Waits {
	w, known := Waits{}, map[string]time.Duration{}
	same := before != nil && before.Hash == Identify(kept)
	if before != nil {
		known = parseEarlier(before.Earlier)
	}
	for _, e := range kept {
		since := now.UTC().Truncate(time.Second)
		if by, ok := known[short(e)]; ok || same {
			since = before.Since.Add(-by)
		}
		w[e.ID()] = since
	}
	return w
}

// Still tells since when objects wait of which some waited before.
func (w Waits) Still(kept []Entry, now time.Time) Waits {
	still := Waits{}
	for _, e := range kept {
		since, ok := w[e.ID()]
		if !ok {
			since = now
		}
		still[e.ID()] = since
	}
	return still
}

// Overdue reports whether an object has been kept for others as long as it is kept.
func (w Waits) Overdue(e Entry, now time.Time) bool {
	since, ok := w[e.ID()]
	return ok && now.Sub(since) >= HandOverBound
}

// Record is the record of some of the objects, nil if there are none.
func (w Waits) Record(kept []Entry) *v1alpha1.HandOver {
	if len(kept) == 0 {
		return nil
	}
	record := &v1alpha1.HandOver{Hash: Identify(kept)}
	for _, e := range kept {
		if since := w[e.ID()]; since.After(record.Since.Time) {
			record.Since = metav1.NewTime(since)
		}
	}
	earlier := map[string]time.Duration{}
	for _, e := range kept {
		earlier[short(e)] = record.Since.Sub(w[e.ID()])
	}
	record.Earlier = formatEarlier(earlier)
	return record
}

// HandingOver is the record of objects that are kept for others, nil if there are none.
// before is the record of the plan before.
func HandingOver(kept []Entry, before *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	return Waiting(kept, before, now).Record(kept)
}

const (
	// shortLength is that of a short id.
	shortLength = 8
	// mostEarlier bounds the objects that a record knows one by one. It is in annotations and
	// statuses.
	mostEarlier = 100
)

// short identifies an object among those that one owner keeps.
func short(e Entry) string { return shorten(e.ID()) }

// formatEarlier is the text that a record has of how much earlier objects began to wait, by their short ids: of
// those that wait the longest, if there are many.
func formatEarlier(by map[string]time.Duration) string {
	began := map[int][]string{}
	for id, d := range by {
		seconds := int(d / time.Second)
		began[seconds] = append(began[seconds], id)
	}
	var groups []string
	left := mostEarlier
	for _, seconds := range slices.Backward(slices.Sorted(maps.Keys(began))) {
		ids := began[seconds]
		slices.Sort(ids)
		if ids = ids[:min(len(ids), left)]; len(ids) > 0 {
			groups = append(groups, strconv.Itoa(seconds)+":"+strings.Join(ids, ""))
		}
		left -= len(ids)
	}
	return strings.Join(groups, ",")
}

// parseEarlier reads what formatEarlier wrote. What somebody else did tells nothing.
func parseEarlier(text string) map[string]time.Duration {
	by := map[string]time.Duration{}
	for _, group := range strings.Split(text, ",") {
		number, ids, _ := strings.Cut(group, ":")
		seconds, err := strconv.ParseUint(number, 10, 31)
		for ; err == nil && len(ids) >= shortLength; ids = ids[shortLength:] {
			by[ids[:shortLength]] = time.Duration(seconds) * time.Second
		}
	}
	return by
}

// Seen is what a process has seen of the objects that an owner keeps for others. It is not safe for
// concurrent use; the zero value has seen nothing.
type Seen struct {
	looked time.Time
	record *v1alpha1.HandOver
}

// Look returns the record of what an owner keeps for others, as it is by now. Time in which nobody
// looked is taken out: no agent ran, or the owner was suspended, perhaps with those that are to take
// the objects, or the clock of the agent that wrote the record was another one.
func (s *Seen) Look(record *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	first, unseen := s.looked.IsZero(), now.Sub(s.looked)-handOverSeen
	before := s.record
	s.looked, s.record = now, nil
	if record == nil {
		return nil
	}
	since, earlier := record.Since.Time, record.Earlier
	if before != nil && before.Hash == record.Hash && before.Since.After(since) {
		since, earlier = before.Since.Time, before.Earlier // it could not be written
	}
	least := now.Add(handOverLeft - HandOverBound)
	switch {
	case first && since.Before(least):
		since = least
	case !first && unseen > 0:
		since = since.Add(unseen)
	}
	if since.After(now) {
		since = now
	}
	since = since.UTC().Truncate(time.Second)
	if first {
		by := parseEarlier(earlier)
		for id, d := range by {
			by[id] = min(d, max(since.Sub(least), 0))
		}
		earlier = formatEarlier(by)
	}
	s.record = &v1alpha1.HandOver{Hash: record.Hash, Since: metav1.NewTime(since), Earlier: earlier}
	return s.record
}

// Record is what is to be known of a plan's hand-overs when the next one is made; nil if there are
// none.
func (f Facts) Record(p Plan) *v1alpha1.HandOver {
	if p.Superseded {
		return f.HandOver // nothing was found out about them
	}
	return f.waits().Record(Union(p.HandOver, p.Late))
}

// HandOverMessage says what is kept for whom, and until when. unsure: it is not known whether
// that one declares it.
func HandOverMessage(kept []Entry, newOwner string, unsure bool, record v1alpha1.HandOver) string {
	until := record.Since.Add(HandOverBound).UTC().Format(time.RFC3339)
	if unsure {
		return fmt.Sprintf("it is not known whether %s declares %s in this cluster, or what it applies does: that cannot be built now, "+
			"or its cluster does not prove which it is; it is kept until %s at the latest; mend what fails there, or take it out of what %s declares",
			newOwner, Names(kept), until, newOwner)
	}
	return fmt.Sprintf("%s is declared by %s now, which has not applied it yet; it is kept until %s at the latest, or as long as it is protected or a Rollout holds it back there; "+
		"let that one apply it, or remove it there too", Names(kept), newOwner, until)
}

// Identify identifies a set of objects.
func Identify(entries []Entry) string {
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		ids = append(ids, e.ID())
	}
	slices.Sort(ids)
	sum := sha256.Sum256([]byte(strings.Join(ids, "\n")))
	return hex.EncodeToString(sum[:8])
}
