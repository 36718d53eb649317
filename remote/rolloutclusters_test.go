package remote

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// applied is a composition of which all Clusters have one revision.
type applied struct {
	Composition
	revision    string
	outstanding string
	refused     bool
}

func (a applied) Applied(types.NamespacedName) string { return a.revision }

func (a applied) Outstanding(context.Context, types.NamespacedName) (string, bool) {
	return a.outstanding, a.refused
}

// TestClustersOfAComposition: what a Kustomization declares of a Cluster goes on whether or not
// a layer selects the Cluster, which alone makes this tier connect to it.
func TestClustersOfAComposition(t *testing.T) {
	child := func(status metav1.ConditionStatus, reason string, ready metav1.ConditionStatus) *v1alpha1.Child {
		c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
		c.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConnectedCondition, Status: status, Reason: reason, LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.ReadyCondition, Status: ready, Reason: reason},
		}
		return c
	}
	pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}}
	for _, tt := range []struct {
		reason                  string
		child                   *v1alpha1.Child
		applied                 string
		reached, healthy, ready bool
	}{
		{"connected and ready at the revision", child(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, metav1.ConditionTrue), "main@sha1:2", true, true, true},
		{"ready at the one before", child(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, metav1.ConditionTrue), "main@sha1:1", true, true, false},
		{"it does not answer", child(metav1.ConditionFalse, v1alpha1.ReasonUnreachable, metav1.ConditionFalse), "main@sha1:2", false, false, false},
		{"no layer selects it", child(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, metav1.ConditionFalse), "main@sha1:2", true, true, true},
		{"no layer selects it, at the one before", child(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, metav1.ConditionFalse), "main@sha1:1", true, true, false},
	} {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
		m := &moved{spec: &o.Spec, composed: applied{revision: tt.applied}}
		c := m.cluster(o, tt.child, pin)
		m.ofComposition(t.Context(), tt.child, pin, &c)
		if c.Unreachable.IsZero() != tt.reached || c.Healthy != tt.healthy || c.Ready != tt.ready || !c.Known || c.Has.Revision != tt.applied {
			t.Errorf("%s: %+v", tt.reason, c)
		}
	}
}

// TestOutstandingCluster: that a cluster is well does not count for a revision before that is in
// effect, which is asked only of one that was given the revision.
func TestOutstandingCluster(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
	child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
	for name, tc := range map[string]struct {
		reason      string
		result      v1alpha1.RolloutResult
		composed    applied
		ready       bool
		outstanding string
		refusal     string
	}{
		"InEffect":    {"all have done what was declared", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2"}, true, "", ""},
		"Outstanding": {"its controller has not seen it", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2", outstanding: "not yet"}, false, "not yet", ""},
		"Earlier":     {"it was not even applied", v1alpha1.ResultUpdating, applied{revision: "main@sha1:1", outstanding: "not yet"}, false, "", ""},
		"Failed":      {"one that failed may come round", v1alpha1.ResultFailed, applied{revision: "main@sha1:2", outstanding: "not yet"}, false, "not yet", ""},
		"Succeeded":   {"it was asked before it succeeded", v1alpha1.ResultSucceeded, applied{revision: "main@sha1:2", outstanding: "not yet"}, true, "", ""},
		"Refused":     {"its release does not take it", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2", outstanding: "no", refused: true}, false, "", "no"},
	} {
		t.Run(name, func(t *testing.T) {
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: tc.result}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			m := &moved{spec: &o.Spec, composed: tc.composed}
			c := m.cluster(o, child, pin)
			m.ofComposition(t.Context(), child, pin, &c)
			refusal := ""
			if c.Refusal != nil {
				refusal = c.Refusal.Message
			}
			if c.Ready != tc.ready || c.Outstanding != tc.outstanding || refusal != tc.refusal {
				t.Errorf("%s: %+v", tc.reason, c)
			}
		})
	}
}
