package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestIdle: a cluster into which no layer brings what is moved does not fail for that, is not waited for, and proves
// nothing. It may have what the others have, for when a layer brings it.
func TestIdle(t *testing.T) {
	waves := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 0)}
	// idles are clusters that have nothing of it, though they are well.
	idles := func(s *story, is bool, names ...string) {
		for _, name := range names {
			c := s.cluster(name)
			c.Idle, c.Has, c.Healthy, c.Ready = is, nil, true, false
		}
	}
	tellAll(t, []tale{
		{name: "in the last wave", reason: "the run passes without them", waves: waves, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			idles(s, true, "rest1", "rest2", "rest3")
			for range 4 {
				s.decide()
			}
			s.at(second, "canary1", "rest1", "rest2", "rest3")
			s.after(20 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.result("rest1", v1alpha1.ResultDeferred)
			if got := s.status.Clusters; got != (v1alpha1.RolloutCounts{Total: 1, Updated: 1}) {
				s.t.Fatalf("counted are %+v", got)
			}
		}},
		{name: "it failed already", reason: "an agent of before did not know why it is not ready", waves: []v1alpha1.RolloutWave{wave("canary", 1, 1), wave("rest", 2, 0)}, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "canary2")
			s.cluster("canary2").Ready = false
			s.after(10 * time.Minute)
			s.decide()
			s.result("canary2", v1alpha1.ResultFailed)
			idles(s, true, "canary2")
			s.decide()
			s.result("canary2", v1alpha1.ResultDeferred)
		}},
		{name: "all of them", reason: "no revision begins with nobody to prove it, as after a commit that dropped the object by mistake: the canary comes first when it is back", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			idles(s, true, "canary1", "rest1")
			for range 6 {
				s.decide()
				s.after(10 * time.Minute)
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.good(first)
			s.says(v1alpha1.ReasonNoChildren, "no layer is known to bring what is moved into any cluster that is selected: a revision begins when one does")
			s.at(first, "canary1", "rest1")
			idles(s, false, "canary1", "rest1")
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1")
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "all of them by now", reason: "the run stands in the wave that it is in", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			idles(s, true, "canary1", "rest1")
			for range 6 {
				s.after(10 * time.Minute)
				s.decide()
			}
			s.phase(v1alpha1.RolloutProgressing)
			s.held(v1alpha1.ReasonNoChildren)
			s.at(second, "canary1")
			idles(s, false, "canary1", "rest1")
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "none is on its way", reason: "a tier above does not wait for what begins with the first of them, at rest or in the middle of a run", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.pending(false)
			idles(s, true, "canary1", "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.pending(false)
			idles(s, false, "canary1", "rest1")
			s.decide()
			s.pending(true)
			idles(s, true, "canary1", "rest1")
			for range 3 {
				s.decide()
				s.phase(v1alpha1.RolloutProgressing)
				s.pending(false)
				s.after(time.Hour)
			}
			s.forget()
			idles(s, true, "canary1", "rest1")
			s.spec.Suspend = true
			s.decide()
			s.pending(false)
			idles(s, false, "rest1")
			s.decide()
			s.pending(true)
		}},
		{name: "not known before", reason: "a Rollout may be there before a layer brings what it moves: later waves get nothing that nobody ran", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.forget()
			for _, name := range []string{"canary1", "rest1"} {
				s.cluster(name).Known, s.cluster(name).New = true, true
			}
			s.decide()
			idles(s, true, "canary1")
			for range 6 {
				s.after(10 * time.Minute)
				s.decide()
			}
			s.at(first, "canary1")
			s.held(v1alpha1.ReasonWaveUnproven)
			idles(s, false, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.at(first, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		{name: "the canary for good", reason: "a person may bring it to the next wave, which proves it by itself", waves: waves, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			idles(s, true, "canary1")
			s.decide()
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.at(second, "canary1")
			s.approve("rest", second)
			s.decide()
			s.at(second, "canary1", "rest1")
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(second)
		}},
		{name: "a layer brings it", reason: "it is waited for, and has its deadline from then on", waves: waves, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			idles(s, true, "canary2")
			s.decide()
			s.decide()
			s.at(second, "canary1", "canary2")
			s.result("canary2", v1alpha1.ResultDeferred)
			s.after(9 * time.Minute)
			idles(s, false, "canary2")
			s.takes(true, "canary1")
			s.decide()
			s.result("canary2", v1alpha1.ResultUpdating)
			s.after(9 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2")
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "what is taken back", reason: "it is taken back there, too, and nobody waits for it", waves: waves, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			idles(s, true, "canary2")
			s.decide()
			s.decide()
			s.at(second, "canary1", "canary2")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			for range 3 {
				s.decide()
			}
			s.at(first, "canary1", "canary2", "rest1")
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
	})
}
