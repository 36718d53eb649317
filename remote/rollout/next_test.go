package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

const (
	first  = "main@sha1:1111111111111111111111111111111111111111"
	second = "main@sha1:2222222222222222222222222222222222222222"
	third  = "main@sha1:3333333333333333333333333333333333333333"
)

// story drives a Rollout step by step. Each cluster has a name, which is its wave's with a
// digit.
type story struct {
	t      *testing.T
	spec   v1alpha1.RolloutSpec
	status v1alpha1.RolloutStatus
	now    time.Time
	facts  rollout.Facts
	last   rollout.Decision
}

func wave(name string, concurrent, failures int) v1alpha1.RolloutWave {
	return v1alpha1.RolloutWave{Name: name, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"wave": name}},
		MaxConcurrent: intstr.FromInt32(int32(concurrent)), MaxFailures: intstr.FromInt32(int32(failures))}
}

// begin is a story of clusters that run the first revision.
func begin(t *testing.T, waves []v1alpha1.RolloutWave, names ...string) *story {
	s := &story{t: t, now: time.Unix(1_700_000_000, 0), facts: rollout.Facts{UID: "uid", Room: -1, Candidate: &v1alpha1.RolloutRevision{Revision: first}}}
	s.spec = v1alpha1.RolloutSpec{Waves: waves, Deadline: metav1.Duration{Duration: 10 * time.Minute}}
	for _, name := range names {
		s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: name, UID: types.UID(name), Labels: map[string]string{"wave": name[:len(name)-1]}, Known: true,
			Has: &v1alpha1.RolloutRevision{Revision: first}, Healthy: true, Ready: true})
	}
	s.decide()
	s.after(24 * time.Hour)
	s.decide()
	s.phase(v1alpha1.RolloutCompleted)
	return s
}

// decide decides, and puts on record what was.
func (s *story) decide() {
	s.t.Helper()
	if up := s.facts.Upstream; up != nil && s.status.Upstream != nil && s.status.Upstream.Taken != nil {
		up.Taken = s.status.Candidate.DeepCopy()
	}
	s.last = rollout.Next("base", &s.spec, &s.status, s.facts, s.now)
	s.status = s.last.Status
	for _, p := range s.last.Pins {
		c := s.cluster(p.Cluster)
		if c.Pin == nil || c.Pin.RolloutRevision != p.RolloutRevision {
			c.Ready = c.Has != nil && *c.Has == p.RolloutRevision && c.Healthy
		}
		c.Pin = &p.ChildRollout
	}
}

func (s *story) after(d time.Duration) { s.now = s.now.Add(d) }

func (s *story) commit(revision string) {
	s.facts.Candidate = &v1alpha1.RolloutRevision{Revision: revision}
}

func (s *story) cluster(name string) *rollout.Cluster {
	return &s.facts.Clusters[slices.IndexFunc(s.facts.Clusters, func(c rollout.Cluster) bool { return c.Name == name })]
}

// takes lets clusters become ready, or not, at what they may have.
func (s *story) takes(ready bool, names ...string) {
	for _, name := range names {
		c := s.cluster(name)
		c.Has, c.Healthy, c.Ready = &c.Pin.RolloutRevision, ready, ready
	}
}

// at expects the clusters that may have a revision, sorted by name.
func (s *story) at(revision string, names ...string) {
	s.t.Helper()
	var got []string
	for _, c := range s.facts.Clusters {
		if c.Pin != nil && c.Pin.Revision == revision {
			got = append(got, c.Name)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(names, got); d != "" {
		s.t.Fatalf("may have %s (-want +got):\n%s", revision, d)
	}
}

func (s *story) phase(want v1alpha1.RolloutPhase) {
	s.t.Helper()
	if got := s.status.Run.Phase; got != want {
		s.t.Fatalf("the run is %s, held for %+v, want %s", got, s.last.Hold, want)
	}
}

func (s *story) held(reason string) {
	s.t.Helper()
	if s.last.Hold.Reason != reason {
		s.t.Fatalf("held for %+v, want %q", s.last.Hold, reason)
	}
}

// hash is the commit of a revision.
func hash(revision string) string { return revision[len("main@sha1:"):] }

// upstream has the Rollout take only what another environment ran for so long.
func (s *story) upstream(age time.Duration) {
	s.spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging", MinAge: &metav1.Duration{Duration: age}}
	s.facts.Upstream = &rollout.Upstream{Revisions: map[string]v1alpha1.RolloutRevision{}}
}

// proves has the other environment prove a revision.
func (s *story) proves(revision string, at time.Time) {
	up := s.facts.Upstream
	up.Proofs = append([]rollout.Proof{{Commit: hash(revision), Run: int64(len(up.Proofs)), Proven: at}}, up.Proofs...)
	up.Revisions[hash(revision)] = v1alpha1.RolloutRevision{Revision: revision}
}

// waits expects why what was proven is not the candidate.
func (s *story) waits(reason string) {
	s.t.Helper()
	if s.last.Upstream.Reason != reason {
		s.t.Fatalf("upstream is held for %+v, want %q", s.last.Upstream, reason)
	}
}

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

// TestMeans: what a person said of a run is not taken for the next one, which has the same
// commit and another image of the agents.
func TestMeans(t *testing.T) {
	at := func(revision, image string) v1alpha1.RolloutRevision {
		return v1alpha1.RolloutRevision{Revision: revision, Image: image}
	}
	status := func(run v1alpha1.RolloutRevision, before ...v1alpha1.RolloutRevision) *v1alpha1.RolloutStatus {
		s := &v1alpha1.RolloutStatus{Run: &v1alpha1.RolloutRun{RolloutRevision: run}}
		for _, b := range before {
			s.History = append(s.History, v1alpha1.RolloutHistory{RolloutRevision: b})
		}
		return s
	}
	const one, two = "registry.example.com/cascade:v1", "registry.example.com/cascade:v2"
	for _, tt := range []struct {
		reason, words string
		status        *v1alpha1.RolloutStatus
		want          bool
	}{
		{"the commit of the run", "222222222222", status(at(second, one), at(first, one)), true},
		{"the image of the run", one, status(at(second, one), at(first, one)), true},
		{"the commit, which the run before had with another image", second, status(at(second, two), at(second, one)), false},
		{"the beginning of it", "222222222222", status(at(second, two), at(second, one)), false},
		{"the image, which alone is new", two, status(at(second, two), at(second, one)), true},
		{"the image of before", one, status(at(second, two), at(second, one)), false},
		{"the image, where there is no source", two, status(at("", two), at("", one)), true},
		{"the image of before, where there is no source", one, status(at("", two), at("", one)), false},
		{"no words", "", status(at("", "")), false},
	} {
		if got := rollout.Means(tt.words, tt.status); got != tt.want {
			t.Errorf("%s: Means(%q) = %v", tt.reason, tt.words, got)
		}
		if !rollout.Means(rollout.Word(tt.status), tt.status) && tt.words != "" {
			t.Errorf("%s: %q is not taken for the run that it is the word for", tt.reason, rollout.Word(tt.status))
		}
	}
}

func TestNames(t *testing.T) {
	r := v1alpha1.RolloutRevision{Revision: "main@sha1:0123456789abcdef0123456789abcdef01234567"}
	for _, tt := range []struct {
		words, reason string
		want          bool
	}{
		{r.Revision, "all of it", true},
		{"0123456789abcdef0123456789abcdef01234567", "the commit", true},
		{"0123456789ab", "the beginning of it", true},
		{"0123456789a", "too short to be meant for this one", false},
		{"123456789abc", "not the beginning", false},
		{"", "nothing", false},
		{"main", "the branch", false},
	} {
		if got := rollout.Names(tt.words, r); got != tt.want {
			t.Errorf("%s: Names(%q) = %v", tt.reason, tt.words, got)
		}
	}
}

func TestOpen(t *testing.T) {
	noon := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC) // a Wednesday
	for _, tt := range []struct {
		reason, cron, zone string
		lasts              time.Duration
		open, fails        bool
		changes            time.Duration
	}{
		{reason: "opened at 8", cron: "0 8 * * *", lasts: 8 * time.Hour, open: true, changes: 4 * time.Hour},
		{reason: "closed at noon", cron: "0 8 * * *", lasts: 4 * time.Hour, changes: 20 * time.Hour},
		{reason: "opens at noon", cron: "0 12 * * *", lasts: time.Hour, open: true, changes: time.Hour},
		{reason: "13:00 in Paris", cron: "0 13 * * 1-5", zone: "Europe/Paris", lasts: time.Hour, open: true, changes: time.Hour},
		{reason: "weekends only", cron: "0 0 * * 6", lasts: 48 * time.Hour, changes: 60 * time.Hour},
		{reason: "never", cron: "0 0 30 2 *", lasts: time.Hour, fails: true},
		{reason: "no zone of this name", cron: "0 0 * * *", zone: "Mars/Base", lasts: time.Hour, fails: true},
		{reason: "no schedule", cron: "at noon please", lasts: time.Hour, fails: true},
		{reason: "no words", cron: "@every 1h0m", lasts: time.Hour, fails: true},
		{reason: "no duration", cron: "0 0 * * *", fails: true},
	} {
		open, changes, err := rollout.Open(&v1alpha1.RolloutWindow{Cron: tt.cron, Duration: metav1.Duration{Duration: tt.lasts}, TimeZone: tt.zone}, noon)
		if (err != nil) != tt.fails || open != tt.open || err == nil && changes.Sub(noon) != tt.changes {
			t.Errorf("%s: open %v, changes after %s, %v", tt.reason, open, changes.Sub(noon), err)
		}
	}
}
