package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// tale is one story of a table of them.
type tale struct {
	name, reason string
	waves        []v1alpha1.RolloutWave
	clusters     []string
	tell         func(s *story)
}

func tellAll(t *testing.T, tales []tale) {
	for _, tt := range tales {
		t.Run(tt.name, func(t *testing.T) {
			t.Log(tt.reason)
			tt.tell(begin(t, tt.waves, tt.clusters...))
		})
	}
}

// canaryAndRest are two waves: one canary after another, then two at a time, of which one may fail.
func canaryAndRest() []v1alpha1.RolloutWave {
	return []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 1)}
}

// TestBlame: for which clusters a revision is to blame that are not ready at it.
func TestBlame(t *testing.T) {
	tellAll(t, []tale{
		{name: "fails again after a retry", reason: "a retry gives another deadline, and not another blame: who was well before the commit counts each time", waves: []v1alpha1.RolloutWave{wave("canary", 3, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "canary2", "canary3", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2")
			s.takes(false, "canary3")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.facts.Requests.Retry = "once more"
			s.decide()
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.at(second, "canary1", "canary2", "canary3")
		}},
		{name: "a retry of who was ill before", reason: "it is as little to blame as it was", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.takes(false, "rest1")
			s.commit(second)
			s.decide()
			s.takes(true, "rest2")
			s.takes(false, "rest1", "rest3")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.facts.Requests.Retry = "once more"
			s.decide()
			s.decide()
			if !s.cluster("rest1").Pin.Blameless || s.cluster("rest3").Pin.Blameless {
				s.t.Fatalf("rest1 has %+v, rest3 %+v", s.cluster("rest1").Pin, s.cluster("rest3").Pin)
			}
		}},
		{name: "a newer commit after a retry", reason: "who failed at the commit before has to be ready at the next, retried or not", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Preempt = true
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.facts.Requests.Retry, s.facts.Room = "once more", 0
			s.decide()
			s.decide()
			s.commit(third)
			s.facts.Room = -1
			s.decide()
			s.at(third, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "comes back broken", reason: "it was well before the commit, and got lost with it", waves: []v1alpha1.RolloutWave{wave("canary", 3, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "canary2", "canary3", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary2", "canary3")
			s.takes(false, "canary1")
			s.cluster("canary1").Unreachable = s.now
			s.after(10 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2", "canary3", "rest1")
			s.cluster("canary1").Unreachable = time.Time{}
			s.decide()
			if r := s.cluster("canary1").Pin; r.Result != v1alpha1.ResultUpdating || r.Blameless {
				s.t.Fatalf("it came back and has %+v", r)
			}
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
	})
}
