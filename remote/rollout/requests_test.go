package rollout_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestRequests: what a person asked of one run is not asked of the next, and of two requests that
// exclude each other one stands.
func TestRequests(t *testing.T) {
	soaked := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 0)}
	soaked[0].Soak = &metav1.Duration{Duration: time.Hour}
	three := append(canaryAndRest(), wave("last", 1, 0))
	three[2].Approval = v1alpha1.ApprovalRequired
	tellAll(t, []tale{
		{name: "abort and then revert", reason: "both stand in the annotations, and clusters go back", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Abort = second
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
			s.facts.Requests.Revert = second
			for range 5 {
				s.decide()
				s.takes(true, "canary1")
			}
			s.phase(v1alpha1.RolloutReverted)
			s.at(first, "canary1", "rest1")
			if n := len(s.status.History); n != 3 {
				s.t.Fatalf("%d runs are told: %+v", n, s.status.History)
			}
		}},
		{name: "skip of one that began", reason: "nobody waits for it, it has no place, and its deadline halts nothing; with undo it is tried again", waves: canaryAndRest(), clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			one, two := "canary1", "canary2"
			if s.cluster(one).Pin.Revision != second {
				one, two = two, one
			}
			s.at(second, one)
			s.takes(false, one)
			s.cluster(one).Skip = second
			s.decide()
			s.at(second, "canary1", "canary2")
			s.takes(true, two)
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
			s.after(10 * time.Minute)
			s.decide()
			s.result(one, v1alpha1.ResultDeferred)
			s.cluster(one).Skip = ""
			s.decide()
			s.result(one, v1alpha1.ResultUpdating)
		}},
		{name: "skip of one that comes and goes", reason: "the soak of its wave does not begin anew each time", waves: soaking(), clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.spec.Waves[0].MaxConcurrent = intstr.FromInt32(2)
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			s.cluster("canary1").Skip = second
			for range 2 {
				s.after(7 * time.Minute)
				s.takes(false, "canary1")
				s.decide()
				s.result("canary1", v1alpha1.ResultDeferred)
				s.after(7 * time.Minute)
				s.takes(true, "canary1")
				s.decide()
				s.result("canary1", v1alpha1.ResultSucceeded)
			}
			s.lose("canary1")
			s.after(time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.after(time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
		}},
		{name: "skip of one that failed", reason: "a retry leaves it alone, and the others go on", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.cluster("canary1").Skip = second
			s.facts.Requests.Retry = "without canary1"
			s.decide()
			s.held(v1alpha1.ReasonWaveUnproven) // it is all that was to prove it
			s.result("canary1", v1alpha1.ResultDeferred)
			s.at(second, "canary1")
		}},
		{name: "comes back after the revert, and the window is shut", reason: "nobody waited for a window to take the commit back from the others", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Window = &v1alpha1.RolloutWindow{Cron: "0 22 * * *", Duration: metav1.Duration{Duration: time.Hour}} // it is 22:13
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.lose("canary1")
			s.after(2 * time.Minute)
			s.facts.Requests.Revert = second
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			if f := s.status.Failing; len(f) != 1 || f[0].Name != "canary1" || f[0].Reason != v1alpha1.ReasonUnreachable {
				s.t.Fatalf("it names %+v", f)
			}
			s.after(2 * time.Hour)
			s.find(true, "canary1")
			s.decide()
			s.at(first, "canary1", "rest1")
			if f := s.status.Failing; len(f) > 0 {
				s.t.Fatalf("it names %+v", f)
			}
		}},
		{name: "abort of a revert", reason: "who began it may end it", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Revert = second
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.facts.Requests.Revert, s.facts.Requests.Abort = "", second
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
		}},
		{name: "an abort of before", reason: "the tag was set back to what was aborted days ago, and is to run now", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Abort = second
			s.decide()
			for range 3 {
				s.commit(third)
				s.decide()
				s.takes(true, "canary1", "rest1")
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.facts.Requests.Abort = rollout.Request(&s.status, s.status.Run.StaleAbort, s.now)
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
		}},
		{name: "back at the good one", reason: "all that is declared is in place, and nobody waits for anything", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(false, "rest1", "rest2")
			s.after(10 * time.Minute)
			for range 3 {
				s.decide()
				s.takes(true, "rest1", "rest2")
			}
			s.phase(v1alpha1.RolloutReverted)
			if rollout.IsBack(&s.status) {
				s.t.Fatal("the source still has what was taken back")
			}
			s.commit(first)
			s.decide()
			if o := (&v1alpha1.Rollout{Status: s.status}); !rollout.IsBack(&s.status) || rollout.Pending(o) {
				s.t.Fatalf("the candidate is the good one, and it is pending: %t", rollout.Pending(o))
			}
			s.commit(third)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "back and not well", reason: "clusters that are not ready at the good one have not come back", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(false, "rest1", "rest2")
			for range 3 {
				s.after(10 * time.Minute)
				s.decide()
				s.takes(false, "rest1", "rest2")
			}
			s.phase(v1alpha1.RolloutReverted)
			s.commit(first)
			s.decide()
			if rollout.IsBack(&s.status) {
				s.t.Fatalf("it is back, with %+v", s.status.Clusters)
			}
		}},
		{name: "aborted on the way back", reason: "a person ended the run that would bring the good one back", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.facts.Requests.Abort = second
			s.decide()
			s.spec.Waves[0].Approval = v1alpha1.ApprovalRequired
			s.commit(first)
			s.decide()
			s.facts.Requests.Abort = first
			s.decide()
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
			s.at(second, "canary1")
			if rollout.IsBack(&s.status) {
				s.t.Fatalf("it is back, with %+v", s.status.Clusters)
			}
		}},
		{name: "a paused cluster is not waited for without end", reason: "a commit that mends it for all others begins after the deadline", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(false, "rest1", "rest2")
			s.cluster("rest1").Rolling = v1alpha1.ReasonPaused
			s.after(10 * time.Minute)
			s.decide()
			s.takes(true, "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			if !strings.Contains(s.last.Hold.Message, "rest1 is waited for: Paused") || s.last.RecheckAfter == 0 {
				s.t.Fatalf("it is held for %q, and looks again after %s", s.last.Hold.Message, s.last.RecheckAfter)
			}
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			s.cluster("rest1").Rolling = ""
			s.decide()
			s.at(first, "rest1", "rest2")
		}},
		{name: "comes back after the revert, and another run has begun", reason: "what was taken from all is not brought to who was away", waves: soaked, clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.after(time.Hour)
			s.decide()
			s.takes(false, "rest2")
			s.cluster("rest1").Unreachable = s.now
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			for range 3 {
				s.takes(true, "canary1", "rest2")
				s.decide()
			}
			s.commit(third)
			s.decide()
			s.at(second, "rest1")
			s.at(third, "canary1")
			s.cluster("rest1").Unreachable, s.cluster("rest1").Rolling = time.Time{}, v1alpha1.ReasonRollingOut
			s.decide()
			s.at(first, "rest1", "rest2")
			s.takes(true, "canary1", "rest1")
			s.decide()
			s.after(time.Hour)
			s.decide()
			s.cluster("rest1").Rolling = ""
			s.decide()
			s.at(third, "canary1", "rest1", "rest2")
		}},
		{name: "failed at a run in between", reason: "nobody else brings it anything; who is ready at that keeps it", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.spec.Waves[1].MaxFailures = intstr.FromInt32(0)
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.takes(false, "rest1")
			s.takes(true, "rest2")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.at(third, "canary1")
			s.facts.Requests.Revert = third
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "canary1", "rest1")
			s.at(second, "rest2")
			s.takes(true, "canary1", "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			s.at(second, "rest2")
		}},
		{name: "failed at a run in between, and cannot be reached", reason: "it goes back on its return, and is named until then", waves: three, clusters: []string{"canary1", "rest1", "rest2", "last1"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.takes(false, "rest1")
			s.takes(true, "rest2")
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest1", v1alpha1.ResultFailed)
			s.lose("rest1")
			s.commit(third)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.at(first, "canary1", "last1")
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			if f := s.status.Failing; len(f) != 1 || f[0].Name != "rest1" || f[0].Reason != v1alpha1.ReasonUnreachable {
				s.t.Fatalf("it names %+v", f)
			}
			s.find(false, "rest1")
			s.decide()
			s.at(first, "canary1", "last1", "rest1")
		}},
		{name: "a cluster cannot go back", reason: "a Kubernetes version goes back nowhere", waves: []v1alpha1.RolloutWave{wave("rest", 2, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(true, "rest1")
			s.takes(false, "rest2")
			s.after(10 * time.Minute)
			s.cluster("rest1").Refused = map[string]string{first: "1.32 does not go back to 1.31"}
			s.decide()
			s.at(second, "rest1")
			s.takes(true, "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			if f := s.status.Failing; len(f) != 1 || f[0].Reason != v1alpha1.ReasonUnsupportedVersionStep {
				s.t.Fatalf("it tells %+v", f)
			}
		}},
	})
}

// TestRetryHalfWritten: a retry of which the write of one Child conflicted, or whose process died, goes on with
// the others.
func TestRetryHalfWritten(t *testing.T) {
	s := begin(t, []v1alpha1.RolloutWave{wave("canary", 2, 0)}, "canary1", "canary2")
	s.commit(second)
	s.decide()
	s.takes(false, "canary1", "canary2")
	s.after(10 * time.Minute)
	s.decide()
	s.phase(v1alpha1.RolloutHalted)
	s.facts.Requests.Retry = "once more"
	d := rollout.Next("base", &s.spec, &s.status, s.facts, s.now)
	s.status = d.Status
	s.cluster(d.Pins[0].Cluster).Pin = &d.Pins[0].ChildRollout
	for range 3 {
		s.decide()
	}
	s.phase(v1alpha1.RolloutProgressing)
	s.result("canary1", v1alpha1.ResultUpdating)
	s.result("canary2", v1alpha1.ResultUpdating)
	s.after(10 * time.Minute)
	s.decide()
	s.decide()
	s.phase(v1alpha1.RolloutHalted) // it was asked for once
}
