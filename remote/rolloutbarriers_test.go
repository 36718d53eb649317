package remote

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestSuspendedInRollout: what a person suspended is not sent, for no fault of the child; what was ready stays so.
func TestSuspendedInRollout(t *testing.T) {
	const one, two = "main@sha1:1", "main@sha1:2"
	for name, tc := range map[string]struct {
		reason       string
		child, layer bool
		// paused: its Cluster is, and its agent reports that it is ill, or a part of the layer was sent.
		paused, ill, part bool
		result            v1alpha1.RolloutResult
		has               string
		rolling           string
		blocked           bool
		ready             bool
	}{
		"Child":         {reason: "it is left alone", child: true, result: v1alpha1.ResultUpdating, has: one, rolling: v1alpha1.ReasonSuspended},
		"ChildSoaks":    {reason: "nothing of it changes", child: true, result: v1alpha1.ResultSucceeded, has: two, rolling: v1alpha1.ReasonSuspended, ready: true},
		"Layer":         {reason: "it waits for the layer", layer: true, result: v1alpha1.ResultUpdating, has: one, blocked: true},
		"LayerUnlooked": {reason: "nobody looks how the layer is", layer: true, result: v1alpha1.ResultUpdating, has: two, blocked: true},
		"LayerSoaks":    {reason: "nothing of it changes", layer: true, result: v1alpha1.ResultSucceeded, has: two, ready: true},
		"Neither":       {reason: "it is on its way", result: v1alpha1.ResultUpdating, has: one},
		"Paused":        {reason: "nothing of it changes", paused: true, result: v1alpha1.ResultSucceeded, has: two, ready: true},
		"PausedBefore":  {reason: "nobody looks how the layer is", paused: true, result: v1alpha1.ResultUpdating, has: two},
		"PausedIll":     {reason: "its agent says so", paused: true, ill: true, result: v1alpha1.ResultSucceeded, has: two},
		"PausedInPart":  {reason: "not all of it is in place", paused: true, part: true, result: v1alpha1.ResultSucceeded, has: two},
	} {
		t.Run(name, func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}
			child.Spec.Suspend = tc.child
			child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
			child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: tc.has, Ready: true, Suspended: tc.child || tc.layer}}
			if tc.paused {
				meta.SetStatusCondition(&child.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused})
				child.Status.Report = &v1alpha1.Report{Ready: !tc.ill}
				entry := &child.Status.Layers[0]
				entry.Ready, entry.Reason, entry.Digest, entry.LastAttemptedDigest = false, v1alpha1.ReasonPaused, "sha256:2", "sha256:2"
				if tc.part {
					entry.Digest = "sha256:1"
				}
			}
			layer := layerOn("base")
			layer.Spec.Suspend = tc.layer
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: two}, Result: tc.result, Brought: true}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			r := &Rollouts{Snapshots: source.NewSnapshots(), Now: time.Now}
			if c := r.cluster(t.Context(), o, &moved{spec: &o.Spec, layer: layer}, child, pin); c.Rolling != tc.rolling || c.Blocked != tc.blocked || c.Ready != tc.ready {
				t.Errorf("%s: %+v", tc.reason, c)
			}
		})
	}
}

// TestSuspendedLayerOfRollout: while a layer is suspended nobody begins, and no deadline passes; it counts anew once the
// layer is resumed.
func TestSuspendedLayerOfRollout(t *testing.T) {
	s := newDecided(t, nil, "a", "b")
	s.passed()
	s.commit(commit2)
	s.decide()
	given, other := "a", "b"
	if s.child("b").Status.Rollouts[0].Revision == revision2 {
		given, other = "b", "a"
	}
	s.has(given, revision2, v1alpha1.ResultUpdating)
	s.suspend(true)
	s.after(time.Hour)
	s.has(given, revision2, v1alpha1.ResultUpdating)
	s.takes(given)
	s.decide()
	s.has(given, revision2, v1alpha1.ResultSucceeded)
	s.has(other, revision1, v1alpha1.ResultSucceeded)
	s.says(v1alpha1.ReadyCondition, v1alpha1.ReasonSuspended)
	s.suspend(false)
	s.decide()
	s.has(other, revision2, v1alpha1.ResultUpdating)
	s.suspend(true)
	s.after(time.Hour)
	s.suspend(false)
	s.after(time.Minute)
	s.barriers = nil // another process goes on
	s.after(28 * time.Minute)
	s.has(other, revision2, v1alpha1.ResultUpdating)
	s.after(2 * time.Minute)
	s.has(other, revision2, v1alpha1.ResultFailed)
	s.phase(v1alpha1.RolloutHalted)
}

// TestUnfetchedRevision: while what clusters may have is not there to be sent, as the agent began anew and the server does
// not answer, nobody begins with it, and nobody is to blame. What is gone for good is waited for no longer than it was.
func TestUnfetchedRevision(t *testing.T) {
	begun := func(t *testing.T) (s *decided, given, other string) {
		s = newDecided(t, nil, "a", "b")
		s.passed()
		s.commit(commit2)
		s.decide()
		if given, other = "a", "b"; s.child("b").Status.Rollouts[0].Revision == revision2 {
			given, other = other, given
		}
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.Snapshots = source.NewSnapshots()
		return s, given, other
	}
	t.Run("Away", func(t *testing.T) {
		s, given, other := begun(t)
		s.after(time.Hour)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.takes(given)
		s.decide()
		s.has(given, revision2, v1alpha1.ResultSucceeded)
		s.has(other, revision1, v1alpha1.ResultSucceeded)
		s.says(v1alpha1.ReadyCondition, v1alpha1.ReasonSourceNotReady)
		s.commit(commit2)
		s.decide()
		s.has(other, revision2, v1alpha1.ResultUpdating)
	})
	t.Run("Deadline", func(t *testing.T) {
		s, given, _ := begun(t)
		s.after(time.Hour)
		s.commit(commit2)
		s.after(30 * time.Minute)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.after(time.Minute)
		s.has(given, revision2, v1alpha1.ResultFailed)
	})
	commit3 := strings.Repeat("3", 40)
	t.Run("AwayAndOvertaken", func(t *testing.T) { // the newest commit is there before what clusters may have
		s, given, other := begun(t)
		s.after(time.Hour)
		s.commit(commit3)
		s.decide()
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.has(other, revision1, v1alpha1.ResultSucceeded)
		s.Snapshots.Keep(s.from, s.snapshot(commit2))
		s.after(29 * time.Minute)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.after(3 * time.Minute)
		s.has(given, "main@sha1:"+commit3, v1alpha1.ResultUpdating)
	})
	t.Run("Recalled", func(t *testing.T) { // only the newest one is kept, and its server does not answer
		s, given, other := begun(t)
		s.commit(commit3)
		s.Snapshots.Silence(s.from)
		s.after(time.Hour)
		s.phase(v1alpha1.RolloutProgressing)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.has(other, revision1, v1alpha1.ResultSucceeded)
		s.commit(commit3)
		s.after(5 * time.Minute)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.after(10 * time.Minute)
		s.has(given, "main@sha1:"+commit3, v1alpha1.ResultUpdating)
	})
	t.Run("Gone", func(t *testing.T) {
		s, given, _ := begun(t)
		s.commit(commit3)
		s.after(20 * time.Minute)
		s.has(given, revision2, v1alpha1.ResultUpdating)
		s.after(15 * time.Minute)
		s.has(given, "main@sha1:"+commit3, v1alpha1.ResultUpdating)
	})
}
