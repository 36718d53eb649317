package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// soaking are canaryAndRest, of which the canary soaks for half an hour.
func soaking() []v1alpha1.RolloutWave {
	w := canaryAndRest()
	w[0].Soak = &metav1.Duration{Duration: 30 * time.Minute}
	return w
}

// lose has clusters answer no more, which is one write of their Children.
func (s *story) lose(names ...string) {
	for _, name := range names {
		c := s.cluster(name)
		c.Unreachable, c.Healthy, c.Ready = s.now, false, false
	}
}

// find has them answer again.
func (s *story) find(ready bool, names ...string) {
	for _, name := range names {
		s.cluster(name).Unreachable = time.Time{}
	}
	s.takes(ready, names...)
}

func (s *story) result(name string, want v1alpha1.RolloutResult) {
	s.t.Helper()
	if got := s.cluster(name).Pin.Result; got != want {
		s.t.Fatalf("%s is %s, want %s", name, got, want)
	}
}

// forget has nothing on record, of the Rollout and its clusters, nor known of these.
func (s *story) forget() {
	s.status = v1alpha1.RolloutStatus{}
	for i := range s.facts.Clusters {
		c := &s.facts.Clusters[i]
		c.Pin, c.Known, c.Has, c.Ready = nil, false, nil, false
	}
}

// tells has clusters tell what they have.
func (s *story) tells(revision string, names ...string) {
	for _, name := range names {
		c := s.cluster(name)
		c.Known, c.Has = true, &v1alpha1.RolloutRevision{Revision: revision}
	}
}

// TestProven: what counts as the proof of a revision.
func TestProven(t *testing.T) {
	tellAll(t, []tale{
		{name: "dies in its soak", reason: "a canary that was ready once, and answers no more, proves nothing", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.after(10 * time.Minute)
			s.lose("canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded) // one heartbeat that got lost
			s.after(s.last.RecheckAfter)
			s.decide()
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.after(30 * time.Minute)
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.at(second, "canary1")
		}},
		{name: "dies in its soak, and counts", reason: "unreachable: Count makes it a failure after the deadline, also of one that was ready once", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(25 * time.Minute)
			s.lose("canary1")
			s.decide()
			s.after(time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultDegraded)
			s.after(9 * time.Minute)
			s.decide()
			s.at(second, "canary1")
			s.after(time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultFailed)
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "dies in its soak, and counts, before the next commit", reason: "where that may mend it, it is judged at the commit before first, and gets it then", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.spec.Preempt = true
			s.cluster("canary1").Local = true
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.lose("canary1")
			s.after(time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultDegraded)
			s.after(5 * time.Minute)
			s.commit(third)
			s.decide()
			for range 4 { // over its first minute, which does not count against the commit before
				s.after(time.Minute)
				s.decide()
				s.phase(v1alpha1.RolloutProgressing)
				s.at(second, "canary1")
			}
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(third, "canary1")
		}},
		{name: "dies, and the rest was approved in advance", reason: "who approves with the commit approves whatever the wave before it proves, as docs/rollouts.md says", waves: approvedRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.lose("canary1")
			s.commit(second)
			s.approve("rest", second)
			s.after(2 * time.Minute)
			s.decide()
			s.at(second, "rest1")
		}},
		{name: "soaked, with a newer commit", reason: "that begins without an event", waves: soaking()[:1], clusters: []string{"canary1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.commit(third)
			s.after(30 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			if s.last.RecheckAfter == 0 {
				s.t.Fatal("nobody looks again")
			}
			s.decide()
			s.at(third, "canary1")
		}},
		{name: "is away for two minutes, and counts", reason: "it is a failure at the deadline, and the wave waits for it until then", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.spec.Waves[1].MaxFailures = intstr.FromInt32(0)
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.lose("rest3")
			s.after(2 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(second, "canary1", "rest1", "rest2")
			s.takes(true, "rest1")
			s.cluster("rest2").Outstanding = "its control plane runs v1.36.0"
			s.decide()
			s.says(v1alpha1.ReasonProgressing, "cluster rest3 is waited for: it cannot be reached since 2023-11-15 22:13:20 UTC, and counts as failed at 2023-11-15 22:23:20 UTC; and 1 more")
			s.cluster("rest2").Outstanding = ""
			s.takes(true, "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(8 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "is away for less than a minute, and counts", reason: "a heartbeat that got lost is not worth a word", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.lose("rest1")
			s.decide()
			s.held("")
			s.after(s.last.RecheckAfter)
			s.decide()
			s.held(v1alpha1.ReasonProgressing)
			s.find(true, "rest1")
			s.decide()
			s.held("")
		}},
		{name: "is lost while it changes", reason: "it is waited for until its deadline, which is nobody's failure", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.after(time.Minute)
			s.lose("canary1")
			s.after(2 * time.Minute)
			s.decide()
			s.says(v1alpha1.ReasonProgressing, "cluster canary1 is waited for: it cannot be reached since 2023-11-15 22:14:20 UTC, and is passed over at 2023-11-15 22:23:20 UTC")
			s.after(7 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.held(v1alpha1.ReasonWaveUnproven)
		}},
		{name: "comes back in its soak", reason: "nobody knows how it was meanwhile: its soak begins when it is back", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(10 * time.Minute)
			s.lose("canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.find(true, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded)
			s.after(29 * time.Minute)
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.at(second, "canary1")
			s.after(s.last.RecheckAfter)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "a heartbeat is lost in the soak", reason: "less than a minute is no absence, and the soak goes on", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(10 * time.Minute)
			s.lose("canary1")
			s.decide()
			s.after(30 * time.Second)
			s.find(true, "canary1")
			s.decide()
			s.after(20*time.Minute - 30*time.Second)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "a heartbeat is lost at the end of the soak", reason: "the wave neither passes on who is not there, nor without it for that", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(30*time.Minute - time.Second)
			s.lose("canary1")
			s.after(2 * time.Second)
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.at(second, "canary1")
			s.find(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "one of many is lost in the soak", reason: "offline holds nobody up: the others prove it, and their soak does not begin anew each time that one goes", waves: []v1alpha1.RolloutWave{soaking()[0], wave("rest", 1, 0)}, clusters: []string{"canary1", "canary2", "canary3", "rest1"}, tell: func(s *story) {
			s.spec.Waves[0].MaxConcurrent.IntVal = 3
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2", "canary3")
			s.decide()
			for range 5 {
				s.after(5 * time.Minute)
				s.lose("canary1")
				s.decide()
				s.after(time.Minute)
				s.decide()
				s.find(true, "canary1")
				s.decide()
			}
			s.at(second, "canary1", "canary2", "canary3", "rest1")
		}},
		{name: "is lost and comes back broken after its wave", reason: "what it became by the commit counts, in whichever wave the run is", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.lose("canary1")
			s.after(time.Minute)
			s.decide()
			s.find(false, "canary1")
			s.decide()
			s.after(10 * time.Minute)
			s.takes(true, "rest1", "rest2", "rest3")
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "comes back unready after the run", reason: "it has what it is to have, and is done as soon as it is ready", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.takes(true, "rest1", "rest2", "rest3")
			s.lose("canary1")
			s.after(time.Minute)
			for range 3 {
				s.decide()
				for _, name := range []string{"rest1", "rest2", "rest3"} {
					s.takes(true, name)
				}
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.find(false, "canary1")
			s.decide()
			s.find(true, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded)
			if c := s.status.Clusters; c.Updated != 4 {
				s.t.Fatalf("counted are %+v", c)
			}
		}},
		{name: "is not asked yet", reason: "an agent that began a moment ago knows nothing of any cluster, and no wave passes with nobody, whoever approved the next", waves: approvedRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.forget()
			s.commit(second)
			s.approve("rest", second)
			s.decide()
			s.held("")
			if run := s.status.Run; run.Wave != 0 || run.Unproven || s.last.RecheckAfter != time.Minute {
				s.t.Fatalf("the run is %+v, and looked at after %s", run, s.last.RecheckAfter)
			}
			s.tells(first, "canary1", "rest1")
			s.decide()
			s.at(second, "canary1")
			s.at(first, "rest1")
		}},
		{name: "tells after its wave passed", reason: "half of the wave is ready by now, and no person is needed for what nobody knew before", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.forget()
			s.commit(second)
			s.decide()
			s.after(time.Minute)
			s.decide()
			s.after(30 * time.Minute)
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.tells(first, "canary1", "rest1")
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.after(s.last.RecheckAfter)
			for range 30 { // the look that is on record is every minute
				s.decide()
				s.after(s.last.RecheckAfter)
			}
			s.at(second, "canary1", "rest1")
		}},
		{name: "was not proven when its wave passed, and went", reason: "nobody is left of the wave who could prove it", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.lose("canary1")
			s.after(2 * time.Minute)
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.facts.Clusters = s.facts.Clusters[1:]
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
		}},
	})
}
