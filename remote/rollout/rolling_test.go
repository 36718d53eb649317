package rollout_test

import (
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestStuckRoll: a cluster is left alone while it changes by itself, unless what it has of the
// Rollout may be why it never ends.
func TestStuckRoll(t *testing.T) {
	// stuck has the canary roll machines that do not come up, until the deadline.
	stuck := func(s *story) *rollout.Cluster {
		s.commit(second)
		s.decide()
		s.takes(false, "canary1")
		c := s.cluster("canary1")
		c.Rolling = v1alpha1.ReasonRollingOut
		s.after(10 * time.Minute)
		s.decide()
		return c
	}
	tellAll(t, []tale{
		{name: "reverts", reason: "the revision before is what ends the roll", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			c := stuck(s)
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "canary1", "rest1")
			c.Rolling = ""
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
		{name: "takes back who is not through", reason: "who has the revision that failed elsewhere rolls for it as well", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(false, "rest1", "rest2")
			s.cluster("rest1").Refusal = &rollout.Hold{Reason: v1alpha1.ReasonUnsupportedVersionStep, Message: "go to 1.37 first"}
			s.cluster("rest2").Rolling = v1alpha1.ReasonRollingOut
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "rest1", "rest2")
		}},
		{name: "a newer commit mends", reason: "it would never get there otherwise", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			stuck(s)
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
			if s.cluster("canary1").Pin.Blameless {
				s.t.Fatal("it was well before the commit that failed, and is not to blame for the next")
			}
		}},
		{name: "is tried again", reason: "it has the commit already, and gets another deadline", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			stuck(s)
			s.facts.Requests.Retry = "once more"
			s.decide()
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "is paused", reason: "a person has it in hand, whatever it failed at", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			stuck(s).Rolling = v1alpha1.ReasonPaused
			s.commit(third)
			s.decide()
			s.at(third)
			s.at(second, "canary1")
		}},
		{name: "rolls by itself", reason: "nothing that it has of the Rollout failed", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Rolling = v1alpha1.ReasonRollingOut
			s.commit(second)
			s.decide()
			s.at(second)
			s.result("canary1", v1alpha1.ResultDeferred)
		}},
	})
}

// TestLostForIt: what is applied in this tier needs no way to a cluster, which may be out of reach for what it has: it gets
// what mends that, and one that is gone goes.
func TestLostForIt(t *testing.T) {
	names := []string{"canary1", "rest1"}
	// lost has the canary lose its API server by what it is given, until a time after that.
	lost := func(s *story, after time.Duration) *rollout.Cluster {
		c := s.cluster("canary1")
		c.Local = true
		s.commit(second)
		s.decide()
		s.takes(false, "canary1")
		s.lose("canary1")
		s.after(after)
		s.decide()
		return c
	}
	tellAll(t, []tale{
		{name: "a newer commit mends", reason: "it would never get there otherwise, and is to be as well as it was", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			lost(s, 10*time.Minute)
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
			if s.cluster("canary1").Pin.Blameless {
				s.t.Fatal("it was well before the commit that it was lost for, and is not to blame for the next")
			}
			s.held(v1alpha1.ReasonWaveUnproven)
			s.find(true, "canary1")
			s.decide()
			s.at(third, "canary1", "rest1")
		}},
		{name: "a newer commit mends what counts", reason: "that it does not answer is of the commit before", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			lost(s, 10*time.Minute)
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.at(third, "canary1")
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "reverts", reason: "the revision before is what brings it back, and the revert is done once it has that", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			lost(s, 5*time.Minute)
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "rest1")
			s.phase(v1alpha1.RolloutReverting)
			s.find(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
		}},
		{name: "reverts after the deadline", reason: "nothing else brings it back", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			lost(s, 10*time.Minute)
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		{name: "was never up", reason: "its first commit has a network that is not there, and the next one mends that", waves: []v1alpha1.RolloutWave{wave("rest", 1, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: "rest2", UID: "rest2", Labels: map[string]string{"wave": "rest"}, Known: true,
				Has: &v1alpha1.RolloutRevision{Revision: first}, Local: true, Rolling: v1alpha1.ReasonRollingOut, Unreachable: s.now})
			s.decide()
			s.result("rest2", v1alpha1.ResultUnproven)
			s.after(time.Hour)
			s.commit(second)
			s.decide()
			s.at(second, "rest1") // who answers comes first
			s.takes(true, "rest1")
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
		{name: "is taken away", reason: "nothing of it is left that could answer", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			c := s.cluster("rest1")
			c.Local, c.Gone = true, map[string]bool{second: true}
			s.lose("rest1")
			c.Rolling = v1alpha1.ReasonRollingOut
			s.after(time.Hour)
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "was well", reason: "it may be this tier that is cut off, and it gets the commit on its return", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.cluster("rest1").Local = true
			s.lose("rest1")
			s.after(time.Hour)
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1")
			s.find(true, "rest1")
			s.decide()
			s.at(second, "canary1", "rest1")
		}},
		{name: "is sent to the cluster", reason: "nothing reaches one that does not answer", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			lost(s, 10*time.Minute).Local = false
			s.commit(third)
			s.decide()
			s.at(third)
		}},
	})
}

// TestUnprovenRoll: a cluster that was well before gets what ends its roll as well, if it was never known to be
// ready at what it has or failed at it, whatever put it off since; who was ready at that is left alone.
func TestUnprovenRoll(t *testing.T) {
	waves := []v1alpha1.RolloutWave{wave("rest", 3, 0)}
	rolls := func(s *story) *rollout.Cluster {
		s.commit(second)
		s.decide()
		s.takes(true, "rest2")
		s.takes(false, "rest1")
		c := s.cluster("rest1")
		c.Rolling = v1alpha1.ReasonRollingOut
		return c
	}
	tellAll(t, []tale{
		{name: "is out of reach at the deadline", reason: "the commit may have cut it off, and the next one mends that", waves: waves, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			c := rolls(s)
			c.Unreachable = s.now
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest1", v1alpha1.ResultUnreachable)
			s.commit(third)
			s.decide()
			c.Unreachable = time.Time{}
			s.decide()
			s.at(third, "rest1", "rest2")
		}},
		{name: "is elsewhere meanwhile", reason: "it was not ready when it went", waves: waves, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			c := rolls(s)
			c.Elsewhere = true
			s.decide()
			s.result("rest1", v1alpha1.ResultDeferred)
			s.commit(third)
			s.decide()
			c.Elsewhere = false
			s.decide()
			s.at(third, "rest1", "rest2")
		}},
		{name: "is paused meanwhile", reason: "it failed before a person had it in hand, and does not end its roll without the next commit", waves: waves, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			c := rolls(s)
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest1", v1alpha1.ResultFailed)
			c.Rolling = v1alpha1.ReasonPaused
			s.commit(third)
			s.decide()
			s.result("rest1", v1alpha1.ResultDeferred)
			s.at(third, "rest2")
			c.Rolling = v1alpha1.ReasonRollingOut
			s.decide()
			s.at(third, "rest1", "rest2")
		}},
		{name: "gets ready while it is paused", reason: "what it has proved itself by now, and an upgrade that follows is left alone", waves: waves, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			c := rolls(s)
			s.after(10 * time.Minute)
			s.decide()
			c.Rolling = v1alpha1.ReasonPaused
			s.commit(third)
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.takes(false, "rest1")
			c.Rolling = v1alpha1.ReasonRollingOut
			s.decide()
			s.at(third, "rest2")
		}},
		{name: "failed by the record of an earlier version", reason: "a person asked for a retry before the upgrade, with which pins first say that they are unproven", waves: waves, clusters: []string{"rest1", "rest2"}, tell: func(s *story) {
			c := rolls(s)
			s.after(10 * time.Minute)
			s.decide()
			c.Pin.Result, c.Pin.Reason, c.Pin.Unproven = v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing, false
			s.commit(third)
			s.decide()
			s.at(third, "rest1", "rest2")
		}},
		{name: "was ready, and failed after that", reason: "it broke at what it has, only later", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0), wave("last", 1, 0)}, clusters: []string{"rest1", "rest2", "last1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.takes(false, "rest1")
			s.decide()
			s.result("rest1", v1alpha1.ResultDegraded)
			c := s.cluster("rest1")
			c.Rolling, c.Unreachable = v1alpha1.ReasonRollingOut, s.now
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest1", v1alpha1.ResultUnreachable)
			s.spec.Preempt = true
			s.commit(third)
			s.decide()
			c.Unreachable = time.Time{}
			s.decide()
			s.at(third, "rest1", "rest2")
		}},
		{name: "was ill before and then ready", reason: "it was lost in the soak and is upgraded: nothing that it has keeps it from being ready", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.takes(false, "canary1")
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded)
			s.lose("canary1")
			s.after(time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUnreachable)
			s.spec.Suspend = true
			s.find(false, "canary1")
			s.cluster("canary1").Rolling = v1alpha1.ReasonRollingOut
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.spec.Suspend, s.spec.Preempt = false, true
			s.commit(third)
			s.decide()
			s.at(third)
			s.at(second, "canary1")
		}},
	})
}

// TestNewRoll: a cluster that has nothing of the Rollout gets its first revision while its machines
// come up, as they may need it for that: nodes are not ready without what makes their network.
func TestNewRoll(t *testing.T) {
	joins := func(s *story, why string) *rollout.Cluster {
		s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: "rest2", UID: "rest2", Labels: map[string]string{"wave": "rest"}, Known: true, New: true, Rolling: why})
		return s.cluster("rest2")
	}
	tellAll(t, []tale{
		{name: "between runs", reason: "it gets what all have", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			joins(s, v1alpha1.ReasonRollingOut)
			s.decide()
			s.at(first, "canary1", "rest1", "rest2")
		}},
		{name: "in a run", reason: "it gets what its wave gets, and is waited for until the deadline only", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			joins(s, v1alpha1.ReasonRollingOut)
			s.commit(second)
			s.decide()
			s.at(second, "rest1", "rest2")
			s.takes(true, "rest1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.result("rest2", v1alpha1.ResultUnproven)
		}},
		{name: "is ready without it", reason: "whether it was well nobody can tell while it rolls, so the revision is not to blame", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			joins(s, v1alpha1.ReasonRollingOut).Healthy = true
			s.commit(second)
			s.decide()
			s.at(second, "rest1", "rest2")
			s.takes(true, "rest1")
			s.takes(false, "rest2")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.result("rest2", v1alpha1.ResultUnproven)
		}},
		{name: "does not tell what it has", reason: "it may have something, and is upgraded: it gets the revision afterwards, and the run passes without it", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			c := joins(s, v1alpha1.ReasonRollingOut)
			c.New, c.Healthy = false, true
			s.commit(second)
			s.decide()
			s.at(second, "rest1")
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.at(second, "rest1")
			c.Rolling = ""
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
		{name: "at what does not work", reason: "it was never ready, and the next commit may be what ends the roll", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			joins(s, v1alpha1.ReasonRollingOut)
			s.decide()
			s.takes(false, "rest2")
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest2", v1alpha1.ResultUnproven)
			s.commit(second)
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
		{name: "is out of reach at the deadline", reason: "it was never ready at what it has, whatever became of the result", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			c := joins(s, v1alpha1.ReasonRollingOut)
			s.decide()
			s.takes(false, "rest2")
			c.Unreachable = s.now
			s.after(10 * time.Minute)
			s.decide()
			s.result("rest2", v1alpha1.ResultUnreachable)
			c.Unreachable = time.Time{}
			s.commit(second)
			s.decide()
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
		{name: "is elsewhere meanwhile", reason: "what it had when it went was never ready", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			c := joins(s, v1alpha1.ReasonRollingOut)
			s.decide()
			s.takes(false, "rest2")
			c.Elsewhere = true
			s.decide()
			s.result("rest2", v1alpha1.ResultDeferred)
			c.Elsewhere = false
			s.commit(second)
			s.decide()
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
		{name: "paused", reason: "a person has it in hand: it is not waited for, and gets the revision when it goes on", waves: []v1alpha1.RolloutWave{wave("rest", 3, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			c := joins(s, v1alpha1.ReasonPaused)
			s.commit(second)
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.at(second, "rest1")
			c.Rolling = ""
			s.decide()
			s.at(second, "rest1", "rest2")
		}},
	})
}

// TestManagedElsewhere: a cluster that another tier manages holds up no run, fails none, and gets
// what it missed when it is back.
func TestManagedElsewhere(t *testing.T) {
	tellAll(t, []tale{
		{name: "passes without it", reason: "nothing that this tier does brings it the commit", waves: canaryAndRest(), clusters: []string{"canary1", "rest1", "rest2"}, tell: func(s *story) {
			s.cluster("rest1").Elsewhere = true
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.decide()
			s.at(second, "canary1", "rest2")
			s.takes(true, "rest2")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.cluster("rest1").Elsewhere = false
			s.decide()
			s.at(second, "canary1", "rest1", "rest2")
		}},
		{name: "goes in the middle", reason: "it cannot take what it was given, and is not to blame for that", waves: []v1alpha1.RolloutWave{wave("canary", 2, 0), wave("rest", 1, 0)}, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.cluster("canary2").Elsewhere = true
			s.decide()
			if pin := s.cluster("canary2").Pin; pin.Result != v1alpha1.ResultDeferred || pin.Reason != v1alpha1.ReasonManagedElsewhere {
				s.t.Fatalf("canary2 is %s for %s", pin.Result, pin.Reason)
			}
			s.decide()
			s.takes(true, "rest1")
			s.after(time.Hour)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.at(second, "canary1", "canary2", "rest1")
		}},
		{name: "all are", reason: "no run begins with nobody to prove it, nor is one waited for, and one begins with the first that is back", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Elsewhere, s.cluster("rest1").Elsewhere = true, true
			s.commit(second)
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.held(v1alpha1.ReasonNoChildren)
			s.pending(false)
			s.spec.Suspend = true
			s.decide()
			s.pending(false)
			s.spec.Suspend = false
			s.cluster("canary1").Elsewhere = false
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.pending(true)
			s.at(second, "canary1")
		}},
		{name: "the last one goes", reason: "the run neither passes on nobody, nor is waited for", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.cluster("rest1").Elsewhere = true
			s.commit(second)
			s.decide()
			s.cluster("canary1").Elsewhere = true
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.held(v1alpha1.ReasonNoChildren)
			s.good(first)
			s.pending(false)
		}},
		{name: "the last one goes when it is ready", reason: "what it proved stands", waves: []v1alpha1.RolloutWave{wave("rest", 1, 0)}, clusters: []string{"rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "rest1")
			s.cluster("rest1").Elsewhere = true
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			s.good(second)
		}},
	})
}
