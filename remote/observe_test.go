package remote

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
)

// TestNotAskedYet: a child that has just got its agent is on its way: nobody is told of a fault,
// and no Alert of errors for each new cluster.
func TestNotAskedYet(t *testing.T) {
	c := newContact(metav1.ConditionTrue, start)
	before := c.child.DeepCopy()
	meta.SetStatusCondition(&c.child.Status.Conditions, metav1.Condition{Type: v1alpha1.SeededCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded})
	layer := &v1alpha1.Layer{Spec: v1alpha1.LayerSpec{Agent: &v1alpha1.AgentSpec{}}}
	c.observe(t.Context(), nil, &link.Result{}, []*v1alpha1.Layer{layer})
	ready := meta.FindStatusCondition(c.child.Status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonProgressing {
		t.Errorf("Ready is %+v", ready)
	}
	for _, told := range childTransitions(before, c.child) {
		if told.kind != corev1.EventTypeNormal {
			t.Errorf("told: %+v", told)
		}
	}
}
