package remote

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestUnreachable: a cluster is offline when its API server does not answer. An agent that is
// silent beside one that does was taken down by what it got, perhaps.
func TestUnreachable(t *testing.T) {
	made, changed, heard := time.Unix(1_700_000_000, 0), time.Unix(1_700_001_000, 0), time.Unix(1_700_002_000, 0)
	for _, tt := range []struct {
		reason    string
		connected metav1.ConditionStatus
		heardAt   *metav1.Time
		lost      time.Time
		healthy   bool
	}{
		{"it answers, and its agent renews its lease", metav1.ConditionTrue, nil, time.Time{}, true},
		{"it answers, and its agent is silent", metav1.ConditionTrue, &metav1.Time{Time: heard}, time.Time{}, false},
		{"it does not answer", metav1.ConditionFalse, nil, changed, true},
		{"it does not answer, and was not heard of for long", metav1.ConditionFalse, &metav1.Time{Time: heard}, changed, false},
		{"nobody connected yet", "", nil, made, true},
	} {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		child.Status.HeardAt = tt.heardAt
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
		if tt.connected != "" {
			child.Status.Conditions = append(child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: tt.connected, LastTransitionTime: metav1.NewTime(changed)})
		}
		o := &v1alpha1.Rollout{}
		c := (&moved{spec: &o.Spec}).cluster(o, child, nil)
		if !c.Unreachable.Equal(tt.lost) || c.Healthy != tt.healthy {
			t.Errorf("%s: unreachable since %s, healthy %v", tt.reason, c.Unreachable, c.Healthy)
		}
	}
}
