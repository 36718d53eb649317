package mom

import "time"

const (
	// saveQuiet is how long nothing changes before it is saved: most changes come in company.
	saveQuiet = 2 * time.Second
	// saveWithin is how long a change is unsaved at most while others follow.
	saveWithin = 10 * time.Second
	// saveAgain is the pause after a state could not be saved.
	saveAgain = 5 * time.Second
	// saveLook is how long what nothing told of is unsaved at most.
	saveLook = time.Minute
)

// changes are what is not saved yet. The zero value has none.
type changes struct {
	// first and last are when the first and the last of them came.
	first, last time.Time
	// notBefore is when the next try may be.
	notBefore time.Time
}

// note takes in a change.
func (c *changes) note(now time.Time) {
	if c.first.IsZero() {
		c.first = now
	}
	c.last = now
}

// due is when they are to be saved; ok is false if there are none.
func (c *changes) due() (at time.Time, ok bool) {
	if c.first.IsZero() {
		return time.Time{}, false
	}
	at = c.last.Add(saveQuiet)
	if most := c.first.Add(saveWithin); most.Before(at) {
		at = most
	}
	if at.Before(c.notBefore) {
		at = c.notBefore
	}
	return at, true
}

// taken says that what there is is being saved. What comes meanwhile is for the next time.
func (c *changes) taken() { c.first, c.last = time.Time{}, time.Time{} }

// failed says that what was taken could not be saved.
func (c *changes) failed(now time.Time) {
	c.note(now)
	c.notBefore = now.Add(saveAgain)
}

// lockMargin is how long before the lock lapses that all writers are ended: by somebody else's
// clock it may lapse earlier, and to end takes a moment.
const lockMargin = 10 * time.Second

// Lock times.
const (
	// lockFor is how long the lock is taken for. It is how long a state is locked after the
	// machine that had it was lost.
	lockFor = time.Minute
	// renewEvery leaves several tries before it lapses.
	renewEvery = 10 * time.Second
)

// renewal is when a lock that is held until then is to be renewed, which is due otherwise. A save is
// another write of the record: where its upload is a part of that, as in Git, a renewal has it begin
// again. So it waits for a save as long as there is time for one more try after it.
func renewal(due, until time.Time, saving bool) time.Time {
	if last := until.Add(-lockMargin - renewEvery); saving && last.After(due) {
		return last
	}
	return due
}

// lost reports whether a lock that is held until then must be taken for lost.
func lost(until, now time.Time) bool { return !now.Before(until.Add(-lockMargin)) }
