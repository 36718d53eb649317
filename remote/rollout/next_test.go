package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

func TestNext(t *testing.T) {
	two := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 1)}
	soaks := func(d time.Duration) []v1alpha1.RolloutWave {
		w := slices.Clone(two)
		w[0].Soak = &metav1.Duration{Duration: d}
		return w
	}
	approved := slices.Clone(two)
	approved[1].Approval = v1alpha1.ApprovalRequired

	for _, tt := range []struct {
		name, reason string
		waves        []v1alpha1.RolloutWave
		clusters     []string
		tell         func(s *story)
	}{
		{name: "goes over the waves", reason: "the rest begins when the canary is ready, two at a time", waves: two, clusters: []string{"canary1", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			if len(s.last.Pins) != 3 { // the canary's result, and two that begin
				s.t.Fatalf("wrote %d pins", len(s.last.Pins))
			}
			for range 3 {
				for _, c := range s.facts.Clusters {
					s.takes(true, c.Name)
				}
				s.decide()
			}
			s.at(second, "canary1", "rest1", "rest2", "rest3")
			s.phase(v1alpha1.RolloutCompleted)
		}},
		{name: "stops at the canary", reason: "no cluster of the next wave gets what the canary failed at", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.held(v1alpha1.ReasonRolloutHalted)
			s.after(time.Hour)
			s.decide()
			s.at(second, "canary1")
		}},
		{name: "a newer commit mends", reason: "who failed at an earlier revision has to be ready at the next", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
			if s.cluster("canary1").Pin.Blameless {
				s.t.Fatal("the canary would not be blamed, though it was well before the revision that failed")
			}
			s.takes(true, "canary1")
			s.decide()
			s.at(third, "canary1", "rest1")
		}},
		{name: "freezes the commit", reason: "a later wave gets the commit that the first one proved, not a newer one (argo-cd#19535)", waves: approved, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Waves[0].Soak = &metav1.Duration{Duration: time.Hour}
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.commit(third)
			s.decide()
			s.at(third)
			s.at(second, "canary1")
			s.spec.Waves[0].Soak = nil
		}},
		{name: "a stale status lets nothing go", reason: "a cluster that is ready at the revision before has proven nothing (argo-cd#29410)", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.cluster("canary1").Healthy = true // and not at the new revision
			s.after(time.Minute)
			s.decide()
			s.at(second, "canary1")
		}},
		{name: "waits for what is outstanding", reason: "that the canary is healthy is of before, until its control plane runs what it was told", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.cluster("canary1").Healthy, s.cluster("canary1").Outstanding = true, "its control plane runs v1.36.0"
			s.decide()
			s.held(v1alpha1.ReasonRollingOut)
			if s.last.RecheckAfter <= 0 || s.last.RecheckAfter > 10*time.Second {
				s.t.Fatalf("nothing tells when that changes, and it is looked at after %s", s.last.RecheckAfter)
			}
			s.at(second, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			if got := s.status.Failing[0].Message; !strings.Contains(got, "runs v1.36.0") {
				s.t.Fatalf("it failed with %q", got)
			}
			s.cluster("canary1").Outstanding = ""
			s.takes(true, "canary1")
			s.decide()
			if r := s.cluster("canary1").Pin.Result; r != v1alpha1.ResultSucceeded {
				s.t.Fatalf("it came round and is %s", r)
			}
		}},
		{name: "stops at once at a refusal", reason: "waiting does not mend a step that is refused", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.cluster("canary1").Refusal = &rollout.Hold{Reason: v1alpha1.ReasonUnsupportedVersionStep, Message: "go to 1.37 first"}
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			if f := s.status.Failing[0]; f.Reason != v1alpha1.ReasonUnsupportedVersionStep || !strings.Contains(f.Message, "go to 1.37 first") {
				s.t.Fatalf("it failed with %+v", f)
			}
			s.at(second, "canary1")
		}},
		{name: "soaks", reason: "the soak begins anew when a cluster is not ready for a moment", waves: soaks(time.Hour), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.after(50 * time.Minute)
			s.takes(false, "canary1")
			s.decide()
			s.takes(true, "canary1")
			s.after(time.Minute)
			s.decide()
			s.after(59 * time.Minute)
			s.decide()
			s.at(second, "canary1")
			s.after(time.Minute)
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "waits for an approval of the commit", reason: "an approval of another commit lets nothing go", waves: approved, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.facts.Requests.Approvals = []rollout.Approval{{Wave: "rest", Revision: "111111111111"}}
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.facts.Requests.Approvals = []rollout.Approval{{Wave: "rest", Revision: "222222222222", By: "ann"}}
			s.decide()
			s.at(second, "canary1", "rest1")
			if a := s.status.Run.Approvals; len(a) != 1 || a[0].By != "ann" || !a[0].At.Time.Equal(s.now) {
				s.t.Fatalf("approvals on record: %+v", a)
			}
		}},
		{name: "a lost cluster holds nobody up", reason: "offline is not failed, and it gets the commit on its return a day later", waves: two, clusters: []string{"canary1", "canary2", "rest1", "rest2", "rest3"}, tell: func(s *story) {
			lost := s.cluster("rest1")
			lost.Unreachable = s.now.Add(-time.Hour)
			s.commit(second)
			for range 8 {
				s.decide()
				for _, c := range s.facts.Clusters {
					if c.Name != "rest1" {
						s.takes(true, c.Name)
					}
				}
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.at(first, "rest1")
			s.after(24 * time.Hour)
			lost.Unreachable = time.Time{}
			s.decide()
			s.at(first)
		}},
		{name: "more than half lost", reason: "that looks like a partition of the parent, and proves nothing", waves: two, clusters: []string{"canary1", "canary2", "canary3", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Unreachable, s.cluster("canary2").Unreachable = s.now.Add(-time.Hour), s.now.Add(-time.Hour)
			s.commit(second)
			s.decide()
			s.takes(true, "canary3")
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven)
			s.at(second, "canary3")
			s.facts.Requests.Approvals = []rollout.Approval{{Wave: "rest", Revision: second}}
			s.decide()
			s.at(second, "canary3", "rest1")
		}},
		{name: "was not ready before", reason: "it is not the commit's fault, and does not halt the run", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1", "rest2", "rest3"}, tell: func(s *story) {
			s.takes(false, "rest1")
			s.commit(second)
			s.decide()
			s.takes(true, "rest2", "rest3")
			s.takes(false, "rest1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			if got := s.cluster("rest1").Pin.Result; got != v1alpha1.ResultUnproven {
				s.t.Fatalf("rest1 is %s", got)
			}
		}},
		{name: "reverts", reason: "all that have the commit get the one before back, the latest wave first", waves: []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			for _, c := range s.facts.Clusters {
				s.takes(c.Name == "canary1", c.Name)
			}
			s.cluster("canary1").Healthy, s.cluster("canary1").Ready = true, true
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			for range 4 {
				for _, c := range s.facts.Clusters {
					s.takes(true, c.Name)
				}
				s.decide()
			}
			s.phase(v1alpha1.RolloutReverted)
			s.at(first, "canary1", "rest1", "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
		{name: "a cluster that is rolling", reason: "nothing is given to a cluster whose control plane is rolling, and after the deadline the others go on", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Rolling = v1alpha1.ReasonRollingOut
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			s.decide()
			s.at(second, "canary2")
			s.after(10 * time.Minute)
			s.decide()
			s.at(second, "canary2", "rest1")
			s.cluster("canary1").Rolling = ""
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
		}},
		{name: "refused", reason: "a step over a minor version fails the wave without touching the cluster", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Refused = map[string]string{second: "1.34 to 1.36"}
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.at(second)
		}},
		{name: "refused, then mended", reason: "what is refused of a commit is no failure of the one that mends it", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			for _, name := range []string{"canary1", "rest1"} {
				s.cluster(name).Refused = map[string]string{second: "1.34 to 1.36"}
			}
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(third, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(third, "canary1", "rest1")
		}},
		{name: "skipped", reason: "a person takes a cluster out for this commit", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Skip = second
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			s.decide()
			s.at(second, "canary2", "rest1")
		}},
		{name: "no room", reason: "other Rollouts of the tier are changing as many clusters as may", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.facts.Room = 0
			s.commit(second)
			s.decide()
			s.at(second)
			s.held(v1alpha1.ReasonAwaitingRoom)
			if s.last.RecheckAfter == 0 || s.last.RecheckAfter > time.Minute {
				s.t.Fatalf("nothing tells when there is room, and it looks again after %s", s.last.RecheckAfter)
			}
		}},
		{name: "reverted on its way", reason: "who is changing has a place for what mends it, though no other is free", waves: []v1alpha1.RolloutWave{wave("rest", 1, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "rest1")
			s.facts.Requests.Revert = second
			s.facts.Room = 0
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "rest1", "rest2")
		}},
		{name: "mended on its way", reason: "the commit that mends it need not wait for the deadline of the one that broke it", waves: []v1alpha1.RolloutWave{wave("rest", 1, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "rest1")
			s.spec.Preempt = true
			s.commit(third)
			s.decide()
			s.at(third, "rest1")
		}},
		{name: "nobody meanwhile", reason: "a run that made way for a commit that was for nobody begins again when that is taken back", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Preempt = true
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			clusters := s.facts.Clusters
			s.facts.Clusters = nil
			s.commit(third)
			s.decide()
			s.phase(v1alpha1.RolloutSuperseded)
			s.facts.Clusters = clusters
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "aborted", reason: "a person ended it: it does not begin again by itself", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.facts.Requests.Abort = second
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1")
		}},
		{name: "a new cluster", reason: "it begins with the good revision while its wave was not reached", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: "rest2", UID: "rest2", Labels: map[string]string{"wave": "rest"}, Known: true})
			s.decide()
			s.at(first, "rest1", "rest2")
			s.at(second, "canary1")
		}},
		{name: "a window", reason: "no cluster begins outside of it, and the next look is when it opens", waves: []v1alpha1.RolloutWave{wave("rest", 1, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			s.spec.Window = &v1alpha1.RolloutWindow{Cron: "0 8 * * *", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Europe/Paris"}
			s.commit(second)
			s.decide() // 22:13 UTC of the next day
			s.held(v1alpha1.ReasonOutsideWindow)
			s.at(second)
			s.after(s.last.RecheckAfter)
			s.decide()
			s.at(second, "rest1")
		}},
		{name: "another environment proves", reason: "what it proved is taken when it ran that for long enough, and nothing else is", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(24 * time.Hour)
			s.commit(third) // which nobody proved
			s.decide()
			s.waits(v1alpha1.ReasonUpstreamMissing)
			s.proves(second, s.now)
			s.decide()
			s.waits(v1alpha1.ReasonAwaitingUpstream)
			s.at(first, "canary1", "rest1")
			if s.last.RecheckAfter != 24*time.Hour || s.status.Upstream.Newest.Commit != hash(second) {
				s.t.Errorf("it looks again after %s, the newest is %+v", s.last.RecheckAfter, s.status.Upstream.Newest)
			}
			s.after(s.last.RecheckAfter)
			s.decide()
			s.waits("")
			s.at(second, "canary1")
		}},
		{name: "another environment went on", reason: "a commit that it ran for an hour is not one that it ran for a day, whatever its age; one that it halted on was never proven", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(24 * time.Hour)
			s.proves(second, s.now)
			s.after(time.Hour)
			s.proves(third, s.now)
			s.after(23*time.Hour + 30*time.Minute)
			s.decide()
			s.waits(v1alpha1.ReasonAwaitingUpstream)
			s.at(first, "canary1", "rest1")
			s.after(30 * time.Minute)
			s.decide()
			s.at(third, "canary1")
		}},
		{name: "it ran the one before for long enough", reason: "what it has now is too young, and what it had was not", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(24 * time.Hour)
			s.proves(second, s.now)
			s.after(30 * time.Hour)
			s.proves(third, s.now)
			s.decide()
			s.waits(v1alpha1.ReasonAwaitingUpstream)
			s.at(second, "canary1")
		}},
		{name: "a proof of the future", reason: "its clock is ahead, or somebody lies: nothing is earlier by that", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now.Add(48*time.Hour))
			s.decide()
			s.waits(v1alpha1.ReasonAwaitingUpstream)
			s.after(47 * time.Hour)
			s.decide()
			s.at(first, "canary1", "rest1")
			s.after(time.Hour)
			s.decide()
			s.at(second, "canary1")
		}},
		{name: "not on the branch", reason: "whoever may write references may not be who may write the branch", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now)
			s.facts.Upstream.Refused = map[string]rollout.Hold{hash(second): {Reason: v1alpha1.ReasonUpstreamNotOnBranch, Message: "it is elsewhere"}}
			s.after(time.Hour)
			s.decide()
			s.waits(v1alpha1.ReasonUpstreamNotOnBranch)
			s.at(first, "canary1", "rest1")
		}},
		{name: "it cannot be read any more", reason: "the run goes on, and nothing else begins", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now)
			s.decide()
			s.at(second, "canary1")
			s.proves(third, s.now.Add(time.Second))
			s.facts.Upstream.Failure = rollout.Hold{Reason: v1alpha1.ReasonUpstreamUnreadable, Message: "it does not answer"}
			s.after(time.Minute)
			s.takes(true, "canary1")
			s.decide()
			s.waits(v1alpha1.ReasonUpstreamUnreadable)
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.at(second, "canary1", "rest1")
		}},
		{name: "an older state is put back", reason: "what was signed once stays signed: nothing goes back by it", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now)
			old := slices.Clone(s.facts.Upstream.Proofs)
			s.after(time.Hour)
			s.proves(third, s.now)
			s.decide()
			s.at(third, "canary1")
			s.facts.Upstream.Proofs = old
			s.after(time.Hour)
			s.decide()
			s.waits(v1alpha1.ReasonUpstreamWentBack)
			s.at(third, "canary1")
		}},
		{name: "it went back itself", reason: "the other environment proved an older commit again, in another run", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now)
			s.after(time.Hour)
			s.proves(third, s.now)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.after(time.Hour)
			s.proves(second, s.now)
			s.decide()
			s.at(second, "canary1")
		}},
		{name: "a commit that is not here yet", reason: "what cannot be fetched, or is not signed as the source wants it, never begins", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.upstream(0)
			s.proves(second, s.now)
			s.facts.Upstream.Revisions = nil
			s.decide()
			s.waits(v1alpha1.ReasonAwaitingUpstream)
			if s.last.Wanted != hash(second) {
				s.t.Errorf("it wants %q", s.last.Wanted)
			}
			s.facts.Upstream.Unfetched = map[string]rollout.Hold{hash(second): {Reason: v1alpha1.ReasonUpstreamUnreadable, Message: "it is gone"}}
			s.decide()
			s.waits(v1alpha1.ReasonUpstreamUnreadable)
			if s.last.Wanted != hash(second) { // what nobody wants is forgotten, with why it failed
				s.t.Errorf("it wants %q", s.last.Wanted)
			}
			s.at(first, "canary1", "rest1")
		}},
		{name: "approved by a tag", reason: "who, when, which tag and which key are on record", waves: approved, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Approvals = []rollout.Approval{{Wave: "rest", Revision: hash(first), By: "eve", Tag: "cascade/approve/fleet/base/rest"}}
			s.decide()
			s.held(v1alpha1.ReasonAwaitingApproval)
			s.facts.Requests.Approvals = []rollout.Approval{{Wave: "rest", Revision: hash(second), By: "Ann <ann@example.com>", Tag: "cascade/approve/fleet/base/rest", Key: "SHA256:x"}}
			s.decide()
			s.at(second, "canary1", "rest1")
			want := v1alpha1.RolloutApproval{Wave: "rest", By: "Ann <ann@example.com>", At: metav1.NewTime(s.now), Tag: "cascade/approve/fleet/base/rest", Key: "SHA256:x"}
			if got := s.status.Run.Approvals; len(got) != 1 || got[0] != want {
				s.t.Errorf("on record is %+v", got)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Log(tt.reason)
			tt.tell(begin(t, slices.Clone(tt.waves), tt.clusters...))
		})
	}
}
