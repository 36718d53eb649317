package remote

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// unusable gives a layer a selector with an operator that does not exist.
func unusable(l *v1alpha1.Layer) {
	l.Spec.ClusterSelector = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "in", Values: []string{"tenant"}}}}
}

// TestInvalidSelector: of a layer whose selector cannot be used nobody knows which children it is to
// leave. The Layer says so, and lets none go, until the selector is corrected or the Layer is deleted.
func TestInvalidSelector(t *testing.T) {
	s := standWith(t, 2, interceptor.Funcs{})
	s.edit(t, typo)
	if layer := s.reconcile(t); layer.Status.Removal == nil || layer.Status.Removal.Waiting != 2 {
		t.Fatalf("a selector that selects nobody is waited for: %+v", layer.Status.Removal)
	}
	s.edit(t, unusable)
	s.reconcile(t)
	s.now = s.now.Add(plan.RemovalSettle)
	layer := s.reconcile(t)
	if grantedOf(layer) > 0 || len(s.woken) > 0 {
		t.Errorf("let go are %+v, woken are %v", layer.Status.Removal, s.woken)
	}
	if c := readyOf(layer); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(c.Message, "clusterSelector") || !strings.Contains(c.Message, `"in"`) {
		t.Errorf("Ready is %+v", c)
	}
	if layer.Status.Children.Total != 2 {
		t.Errorf("counted are %+v", layer.Status.Children)
	}
	s.delete(t)
	s.reconcile(t)
	s.now = s.now.Add(plan.RemovalSettle)
	if layer = s.reconcile(t); grantedOf(layer) != 2 {
		t.Errorf("a Layer that is deleted lets go %+v", layer.Status.Removal)
	}
}

// TestInvalidSelectorHeld: a removal that waits for a person does so too while the selector cannot be used, and after that.
func TestInvalidSelectorHeld(t *testing.T) {
	s := standWith(t, 4, interceptor.Funcs{})
	held := func(when string, layer *v1alpha1.Layer) {
		t.Helper()
		if r := layer.Status.Removal; r == nil || !r.Held || r.Waiting != 2 || grantedOf(layer) > 0 || len(s.woken) > 0 {
			t.Errorf("%s the record is %+v, woken are %v", when, r, s.woken)
		}
	}
	s.edit(t, typo)
	if r := s.reconcile(t).Status.Removal; r == nil || !r.Held || r.Waiting != 4 {
		t.Fatalf("after a typo the record is %+v", r)
	}
	for _, name := range []string{"c00", "c01"} {
		child := &v1alpha1.Child{}
		if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: removed.Namespace, Name: name}, child); err != nil {
			t.Fatal(err)
		}
		child.Labels = map[string]string{"tier": "tennant"}
		if err := s.client.Update(t.Context(), child); err != nil {
			t.Fatal(err)
		}
	}
	held("when two are selected again", s.reconcile(t))
	s.edit(t, unusable)
	layer := s.reconcile(t)
	held("while the selector cannot be used", layer)
	if c := readyOf(layer); c.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("Ready is %+v", c)
	}
	s.edit(t, func(l *v1alpha1.Layer) { l.Spec.ClusterSelector.MatchExpressions = nil })
	s.edit(t, typo)
	s.reconcile(t)
	s.now = s.now.Add(plan.RemovalSettle)
	held("when it can", s.reconcile(t))
}

// TestInvalidSelectorInChild: a child keeps what it has of a layer whose selector cannot be used, says
// so, and gets nothing of one that it did not have.
func TestInvalidSelectorInChild(t *testing.T) {
	m := newMet(t)
	m.children.Cluster = &apply.Cluster{Client: m.client}
	layer := &v1alpha1.Layer{}
	if err := m.client.Get(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "app"}, layer); err != nil {
		t.Fatal(err)
	}
	unusable(layer)
	if err := m.client.Update(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
	other := layerOn("other")
	unusable(other)
	if err := m.client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{}
	if err := m.client.Get(t.Context(), m.key, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "app", Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "d", LastAttemptedDigest: "d", Objects: 12}}
	if err := m.client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	child = m.contact(t)
	entry := entryOf(child, "app")
	if entry == nil || entry.Ready || entry.Reason != v1alpha1.ReasonInvalidSpec || entry.Objects != 12 || !strings.Contains(entry.Message, "clusterSelector") {
		t.Errorf("on record is %+v", entry)
	}
	if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c == nil || c.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("Ready is %+v", c)
	}
	if entryOf(child, "other") != nil {
		t.Error("a layer that it never had is on record")
	}
	if at := slices.IndexFunc(m.writes, func(w string) bool { return !strings.HasSuffix(w, "/token") }); at >= 0 {
		t.Errorf("written: %v", m.writes)
	}
}

// TestUnselected: the API server may have of a layer what the cache does not show yet.
func TestUnselected(t *testing.T) {
	invalid, again, other := layerOn("invalid"), layerOn("again"), layerOn("other")
	unusable(invalid)
	again.Spec.ClusterSelector.MatchLabels, other.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "a"}, map[string]string{"tier": "b"}
	cl := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(invalid, again, other).Build()
	for name, want := range map[string]string{"invalid": v1alpha1.ReasonInvalidSpec, "again": v1alpha1.ReasonProgressing, "other": ""} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", nil)
			r := &run{Children: &Children{Cluster: &apply.Cluster{Client: cl}}, child: &child, labels: map[string]string{"tier": "a"}}
			layer, err := r.unselected(t.Context(), name)
			if reason.Of(err) != want || (layer != nil) != (err == nil) {
				t.Errorf("unselected() = %v, %v, want %s", layer, err, want)
			}
		})
	}
}

// TestInvalidSelectorMoved: a Rollout forgets no cluster of which nobody knows whether it takes part.
func TestInvalidSelectorMoved(t *testing.T) {
	invalid := layerOn("invalid")
	unusable(invalid)
	cl := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(invalid).Build()
	r := &Rollouts{Client: cl}
	if m, err := r.moved(t.Context(), rolloutNamed("waves", movesLayer("invalid"))); reason.Of(err) != v1alpha1.ReasonInvalidSpec {
		t.Errorf("moved() = %+v, %v", m, err)
	}
	m := &moved{layers: []v1alpha1.Layer{*invalid}}
	has, new := childNamed("has", nil), childNamed("new", nil)
	has.Status.Layers = []v1alpha1.ChildLayer{{Name: "invalid"}}
	if !m.takes(&has) || m.takes(&new) {
		t.Errorf("of a source take part: %t, %t", m.takes(&has), m.takes(&new))
	}
}
