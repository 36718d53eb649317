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
		{"it is about to pass", at(2, func(r *v1alpha1.Rollout) { r.Status.Run.Unproven = false }), nil},
	} {
		if got := Approvals(tt.of); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.reason, got, tt.want)
		}
	}
}
