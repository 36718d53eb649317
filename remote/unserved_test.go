package remote

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// TestUnserved: a child that no replica drives is not heard of, which nobody else says.
func TestUnserved(t *testing.T) {
	patience := report.Patience(time.Minute)
	for name, tc := range map[string]struct {
		reason string
		// ago is how long nobody drives it, 0 if somebody does.
		ago    time.Duration
		change func(*v1alpha1.ChildStatus)
		said   bool
	}{
		"Served":   {"a replica drives it", 0, nil, false},
		"TakeOver": {"another replica is about to have it", patience - time.Second, nil, false},
		"Long":     {"nobody does for long", patience, nil, true},
		"Unmet":    {"it was never heard of", time.Hour, func(s *v1alpha1.ChildStatus) { s.Identity = nil }, false},
		"NoLayer": {"nobody is to ask it", time.Hour, func(s *v1alpha1.ChildStatus) {
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNoLayer})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDescribed(t, withoutProvider)
			meta.SetStatusCondition(&d.child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded})
			if tc.change != nil {
				tc.change(&d.child.Status)
			}
			if err := d.client.Status().Update(t.Context(), &d.child); err != nil {
				t.Fatal(err)
			}
			since := start.Add(-tc.ago)
			u := unserved{d.children, func(types.NamespacedName) time.Time {
				if tc.ago == 0 {
					return time.Time{}
				}
				return since
			}}
			for range 2 { // the second look finds it said
				if err := u.look(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			got := &v1alpha1.Child{}
			if err := d.client.Get(t.Context(), client.ObjectKeyFromObject(&d.child), got); err != nil {
				t.Fatal(err)
			}
			if at := got.Status.HeardAt; (at != nil) != tc.said || at != nil && !at.Time.Equal(since) {
				t.Errorf("%s: it was heard of at %v", tc.reason, at)
			}
			if row := report.Row(got); row.Ready == tc.said {
				t.Errorf("%s: its row is ready: %t", tc.reason, row.Ready)
			}
		})
	}
}
