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
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/source"
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
		invalid  bool
	}{
		"Empty":      {"everything would be too much to say by omission", metav1.LabelSelector{}, false, false},
		"EmptyLists": {"the same, said with empty lists", metav1.LabelSelector{MatchLabels: map[string]string{}, MatchExpressions: []metav1.LabelSelectorRequirement{}}, false, false},
		"Label":      {"the ordinary case", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tenant"}}, true, false},
		"Other":      {"another value", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "master"}}, false, false},
		"Expression": {"expressions count as well", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn, Values: []string{"prod", "dev"}}}}, true, false},
		"Both":       {"all parts have to match", metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tenant"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpDoesNotExist}}}, false, false},
		"Everything": {"who wants everything can say so", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "nowhere", Operator: metav1.LabelSelectorOpDoesNotExist}}}, true, false},
		"Operator":   {"whom an operator that does not exist selects nobody knows", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Like", Values: []string{"p"}}}}, false, true},
		"NoValues":   {"nor does one without its values", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: metav1.LabelSelectorOpIn}}}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &v1alpha1.Layer{Spec: v1alpha1.LayerSpec{ClusterSelector: tc.selector}}
			if got, err := Selects(l, of); got != tc.want || (err != nil) != tc.invalid {
				t.Errorf("%s\nSelects() = %t, %v, want %t", tc.reason, got, err, tc.want)
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
			"the reason is the error's own", v1alpha1.ChildLayer{Ready: true, Reason: "Succeeded", Since: start}, reason.Because("BuildFailed", errors.New("no file")),
			v1alpha1.ChildLayer{Reason: "BuildFailed", Message: "no file", Since: later(time.Hour)},
		},
		"OtherWords": {
			"another message of the same failure does not make it new", v1alpha1.ChildLayer{Reason: "BuildFailed", Message: "one", Since: start}, fmt.Errorf("seen: %w", reason.Because("BuildFailed", errors.New("two"))),
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
	if len(long.Message) > maxLayerMessage || strings.ContainsRune(long.Message, '\uFFFD') {
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
		current := &run{Children: &Children{}, child: &v1alpha1.Child{}}
		key := &corev1.Secret{}
		key.UID, key.ResourceVersion = "k", "1"
		return &seeding{
			push: &push{run: current}, layer: l, vars: map[string]string{"a": "1"}, content: "c", credentials: []credential{{name: "auth", secret: secret}},
			components: components{
				wanted: []providers.Wanted{{Label: "infrastructure-aws"}, {Label: "infrastructure-azure"}}, snapshot: &source.Snapshot{Digest: "d"},
				credentials: map[string][]credential{"infrastructure-aws": {{name: "keys", secret: key}}},
			},
		}
	}
	base := fresh().inputs()
	if fresh().inputs() != base {
		t.Fatal("the same inputs differ")
	}
	for name, change := range map[string]func(*seeding){
		"variables":                 func(s *seeding) { s.vars["a"] = "2" },
		"image":                     func(s *seeding) { s.image = "y" },
		"content":                   func(s *seeding) { s.content = "d" },
		"credentials":               func(s *seeding) { s.credentials[0].secret.ResourceVersion = "2" },
		"name":                      func(s *seeding) { s.credentials[0].name = "other" },
		"generation":                func(s *seeding) { s.layer.Generation = 2 },
		"content of the components": func(s *seeding) { s.components.snapshot = &source.Snapshot{Digest: "e"} },
		"key of a provider":         func(s *seeding) { s.components.credentials["infrastructure-aws"][0].secret.ResourceVersion = "2" },
		"Secret of a provider":      func(s *seeding) { s.components.credentials["infrastructure-aws"][0].secret.UID = "l" },
		"number of provider Secrets": func(s *seeding) {
			s.components.credentials["infrastructure-azure"] = []credential{{secret: &corev1.Secret{}}}
		},
		"credential that is kept": func(s *seeding) { s.credentials[0] = credential{name: "auth", kept: &v1alpha1.Credential{}} },
		"lack of providers":       func(s *seeding) { s.components = components{} },
		"layer":                   func(s *seeding) { s.layer.UID = "2" },
		"request":                 func(s *seeding) { s.layer.Annotations = map[string]string{"reconcile.fluxcd.io/requestedAt": "now"} },
		"approval":                func(s *seeding) { s.child.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: "h"} },
	} {
		s := fresh()
		change(s)
		if s.inputs() == base {
			t.Errorf("another %s is not seen", name)
		}
	}
}

// TestNameOfLayerIsALabel: the name of a layer is the value of a label of what it applies.
func TestNameOfLayerIsALabel(t *testing.T) {
	child := childNamed("a", nil)
	p := &push{run: &run{Children: &Children{}, child: &child}, cluster: capibridge.Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true}}
	for name, want := range map[string]string{strings.Repeat("a", 63): "", strings.Repeat("a", 64): v1alpha1.ReasonInvalidSpec} {
		got := ""
		if err := p.allowed(t.Context(), layerOn(name), &v1alpha1.ChildLayer{Name: name, Digest: "sha256:1"}, 0); err != nil {
			got = reason.Of(err)
		}
		if got != want {
			t.Errorf("a name of %d letters: reason is %q, want %q", len(name), got, want)
		}
	}
}

// TestDependsOn: who waits for another layer is told if that never comes to this child.
func TestDependsOn(t *testing.T) {
	leaving, invalid, chosen, other := layerOn("leaving"), layerOn("invalid"), layerOn("chosen"), layerOn("other")
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"a.example/b"}
	invalid.Spec.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "tier", Operator: "in", Values: []string{"a"}}}
	chosen.Spec.ClusterSelector.MatchLabels, other.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "a"}, map[string]string{"tier": "b"}
	cl := fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(layerOn("elsewhere"), layerOn("base"), leaving, invalid, chosen, other).Build()
	for name, tc := range map[string]struct {
		reason, on string
		record     []v1alpha1.ChildLayer
		complete   bool
		want       string
	}{
		"Waits":     {"it is on its way", "base", nil, false, "layer base is not ready on this child"},
		"Complete":  {"all that it declares is there", "base", nil, true, ""},
		"Ready":     {"no process knows more", "elsewhere", []v1alpha1.ChildLayer{{Name: "elsewhere", Ready: true}}, false, ""},
		"Elsewhere": {"it is for other children", "elsewhere", nil, false, "does not select this child"},
		"Deleting":  {"its selector is right", "leaving", nil, false, "layer leaving, which dependsOn names, is being deleted"},
		"Invalid":   {"no cluster has the labels that would do", "invalid", nil, false, "cannot use clusterSelector of Layer invalid"},
		"Chosen":    {"it selects the child since a moment ago", "chosen", nil, false, "layer chosen is not ready on this child"},
		"Other":     {"it selects the Cluster, and not the Child, which says otherwise", "other", nil, false, "does not select this child"},
		"Nowhere":   {"a typo", "bsae", nil, false, "there is no layer bsae"},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", nil)
			child.Status.Layers = tc.record
			p := &push{
				run: &run{Children: &Children{Client: cl}, child: &child, labels: map[string]string{"tier": "a"}}, layers: []*seeding{{layer: layerOn("base"), complete: tc.complete}},
				cluster: capibridge.Cluster{InfrastructureProvisioned: true, ControlPlaneInitialized: true, Labels: map[string]string{"tier": "b"}},
			}
			err := p.allowed(t.Context(), layerOn("app", tc.on), &v1alpha1.ChildLayer{Name: "app", Digest: "sha256:1"}, 0)
			if (err == nil) != (tc.want == "") || err != nil && (reason.Of(err) != v1alpha1.ReasonDependencyNotReady || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
