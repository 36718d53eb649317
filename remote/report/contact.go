package report

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// silences is how many observe intervals may pass without a word before what a child
// reported is stale.
const silences = 3

// Patience is how long a child may be silent before what it reported is stale: three observe
// intervals, less the time in which that is written, and known up to the top of the tree, by the
// end of the third.
func Patience(interval time.Duration) time.Duration { return silences*interval - interval/6 }

// Contact is what a parent knows of its contact with a child.
type Contact struct {
	// Recorded is status.heardAt of the Child.
	Recorded *metav1.Time
	// Heard is when the child was last heard of, by the parent's clock: when its agent
	// was seen to be alive, or, of a child without an agent, when it answered. Where
	// this process has not heard of it, it is the earliest that this process knows to be
	// later than that.
	Heard time.Time
	// Proven: it was in the life of this process that the child was last heard of. One look
	// at the lease of an agent does not show that, only a second one that finds it renewed.
	Proven bool
	// Broken: the child cannot be reached, or its agent is silent.
	Broken bool
}

// Lost returns what status.heardAt is now: nil, unless the contact has been broken for
// longer than Patience. wait is how long until it is, and zero if nothing
// but the child can change the answer.
//
// The answer changes when the contact is lost and when it is there again, and not in
// between.
func (c Contact) Lost(interval time.Duration, now time.Time) (heardAt *metav1.Time, wait time.Duration) {
	if c.Recorded != nil && !c.Proven {
		return c.Recorded, 0
	}
	if !c.Broken {
		return nil, 0
	}
	if left := c.Heard.Add(Patience(interval)).Sub(now); left > 0 {
		return nil, left
	}
	at := metav1.NewTime(c.Heard.Truncate(time.Second))
	return &at, 0
}
