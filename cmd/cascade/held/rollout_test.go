package held

import (
	"slices"
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

func TestApprovals(t *testing.T) {
	const commit = "main@sha1:2222222222222222222222222222222222222222"
	at := func(wave int32, change func(*v1alpha1.Rollout)) *v1alpha1.Rollout {
		r := &v1alpha1.Rollout{}
		r.Status.Clusters.Updated = 1
		r.Status.Run = &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutProgressing, Wave: wave, Unproven: true, RolloutRevision: v1alpha1.RolloutRevision{Revision: commit}}
		r.Status.Run.Terms.Waves = []v1alpha1.RolloutWave{{Name: "canary"}, {Name: "rest"}}
		if change != nil {
			change(r)
		}
		return r
	}
	for _, tt := range []struct {
		reason string
		of     *v1alpha1.Rollout
		want   []string
	}{
		{"the wave before it proved too little", at(1, nil), []string{"rest"}},
		{"the last wave did", at(2, nil), []string{rollout.End}},
		{"nobody can approve what no cluster runs", at(2, func(r *v1alpha1.Rollout) { r.Status.Clusters.Updated = 0 }), nil},
		{"somebody approved the end", at(2, func(r *v1alpha1.Rollout) {
			r.Annotations = map[string]string{v1alpha1.ApproveRolloutAnnotation: rollout.End + "=" + commit}
		}), nil},
		{"a wave passed with nothing to change, and a cluster came to it", at(2, func(r *v1alpha1.Rollout) {
			r.Status.Run.Terms.Waves[0].Approval = v1alpha1.ApprovalRequired
			r.Status.Waves = []v1alpha1.RolloutWaveStatus{{Name: "canary", RolloutCounts: v1alpha1.RolloutCounts{Total: 1, Pending: 1}}, {Name: "rest"}}
		}), []string{rollout.End, "canary"}},
		{"no cluster came to it", at(2, func(r *v1alpha1.Rollout) {
			r.Status.Run.Terms.Waves[0].Approval = v1alpha1.ApprovalRequired
			r.Status.Waves = []v1alpha1.RolloutWaveStatus{{Name: "canary"}, {Name: "rest"}}
		}), []string{rollout.End}},
		{"it is about to pass", at(2, func(r *v1alpha1.Rollout) { r.Status.Run.Unproven = false }), nil},
	} {
		if got := Approvals(tt.of); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.reason, got, tt.want)
		}
	}
}
