package rollout_test

import (
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestImageAsWord: where a run has brought a commit with another image, people name the image. That
// means nothing for the commits that come with it later.
func TestImageAsWord(t *testing.T) {
	const v1, v2 = "registry.example.com/cascade:v1", "registry.example.com/cascade:v2"
	// brings has the run of a revision go over both clusters.
	brings := func(s *story, revision, image string) {
		s.facts.Candidate = &v1alpha1.RolloutRevision{Revision: revision, Image: image}
		for range 4 {
			s.decide()
			for _, c := range s.facts.Clusters {
				s.takes(true, c.Name)
			}
		}
		s.decide()
	}
	begins := func(s *story, revision, image string) {
		s.facts.Candidate = &v1alpha1.RolloutRevision{Revision: revision, Image: image}
		s.decide()
	}
	approval := func() []v1alpha1.RolloutWave {
		w := canaryAndRest()
		w[1].Approval = v1alpha1.ApprovalRequired
		return w
	}
	tellAll(t, []tale{
		{name: "approved", reason: "the next commit has the same image, and nobody approved it", waves: approval(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.approve("rest", second)
			s.approve("rest", v2)
			brings(s, second, v1)
			brings(s, second, v2)
			s.phase(v1alpha1.RolloutCompleted)
			brings(s, third, v2)
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.at(third, "canary1")
		}},
		{name: "aborted", reason: "the next commit has the same image, and mends what was wrong", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			brings(s, second, v1)
			begins(s, second, v2)
			s.facts.Requests.Abort = v2
			brings(s, second, v2)
			s.phase(v1alpha1.RolloutAborted)
			brings(s, third, v2)
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "reverted", reason: "the next commit has the same image, and nobody wants it back", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			brings(s, second, v1)
			begins(s, second, v2)
			s.facts.Requests.Revert = v2
			brings(s, second, v2)
			s.phase(v1alpha1.RolloutReverted)
			brings(s, third, v2)
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "skipped", reason: "it does without the image, and not without all that comes with it later", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			brings(s, second, v1)
			s.cluster("rest1").Skip = v2
			brings(s, second, v2)
			s.phase(v1alpha1.RolloutCompleted)
			s.decide()
			if got := s.cluster("rest1").Pin.Image; got != v1 {
				s.t.Fatalf("rest1 has %s, which it skips", got)
			}
			brings(s, third, v2)
			s.at(third, "canary1", "rest1", "rest2")
		}},
		{name: "a skipped commit with another image", reason: "that is the commit all the same", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.cluster("rest1").Skip = second
			brings(s, second, v1)
			brings(s, second, v2)
			s.at(first, "rest1")
		}},
	})
}

// TestTooNewImage: an image that this tier may not bring is kept from clusters, and nothing else is.
func TestTooNewImage(t *testing.T) {
	const v4, v5 = "registry.example.com/cascade:v1.4.0", "registry.example.com/cascade:v1.5.0"
	candidate := func(s *story, revision, image string) {
		s.facts.Candidate = &v1alpha1.RolloutRevision{Revision: revision, Image: image}
	}
	image := func(s *story, want string, names ...string) {
		s.t.Helper()
		for _, name := range names {
			if got := s.cluster(name).Pin; got == nil || got.Image != want {
				s.t.Errorf("%s may have %+v, want %s", name, got, want)
			}
		}
	}
	// good has a run of the first image pass.
	good := func(s *story) {
		candidate(s, first, v4)
		for range 4 {
			s.decide()
			for _, c := range s.facts.Clusters {
				s.takes(true, c.Name)
			}
		}
		s.phase(v1alpha1.RolloutCompleted)
	}
	tooNew := func(s *story) { s.facts.TooNew = map[string]string{v5: "upgrade this tier first"} }
	tellAll(t, []tale{
		{name: "a run of another image", reason: "what it brings is not too new", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			good(s)
			candidate(s, second, v4)
			s.decide()
			tooNew(s)
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "a new cluster", reason: "the last good revision has an image that it may have", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			good(s)
			tooNew(s)
			candidate(s, second, v5)
			s.joins("canary2", "rest2")
			s.decide()
			s.held(v1alpha1.ReasonParentOlder)
			s.at(second)
			image(s, v4, "canary2", "rest2")
		}},
		{name: "a revert", reason: "the tier was taken back, and what it brought goes back as well", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			good(s)
			candidate(s, second, v5)
			s.decide()
			s.takes(true, "canary1")
			s.decide() // two of the rest begin
			tooNew(s)
			s.takes(true, "rest1", "rest2", "rest3")
			for range 2 {
				s.decide()
			}
			s.held(v1alpha1.ReasonParentOlder)
			s.facts.Requests.Revert = second
			for range 4 {
				s.decide()
				for _, c := range s.facts.Clusters {
					s.takes(true, c.Name)
				}
			}
			s.phase(v1alpha1.RolloutReverted)
			image(s, v4, "canary1", "rest1", "rest2", "rest3")
		}},
		{name: "a run that can bring nothing", reason: "it does not wait in the middle of a wave for what will not be", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			good(s)
			candidate(s, second, v5)
			s.decide()
			tooNew(s)
			candidate(s, third, v4)
			s.decide()
			s.at(third, "canary1")
		}},
	})
}

// TestNamesRun: which run of the history words are about.
func TestNamesRun(t *testing.T) {
	const v1, v2 = "registry.example.com/cascade:v1", "registry.example.com/cascade:v2"
	is := func(revision, image string) v1alpha1.RolloutRevision {
		return v1alpha1.RolloutRevision{Revision: revision, Image: image}
	}
	status := &v1alpha1.RolloutStatus{
		Run:     &v1alpha1.RolloutRun{Number: 3, RolloutRevision: is(third, v2)},
		History: []v1alpha1.RolloutHistory{{Number: 2, RolloutRevision: is(second, v2)}, {Number: 1, RolloutRevision: is(second, v1)}},
	}
	for _, tt := range []struct {
		reason, words string
		number        int64
		of            v1alpha1.RolloutRevision
		want          bool
	}{
		{"the image alone was new", v2, 2, is(second, v2), true},
		{"its commit", second, 2, is(second, v2), true},
		{"the run before that had another image, and was there first", v1, 1, is(second, v1), false},
		{"the commit of that", second, 1, is(second, v1), true},
		{"a later commit with the image", v2, 3, is(third, v2), false},
		{"no words, and no image", "", 3, is(third, ""), false},
	} {
		if got := rollout.NamesRun(tt.words, status, tt.number, tt.of); got != tt.want {
			t.Errorf("%s: NamesRun(%q) = %v", tt.reason, tt.words, got)
		}
	}
}
