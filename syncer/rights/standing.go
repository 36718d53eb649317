package rights

import "time"

// Pauses of checks.
const (
	// period is the pause between two checks where changes are not shown. With what a
	// check takes it stays within a minute.
	period = 45 * time.Second
	// pace is how many questions a second such checks may cost; the period grows with
	// what there is to ask.
	pace = 20
	// retry is the pause after a question without an answer.
	retry = 15 * time.Second
	// regainPause is the least pause between two times that an owner is woken because
	// nothing is denied any more: it may be refused for another reason.
	regainPause = time.Minute
	// mostMistaken doublings of the pauses are made when the API server does what it says
	// it would deny, or the other way round.
	mostMistaken = 6
)

// standing is what is known of one owner.
type standing struct {
	// user is the account that the owner acts as.
	user string
	// refused: the API server refused the owner's last apply.
	refused bool
	// missing: the status of the owner says that its account does not exist.
	missing bool
	// check is when everything is asked about, whatever the watch shows; zero is never.
	check time.Time
	// told is the last verdict that the owner was told and has not acted upon yet, at is
	// when that was. mistaken counts the verdicts in a row that were wrong.
	told     verdict
	at       time.Time
	mistaken int
	// behind: rights changed while nothing was done for the owner.
	behind bool
	// questions that the last check came to.
	questions int
}

// verdict is what an owner is told after a check.
type verdict int

const (
	same verdict = iota
	lost
	regained
	// later: the owner would be told that it regained its rights, but was a moment ago.
	later
)

// judge decides by whether the account may do less than the owner needs.
func (s *standing) judge(denied bool, now time.Time) verdict {
	switch {
	case denied == s.refused:
		return same
	case denied:
		return lost
	case s.mistaken > 0 && now.Sub(s.at) < s.pause():
		return later
	}
	return regained
}

// pause after a verdict that was wrong.
func (s *standing) pause() time.Duration { return regainPause << (s.mistaken - 1) }

// tried takes in that a reconcile applied everything, or was refused. It reports whether
// a check has to come after it: the owner was told that it lost a right while the
// reconcile was under way, some of which had been sent before.
func (s *standing) tried(began time.Time, refused bool) (check bool) {
	changed := refused != s.refused
	s.refused = refused
	told := s.told
	if told == lost && !refused && began.Before(s.at) {
		return true
	}
	switch s.told = same; {
	case told == lost && !refused, told == regained && refused && !began.Before(s.at):
		s.mistaken = min(s.mistaken+1, mostMistaken)
	case told == regained && refused:
		s.told = regained // that reconcile is still to come
	case changed:
		s.mistaken = 0
	}
	return false
}

// periodOf is the pause between two checks of an owner when those of all owners come to
// so many questions.
func (s *standing) periodOf(questions int) time.Duration {
	return max(period, time.Duration(questions)*time.Second/pace) << s.mistaken
}
