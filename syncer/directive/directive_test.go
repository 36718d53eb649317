package directive

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestSelects(t *testing.T) {
	for name, tc := range map[string]struct {
		reason              string
		labels, annotations map[string]string
		skip, force, merge  bool
		present, keeps      bool
	}{
		"Nothing":  {reason: "most objects carry none"},
		"Disabled": {reason: "a person takes the object over, who keeps it as well", annotations: map[string]string{reconcileKey: "disabled"}, skip: true, keeps: true},
		"Label":    {reason: "a label counts as an annotation does", labels: map[string]string{reconcileKey: "Disabled"}, skip: true, keeps: true},
		"Ignore":   {reason: "the same by another key", annotations: map[string]string{ssaKey: "Ignore"}, skip: true, keeps: true},
		"Force":    {reason: "immutable fields may cost the object", annotations: map[string]string{forceKey: "enabled"}, force: true},
		"NoForce":  {reason: "only this value does", annotations: map[string]string{forceKey: "disabled"}},
		"Merge":    {reason: "others keep their fields", annotations: map[string]string{ssaKey: "Merge"}, merge: true},
		"Once":     {reason: "created once", annotations: map[string]string{ssaKey: "IfNotPresent"}, present: true},
		"Prune":    {reason: "applied, and left behind", annotations: map[string]string{pruneKey: "disabled"}, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetLabels(tc.labels)
			u.SetAnnotations(tc.annotations)
			got := []bool{Selects(Skip(), u), Selects(Force(), u), Selects(Merge(), u), Selects(IfNotPresent(), u), Keeps(tc.labels, tc.annotations)}
			want := []bool{tc.skip, tc.force, tc.merge, tc.present, tc.keeps}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%s: skip, force, merge, if not present, keep = %v, want %v", tc.reason, got, want)
					break
				}
			}
		})
	}
}
