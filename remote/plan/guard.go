package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Numbers of the guard of removals. A layer may be removed from so many children within
// the window without a person: fewer than RemovalFloor, or no more than RemovalPercent of
// those that have it.
const (
	RemovalFloor   = 3
	RemovalPercent = 10
	RemovalWindow  = time.Hour
	// RemovalSettle is how long the same children have to wait before they are let go, so
	// that a change that reaches them one after the other is seen as one.
	RemovalSettle = 15 * time.Second
	// mostGranted bounds the children from which a layer is removed at one time, and with
	// them the status of the Layer.
	mostGranted = 500
	// mostNamed bounds the names that are kept of those that wait.
	mostNamed = 10
)

// Holder is a child that has something of a layer of deletionPolicy Delete.
type Holder struct {
	Name string
	UID  types.UID
	// Leaves: the child is not to have the layer any more. Unknown: nobody can tell at the moment.
	Leaves, Unknown bool
}

// Removal has the facts about the removal of one layer from children.
type Removal struct {
	// Layer is the UID of the Layer.
	Layer types.UID
	// Holders are all children that have something of the layer.
	Holders []Holder
	// Recorded is what the last decision left on record, nil if there was none.
	Recorded *v1alpha1.Removal
	// Approved is the hash that a person approved.
	Approved string
	// Confirmed: the Layer is being deleted, and a person confirmed that beforehand.
	Confirmed bool
}

// Guard decides from which children a layer may be removed. It returns the record of the
// decision, nil if there is nothing to record, and how soon to ask again, zero if only
// another fact changes the decision. Nothing may be removed before the record is durable.
//
//   - Grants that no person approved are at most the limit in any window, whatever the
//     order of events, as long as each record comes from the one before.
//   - What is held stays held until a person approves it, or nobody is to leave any more:
//     it is not let go because time passes, or because there are fewer, or because nobody
//     could tell for a while who is to leave.
//   - An approval names the children and the wait. It releases no others, and these not a
//     second time.
func Guard(f Removal, now time.Time) (*v1alpha1.Removal, time.Duration) {
	now = now.Truncate(time.Second)
	before := v1alpha1.Removal{}
	if f.Recorded != nil {
		before = *f.Recorded
	}
	next := &v1alpha1.Removal{Granted: stillGranted(before.Granted, f.Holders), Spent: stillSpent(before.Spent, now)}
	waiting := withUnknown(waitingOf(f.Holders, next.Granted), before, f.Holders)
	if len(waiting) == 0 {
		if len(next.Granted)+len(next.Spent) == 0 {
			return nil, 0
		}
		return next, 0
	}
	since := now
	if s := before.Since; s != nil && !s.After(now) && before.Hash == hashOfRemoval(f.Layer, s.Time, waiting) {
		since = s.Time
	}
	setWaiting(next, f.Layer, since, waiting)
	approved := f.Confirmed || next.Hash == f.Approved || next.Hash == before.Approved
	switch {
	case approved:
	case before.Held, exceeds(len(waiting)+spentChildren(next.Spent), len(f.Holders)):
		next.Held = true
		return next, 0
	case now.Sub(since) < RemovalSettle:
		return next, RemovalSettle - now.Sub(since)
	}
	var rest []Holder
	for _, h := range waiting {
		if h.Unknown || len(next.Granted) >= mostGranted {
			rest = append(rest, h)
			continue
		}
		next.Granted = append(next.Granted, v1alpha1.Grant{Name: h.Name, UID: h.UID, At: metav1.NewTime(now)})
	}
	setWaiting(next, f.Layer, since, rest)
	switch {
	case !approved:
		next.Spent = spend(next.Spent, now, len(waiting)-len(rest))
	case len(rest) > 0:
		next.Approved = next.Hash
	}
	return next, 0
}

// exceeds reports whether a person has to approve that so many of all children lose a
// layer.
func exceeds(children, of int) bool {
	return children >= RemovalFloor && children*100 > of*RemovalPercent
}

// setWaiting records who waits.
func setWaiting(r *v1alpha1.Removal, layer types.UID, since time.Time, waiting []Holder) {
	r.Waiting, r.Names, r.Hash, r.Since = int32(len(waiting)), nil, "", nil
	if len(waiting) == 0 {
		return
	}
	for _, h := range waiting[:min(len(waiting), mostNamed)] {
		r.Names = append(r.Names, h.Name)
	}
	r.Hash, r.Since = hashOfRemoval(layer, since, waiting), &metav1.Time{Time: since}
}

// waitingOf are those that are to lose the layer and were not let go, by name.
func waitingOf(holders []Holder, granted []v1alpha1.Grant) []Holder {
	let := map[types.UID]bool{}
	for _, g := range granted {
		let[g.UID] = true
	}
	var waiting []Holder
	for _, h := range holders {
		if h.Leaves && !let[h.UID] {
			waiting = append(waiting, h)
		}
	}
	slices.SortFunc(waiting, byName)
	return waiting
}

func byName(a, b Holder) int { return strings.Compare(a.Name, b.Name) }

// withUnknown are those that wait, and those that were held for a person and of which nobody can
// tell by now whether they are to lose the layer. The record names enough of these for the hold to stay.
func withUnknown(waiting []Holder, before v1alpha1.Removal, holders []Holder) []Holder {
	for _, h := range holders {
		if before.Held && h.Unknown && !h.Leaves && slices.Contains(before.Names, h.Name) {
			waiting = append(waiting, h)
		}
	}
	slices.SortFunc(waiting, byName)
	return waiting
}

// stillGranted are the grants that are not used up: a child that has nothing of the layer
// any more, or is to have it again, needs another one the next time.
func stillGranted(granted []v1alpha1.Grant, holders []Holder) []v1alpha1.Grant {
	leaves := map[types.UID]bool{}
	for _, h := range holders {
		leaves[h.UID] = h.Leaves
	}
	var still []v1alpha1.Grant
	for _, g := range granted {
		if leaves[g.UID] {
			still = append(still, g)
		}
	}
	return still
}

func stillSpent(spent []v1alpha1.Spent, now time.Time) []v1alpha1.Spent {
	var still []v1alpha1.Spent
	for _, s := range spent {
		if now.Sub(s.At.Time) < RemovalWindow {
			still = append(still, s)
		}
	}
	return still
}

func spentChildren(spent []v1alpha1.Spent) int {
	n := 0
	for _, s := range spent {
		n += int(s.Children)
	}
	return n
}

// spend counts grants in their minute, so that the record is bounded. They count until
// an hour after its end.
func spend(spent []v1alpha1.Spent, now time.Time, children int) []v1alpha1.Spent {
	if children == 0 {
		return spent
	}
	at := metav1.NewTime(now.Truncate(time.Minute).Add(time.Minute))
	if last := len(spent) - 1; last >= 0 && (spent[last].At.Equal(&at) || len(spent) > int(RemovalWindow/time.Minute)+1) {
		spent[last].At, spent[last].Children = at, spent[last].Children+int32(children)
		return spent
	}
	return append(spent, v1alpha1.Spent{At: at, Children: int32(children)})
}

// hashOfRemoval names children that wait, in one wait: the same children get another
// hash the next time.
func hashOfRemoval(layer types.UID, since time.Time, waiting []Holder) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %d\n", layer, v1alpha1.DeletionDelete, since.Unix())
	for _, w := range waiting {
		fmt.Fprintf(h, "%s %s\n", w.Name, w.UID)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Granted reports whether a Layer, as the API server has it, lets a child lose what it
// applied.
func Granted(layer *v1alpha1.Layer, child types.UID) bool {
	return layer.Status.Removal != nil && slices.ContainsFunc(layer.Status.Removal.Granted, func(g v1alpha1.Grant) bool { return g.UID == child })
}

// RemovalMessage says what is held and what to do next; empty if nothing is held.
func RemovalMessage(layer *v1alpha1.Layer) string {
	r := layer.Status.Removal
	if r == nil || !r.Held {
		return ""
	}
	names := strings.Join(r.Names, ", ")
	if more := int(r.Waiting) - len(r.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	of := int32(0)
	if layer.Status.OnRecord != nil {
		of = layer.Status.OnRecord.Children
	}
	before := ""
	if n := spentChildren(r.Spent); n > 0 {
		before = fmt.Sprintf(" besides %d in the last hour", n)
	}
	why, undo := "they are not selected any more", "correct the selector or the labels"
	if !layer.DeletionTimestamp.IsZero() {
		why, undo = "the Layer is being deleted", "set spec.suspend: true, which lets the Layer go and leaves everything"
	}
	return fmt.Sprintf("removal from %d of %d children is held%s: %s; would remove what the layer applied to %s; %s, or run: cascade approve removal %s -n %s --hash %s",
		r.Waiting, of, before, why, names, undo, layer.Name, layer.Namespace, r.Hash)
}
