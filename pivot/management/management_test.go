package management

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestDecide(t *testing.T) {
	const self, parent = v1alpha1.ManagementSelf, v1alpha1.ManagementParent
	for name, tt := range map[string]struct {
		reason string
		facts  Facts
		to     v1alpha1.Management
		status metav1.ConditionStatus
		says   string
	}{
		"Omitted":       {"nobody asked: nothing is said", Facts{Seeded: true}, "", "", ""},
		"OmittedAway":   {"it was moved by a person, and is left there", Facts{Seeded: true, Elsewhere: true}, "", metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere},
		"Self":          {"it is to go", Facts{Declared: []v1alpha1.Management{self, self}, Seeded: true}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"SelfThere":     {"it is there", Facts{Declared: []v1alpha1.Management{self}, Seeded: true, Elsewhere: true}, "", metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere},
		"SelfUnseeded":  {"without its layers the child has no Cluster API", Facts{Declared: []v1alpha1.Management{self}}, "", metav1.ConditionFalse, v1alpha1.ReasonPivotWaiting},
		"Parent":        {"it is to come back", Facts{Declared: []v1alpha1.Management{parent}, Seeded: true, Elsewhere: true}, parent, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"ParentHere":    {"it is here", Facts{Declared: []v1alpha1.Management{parent}, Seeded: true}, "", metav1.ConditionTrue, v1alpha1.ReasonManagedHere},
		"Both":          {"nobody can have both", Facts{Declared: []v1alpha1.Management{parent, self}, Seeded: true}, "", metav1.ConditionFalse, v1alpha1.ReasonPivotBlocked},
		"Running":       {"what is under way ends, though the child is not ready meanwhile", Facts{Declared: []v1alpha1.Management{self}, Running: self, Elsewhere: true}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"RunningOther":  {"and then is turned round", Facts{Declared: []v1alpha1.Management{parent}, Running: self, Seeded: true}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"WentBack":      {"nor by a process that begins then", Facts{Elsewhere: true, Seeded: true, Returning: true}, parent, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"WentBackSelf":  {"nor if it is declared to stay", Facts{Declared: []v1alpha1.Management{self}, Elsewhere: true, Seeded: true, Returning: true}, parent, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
		"RunningSilent": {"nor does it stop where it is not declared any more", Facts{Running: self}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(tt.facts)
			if begins := d.To != "" && !d.UnderWay; begins && tt.facts.Returning {
				t.Errorf("%s: another pivot would be begun", tt.reason)
			}
			if d.To != tt.to || d.Status != tt.status || d.Reason != tt.says {
				t.Errorf("%s: got %+v, want to %q, %s %s", tt.reason, d, tt.to, tt.status, tt.says)
			}
		})
	}
}
