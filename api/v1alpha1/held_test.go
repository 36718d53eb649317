package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHeldAnnotation(t *testing.T) {
	o := &metav1.ObjectMeta{Annotations: map[string]string{"other": "x"}}
	if held, known := HeldOf(o); known {
		t.Errorf("an object without the annotation holds %v", held)
	}
	want := Held{Prune: &HeldPrune{Hash: "0123456789abcdef", Deletes: 12, Protected: 1}, Create: &HeldCreate{Clusters: []string{"fleet/alpha"}}}
	if !SetHeld(o, want) || SetHeld(o, want) {
		t.Error("a change is one change")
	}
	const text = `{"apiVersion":"cascade.dev/v1alpha1","prune":{"hash":"0123456789abcdef","deletes":12,"protected":1},"create":{"clusters":["fleet/alpha"]}}`
	if o.Annotations[HeldAnnotation] != text {
		t.Errorf("the annotation is %s", o.Annotations[HeldAnnotation])
	}
	got, known := HeldOf(o)
	if diff := cmp.Diff(want, got); diff != "" || !known {
		t.Errorf("known: %t; -want, +got:\n%s", known, diff)
	}
	if !SetHeld(o, Held{}) || SetHeld(o, Held{}) || len(o.Annotations) != 1 {
		t.Errorf("nothing is held: %v", o.Annotations)
	}
}

// TestHeldOfAnotherVersion: what cannot be understood is unknown, not nothing.
func TestHeldOfAnotherVersion(t *testing.T) {
	for name, text := range map[string]string{
		"NotJSON": "held", "Later": `{"apiVersion":"cascade.dev/v2","prune":{"digest":"x"}}`, "NoVersion": `{"prune":{"hash":"x"}}`,
	} {
		if held, known := HeldOf(&metav1.ObjectMeta{Annotations: map[string]string{HeldAnnotation: text}}); known || held != (Held{}) {
			t.Errorf("%s: %v is known: %t", name, held, known)
		}
	}
}
