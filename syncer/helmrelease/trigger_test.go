package helmrelease

import (
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// TestTellsOther: a release that waits for its chart is told at once why there is none.
func TestTellsOther(t *testing.T) {
	fresh := func() *sourcev1.HelmChart {
		c := &sourcev1.HelmChart{}
		c.Generation, c.Status.ObservedGeneration = 1, -1
		return c
	}
	failing := func(why string) *sourcev1.HelmChart {
		c := fresh()
		apimeta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: "x", Message: why})
		return c
	}
	usable := fresh()
	usable.Status.ObservedGeneration, usable.Status.Artifact = 1, &meta.Artifact{}
	for name, tt := range map[string]struct {
		reason        string
		before, after *sourcev1.HelmChart
		want          bool
	}{
		"Fails":      {"what is wrong is known now", fresh(), failing("one"), true},
		"FailsOther": {"something else is wrong", failing("one"), failing("two"), true},
		"FailsSame":  {"nothing is new", failing("one"), failing("one"), false},
		"Usable":     {"there is a chart", failing("one"), usable, true},
		"NoMore":     {"the release has a chart", usable, failing("one"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tellsOther().Update(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: tt.after}); got != tt.want {
				t.Errorf("%s: it passes: %t", tt.reason, got)
			}
		})
	}
}
