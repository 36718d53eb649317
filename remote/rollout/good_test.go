package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// good expects the last good revision.
func (s *story) good(want string) {
	s.t.Helper()
	got := ""
	if s.status.LastGood != nil {
		got = s.status.LastGood.Revision
	}
	if got != want {
		s.t.Fatalf("the last good revision is %q, want %q", got, want)
	}
}

func (s *story) approve(wave, revision string) {
	s.facts.Requests.Approvals = append(s.facts.Requests.Approvals, rollout.Approval{Wave: wave, Revision: revision, By: "ann"})
}

// TestGood: which runs end as good, so that all other clusters, and other environments, may
// have their revision.
func TestGood(t *testing.T) {
	last := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 3, 0)}
	tellAll(t, []tale{
		{name: "all are lost", reason: "nothing ran the commit, and no approval makes up for that", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.lose("rest1", "rest2")
			s.after(time.Hour)
			s.commit(second)
			s.approve(rollout.End, second)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.held(v1alpha1.ReasonWaveUnproven)
			s.good(first)
			s.find(true, "rest1")
			s.decide()
			s.at(second, "rest1")
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(second)
		}},
		{name: "most of the last wave is lost", reason: "it ends as an earlier wave does: with half of them, or with an approval of the end", waves: last, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.lose("rest1", "rest2")
			s.approve("rest", second) // which lets it begin, and says nothing of what became of it
			s.commit(second)
			s.decide()
			s.after(time.Hour)
			s.takes(true, "canary1")
			s.decide()
			s.takes(true, "rest3")
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.held(v1alpha1.ReasonWaveUnproven)
			s.good(first)
			s.approve(rollout.End, first)
			s.decide()
			s.good(first)
			s.approve(rollout.End, second)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(second)
		}},
		{name: "the last wave comes back", reason: "then it is proven, and nobody needs to approve that", waves: last, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.lose("rest1", "rest2")
			s.commit(second)
			s.decide()
			s.after(time.Hour)
			s.takes(true, "canary1")
			s.decide()
			s.takes(true, "rest3")
			s.decide()
			s.good(first)
			s.find(true, "rest1")
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(second)
		}},
		{name: "a newer commit at the end", reason: "a run that waits for its proof holds up no other one", waves: last, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.lose("rest1", "rest2", "rest3")
			s.commit(second)
			s.decide()
			s.after(time.Hour)
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
		}},
		{name: "an empty wave after a lost one", reason: "that nobody is in a wave proves nothing of the one before it", waves: []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("early", 1, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.lose("canary1")
			s.after(time.Hour)
			s.commit(second)
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.at(second)
			s.approve("rest", second)
			s.decide()
			s.at(second, "rest1")
		}},
		{name: "no cluster", reason: "no run begins with nobody to prove it, and one does with the first cluster", waves: canaryAndRest(), clusters: []string{"canary1"}, tell: func(s *story) {
			canary := s.facts.Clusters
			s.facts.Clusters = nil
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(first)
			s.held(v1alpha1.ReasonNoChildren)
			s.pending(false)
			s.facts.Clusters = canary
			s.decide()
			s.pending(true)
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.good(second)
			s.pending(false)
		}},
		{name: "the last cluster goes", reason: "the run neither passes on nobody, nor is waited for", waves: canaryAndRest(), clusters: []string{"canary1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.facts.Clusters = nil
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.held(v1alpha1.ReasonNoChildren)
			s.good(first)
			s.pending(false)
		}},
		{name: "all go for a moment", reason: "as by a typo in a selector: no wave passes on nobody, and the canary comes first when they are back", waves: []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("early", 1, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "early1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			all := slices.Clone(s.facts.Clusters)
			s.facts.Clusters = nil
			s.decide()
			s.held(v1alpha1.ReasonNoChildren)
			s.after(time.Hour)
			s.decide()
			s.facts.Clusters = all
			for _, c := range []string{"canary1", "early1", "rest1"} {
				s.cluster(c).Pin = nil // a child that takes part in no Rollout has none
			}
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "early1")
		}},
		{name: "all go for good", reason: "the next commit does not wait for a run that nobody takes part in", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			all := slices.Clone(s.facts.Clusters)
			s.facts.Clusters = nil
			s.decide()
			s.commit(third)
			s.decide()
			s.phase(v1alpha1.RolloutSuperseded)
			s.held(v1alpha1.ReasonNoChildren)
			s.facts.Clusters = all
			s.decide()
			s.at(third, "canary1")
		}},
		{name: "in no wave", reason: "a cluster that no wave selects proves nothing either", waves: canaryAndRest(), clusters: []string{"canary1"}, tell: func(s *story) {
			s.cluster("canary1").Labels = nil
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(first)
			s.held(v1alpha1.ReasonNoChildren)
		}},
	})
}

func (s *story) pending(want bool) {
	s.t.Helper()
	if got := rollout.Pending(&v1alpha1.Rollout{Status: s.status}); got != want {
		s.t.Fatalf("pending is %v", got)
	}
}

// TestNoClusters: a Rollout that comes before its clusters, as on a tier that is built again,
// has no last good revision that none of them ran.
func TestNoClusters(t *testing.T) {
	spec := v1alpha1.RolloutSpec{Waves: canaryAndRest()}
	d := rollout.Next("base", &spec, &v1alpha1.RolloutStatus{}, rollout.Facts{Candidate: &v1alpha1.RolloutRevision{Revision: first}, Room: -1}, time.Unix(1_700_000_000, 0))
	if d.Status.Run != nil || d.Status.LastGood != nil || d.Status.Candidate == nil || d.Hold.Reason != v1alpha1.ReasonNoChildren {
		t.Errorf("decided %+v, held for %+v", d.Status, d.Hold)
	}
}
