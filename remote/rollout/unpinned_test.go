package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestUnpinned: what a version that knows no Rollouts brought to all clusters is what they have.
func TestUnpinned(t *testing.T) {
	two := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 1)}
	tellAll(t, []tale{
		{name: "goes on from what an earlier version brought", reason: "an agent that knows no Rollouts gave all of them the newest one: to take it back from all at once is no wave", waves: two, clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.commit(second)
			for i := range s.facts.Clusters {
				c := &s.facts.Clusters[i]
				c.Unpinned, c.Has, c.Ready = true, &v1alpha1.RolloutRevision{Revision: second}, false
			}
			s.cluster("rest2").Healthy = false
			s.decide()
			s.at(second, "canary1", "rest1", "rest2")
			for _, c := range s.facts.Clusters {
				if ill := c.Name == "rest2"; ill != (c.Pin.Result == v1alpha1.ResultUnproven) || !ill && c.Pin.Result != v1alpha1.ResultSucceeded {
					s.t.Errorf("%s has %+v on record, want what is there", c.Name, c.Pin)
				}
			}
		}},
		{name: "takes what an earlier version brought back in waves", reason: "what was aborted came to all of them by an agent that knows no Rollouts", waves: two, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.facts.Requests.Abort = second
			s.decide()
			s.takes(true, "canary1")
			s.after(time.Hour)
			s.decide()
			for i := range s.facts.Clusters {
				c := &s.facts.Clusters[i]
				c.Unpinned, c.Has, c.Ready = true, &v1alpha1.RolloutRevision{Revision: second}, false
			}
			s.decide()
			s.at(second, "canary1", "rest2")
			s.at(first, "rest1", "rest3") // two at a time
		}},
		{name: "gives what it decided", reason: "a cluster that is about to change is not taken for one that an earlier version changed", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.cluster("canary1").Unpinned = true
			s.decide()
			s.at(second, "canary1")
			s.at(first, "rest1")
		}},
	})
}
