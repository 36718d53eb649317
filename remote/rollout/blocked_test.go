package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// blocks has nothing reach clusters, or all of it again: those that wait for their pin by name.
func (s *story) blocks(is bool, names ...string) {
	s.facts.Blocked = rollout.Hold{}
	if is {
		s.facts.Blocked = rollout.Hold{Reason: v1alpha1.ReasonSourceNotReady, Message: "the newest commit does not build"}
	}
	for _, name := range names {
		c := s.cluster(name)
		c.Blocked, c.Reached = is, time.Time{}
		if !is {
			c.Reached = s.now
		}
	}
}

// TestBlocked: while what clusters are given does not reach them, nobody begins, and nobody is to blame.
func TestBlocked(t *testing.T) {
	names := []string{"canary1", "rest1", "rest2", "rest3"}
	tellAll(t, []tale{
		{name: "a cluster that waits", reason: "its deadline counts from when its revision is on its way", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.blocks(true, "canary1")
			s.after(time.Hour)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.blocks(false, "canary1")
			s.after(9 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "a cluster that waits, and another process goes on", reason: "that does not know since when it is on its way", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.blocks(true, "canary1")
			s.after(time.Hour)
			s.decide()
			s.blocks(false, "canary1")
			s.after(time.Minute)
			s.decide()
			s.cluster("canary1").Reached = time.Time{}
			s.after(8 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "a new cluster", reason: "what it had before it was given that is on record", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: "rest4", UID: "rest4", Labels: map[string]string{"wave": "rest"}, Known: true, New: true, Healthy: true})
			s.decide()
			s.blocks(true, "rest4")
			s.after(time.Hour)
			s.decide()
			s.blocks(false, "rest4")
			c := s.cluster("rest4")
			c.Has, c.New = &v1alpha1.RolloutRevision{Revision: first}, false
			s.decide()
			if c.Pin.Result != v1alpha1.ResultUpdating || !c.Pin.Since.Time.Equal(s.now) || c.Pin.Had != nil {
				s.t.Errorf("it is %+v", c.Pin)
			}
		}},
		{name: "a cluster that has it", reason: "that it is not well is its revision's fault, whatever came since", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.blocks(true)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "the next wave", reason: "it does not begin, so that the commit that mends it takes the place of the run", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.blocks(true)
			s.decide()
			s.held(v1alpha1.ReasonSourceNotReady)
			s.at(second, "canary1")
			s.blocks(false)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
		}},
		{name: "the rest of a wave", reason: "nobody else begins, and what began is not late", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			begun := []string{}
			for _, c := range s.facts.Clusters {
				if c.Name != "canary1" && c.Pin.Revision == second {
					begun = append(begun, c.Name)
				}
			}
			s.takes(true, begun[0])
			s.blocks(true, begun[1])
			s.after(time.Hour)
			s.decide()
			s.held(v1alpha1.ReasonSourceNotReady)
			if n := s.status.Waves[1]; n.Updated != 1 || n.Updating != 1 || n.Pending != 1 {
				s.t.Errorf("of the rest %+v", n)
			}
		}},
		{name: "a revert", reason: "it is not done before clusters can have what they get back", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.blocks(true)
			s.facts.Requests.Revert = second
			for range 3 {
				s.after(time.Hour)
				s.decide()
			}
			s.phase(v1alpha1.RolloutReverting)
			s.held(v1alpha1.ReasonSourceNotReady)
			s.at(second, "canary1")
			s.blocks(false)
			s.decide()
			s.at(first, names...)
			s.blocks(true, "canary1") // again, before it has it
			s.after(time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.blocks(false, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
	})
}
