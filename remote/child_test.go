package remote

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

func layerOn(name string, on ...string) *v1alpha1.Layer {
	l := &v1alpha1.Layer{}
	l.Namespace, l.Name = "fleet", name
	for _, d := range on {
		l.Spec.DependsOn = append(l.Spec.DependsOn, v1alpha1.LayerReference{Name: d})
	}
	return l
}

func TestInOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		layers []*v1alpha1.Layer
		want   []string
	}{
		"ByName":   {"an order that does not change from one run to the next", []*v1alpha1.Layer{layerOn("c"), layerOn("a"), layerOn("b")}, []string{"a", "b", "c"}},
		"Depends":  {"a layer comes after those it depends on, so that one run may do both", []*v1alpha1.Layer{layerOn("a", "b"), layerOn("b", "c"), layerOn("c")}, []string{"c", "b", "a"}},
		"Outside":  {"a dependency that does not select this child cannot hold up the order; it will be found not ready", []*v1alpha1.Layer{layerOn("a", "elsewhere"), layerOn("b")}, []string{"a", "b"}},
		"Itself":   {"a layer that depends on itself ends", []*v1alpha1.Layer{layerOn("a", "a"), layerOn("b")}, []string{"b", "a"}},
		"Cycle":    {"a cycle ends, and the others come first", []*v1alpha1.Layer{layerOn("a", "b"), layerOn("b", "a"), layerOn("z")}, []string{"z", "a", "b"}},
		"OfACycle": {"what depends on a cycle comes with it", []*v1alpha1.Layer{layerOn("a", "b"), layerOn("b", "a"), layerOn("c", "a")}, []string{"a", "b", "c"}},
		"None":     {"nothing to order", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, l := range inOrder(tc.layers) {
				got = append(got, l.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\ninOrder(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSelects(t *testing.T) {
	of := map[string]string{"tier": "tenant", "env": "prod"}
	for name, tc := range map[string]struct {
		reason   string
		selector metav1.LabelSelector
		want     bool
	}{
		"Empty":      {"everything would be too much to say by omission", metav1.LabelSelector{}, false},
		"EmptyLists": {"the same, said with empty lists", metav1.LabelSelector{MatchLabels: map[string]string{}, MatchExpressions: []metav1.LabelSelectorRequirement{}}, false},
		"Label":      {"the ordinary case", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tenant"}}, true},
		"Other":      {"another value", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "master"}}, false},
		"Expression": {"expressions count as well", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"prod", "dev"}}}}, true},
		"Both":       {"all parts have to match", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tenant"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpDoesNotExist}}}, false},
		"Everything": {"who wants everything can say so", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "nowhere", Operator: metav1.LabelSelectorOpDoesNotExist}}}, true},
		"Operator":   {"an operator that does not exist selects nothing", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Like", Values: []string{"p"}}}}, false},
		"NoValues":   {"nor does one without its values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := &v1alpha1.Layer{Spec: v1alpha1.LayerSpec{ClusterSelector: tc.selector}}
			if got := Selects(l, of); got != tc.want {
				t.Errorf("%s\nSelects() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRecordOutcome(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before v1alpha1.ChildLayer
		err    error
		want   v1alpha1.ChildLayer
	}{
		"Ready":      {"success", v1alpha1.ChildLayer{Reason: "Progressing", Message: "old", Since: start}, nil, v1alpha1.ChildLayer{Ready: true, Reason: "Succeeded", Since: later(time.Hour)}},
		"StillReady": {"Since is when it became so", v1alpha1.ChildLayer{Ready: true, Reason: "Succeeded", Since: start}, nil, v1alpha1.ChildLayer{Ready: true, Reason: "Succeeded", Since: start}},
		"Fails": {
			"the reason is the error's own", v1alpha1.ChildLayer{Ready: true, Reason: "Succeeded", Since: start}, because("BuildFailed", errors.New("no file")),
			v1alpha1.ChildLayer{Reason: "BuildFailed", Message: "no file", Since: later(time.Hour)},
		},
		"OtherWords": {
			"another message of the same failure does not make it new", v1alpha1.ChildLayer{Reason: "BuildFailed", Message: "one", Since: start}, fmt.Errorf("seen: %w", because("BuildFailed", errors.New("two"))),
			v1alpha1.ChildLayer{Reason: "BuildFailed", Message: "seen: two", Since: start},
		},
		"NoReason": {"an error without a reason has the general one", v1alpha1.ChildLayer{Since: start}, errors.New("x"), v1alpha1.ChildLayer{Reason: "SeedFailed", Message: "x", Since: later(time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.before
			recordOutcome(&got, tc.err, later(time.Hour))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nrecordOutcome(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	long := v1alpha1.ChildLayer{}
	recordOutcome(&long, errors.New(strings.Repeat("ü", 50_000)), start)
	if len(long.Message) > 2000 || strings.ContainsRune(long.Message, '\uFFFD') {
		t.Errorf("a message of %d bytes is kept, or cut in the middle of a letter: ...%q", len(long.Message), long.Message[max(0, len(long.Message)-8):])
	}
}

func configMap(name string, data map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": data}}
}

func TestDigestOf(t *testing.T) {
	digest := func(phases ...apply.Phase) string {
		t.Helper()
		d, err := digestOf(phases)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	phase := func(objects ...*unstructured.Unstructured) apply.Phase { return apply.Phase{Objects: objects} }
	data := map[string]any{}
	for i := range 100 {
		data[fmt.Sprint("k", i)] = "v"
	}
	first := digest(phase(configMap("a", data)))
	for range 20 {
		if digest(phase(configMap("a", data))) != first {
			t.Fatal("one rendering has two digests: the child would be written to without end")
		}
	}
	changed := configMap("a", map[string]any{})
	for k, v := range data {
		changed.Object["data"].(map[string]any)[k] = v
	}
	changed.Object["data"].(map[string]any)["k7"] = "w"
	if digest(phase(changed)) == first {
		t.Error("two renderings have one digest")
	}
	if digest(phase(configMap("a", data), configMap("b", nil))) == first {
		t.Error("a rendering with one object more has the same digest")
	}
}

// TestInputs: the shortcut that skips the rendering must see everything that
// the rendering depends on.
func TestInputs(t *testing.T) {
	fresh := func() *seeding {
		l := layerOn("base")
		l.UID, l.Generation = "1", 1
		secret := &corev1.Secret{}
		secret.ResourceVersion = "1"
		current := &run{Children: &Children{AgentImage: "x"}, child: &v1alpha1.Child{}}
		return &seeding{push: &push{run: current}, layer: l, vars: map[string]string{"a": "1"}, content: "c", credentials: []credential{{"auth", secret}}}
	}
	base := fresh().inputs()
	if fresh().inputs() != base {
		t.Fatal("the same inputs differ")
	}
	for name, change := range map[string]func(*seeding){
		"variables":   func(s *seeding) { s.vars["a"] = "2" },
		"image":       func(s *seeding) { s.AgentImage = "y" },
		"content":     func(s *seeding) { s.content = "d" },
		"credentials": func(s *seeding) { s.credentials[0].secret.ResourceVersion = "2" },
		"name":        func(s *seeding) { s.credentials[0].name = "other" },
		"generation":  func(s *seeding) { s.layer.Generation = 2 },
		"layer":       func(s *seeding) { s.layer.UID = "2" },
		"request":     func(s *seeding) { s.layer.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"} },
		"approval":    func(s *seeding) { s.child.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: "h"} },
	} {
		s := fresh()
		change(s)
		if s.inputs() == base {
			t.Errorf("another %s is not seen", name)
		}
	}
}

func TestInventoryRefs(t *testing.T) {
	want := []inventory.Entry{{Namespace: "a", Name: "b", Kind: "ConfigMap", Version: "v1"}, {Name: "system:node", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}}
	got, err := entriesOf(refsOf(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an inventory that was written and read: -want, +got:\n%s", diff)
	}
	if _, err := entriesOf([]v1alpha1.InventoryEntry{{ID: "x"}}); err == nil {
		t.Error("an inventory that cannot be read must not be read as empty")
	}
}

func TestSummarize(t *testing.T) {
	selected := map[string]string{"tier": "tenant"}
	connected := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: status, Reason: reason, Message: "m"}}
	}
	child := func(name string, conditions []metav1.Condition, layers ...v1alpha1.ChildLayer) v1alpha1.Child {
		c := childNamed(name, conditions)
		c.Labels = selected
		c.Status.Layers = layers
		return c
	}
	seeded := v1alpha1.ChildLayer{Name: "base", Ready: true, Reason: "Succeeded"}
	failing := v1alpha1.ChildLayer{Name: "base", Reason: "BuildFailed", Message: "no file"}
	for name, tc := range map[string]struct {
		reason   string
		children []v1alpha1.Child
		suspend  bool
		counts   v1alpha1.ChildCounts
		failing  []string
		ready    metav1.ConditionStatus
		because  string
	}{
		"None":        {"a layer that selects nothing is no failure", []v1alpha1.Child{childNamed("x", nil)}, false, v1alpha1.ChildCounts{}, nil, metav1.ConditionTrue, v1alpha1.ReasonNoChildren},
		"All":         {"in place everywhere", []v1alpha1.Child{child("a", connected(metav1.ConditionTrue, "Succeeded"), seeded)}, false, v1alpha1.ChildCounts{Total: 1, Seeded: 1}, nil, metav1.ConditionTrue, v1alpha1.ReasonSucceeded},
		"Failing":     {"one child fails; it is named with its reason", []v1alpha1.Child{child("b", nil, seeded), child("a", nil, failing)}, false, v1alpha1.ChildCounts{Total: 2, Seeded: 1, Failing: 1}, []string{"a BuildFailed"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady},
		"Unreachable": {"INV8: a child that was seeded once and is lost is not in place now", []v1alpha1.Child{child("a", connected(metav1.ConditionFalse, "Unreachable"), seeded)}, false, v1alpha1.ChildCounts{Total: 1, Unreachable: 1}, []string{"a Unreachable"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady},
		"Waiting":     {"a child that was not reconciled yet is on its way", []v1alpha1.Child{child("a", nil)}, false, v1alpha1.ChildCounts{Total: 1}, []string{"a Progressing"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady},
		"Suspended":   {"a suspended layer is not ready, whatever its children are", []v1alpha1.Child{child("a", nil, seeded)}, true, v1alpha1.ChildCounts{Total: 1, Seeded: 1}, nil, metav1.ConditionFalse, v1alpha1.ReasonSuspended},
	} {
		t.Run(name, func(t *testing.T) {
			l := layerOn("base")
			l.Spec.ClusterSelector.MatchLabels = selected
			l.Spec.Suspend = tc.suspend
			summarize(l, tc.children)
			var named []string
			for _, f := range l.Status.Failing {
				named = append(named, f.Name+" "+f.Reason)
			}
			if diff := cmp.Diff(tc.counts, l.Status.Children); diff != "" {
				t.Errorf("%s\ncounts: -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.failing, named); diff != "" {
				t.Errorf("%s\nfailing: -want, +got:\n%s", tc.reason, diff)
			}
			if c := l.Status.Conditions[0]; c.Status != tc.ready || c.Reason != tc.because {
				t.Errorf("%s\nReady is %s, %s, want %s, %s", tc.reason, c.Status, c.Reason, tc.ready, tc.because)
			}
		})
	}
	l := layerOn("base")
	l.Spec.ClusterSelector.MatchLabels = selected
	var many []v1alpha1.Child
	for i := range 5000 {
		many = append(many, child(fmt.Sprintf("c%04d", i), nil, failing))
	}
	summarize(l, many)
	if len(l.Status.Failing) != maxFailing || l.Status.Children.Failing != 5000 {
		t.Errorf("%d named of %d failing, want %d of 5000: status does not grow with the fleet", len(l.Status.Failing), l.Status.Children.Failing, maxFailing)
	}
}
