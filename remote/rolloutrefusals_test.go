package remote

import (
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// TestRefusedGood: clusters that cannot go back are known in the very decision in which a run turns back: none of them is
// given what it cannot have.
func TestRefusedGood(t *testing.T) {
	const good, brought = "main@sha1:2", "main@sha1:3" // the first is the one that is refused
	for name, tc := range map[string]struct {
		reason string
		phase  v1alpha1.RolloutPhase
		change func(o *v1alpha1.Rollout)
		want   v1alpha1.RolloutPhase
		told   bool
	}{
		"Fails": {"a cluster failed", v1alpha1.RolloutProgressing, func(*v1alpha1.Rollout) {}, v1alpha1.RolloutReverted, true},
		"Asked": {"a person wants it back", v1alpha1.RolloutHalted, func(o *v1alpha1.Rollout) {
			o.Annotations = map[string]string{v1alpha1.RevertRolloutAnnotation: brought}
		}, v1alpha1.RolloutReverted, true},
		"Aborted": {"after a person ended it", v1alpha1.RolloutAborted, func(o *v1alpha1.Rollout) {
			o.Annotations = map[string]string{v1alpha1.RevertRolloutAnnotation: brought}
		}, v1alpha1.RolloutReverted, true},
		"Ended": {"nobody wants anything back", v1alpha1.RolloutAborted, func(*v1alpha1.Rollout) {}, v1alpha1.RolloutAborted, false},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			o.Spec.Waves, o.Spec.Deadline.Duration, o.Spec.OnFailure = []v1alpha1.RolloutWave{{Name: "all", MaxConcurrent: intstr.FromInt32(2)}}, time.Hour, v1alpha1.FailureRevert
			o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: good}, Run: 1}
			o.Status.Run = &v1alpha1.RolloutRun{Number: 2, RolloutRevision: v1alpha1.RolloutRevision{Revision: brought}, Phase: tc.phase, Begun: true,
				Terms: v1alpha1.RolloutTerms{Waves: o.Spec.Waves, Deadline: o.Spec.Deadline, OnFailure: o.Spec.OnFailure}, Began: metav1.NewTime(now.Add(-2 * time.Hour)), Since: metav1.NewTime(now.Add(-2 * time.Hour))}
			tc.change(o)
			f := &rolloutFacts{children: map[string]*v1alpha1.Child{}}
			f.Candidate, f.Room, f.Requests = &o.Status.Run.RolloutRevision, -1, requestsOf(o.Annotations)
			m := &moved{spec: &o.Spec, composed: applied{revision: brought, refused: errors.New("1.31 does not go back to 1.30")}}
			for name, result := range map[string]v1alpha1.RolloutResult{"a": v1alpha1.ResultFailed, "b": v1alpha1.ResultUpdating} {
				child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, UID: types.UID(name)}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: name}}}
				pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: o.Status.Run.RolloutRevision, Run: 2, Result: result, Since: metav1.NewTime(now.Add(-time.Minute))}
				f.children[name] = child
				f.Clusters = append(f.Clusters, rollout.Cluster{Name: name, UID: child.UID, Pin: pin, Known: true, Has: &pin.RolloutRevision, Healthy: true})
			}
			f.refusals(t.Context(), o, m)
			for _, c := range f.Clusters {
				if told := c.Refused[good] != ""; told != tc.told {
					t.Errorf("%s: cluster %s is refused %q", tc.reason, c.Name, c.Refused)
				}
			}
			d := rollout.Next(o.Name, &o.Spec, &o.Status, f.Facts, now)
			if slices.ContainsFunc(d.Pins, func(a rollout.Assignment) bool { return a.Revision == good }) || d.Status.Run.Phase != tc.want {
				t.Errorf("%s: the run is %s, and clusters may have %+v", tc.reason, d.Status.Run.Phase, d.Pins)
			}
		})
	}
}
