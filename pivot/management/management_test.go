package management

import (
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

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
		"RunningBoth":   {"nor where one says this and another one that", Facts{Declared: []v1alpha1.Management{self, parent}, Running: self}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotBlocked},
		"Unclear":       {"another layer may say otherwise, and is not read", Facts{Declared: []v1alpha1.Management{parent}, Unclear: errors.New("cannot use it"), Seeded: true, Elsewhere: true}, "", metav1.ConditionFalse, v1alpha1.ReasonPivotBlocked},
		"UnclearRun":    {"what is under way ends", Facts{Declared: []v1alpha1.Management{self}, Unclear: errors.New("cannot use it"), Running: self}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotBlocked},
		"RunningSilent": {"nor does it stop where it is not declared any more", Facts{Running: self}, self, metav1.ConditionFalse, v1alpha1.ReasonPivotRunning},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(tt.facts)
			undeclared := func(m v1alpha1.Management) bool { return m != d.To }
			if begins := d.To != "" && !d.UnderWay; begins && (tt.facts.Returning || len(tt.facts.Declared) == 0 || slices.ContainsFunc(tt.facts.Declared, undeclared)) {
				t.Errorf("%s: another pivot would be begun", tt.reason)
			}
			if d.To != tt.to || d.Status != tt.status || d.Reason != tt.says {
				t.Errorf("%s: got %+v, want to %q, %s %s", tt.reason, d, tt.to, tt.status, tt.says)
			}
		})
	}
}

// TestChanged: a Cluster that a person moves comes or goes under a Child that stays connected and
// seeded, and what is said of it, and declared, is looked at again.
func TestChanged(t *testing.T) {
	child := func(is ...string) *v1alpha1.Child {
		c := &v1alpha1.Child{}
		for _, kind := range is {
			c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue})
		}
		return c
	}
	connected, seeded, elsewhere := v1alpha1.ConnectedCondition, v1alpha1.SeededCondition, v1alpha1.ManagedElsewhereCondition
	for name, tt := range map[string]struct {
		reason   string
		old, new *v1alpha1.Child
		want     bool
	}{
		"Seeded": {"it may be moved now", child(connected), child(connected, seeded), true},
		"Came":   {"it is here again", child(connected, seeded, elsewhere), child(connected, seeded), true},
		"Went":   {"it is gone", child(connected, seeded), child(connected, seeded, elsewhere), true},
		"Ready":  {"that changes all the time, and nothing depends on it", child(connected, seeded), child(connected, seeded, v1alpha1.ReadyCondition), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := changed().Update(event.UpdateEvent{ObjectOld: tt.old, ObjectNew: tt.new}); got != tt.want {
				t.Errorf("%s: it is looked at: %t", tt.reason, got)
			}
		})
	}
}
