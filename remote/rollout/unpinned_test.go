package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestIsPast: what a cluster has came past its Rollout if it is neither the pin nor what it had before, and if it
// was certainly ready at the pin.
func TestIsPast(t *testing.T) {
	pin := func(result v1alpha1.RolloutResult, reason string, had ...string) *v1alpha1.ChildRollout {
		p := &v1alpha1.ChildRollout{RolloutRevision: v1alpha1.RolloutRevision{Revision: second}, Result: result, Reason: reason}
		for _, revision := range had {
			p.Had = &v1alpha1.RolloutRevision{Revision: revision}
		}
		return p
	}
	unproven := pin(v1alpha1.ResultUnreachable, v1alpha1.ReasonUnreachable, first)
	unproven.Unproven = true
	rolling := pin(v1alpha1.ResultDeferred, v1alpha1.ReasonRollingOut)
	rolling.Unproven = true
	for _, tt := range []struct {
		reason string
		pin    *v1alpha1.ChildRollout
		has    string
		want   bool
	}{
		{"nothing is on record", nil, third, false},
		{"it has its pin", pin(v1alpha1.ResultSucceeded, ""), second, false},
		{"it has its pin, by another name", pin(v1alpha1.ResultSucceeded, ""), "v2@" + second[len("main@"):], false},
		{"it was ready at its pin", pin(v1alpha1.ResultSucceeded, ""), first, true},
		{"it was ready at its pin once", pin(v1alpha1.ResultDegraded, v1alpha1.ReasonChildrenNotReady), first, true},
		{"it is given its pin just now", pin(v1alpha1.ResultUpdating, "", first), first, false},
		{"it was given its pin, and got another one", pin(v1alpha1.ResultUpdating, "", first), third, true},
		{"it failed, perhaps before it got its pin", pin(v1alpha1.ResultFailed, v1alpha1.ReasonDeadlineExceeded, first), first, false},
		{"it failed, and got what mends it", pin(v1alpha1.ResultFailed, v1alpha1.ReasonDeadlineExceeded, first), third, true},
		{"it was never ready, and got another one", pin(v1alpha1.ResultUnproven, v1alpha1.ReasonNotReadyBefore, first), third, true},
		{"it failed at a pin of before, perhaps before it got that", pin(v1alpha1.ResultFailed, v1alpha1.ReasonDeadlineExceeded), third, false},
		{"it was put off as it rolled, ready at its pin", pin(v1alpha1.ResultDeferred, v1alpha1.ReasonRollingOut), first, true},
		{"it was put off, and never ready at its pin", rolling, first, false},
		{"it was lost, ready at its pin", pin(v1alpha1.ResultUnreachable, v1alpha1.ReasonUnreachable, first), first, true},
		{"it was lost before it got its pin", unproven, first, false},
		{"it was lost before it got its pin, and got another one", unproven, third, true},
		{"it was lost, perhaps before it got its pin, which does not say so", pin(v1alpha1.ResultUnreachable, v1alpha1.ReasonUnreachable), first, false},
		{"it came back, perhaps without its pin", pin(v1alpha1.ResultDeferred, v1alpha1.ReasonUnreachable), first, false},
		{"it was another tier's, perhaps without its pin", pin(v1alpha1.ResultDeferred, v1alpha1.ReasonManagedElsewhere), first, false},
		{"it is tried again", pin(v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing, first), first, false},
	} {
		if got := rollout.IsPast(tt.pin, v1alpha1.RolloutRevision{Revision: tt.has}); got != tt.want {
			t.Errorf("%s: %s came past %+v: %t", tt.reason, tt.has, tt.pin, got)
		}
	}
}

// TestUnpinned: what a version that knows no Rollouts brought to all clusters is what they have.
func TestUnpinned(t *testing.T) {
	two := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 2, 1)}
	past := func(s *story) {
		for i := range s.facts.Clusters {
			c := &s.facts.Clusters[i]
			c.Unpinned, c.Has, c.Ready = true, &v1alpha1.RolloutRevision{Revision: second}, false
		}
		s.decide()
		for i := range s.facts.Clusters {
			s.facts.Clusters[i].Unpinned, s.facts.Clusters[i].Ready = false, true
		}
	}
	names := []string{"canary1", "rest1", "rest2", "rest3"}
	// away has the run of what came past it before be taken back, while two of them cannot be reached.
	away := func(s *story) {
		s.t.Helper()
		s.commit(second)
		past(s) // before the run, which begins with that
		s.lose("rest1", "rest2")
		s.after(10 * time.Minute)
		if run, c := s.status.Run, s.cluster("rest1").Pin; run.Revision != second || !c.Past || c.Run >= run.Number {
			s.t.Fatalf("rest1 has %+v, and the run is %+v", c, run)
		}
		s.facts.Requests.Revert = second
		s.decide()
		s.takes(true, "canary1", "rest3")
		s.decide()
		s.phase(v1alpha1.RolloutReverted)
	}
	// named expects both to be named for it.
	named := func(s *story) {
		s.t.Helper()
		s.at(second, "rest1", "rest2")
		if f := s.status.Failing; len(f) != 2 || f[0].Reason != v1alpha1.ReasonUnreachable || f[1].Reason != v1alpha1.ReasonUnreachable {
			s.t.Fatalf("it names %+v", f)
		}
	}
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
		{name: "keeps what was aborted, and an earlier version brought", reason: "what all of them have goes back with a run, in its waves, and with nothing else", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.facts.Requests.Abort = second
			s.decide()
			s.takes(true, "canary1")
			s.after(time.Hour)
			s.decide()
			past(s)
			s.phase(v1alpha1.RolloutAborted)
			s.at(second, names...)
			s.commit(first)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(first, "canary1")
		}},
		{name: "keeps what was reverted, and an earlier version brought", reason: "a revision that failed is no candidate, and who has it for days does not lose it without a run", waves: soaking(), clusters: names, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			past(s)
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			s.at(second, names...)
		}},
		{name: "reverts for a person what an earlier version brought", reason: "who asks for a revert means all that have the revision", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.facts.Requests.Abort = second
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			past(s)
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "rest1")
		}},
		{name: "reverts what came past the run before", reason: "who could not go back with the others had it when that was taken back, whichever run it got past", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(third)
			s.decide()
			s.takes(true, "canary1")
			s.commit(second)
			past(s)
			got, run := s.cluster("rest1").Pin, s.status.Run
			if run.Revision != second || !got.Past || got.Run != run.Number-1 {
				s.t.Fatalf("rest1 has %+v, and the run is %+v", got, run)
			}
			s.cluster("rest1").Refused = map[string]string{first: "a step over a minor version"}
			s.facts.Requests.Revert = second
			s.decide()
			s.at(second, "rest1")
			s.takes(true, "canary1", "rest2", "rest3")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			s.at(second, "rest1")
			s.cluster("rest1").Refused = nil
			s.decide()
			s.at(first, names...)
		}},
		{name: "reverts what came past it before the run", reason: "it had that when that was taken back, though it was away, and the run did not come to it", waves: soaking(), clusters: names, tell: func(s *story) {
			away(s)
			named(s)
			s.find(true, "rest1", "rest2")
			s.decide()
			s.at(first, names...)
		}},
		{name: "reverts what came past it before the run, and another one has begun", reason: "it is what is bad, whichever run proves something else by now", waves: soaking(), clusters: names, tell: func(s *story) {
			away(s)
			s.commit(third)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			named(s)
			s.find(true, "rest1", "rest2")
			s.decide()
			s.at(third, "canary1")
			s.at(first, "rest1", "rest2", "rest3")
		}},
		{name: "reverts what came past it before the run, after another revert", reason: "the run in between never came to it, and nobody else brings it anything", waves: soaking(), clusters: names, tell: func(s *story) {
			away(s)
			s.commit(third)
			s.decide()
			s.facts.Requests.Revert = third
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			named(s)
			s.find(true, "rest1", "rest2")
			s.decide()
			s.at(first, names...)
		}},
		{name: "leaves later waves while the first one proves it", reason: "all of them have it already: to take it back from who is to get it again changes each of them twice", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(second)
			past(s)
			s.held(v1alpha1.ReasonSoaking)
			s.at(second, names...)
			s.commit(third)
			s.spec.Preempt = true
			s.decide()
			s.at(third, "canary1")
			s.at(second, "rest1", "rest2", "rest3")
		}},
		{name: "gives the one after it in waves", reason: "nobody goes back to an older one only to get a newer one in its wave", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(third)
			past(s)
			s.at(third, "canary1")
			s.at(second, "rest1", "rest2", "rest3")
		}},
		{name: "waits until it knows what is newest", reason: "the candidate of before is no reason to go back: a run may begin at what they have", waves: soaking(), clusters: names, tell: func(s *story) {
			s.facts.Unread = true
			past(s)
			s.at(second, names...)
			s.commit(second)
			s.facts.Unread = false
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(second, names...)
		}},
		{name: "waits until it knows what another environment proved", reason: "that may be what they have", waves: soaking(), clusters: names, tell: func(s *story) {
			s.upstream(0)
			s.facts.Upstream = nil
			past(s)
			s.at(second, names...)
			s.upstream(0)
			s.proves(second, s.now)
			delete(s.facts.Upstream.Revisions, hash(second))
			s.decide()
			s.at(second, names...)
			s.proves(second, s.now)
			s.decide()
			s.phase(v1alpha1.RolloutProgressing)
			s.at(second, names...)
		}},
		{name: "takes back in waves what is not the newest", reason: "the branch is at the last good one, which is a candidate like any other as long as a cluster has something else", waves: soaking(), clusters: names, tell: func(s *story) {
			good := s.status.LastGood.Run
			past(s)
			s.phase(v1alpha1.RolloutProgressing)
			s.at(first, "canary1")
			s.at(second, "rest1", "rest2", "rest3")
			// What the Clusters share changes with the last of them: by the number, and as they are marked.
			if c := s.cluster("canary1").Pin; c.Run != good+1 || c.Past {
				s.t.Fatalf("canary1 goes back as %+v", c)
			}
			if c := s.cluster("rest1").Pin; c.Run != good || !c.Past {
				s.t.Fatalf("rest1 has %+v", c)
			}
			s.takes(true, "canary1")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			for range 5 {
				s.after(30 * time.Minute)
				s.decide()
				s.takes(true, names...)
			}
			s.phase(v1alpha1.RolloutCompleted)
			s.at(first, names...)
			number := s.status.Run.Number
			s.decide()
			if s.status.Run.Number != number {
				s.t.Fatalf("run %d follows at what all of them have", s.status.Run.Number)
			}
		}},
		{name: "leaves a run that others got past", reason: "to finish it takes an older revision to clusters that have a newer one, and brings that again", waves: canaryAndRest(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "canary1", "rest1", "rest3")
			s.takes(true, "rest1", "rest3")
			s.facts.Unread = true
			s.decide()
			for i := range s.facts.Clusters {
				c := &s.facts.Clusters[i]
				c.Unpinned, c.Has, c.Ready = true, &v1alpha1.RolloutRevision{Revision: third}, false
			}
			s.decide()
			s.held(v1alpha1.ReasonSourceNotReady)
			s.at(third, names...)
			for i := range s.facts.Clusters {
				s.facts.Clusters[i].Unpinned = false
			}
			s.takes(true, names...)
			s.facts.Unread = false
			s.commit(third)
			s.decide()
			if h := s.status.History[1]; h.Phase != v1alpha1.RolloutSuperseded || h.Revision != second { // the next one finds all at its revision
				s.t.Fatalf("it ended as %+v", h)
			}
			s.at(third, names...)
		}},
		{name: "goes on with a run that others got past, at the newest", reason: "the branch was taken back to what it brings", waves: canaryAndRest(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1")
			s.decide()
			number, c := s.status.Run.Number, s.cluster("canary1")
			c.Unpinned, c.Has, c.Ready = true, &v1alpha1.RolloutRevision{Revision: third}, false
			s.decide()
			s.at(second, "canary1", "rest1")
			s.result("canary1", v1alpha1.ResultUpdating)
			if s.status.Run.Number != number {
				s.t.Fatalf("run %d took the place of run %d", s.status.Run.Number, number)
			}
		}},
		{name: "leaves later waves when a revert ends", reason: "a newer candidate begins a second later", waves: soaking(), clusters: names, tell: func(s *story) {
			s.spec.OnFailure = v1alpha1.FailureRevert
			s.commit(third)
			past(s)
			s.at(third, "canary1")
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(first, "canary1")
			s.commit(fourth)
			s.takes(true, "canary1")
			s.decide()
			s.at(second, "rest1", "rest2", "rest3")
			s.decide()
			s.at(fourth, "canary1")
			s.at(second, "rest1", "rest2", "rest3")
		}},
		{name: "leaves later waves after an abort", reason: "nobody said that what they have is bad, and no run takes it from them", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(third)
			past(s)
			s.facts.Requests.Abort = third
			s.decide()
			s.decide()
			s.phase(v1alpha1.RolloutAborted)
			s.at(third, "canary1")
			s.at(second, "rest1", "rest2", "rest3")
		}},
		{name: "goes on from what it brought to who rolls", reason: "who was put off for an upgrade was ready at what it had, as all others", waves: two, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.cluster("canary1").Rolling = v1alpha1.ReasonRollingOut
			s.commit(third)
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			past(s)
			s.at(first)
			s.at(second, "canary1", "rest1")
		}},
		{name: "goes on from what mended who failed", reason: "to take it back brings what it failed at", waves: soaking(), clusters: names, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(false, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultFailed)
			for i := range s.facts.Clusters {
				c := &s.facts.Clusters[i]
				c.Unpinned, c.Has, c.Healthy, c.Ready = true, &v1alpha1.RolloutRevision{Revision: third}, true, false
			}
			s.decide()
			s.at(third, names...)
		}},
		{name: "keeps what is proven again", reason: "it comes back with what a run before did not finish, and gets it in its wave", waves: soaking(), clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.facts.Clusters = append(s.facts.Clusters, *s.cluster("rest1"))
			c := &s.facts.Clusters[2]
			c.Name, c.UID, c.Pin, c.Has = "rest2", "rest2", nil, &v1alpha1.RolloutRevision{Revision: second}
			s.decide()
			s.at(second, "canary1", "rest2")
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

// wasTaken reports whether a run that was reverted took back what a cluster has, from all that could go back then.
func wasTaken(had *v1alpha1.ChildRollout, history []v1alpha1.RolloutHistory) bool {
	return had != nil && slices.ContainsFunc(history, func(h v1alpha1.RolloutHistory) bool {
		return h.Phase == v1alpha1.RolloutReverted && h.Number == had.Run && h.Revision == had.Revision
	})
}
