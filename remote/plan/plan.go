// Package plan decides what a parent does to one child: what of each layer is sent, which
// layer answers for an object that another one drops, what becomes of layers that no
// longer select the child, and whether its agent may create Clusters without approval.
//
// It is pure: facts in, decisions out. Invariants:
//
//   - a layer is in place only if the rendering that is wanted was applied completely
//     and nothing else was attempted since;
//   - nothing is deleted for one layer while another one that selects the child declares
//     it, or may declare it because nobody knows what it declares;
//   - a child that may be one which was lost and built again creates no Cluster without
//     approval;
//   - what a layer applied to a child that it no longer selects is deleted only if its
//     policy says so, never while its Layer is suspended, and only if the Layer's status
//     grants it: over all children, no more than Guard allows.
package plan

import (
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Action is what is done about one layer.
type Action string

const (
	// Keep: the layer is in place, and not due.
	Keep Action = "Keep"
	// Send: what is not known to be in the child as it is declared is sent.
	Send Action = "Send"
	// Compare: all of it is compared with the child.
	Compare Action = "Compare"
	// Wait: what stands about it stands. The child refused it a moment ago and nothing
	// changed since, or its time is used up.
	Wait Action = "Wait"
	// Postpone: there is something to send, and the time of the child is used up.
	Postpone Action = "Postpone"
)

// Layer has the facts about a layer that selects the child.
type Layer struct {
	// Wanted is the digest of the rendering. Attempted and Applied are those on record.
	Wanted, Attempted, Applied string
	// Changed: what the layer is rendered from is not what it was at the last look, which
	// may have been none of this process. Asked: a person requested a reconcile since.
	Changed, Asked bool
	// Undecided: deletes of the layer wait for a person, or for another layer.
	Undecided bool
	// Due is when the layer is compared with the child again.
	Due time.Time
	// RetryAt is when a push that failed is tried again; zero if the last one did not.
	RetryAt time.Time
	// Spent: the child used up its time.
	Spent bool
}

// InPlace reports whether all that is wanted was applied, and nothing else was attempted since.
func (l Layer) InPlace() bool { return l.Wanted == l.Applied && l.Wanted == l.Attempted }

// Decide says what is done about a layer now.
func Decide(l Layer, now time.Time) Action {
	switch {
	case !l.Changed && !l.Asked && now.Before(l.RetryAt):
		return Wait
	case l.Spent && l.InPlace():
		return Wait // a comparison can wait
	case l.Spent:
		return Postpone
	case l.Asked, !now.Before(l.Due):
		return Compare
	case l.InPlace() && l.Undecided && l.Changed:
		return Compare // perhaps a person approved
	case l.InPlace():
		return Keep
	}
	return Send
}

// Times between two attempts to push what a child refused.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// Backoff is how long to wait after a number of failures in a row, the first being 1. It
// doubles each time.
func Backoff(failures int) time.Duration {
	pause := firstRetry
	for range failures - 1 {
		if pause *= 2; pause >= lastRetry {
			return lastRetry
		}
	}
	return pause
}

// NextDue is when layers with an interval are compared with a child again after now. The
// layers of one child are compared at the same moments, so that they share the lists;
// phase, which differs from one child to the other, spreads the children.
func NextDue(now time.Time, interval, phase time.Duration) time.Time {
	interval = max(interval, time.Second)
	next := now.Truncate(interval).Add(phase % interval)
	if !next.After(now) {
		next = next.Add(interval)
	}
	return next
}

// Release is what becomes of a layer that no longer selects the child.
type Release string

const (
	// Remove deletes what the layer applied, and forgets it.
	Remove Release = "Remove"
	// Forget leaves what the layer applied.
	Forget Release = "Forget"
	// Hold does nothing yet.
	Hold Release = "Hold"
)

// Released decides about a layer that no longer selects the child. layer is what the API
// server has of it, nil if it is gone. A Layer that deletes stays until its children are
// rid of it. One that is gone all the same was let go by a person, or by an earlier
// version: nobody granted a delete.
func Released(layer *v1alpha1.Layer) Release {
	switch {
	case layer == nil:
		return Forget
	case layer.Spec.Suspend:
		return Hold
	case layer.Spec.DeletionPolicy == v1alpha1.DeletionDelete:
		// The policy in force is the one that is set, even by the change that unselects.
		return Remove
	}
	return Forget
}
