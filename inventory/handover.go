package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// HandOverBound is how long an object is kept for an owner that declares it and does
// not take it over. It begins anew when other objects are to be handed over. It does
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

// overdue reports whether the new owners of exactly the objects that are to be handed
// over now have had the time to take them.
func (f Facts) overdue() bool {
	var pending []Entry
	for _, e := range Candidates(f.Owned, f.Rendered) {
		if f.Live[e].handsOver() {
			pending = append(pending, e)
		}
	}
	return Overdue(HandingOver(pending, f.HandOver, f.Now), f.Now)
}

// Overdue reports whether objects have been kept for others as long as they are kept.
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

// HandingOver is the record of objects that are kept for others, nil if there are none.
// before is the record of the plan before: the same objects have waited since then.
func HandingOver(kept []Entry, before *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	if len(kept) == 0 {
		return nil
	}
	record := &v1alpha1.HandOver{Hash: Identify(kept), Since: metav1.NewTime(now.UTC().Truncate(time.Second))}
	if before != nil && before.Hash == record.Hash {
		record.Since = before.Since
	}
	return record
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
	since := record.Since.Time
	if before != nil && before.Hash == record.Hash && before.Since.After(since) {
		since = before.Since.Time // it could not be written
	}
	switch least := now.Add(handOverLeft - HandOverBound); {
	case first && since.Before(least):
		since = least
	case !first && unseen > 0:
		since = since.Add(unseen)
	}
	if since.After(now) {
		since = now
	}
	s.record = &v1alpha1.HandOver{Hash: record.Hash, Since: metav1.NewTime(since.UTC().Truncate(time.Second))}
	return s.record
}

// Record is what is to be known of a plan's hand-overs when the next one is made; nil if there are
// none. What is left of objects that were overdue together is overdue, or the time that it is kept
// would begin anew.
func (f Facts) Record(p Plan) *v1alpha1.HandOver {
	record := HandingOver(Union(p.HandOver, p.Late), f.HandOver, f.Now)
	if record != nil && f.overdue() {
		record.Since = f.HandOver.Since
	}
	return record
}

// HandOverMessage says what is kept for whom, and until when. unsure: it is not known whether
// that one declares it.
func HandOverMessage(kept []Entry, newOwner string, unsure bool, record v1alpha1.HandOver) string {
	until := record.Since.Add(HandOverBound).UTC().Format(time.RFC3339)
	if unsure {
		return fmt.Sprintf("it is not known whether %s declares %s in this cluster, or what it applies does: that cannot be built now, "+
			"or its cluster does not prove which it is; it is kept until %s; mend what fails there, or take it out of what %s declares",
			newOwner, Names(kept), until, newOwner)
	}
	return fmt.Sprintf("%s is declared by %s now, which has not applied it yet; it is kept until %s, or as long as it is protected or a Rollout holds it back there; "+
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
