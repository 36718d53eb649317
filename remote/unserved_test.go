package remote

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

// TestAdrift: a layer is not in place on a child that no replica drives, whatever that said last, and its request does
// not wait for it.
func TestAdrift(t *testing.T) {
	s := standWith(t, 2, interceptor.Funcs{})
	var since time.Time
	s.layers.unserved = func(child types.NamespacedName) time.Time {
		if child.Name == "c01" {
			return since
		}
		return time.Time{}
	}
	var known map[types.NamespacedName]bool
	for _, step := range []struct {
		reason string
		// pass is how long nothing happens before, and nobody whether the child is driven by nobody from then on.
		pass   time.Duration
		nobody bool
		// lost is how many are counted as out of reach, and told whether the layer is counted anew for that.
		lost int32
		told bool
	}{
		{"all are driven", 0, false, 0, false},
		{"a replica is gone, and another one is about to have its shards", time.Minute, true, 0, false},
		{"none has them", adriftAfter, true, 1, true},
		{"still none", time.Minute, true, 1, false},
		{"one has them", time.Second, false, 0, true},
	} {
		s.now = s.now.Add(step.pass)
		switch {
		case !step.nobody:
			since = time.Time{}
		case since.IsZero():
			since = s.now
		}
		var told []reconcile.Request
		known = s.layers.recount(t.Context(), known, func(r reconcile.Request) { told = append(told, r) })
		if got := slices.Contains(told, reconcile.Request{NamespacedName: removed}); got != step.told {
			t.Errorf("%s: the layer is counted anew: %t", step.reason, got)
		}
		layer := s.reconcile(t)
		ready := meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.ReadyCondition)
		if counts := layer.Status.Children; counts.Unreachable != step.lost || counts.Current != 2-step.lost || (ready.Status == metav1.ConditionTrue) != (step.lost == 0) {
			t.Errorf("%s: it counts %+v, and is %s: %s", step.reason, counts, ready.Status, ready.Message)
		}
		if f := layer.Status.Failing; step.lost > 0 && (len(f) != 1 || f[0].Name != "c01" || f[0].Reason != v1alpha1.ReasonStale) {
			t.Errorf("%s: it names %+v", step.reason, f)
		}
	}
}
