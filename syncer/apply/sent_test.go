package apply

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestSentBytes: what is recorded of what was sent is what a later process knows.
func TestSentBytes(t *testing.T) {
	s := newSweeper(t)
	sent := s.pass(t, false).Sent
	if len(sent) == 0 {
		t.Fatal("nothing was sent")
	}
	for i := range sent {
		sent[i].seen = seen{} // in which state it was is not recorded
	}
	all := sent.Bytes()
	if got, err := ParseSent(all); err != nil || !slices.Equal(got, sent) || len(all) != SentSize*len(sent) {
		t.Errorf("ParseSent() of %d bytes = %v, %v, want %v", len(all), got, err, sent)
	}
	twice := slices.Concat(all[:SentSize], all[:SentSize])
	for reason, broken := range map[string][]byte{"it is cut": all[1:], "it has an object twice": twice, "it is out of order": slices.Concat(all[SentSize:2*SentSize], all[:SentSize])} {
		if got, err := ParseSent(broken); err == nil {
			t.Errorf("%s: %s", reason, fmt.Sprint(got))
		}
	}
	if got, err := ParseSent(nil); err != nil || len(got) != 0 {
		t.Errorf("ParseSent(nil) = %v, %v", got, err)
	}
}

// TestWithout: what is left out is left out wherever it is declared. Of packed objects nobody knows
// which key is whose.
func TestWithout(t *testing.T) {
	owner := Owner{FieldManager: "m", LabelGroup: "g", Name: "n", Namespace: "ns"}
	named := func(kind, name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
		u.SetNamespace("ns")
		u.SetName(name)
		return u
	}
	frozen, err := Phase{Objects: []*unstructured.Unstructured{named("Secret", "a"), named("ConfigMap", "b")}}.Freeze(owner)
	if err != nil {
		t.Fatal(err)
	}
	pack := func(objects ...*unstructured.Unstructured) Phase {
		packed, err := Pack(objects)
		if err != nil {
			t.Fatal(err)
		}
		return Phase{Packed: packed}
	}
	phases := []Phase{
		frozen, {Objects: []*unstructured.Unstructured{named("Secret", "c"), named("ConfigMap", "d")}},
		pack(named("Secret", "e"), named("ConfigMap", "f")), pack(named("ConfigMap", "g")),
	}
	all, err := SentOf(owner, phases)
	if err != nil {
		t.Fatal(err)
	}
	got, err := all.Without(owner, phases, func(e inventory.Entry) bool { return e.Kind == "Secret" })
	if err != nil {
		t.Fatal(err)
	}
	kept, err := SentOf(owner, []Phase{{Objects: []*unstructured.Unstructured{named("ConfigMap", "b"), named("ConfigMap", "d"), named("ConfigMap", "g")}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 7 || !slices.Equal(got, kept) {
		t.Errorf("of %d are left %v, want %v", len(all), got, kept)
	}
	if same, err := all.Without(owner, phases, func(inventory.Entry) bool { return false }); err != nil || !slices.Equal(same, all) {
		t.Errorf("without nothing it is %v: %v", same, err)
	}
}
