package plan

import "time"

// Numbers of a Budget.
const (
	// budgetMost is what a child may use up at once, so that its status tells of it within
	// a minute.
	budgetMost = 30 * time.Second
	// budgetShare is the part of the time that it may use in the long run.
	budgetShare = 0.5
	// budgetAgain is what a child that used up everything has to save before it is pushed
	// to again: less is not worth a beginning.
	budgetAgain = 10 * time.Second
)

// Budget is the time that the calls of pushes to one child may take. The zero value is a
// full one. A call that has begun may take more than is left; what comes after it pays for
// that, up to the time of one call.
type Budget struct {
	// owed is what is missing to a full budget as of at.
	owed time.Duration
	at   time.Time
	// empty: it was used up, and not enough was saved since.
	empty bool
}

// Spend takes the time of a call that ended now out of the budget.
func (b *Budget) Spend(took time.Duration, now time.Time) {
	b.save(now)
	b.owed = min(b.owed+max(took, 0), budgetMost+budgetAgain)
	b.empty = b.empty || b.owed >= budgetMost
}

// Owed is what is missing to a full budget.
func (b *Budget) Owed(now time.Time) time.Duration {
	b.save(now)
	return b.owed
}

// Wait is how long nothing may be pushed; 0 if something may.
func (b *Budget) Wait(now time.Time) time.Duration {
	b.save(now)
	if !b.empty {
		return 0
	}
	return time.Duration(float64(b.owed-(budgetMost-budgetAgain)) / budgetShare)
}

// save lets the time until now fill the budget. A clock that is set back fills nothing.
func (b *Budget) save(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.owed = max(b.owed-time.Duration(float64(passed)*budgetShare), 0)
		b.at = now
	}
	b.empty = b.empty && b.owed > budgetMost-budgetAgain
}
