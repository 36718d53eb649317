package rollout_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// joins adds clusters in which nothing was ever in place.
func (s *story) joins(names ...string) {
	for _, name := range names {
		s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: name, UID: types.UID(name), Labels: map[string]string{"wave": name[:len(name)-1]}, Known: true, New: true})
	}
}

// made adds clusters that a later commit made, which the revisions before it lack.
func (s *story) made(by string, lacking []string, names ...string) {
	s.joins(names...)
	for _, name := range names {
		c := s.cluster(name)
		c.New, c.Has, c.Lacks = false, &v1alpha1.RolloutRevision{Revision: by}, map[string]bool{}
		for _, revision := range lacking {
			c.Lacks[revision] = true
		}
	}
}

// TestJoins: what a cluster gets that comes, or returns, while a run is under way.
func TestJoins(t *testing.T) {
	approvedCanary := canaryAndRest()
	approvedCanary[0].Approval = v1alpha1.ApprovalRequired
	approvedCanary[1].Soak = &metav1.Duration{Duration: time.Hour}
	soakingCanary := canaryAndRest()
	soakingCanary[0].Soak = &metav1.Duration{Duration: time.Hour}
	nights := canaryAndRest()
	nights[1].Window = &v1alpha1.RolloutWindow{Cron: "0 1 * * *", Duration: metav1.Duration{Duration: time.Hour}} // it is 22:13
	tellAll(t, []tale{
		{name: "while its wave waits for an approval", reason: "the approval is of another commit, and may take weeks", waves: approvedRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.joins("rest2")
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.at(first, "rest1", "rest2")
			s.takes(true, "rest2")
			s.approve("rest", second)
			for range 2 {
				s.decide()
			}
			s.at(second, "canary1", "rest1", "rest2")
		}},
		{name: "returns while its wave waits for an approval", reason: "it was offline in the run before, and gets what that proved", waves: approvedRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.lose("rest2")
			s.approve("rest", second)
			s.commit(second)
			for range 4 {
				s.after(2 * time.Minute)
				s.decide()
				s.takes(true, "canary1", "rest1")
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.commit(third)
			s.decide()
			s.takes(true, "canary1")
			s.find(true, "rest2")
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.at(second, "rest1", "rest2")
		}},
		{name: "while the run is halted", reason: "the last good revision is as good as before", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.joins("canary2", "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.held(v1alpha1.ReasonRolloutHalted)
			s.at(first, "canary2", "rest1", "rest2")
			s.at(second, "canary1")
		}},
		{name: "outside of the window", reason: "it has nothing that a window keeps", waves: nights, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.joins("rest2")
			s.decide()
			s.held(v1alpha1.ReasonOutsideWindow)
			s.at(first, "rest1", "rest2")
			s.at(second, "canary1")
		}},
		{name: "in a wave that passed without an approval", reason: "it gets the last good revision, what the run does goes on to be told, and an approval lets it go on", waves: approvedCanary, clusters: []string{"rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "rest1")
			s.takes(true, "rest1")
			s.joins("canary1")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.at(first, "canary1")
			s.takes(true, "canary1")
			s.decide()
			if i := slices.IndexFunc(s.status.Waves, func(w v1alpha1.RolloutWaveStatus) bool { return w.Name == "canary" }); s.status.Waves[i].Pending != 1 {
				s.t.Fatalf("waves are told as %+v", s.status.Waves)
			}
			s.approve("canary", second)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "made by a later commit", reason: "neither the last good revision nor that of the run has it, and would take it away", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.commit(third)
			s.made(third, []string{first, second}, "canary2", "rest2")
			s.decide()
			s.at(third, "canary2", "rest2")
			s.takes(true, "canary1")
			s.decide() // its wave does not wait for the one that is new
			s.at(second, "canary1", "rest1")
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.decide()
			s.at(third, "canary1", "canary2", "rest2")
			s.takes(true, "canary1", "canary2", "rest2")
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.at(third, "canary1", "canary2", "rest1", "rest2")
		}},
		{name: "made by a later commit, before a restart", reason: "nobody knows yet whether the last good revision has it", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.commit(third)
			s.made(third, nil, "rest2")
			s.facts.Unbuilt = map[string]bool{first: true}
			s.decide()
			s.held(v1alpha1.ReasonSourceNotReady)
			s.at(third, "rest2")
			s.facts.Unbuilt, s.cluster("rest2").Lacks = nil, map[string]bool{first: true}
			s.decide()
			s.at(third, "rest2")
			s.at(second, "canary1")
		}},
		{name: "made by the commit that is aborted", reason: "it keeps what it has, as others do", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.made(second, []string{first}, "rest2")
			s.decide()
			s.facts.Requests.Abort = second
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
			s.decide()
			s.at(first, "rest1")
			s.at(second, "canary1", "rest2")
		}},
		{name: "made by the commit that is taken back", reason: "to take it back from the cluster that it made is to delete that", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.made(second, []string{first}, "canary2")
			s.decide()
			s.facts.Requests.Revert = second
			for range 3 {
				s.decide()
				s.takes(true, "canary1", "rest1")
			}
			s.phase(v1alpha1.RolloutReverted)
			s.at(first, "canary1", "rest1")
			s.at(second, "canary2")
		}},
		{name: "in a wave that began without an approval", reason: "the wave waits for it, and says for what", waves: approvedCanary, clusters: []string{"rest1"}, tell: func(s *story) {
			s.spec.Waves = slices.Clone(s.spec.Waves)
			s.spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
			s.commit(second)
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.joins("canary1")
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.at(first, "canary1", "rest1")
		}},
		{name: "while its wave soaks", reason: "the others soak on, and it soaks by itself", waves: soakingCanary, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(30 * time.Minute)
			s.joins("canary2")
			s.decide()
			s.takes(false, "canary2")
			s.after(5 * time.Minute)
			s.decide()
			s.takes(true, "canary2")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.at(second, "canary1", "canary2")
			s.after(25 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
		}},
		{name: "while its wave soaks, one after the other", reason: "where they are made faster than they are ready, one of them always is on its way", waves: soakingCanary, clusters: []string{"canary1", "canary2", "canary3", "canary4", "rest1"}, tell: func(s *story) {
			s.commit(second)
			for range 4 {
				s.decide()
				for _, c := range s.facts.Clusters {
					s.takes(true, c.Name)
				}
			}
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			before := "canary4"
			for _, name := range []string{"canary5", "canary6", "canary7"} {
				s.after(20*time.Minute - time.Second)
				s.joins(name)
				s.takes(true, before)
				s.decide()
				before = name
			}
			s.after(time.Minute)
			s.decide()
			s.result("canary7", v1alpha1.ResultUpdating)
			s.at(second, "canary1", "canary2", "canary3", "canary4", "canary5", "canary6", "canary7", "rest1")
		}},
		{name: "and fails while its wave soaks", reason: "it counts as any other", waves: soakingCanary, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.joins("canary2")
			s.cluster("canary2").Healthy = true
			s.decide()
			s.takes(false, "canary2")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "while a revision is taken back", reason: "it never had that, and the revert is done without it", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Revert = second
			s.decide()
			s.joins("rest2", "rest3")
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "canary1", "rest1", "rest2", "rest3")
			s.takes(false, "rest3")
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
	})
}
