package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestTierSoaks: what begins in a tier long after it was ready, as a commit of its own, does not come of what it was
// given, and ends no soak.
func TestTierSoaks(t *testing.T) {
	waves := canaryAndRest()
	waves[0].Soak = &metav1.Duration{Duration: 24 * time.Hour}
	s := begin(t, waves, "canary1", "rest1")
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	s.decide()
	tier := s.cluster("canary1")
	s.after(5 * time.Minute)
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way" // this may
	s.decide()
	s.result("canary1", v1alpha1.ResultDegraded)
	tier.Ready, tier.Busy = true, ""
	s.decide()
	s.held(v1alpha1.ReasonSoaking)
	s.after(12 * time.Hour)
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way"
	s.decide()
	s.result("canary1", v1alpha1.ResultSucceeded)
	s.after(12 * time.Hour)
	s.decide()
	s.at(second, "canary1", "rest1")
}

// TestTierIsBusy: a tier may take longer than the deadline to bring what it was given to its own, which is no failure,
// and no proof.
func TestTierIsBusy(t *testing.T) {
	s := begin(t, canaryAndRest(), "canary1", "rest1")
	s.commit(second)
	s.decide()
	s.takes(true, "canary1")
	tier := s.cluster("canary1")
	tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way"
	s.decide()
	s.says(v1alpha1.ReasonRollingOut, "cluster canary1 is waited for: 1 of its own Rollouts are on their way")
	s.after(10 * time.Minute)
	s.decide()
	s.result("canary1", v1alpha1.ResultUnproven)
	s.phase(v1alpha1.RolloutProgressing)
	s.held(v1alpha1.ReasonWaveUnproven)
	s.at(second, "canary1")
	tier.Ready, tier.Busy = true, ""
	s.decide()
	s.at(second, "canary1", "rest1")
}

// TestTierIllBefore: what was ill below a tier before a run is not of the revision, if that is what it has already.
func TestTierIllBefore(t *testing.T) {
	waves := canaryAndRest()
	waves[0].Soak = &metav1.Duration{Duration: 30 * time.Minute}
	tellAll(t, []tale{
		{name: "a Rollout is new", reason: "it takes in what clusters have as they are", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.forget()
			s.tells(first, "canary1", "rest1")
			tier := s.cluster("canary1")
			tier.Below, tier.Underway = 2, 1
			s.decide()
			for range 4 {
				tier.Ready = tier.Below <= tier.Pin.Below
				if tier.Busy = ""; tier.Ready && tier.Underway > tier.Pin.Underway {
					tier.Ready, tier.Busy = false, "1 of its own Rollouts are on their way"
				}
				s.after(10 * time.Minute)
				s.decide()
				s.result("canary1", v1alpha1.ResultSucceeded)
			}
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "not well when a Rollout is new", reason: "what became ill below it since does not come of a revision that it was given", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.forget()
			s.tells(first, "canary1", "rest1")
			tier := s.cluster("canary1")
			tier.Healthy, tier.Below = false, 1
			s.decide()
			tier.Healthy, tier.Below = true, 5
			s.commit(second)
			for range 3 {
				s.decide()
			}
			if pin := tier.Pin; pin.Revision != second || pin.Below != 5 {
				s.t.Fatalf("canary1 has %+v", pin)
			}
		}},
		{name: "a commit is taken back by a push", reason: "the run takes over who has its revision as they are by then", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Preempt = true
			s.commit(second)
			s.decide()
			s.cluster("rest1").Below = 2
			s.commit(first)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			if pin := s.cluster("rest1").Pin; pin.Run != 3 || pin.Below != 2 {
				s.t.Fatalf("rest1 has %+v", pin)
			}
		}},
		{name: "it rolls when a commit comes", reason: "it was ready at what it has all the time, whatever became ill below it since", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			tier := s.cluster("canary1")
			tier.Rolling, tier.Below = v1alpha1.ReasonRollingOut, 2
			s.commit(second)
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			tier.Rolling = ""
			s.decide()
			s.at(second, "canary1")
			if tier.Pin.Below != 2 {
				s.t.Fatalf("canary1 has %+v", tier.Pin)
			}
		}},
	})
}

// TestTierBeginsAgain: what a revision made ill below a tier is no measure for that when the tier begins with it again, nor for
// what the tier is given before it was ready at that.
func TestTierBeginsAgain(t *testing.T) {
	waves := canaryAndRest()
	waves[0].Soak = &metav1.Duration{Duration: 30 * time.Minute}
	// soaks has the tier be ready at it first.
	soaks := func(s *story, tier *rollout.Cluster) {
		tier.Below, tier.Ready = 1, true
		s.decide()
		s.result("canary1", v1alpha1.ResultSucceeded)
	}
	// putOff has it be ill in the soak, and left alone until its deadline.
	putOff := func(s *story, tier *rollout.Cluster, why string) {
		soaks(s, tier)
		tier.Below, tier.Ready = 5, false
		s.decide()
		s.result("canary1", v1alpha1.ResultDegraded)
		tier.Rolling = why
		s.after(10 * time.Minute)
		s.decide()
		s.result("canary1", v1alpha1.ResultDeferred)
	}
	// early has it be ill in the soak, and left alone when the next commit comes before its deadline.
	early := func(s *story, tier *rollout.Cluster, why string) {
		soaks(s, tier)
		tier.Below, tier.Ready = 5, false
		s.decide()
		s.result("canary1", v1alpha1.ResultDegraded)
		tier.Rolling, s.spec.Preempt = why, true
		s.commit(third)
		s.after(time.Minute)
		s.decide()
		s.at(second, "canary1")
	}
	for name, tc := range map[string]struct {
		reason string
		result v1alpha1.RolloutResult
		tell   func(*story, *rollout.Cluster)
	}{
		"Paused": {"a person paused it to look", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			tier.Rolling = v1alpha1.ReasonPaused
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			tier.Rolling = ""
		}},
		"Lost": {"it could not be reached for longer than its deadline", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			tier.Unreachable = s.now
			s.after(time.Hour)
			s.decide()
			s.result("canary1", v1alpha1.ResultUnreachable)
			tier.Unreachable = time.Time{}
			s.decide()
		}},
		"Retried": {"a person has it tried again, as if nothing were ill", v1alpha1.ResultUpdating, func(s *story, _ *rollout.Cluster) {
			s.after(time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.facts.Requests.Retry = "now"
			s.decide()
		}},
		"NextCommit": {"it is to mend what the one before broke, and does not", v1alpha1.ResultUpdating, func(s *story, _ *rollout.Cluster) {
			s.after(time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
		}},
		"Preempted": {"it takes the place of one that had broken something already", v1alpha1.ResultUpdating, func(s *story, _ *rollout.Cluster) {
			s.spec.Preempt = true
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
		}},
		"Reverted": {"the one before is to mend it, and has not yet", v1alpha1.ResultUpdating, func(s *story, _ *rollout.Cluster) {
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		"PausedInAnotherRun": {"the branch is set back to it while a person looks", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			s.spec.Preempt = true
			tier.Rolling = v1alpha1.ReasonPaused
			s.decide()
			s.commit(third)
			s.decide()
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			tier.Rolling = ""
		}},
		"DegradedPausedReverted": {"it was ready first, and a person paused it to look", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			putOff(s, tier, v1alpha1.ReasonPaused)
			s.facts.Requests.Revert = second
			s.decide()
			tier.Rolling = ""
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		"DegradedSuspendedPreempted": {"it was ready first, and a person suspended it until the next commit", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			putOff(s, tier, v1alpha1.ReasonSuspended)
			s.spec.Preempt = true
			s.commit(third)
			s.decide()
			tier.Rolling = ""
			s.decide()
			s.at(third, "canary1")
		}},
		"DegradedPausedPreemptedEarly": {"the next commit comes before its deadline", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			early(s, tier, v1alpha1.ReasonPaused)
			s.result("canary1", v1alpha1.ResultDeferred)
			s.held(v1alpha1.ReasonProgressing) // which is waited for
			tier.Rolling = ""
			s.decide()
			s.at(third, "canary1")
		}},
		"DegradedRollsPreempted": {"it only rolls, and is not well after that", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			early(s, tier, v1alpha1.ReasonRollingOut)
			s.result("canary1", v1alpha1.ResultDegraded) // it may be well after the roll
			tier.Rolling = ""
			s.decide()
			s.at(third, "canary1")
		}},
		"DegradedRollsForGood": {"it may roll for what it has alone, and is given what ends that", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			early(s, tier, v1alpha1.ReasonRollingOut)
			s.after(10 * time.Minute)
			s.decide()
			s.at(third, "canary1")
		}},
		"DegradedPausedMended": {"the one before mends it", v1alpha1.ResultSucceeded, func(s *story, tier *rollout.Cluster) {
			putOff(s, tier, v1alpha1.ReasonPaused)
			s.facts.Requests.Revert = second
			s.decide()
			tier.Rolling = ""
			s.decide()
			tier.Below = 1
		}},
		"AwayReverted": {"it was ready first, and cut off before anybody saw what was ill", v1alpha1.ResultUpdating, func(s *story, tier *rollout.Cluster) {
			soaks(s, tier)
			tier.Unreachable = s.now
			s.after(2 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.facts.Requests.Revert = second
			s.decide()
			tier.Unreachable, tier.Below, tier.Ready = time.Time{}, 5, false
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		"MendedByTheNext": {"what was ill is well again", v1alpha1.ResultSucceeded, func(s *story, tier *rollout.Cluster) {
			s.after(time.Hour)
			s.decide()
			s.commit(third)
			s.decide()
			tier.Below = 1
		}},
		"Mended": {"what was ill is well again", v1alpha1.ResultSucceeded, func(s *story, tier *rollout.Cluster) {
			tier.Rolling = v1alpha1.ReasonPaused
			s.decide()
			tier.Rolling, tier.Below = "", 1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, waves, "canary1", "rest1")
			tier := s.cluster("canary1")
			tier.Below = 1
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			tier.Below, tier.Ready = 5, false
			s.decide()
			tc.tell(s, tier)
			s.decide()
			tier.Ready = tier.Below <= tier.Pin.Below
			s.decide()
			if s.result("canary1", tc.result); tier.Pin.Below != 1 {
				t.Errorf("%s: canary1 has %+v", tc.reason, tier.Pin)
			}
		})
	}
}
