package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestUnwatched: time in which nobody looked proves nothing, and blames nobody. What Children say
// after it is of before.
func TestUnwatched(t *testing.T) {
	tellAll(t, []tale{
		{name: "in a soak", reason: "the canary died while the tier was down, which nobody knows yet", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.unwatched(2 * time.Hour)
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.at(second, "canary1")
			s.takes(false, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultDegraded)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.at(second, "canary1")
		}},
		{name: "at the end of a soak", reason: "one process takes the place of another, in less than a minute", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(29 * time.Minute)
			s.decide()
			s.unwatched(2 * time.Minute)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "before a deadline", reason: "nobody tried the revision before that", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.unwatched(2 * time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(9 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "while one of two changes", reason: "the other one was ready before that, and may have died", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.unwatched(time.Hour)
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1")
			s.after(s.last.RecheckAfter)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "with nothing to wait for", reason: "an approval that comes after days finds nobody late, and what begins then is waited for no longer than usual", waves: approvedRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.unwatched(72 * time.Hour)
			s.approve("rest", second)
			s.decide()
			s.at(second, "canary1", "rest1")
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "a clock that was ahead", reason: "what began, ended or was looked at in days to come did so now", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.now = s.now.Add(720 * time.Hour)
			s.decide()
			s.now = s.now.Add(-720 * time.Hour)
			s.decide()
			s.after(31 * time.Minute)
			s.decide()
			s.at(second, "canary1", "rest1")
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest1", v1alpha1.ResultFailed)
		}},
		{name: "a pin of a clock that was ahead", reason: "its deadline is that of others", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.now = s.now.Add(720 * time.Hour)
			s.commit(second)
			s.decide()
			s.now = s.now.Add(-720 * time.Hour)
			s.decide()
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
	})
}

// TestLooksOnRecord: the run says when it was looked at last while something is timed, once a minute.
func TestLooksOnRecord(t *testing.T) {
	s := begin(t, soaking(), "canary1", "rest1")
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	s.decide()
	at := s.status.Run.LookedAt.Time
	s.now = s.now.Add(30 * time.Second)
	s.decide()
	if got := s.status.Run.LookedAt.Time; !got.Equal(at) || s.last.RecheckAfter != 30*time.Second {
		t.Fatalf("looked at %s, then at %s, and again in %s", at, got, s.last.RecheckAfter)
	}
	s.now = s.now.Add(30 * time.Second)
	s.decide()
	if got := s.status.Run.LookedAt.Time; !got.Equal(s.now) || s.status.Run.ResumedAt != nil {
		t.Fatalf("looked at %s, and it is %s; resumed at %s", got, s.now, s.status.Run.ResumedAt)
	}
}
