package remote

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestNumbersWait(t *testing.T) {
	key, at := types.NamespacedName{Name: "a"}, start.Time
	n := &numbers{}
	for _, c := range []struct {
		reason string
		after  time.Duration
		want   time.Duration
		wrote  bool
	}{
		{"never written", 0, 0, true},
		{"right after a write", 0, numbersPause, false},
		{"a while after it", 2 * time.Second, numbersPause - 2*time.Second, false},
		{"long after it", numbersPause, 0, true},
		{"the clock was set back", -time.Hour, 0, false},
	} {
		at = at.Add(c.after)
		if got := n.early(key, at); got != c.want {
			t.Errorf("%s: early() = %s, want %s", c.reason, got, c.want)
		}
		if c.wrote {
			n.wrote(key, at)
		}
	}
	n.wrote(key, at)
	if n.forget(key); n.early(key, at) != 0 {
		t.Error("what was forgotten waits")
	}
}

// TestOnlyNumbers: what a decision is made from never waits.
func TestOnlyNumbers(t *testing.T) {
	said := func(status metav1.ConditionStatus, message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: v1alpha1.ReasonProgressing, Message: message}}
	}
	soaking := metav1.NewTime(start.Time)
	for _, c := range []struct {
		reason string
		change func(*v1alpha1.RolloutStatus)
		want   bool
	}{
		{"the numbers of a wave", func(s *v1alpha1.RolloutStatus) { s.Waves[0].Updated++ }, true},
		{"numbers of all", func(s *v1alpha1.RolloutStatus) { s.Clusters.Updated++; s.Unassigned++ }, true},
		{"a name", func(s *v1alpha1.RolloutStatus) { s.Failing = []v1alpha1.Failure{{Name: "a"}} }, true},
		{"a message", func(s *v1alpha1.RolloutStatus) { s.Conditions = said(metav1.ConditionUnknown, "2 of 3") }, true},
		{"a condition", func(s *v1alpha1.RolloutStatus) { s.Conditions = said(metav1.ConditionTrue, "1 of 3") }, false},
		{"the wave", func(s *v1alpha1.RolloutStatus) { s.Run.Wave++ }, false},
		{"a soak that begins", func(s *v1alpha1.RolloutStatus) { s.Run.SoakSince = &soaking }, false},
		{"the phase", func(s *v1alpha1.RolloutStatus) { s.Run.Phase = v1alpha1.RolloutHalted }, false},
		{"an approval", func(s *v1alpha1.RolloutStatus) { s.Run.Approvals = []v1alpha1.RolloutApproval{{Wave: "a"}} }, false},
		{"the candidate", func(s *v1alpha1.RolloutStatus) { s.Candidate = &v1alpha1.RolloutRevision{Revision: "b"} }, false},
		{"a request that was handled", func(s *v1alpha1.RolloutStatus) { s.LastHandledReconcileAt = "now" }, false},
	} {
		before := &v1alpha1.RolloutStatus{
			Run:   &v1alpha1.RolloutRun{Number: 1, Phase: v1alpha1.RolloutProgressing},
			Waves: []v1alpha1.RolloutWaveStatus{{Name: "a"}}, Conditions: said(metav1.ConditionUnknown, "1 of 3"),
		}
		after := before.DeepCopy()
		if c.change(after); onlyNumbers(before, after) != c.want {
			t.Errorf("%s: onlyNumbers() = %t", c.reason, !c.want)
		}
		if len(before.Conditions[0].Message) == 0 || len(before.Waves) == 0 {
			t.Fatalf("%s: it changed what it compared", c.reason)
		}
	}
	for _, c := range []struct {
		reason string
		change func(*v1alpha1.LayerStatus)
		want   bool
	}{
		{"counts", func(s *v1alpha1.LayerStatus) { s.Children.Current++ }, true},
		{"names and a message", func(s *v1alpha1.LayerStatus) {
			s.Failing, s.Conditions = []v1alpha1.Failure{{Name: "a"}}, said(metav1.ConditionUnknown, "2 of 3")
		}, true},
		{"the revision", func(s *v1alpha1.LayerStatus) { s.Revision = "b" }, false},
		{"a condition", func(s *v1alpha1.LayerStatus) { s.Conditions = said(metav1.ConditionFalse, "1 of 3") }, false},
		{"what is on record", func(s *v1alpha1.LayerStatus) { s.OnRecord = &v1alpha1.OnRecord{Children: 1} }, false},
		{"a removal", func(s *v1alpha1.LayerStatus) { s.Removal = &v1alpha1.Removal{} }, false},
		{"a request that was handled", func(s *v1alpha1.LayerStatus) { s.LastHandledReconcileAt = "now" }, false},
	} {
		before := &v1alpha1.LayerStatus{Revision: "a", Conditions: said(metav1.ConditionUnknown, "1 of 3")}
		after := before.DeepCopy()
		if c.change(after); onlyCounts(before, after) != c.want {
			t.Errorf("%s: onlyCounts() = %t", c.reason, !c.want)
		}
	}
}
