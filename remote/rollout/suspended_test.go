package rollout_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestSuspended: a cluster to which nothing is sent, as a person suspended it or paused its Cluster, is not to blame for that.
func TestSuspended(t *testing.T) {
	const until = " at 2023-11-15 22:23:20 UTC"
	t.Run("Child", func(t *testing.T) {
		suspended(t, v1alpha1.ReasonSuspended, "it is suspended, and is passed over"+until+": cascade resume child canary1")
	})
	t.Run("Cluster", func(t *testing.T) {
		suspended(t, v1alpha1.ReasonPaused, "its Cluster is paused, and is passed over"+until)
	})
}

func suspended(t *testing.T, reason, says string) {
	two := []v1alpha1.RolloutWave{wave("canary", 2, 0), wave("rest", 1, 0)}
	suspend := func(s *story, name string) { s.cluster(name).Rolling = reason }
	one := []v1alpha1.RolloutWave{wave("canary", 1, 0), wave("rest", 1, 0)}
	soaks := []v1alpha1.RolloutWave{wave("canary", 2, 0), wave("rest", 1, 0)}
	soaks[0].Soak = &metav1.Duration{Duration: time.Hour}
	resume := func(s *story, name string) { s.cluster(name).Rolling = "" }
	tellAll(t, []tale{
		{name: "before a run", reason: "it is waited for until the deadline, and gets the revision once it is resumed", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			suspend(s, "canary1")
			s.commit(second)
			s.decide()
			s.at(second, "canary2")
			s.takes(true, "canary2")
			s.decide()
			s.says(v1alpha1.ReasonProgressing, "cluster canary1 is waited for: "+says)
			s.after(10 * time.Minute)
			s.decide()
			s.at(second, "canary2", "rest1")
			resume(s, "canary1")
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
		}},
		{name: "in the middle", reason: "it begins again once it is resumed, and has a deadline of its own then", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			suspend(s, "canary1")
			s.after(9 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.after(9 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2")
			resume(s, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(9 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "and is ill while its wave soaks", reason: "it is waited for, and is not to blame: nobody acts on it, or sends what mends it", waves: soaks, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2")
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			suspend(s, "canary1")
			s.takes(false, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultDegraded)
			s.after(10 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.held(v1alpha1.ReasonProgressing)
			s.after(10 * time.Minute)
			s.decide()
			s.held(v1alpha1.ReasonSoaking)
			resume(s, "canary1")
			s.takes(true, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded)
			s.phase(v1alpha1.RolloutProgressing)
		}},
		{name: "and is lost before it is resumed", reason: "where that counts, it has a deadline as any other, and fails at it", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.spec.Unreachable = v1alpha1.UnreachableCount
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			suspend(s, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.lose("canary1")
			s.after(5 * time.Minute)
			resume(s, "canary1")
			s.decide()
			s.at(second, "canary1", "canary2")
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(9 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2")
			s.after(time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.result("canary1", v1alpha1.ResultFailed)
		}},
		{name: "and its place was given to another", reason: "it goes on by itself once it is resumed, and has a deadline", waves: one, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.at(second, "canary2")
			suspend(s, "canary2")
			s.decide()
			s.at(second, "canary1", "canary2")
			resume(s, "canary2")
			s.decide()
			s.result("canary2", v1alpha1.ResultUpdating)
			s.takes(true, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "and the window is shut", reason: "it changes all the same once it is resumed, and fails as any other", waves: one, clusters: []string{"canary1", "rest1"}, tell: func(s *story) {
			s.spec.Window = &v1alpha1.RolloutWindow{Cron: "0 8 * * *", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Europe/Paris"}
			s.after(9*time.Hour + 41*time.Minute + 40*time.Second) // 8:55 there
			s.commit(second)
			s.decide()
			s.at(second, "canary1")
			suspend(s, "canary1")
			s.decide()
			s.after(6 * time.Minute)
			s.spec.Suspend = true
			resume(s, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "and is resumed after the run", reason: "it goes on, and has a deadline as any other", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			suspend(s, "canary1")
			s.decide()
			s.after(10 * time.Minute)
			s.decide()
			s.takes(true, "rest1")
			s.decide()
			s.phase(v1alpha1.RolloutCompleted)
			resume(s, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(10 * time.Minute)
			s.decide()
			s.result("canary1", v1alpha1.ResultFailed)
			s.takes(true, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultSucceeded)
		}},
		{name: "in a revert", reason: "it gets the revision before once it is resumed", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2")
			suspend(s, "canary1")
			s.facts.Requests.Revert = second
			s.decide()
			s.takes(true, "canary2")
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.at(second, "canary1")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			resume(s, "canary1")
			s.decide()
			s.at(first, "canary1", "canary2", "rest1")
		}},
		{name: "on its way back", reason: "it is waited for until the deadline, named after that, and judged once it is resumed", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary1", "canary2")
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "canary2", "rest1")
			s.takes(true, "canary2")
			suspend(s, "canary1")
			s.decide()
			s.result("canary1", v1alpha1.ResultDeferred)
			s.decide()
			s.phase(v1alpha1.RolloutReverting)
			s.says(v1alpha1.ReasonReverting, "clusters that have "+second+" get "+first+" back; cluster canary1 is waited for: "+reason)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutReverted)
			s.failing("canary1", reason, "may have "+second+" yet, which was taken back")
			s.commit(first)
			resume(s, "canary1")
			s.decide()
			if s.result("canary1", v1alpha1.ResultUpdating); rollout.IsBack(&s.status) {
				s.t.Error("all is back")
			}
			s.after(10 * time.Minute)
			s.decide()
			if s.failing("canary1", v1alpha1.ReasonDeadlineExceeded, "not ready at "+first); rollout.IsBack(&s.status) {
				s.t.Error("all is back")
			}
		}},
	})
}

// failing expects what the status says of the one cluster that it names.
func (s *story) failing(name, reason, message string) {
	s.t.Helper()
	if want := []v1alpha1.Failure{{Name: name, Reason: reason, Message: message}}; !slices.Equal(s.status.Failing, want) {
		s.t.Fatalf("it names %+v, want %+v", s.status.Failing, want)
	}
}

// TestWithheld: a cluster of which that is suspended that makes it is put off with what it was given, and takes another revision
// meanwhile: it would go on with the former when that is resumed.
func TestWithheld(t *testing.T) {
	two := []v1alpha1.RolloutWave{wave("canary", 2, 0), wave("rest", 1, 0)}
	suspend := func(s *story) {
		c := s.cluster("canary1")
		c.Has, c.Rolling, c.Withheld = &c.Pin.RolloutRevision, v1alpha1.ReasonSuspended, "HelmRelease fleet/canary1 is suspended"
		s.decide()
		s.result("canary1", v1alpha1.ResultDeferred)
	}
	resume := func(s *story) { s.cluster("canary1").Rolling, s.cluster("canary1").Withheld = "", "" }
	tellAll(t, []tale{
		{name: "goes on", reason: "it is waited for, passed over, and has a deadline once that is resumed", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			s.takes(true, "canary2")
			suspend(s)
			s.says(v1alpha1.ReasonProgressing, "cluster canary1 is waited for: HelmRelease fleet/canary1 is suspended, and is passed over at 2023-11-15 22:23:20 UTC")
			s.after(10 * time.Minute)
			s.decide()
			s.at(second, "canary1", "canary2", "rest1")
			s.result("canary1", v1alpha1.ResultDeferred)
			resume(s)
			s.decide()
			s.result("canary1", v1alpha1.ResultUpdating)
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
		}},
		{name: "is mended", reason: "it gets what mends it before it goes on", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			suspend(s)
			s.takes(false, "canary2")
			s.after(10 * time.Minute)
			s.decide()
			s.phase(v1alpha1.RolloutHalted)
			s.commit(third)
			s.decide()
			s.at(third, "canary1", "canary2")
		}},
		{name: "goes back", reason: "what is taken back is taken from it as from others", waves: two, clusters: []string{"canary1", "canary2", "rest1"}, tell: func(s *story) {
			s.commit(second)
			s.decide()
			suspend(s)
			s.facts.Requests.Revert = second
			s.decide()
			s.at(first, "canary1", "canary2", "rest1")
		}},
	})
}

// goesOnLost reports whether a cluster goes on with what it had when a person took it in hand, though it cannot be reached: where that counts,
// it fails at the deadline.
func (f *fleet) goesOnLost(c *cluster, p *v1alpha1.ChildRollout) bool {
	counts := f.spec.Unreachable
	if run := f.status.Run; run != nil && rollout.Active(run) {
		counts = run.Terms.Unreachable
	}
	return counts == v1alpha1.UnreachableCount && wasInHand(c.pin) && c.pin.Revision == p.Revision
}
