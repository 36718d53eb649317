package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
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
		{name: "by an older definition", reason: "its API server keeps no look, and the soak ends all the same", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			for range 31 {
				s.status.Run.LookedAt, s.status.Run.ResumedAt = nil, nil
				s.now = s.now.Add(time.Minute)
				s.decide()
			}
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
		{name: "a pin of such a clock, and no run", reason: "it has a place of the tier until its deadline", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			c := s.cluster("rest1")
			c.Pin.Result, c.Pin.Since, c.Ready = v1alpha1.ResultUpdating, metav1.NewTime(s.now.Add(720*time.Hour)), false
			s.decide()
			s.after(10 * time.Minute)
			if o := (&v1alpha1.Rollout{Spec: s.spec, Status: s.status}); !rollout.Overdue(o, c.Pin.Since.Time, s.now) {
				s.t.Fatalf("it has its place since %s, and it is %s", c.Pin.Since, s.now)
			}
		}},
		{name: "at the end", reason: "the one that came back soaks for itself, and died while nobody looked", waves: soakingRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.comesBack("rest1", "rest2")
			s.unwatched(2 * time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(29 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "at the end, and a write conflicts", reason: "what the one that came back has on record is as before, and begins anew with the next look", waves: soakingRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.comesBack("rest1", "rest2")
			s.unwatched(2 * time.Hour)
			was, canary := s.cluster("rest1").Pin, s.cluster("canary1").Pin.Since
			s.decide()
			s.cluster("rest1").Pin = was
			for range 2 {
				s.unwatched(s.last.RecheckAfter)
				s.decide()
			}
			if got := s.cluster("canary1").Pin.Since; !got.Equal(&canary) {
				s.t.Fatalf("canary1 is ready since %s, which soaked long before: now since %s", canary, got)
			}
			for range 29 {
				s.unwatched(time.Minute)
				s.decide()
				s.phase(v1alpha1.RolloutProgressing)
			}
			s.unwatched(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "at the end, and once more", reason: "those of earlier waves soaked long before, and are ready while the other one soaks anew", waves: soakingRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.spec.Waves[0].Soak = s.spec.Waves[1].Soak
			s.comesBack("rest1", "rest2")
			canary := s.cluster("canary1").Pin.Since
			for range 2 {
				s.unwatched(10 * time.Minute)
				s.decide()
				s.after(s.last.RecheckAfter)
				s.decide()
			}
			if got := s.cluster("canary1").Pin.Since; !got.Equal(&canary) {
				s.t.Fatalf("canary1 is ready since %s, which soaked long before: now since %s", canary, got)
			}
		}},
		{name: "at the end, and writes are slow", reason: "one process looks since before the first of them, so that none begins anew again", waves: soakingRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.comesBack("rest1", "rest2")
			s.unwatched(2 * time.Hour)
			s.facts.Watching = s.now
			s.decide()
			since := s.cluster("rest1").Pin.Since
			s.unwatched(4 * time.Minute)
			s.decide()
			if got := s.cluster("rest1").Pin.Since; !got.Equal(&since) || !s.status.Run.LookedAt.Time.Equal(s.now) {
				s.t.Fatalf("rest1 is ready since %s, then since %s; looked at %s, and it is %s", since, got, s.status.Run.LookedAt, s.now)
			}
			// Another process took over before the look was on record.
			s.unwatched(2 * time.Hour)
			s.facts.Watching = s.now
			s.decide()
			if got := s.cluster("rest1").Pin.Since; !got.Time.Equal(s.now) {
				s.t.Fatalf("rest1 is ready since %s, and nobody looked before %s", got, s.now)
			}
		}},
		{name: "at the end, after a clock that was ahead", reason: "that somebody looked then is no later look", waves: soakingRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.comesBack("rest1", "rest2")
			s.now = s.now.Add(720 * time.Hour)
			for range 2 {
				s.decide()
				s.unwatched(s.last.RecheckAfter)
			}
			s.now = s.now.Add(-720 * time.Hour)
			s.decide()
			s.unwatched(2 * time.Hour)
			s.decide()
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "proven by a clock that was ahead", reason: "other environments take what was proven by now, and what is proven later after that", waves: canaryAndRest()[:1], clusters: []string{"canary1"}, tell: func(s *story) {
			s.now = s.now.Add(720 * time.Hour)
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.now = s.now.Add(-720 * time.Hour)
			s.decide()
			for of, at := range map[string]metav1.Time{"the run began": s.status.Run.Began, "it ended": s.status.Run.Since, "the good one did": s.status.LastGood.At, "the first on record did": s.status.History[0].Ended} {
				if at.After(s.now) {
					s.t.Errorf("%s at %s, and it is %s", of, at, s.now)
				}
			}
		}},
		{name: "proven before a clock that is behind", reason: "it would be taken for proven since before that", waves: canaryAndRest()[:1], clusters: []string{"canary1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			at := s.status.LastGood.At
			s.facts.Written = at.Add(-time.Minute) // by a clock that is a bit behind
			s.now = s.now.Add(-48 * time.Hour)
			s.decide()
			s.now = s.now.Add(48*time.Hour + 10*time.Minute)
			s.decide()
			for of, got := range map[string]metav1.Time{"the run ended": s.status.Run.Since, "the good one did": s.status.LastGood.At, "the first on record did": s.status.History[0].Ended} {
				if !got.Equal(&at) {
					s.t.Errorf("%s at %s, which was at %s", of, got, at)
				}
			}
		}},
		{name: "a proof of a clock that was ahead", reason: "what is proven next is later than what was taken, once the other environment mended its time", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.now = s.now.Add(720 * time.Hour)
			s.proves(second, s.now)
			s.decide()
			s.at(second, "canary1")
			s.now = s.now.Add(-720 * time.Hour)
			s.facts.Upstream.Proofs[0].Proven = s.now
			s.decide()
			s.waits("")
			s.after(time.Hour)
			s.proves(third, s.now)
			if got := rollout.Untaken(&s.spec, &s.status, s.facts.Upstream.Proofs); len(got) != 1 || got[0].Commit != hash(third) {
				s.t.Fatalf("may be taken: %+v", got)
			}
			s.decide()
			if got := s.status.Upstream.Taken.Commit; got != hash(third) {
				s.t.Fatalf("%s was taken last", got)
			}
		}},
		{name: "while one is offline that counts", reason: "it may have been back meanwhile", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.commit(second)
			s.lose("rest2")
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.unwatched(time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			if s.after(s.last.RecheckAfter); s.last.RecheckAfter != 0 {
				s.t.Fatalf("looks again after %s, and waits for nothing", s.last.RecheckAfter)
			}
		}},
		{name: "while one changes by itself", reason: "its machines may be through, and it gets the revision before the wave passes", waves: canaryAndRest(), clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.cluster("canary2").Rolling = v1alpha1.ReasonRollingOut
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.unwatched(time.Hour)
			s.decide()
			s.at(second, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.at(second, "canary1", "rest1")
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

// comesBack has the last wave pass with nobody who answers, and the first of it be back then: it soaks for itself.
func (s *story) comesBack(names ...string) {
	s.t.Helper()
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	s.lose(names...)
	s.after(2 * time.Minute)
	for range 2 {
		s.decide()
		s.after(31 * time.Minute)
	}
	s.decide()
	s.held(v1alpha1.ReasonWaveUnproven)
	s.find(true, names[0])
	s.decide()
	s.takes(true, names[0])
	s.decide()
	s.result(names[0], v1alpha1.ResultSucceeded)
}

// soakingRest are canaryAndRest, of which the rest soaks for half an hour.
func soakingRest() []v1alpha1.RolloutWave {
	w := canaryAndRest()
	w[1].Soak = &metav1.Duration{Duration: 30 * time.Minute}
	return w
}
