package selection

import (
	"fmt"
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestOf: whoever selects a Child has the same labels for it.
func TestOf(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	by := func(manager, label string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:%s":{}}}}`, label)),
		}
	}
	for name, tc := range map[string]struct {
		reason         string
		byHand         bool
		child, cluster map[string]string
		managed        []metav1.ManagedFieldsEntry
		want           map[string]string
		fails          bool
	}{
		"Made":   {reason: "one that the tier made follows its Cluster", child: map[string]string{"ring": "a", "old": "x"}, cluster: map[string]string{"ring": "b"}, want: map[string]string{"ring": "b"}},
		"ByHand": {reason: "its own are all that it has", byHand: true, child: map[string]string{"ring": "a", owner: "children"}, cluster: map[string]string{"ring": "b"}, want: map[string]string{"ring": "a", owner: "children"}},
		"Owner":  {reason: "who applied the Cluster counts", child: map[string]string{"ring": "a", owner: "children"}, cluster: map[string]string{owner: "prod"}, want: map[string]string{"ring": "a", owner: "prod"}},
		"Theirs": {
			reason: "what its owner gives it counts over the Cluster's", child: map[string]string{"ring": "a", owner: "children"}, cluster: map[string]string{"ring": "b"},
			managed: []metav1.ManagedFieldsEntry{by(Manager, "ring"), by("kustomize-controller", "ring")}, want: map[string]string{"ring": "a"},
		},
		"Ours": {
			reason: "what the agent alone gave it follows its Cluster", child: map[string]string{"ring": "a", "old": "x", owner: "children"}, cluster: map[string]string{"ring": "b"},
			managed: []metav1.ManagedFieldsEntry{by(Manager, "ring"), by(Manager, "old")}, want: map[string]string{"ring": "b"},
		},
		"Unread": {
			reason: "not to know whose they are is an error", child: map[string]string{owner: "children"},
			managed: []metav1.ManagedFieldsEntry{{Manager: Manager, FieldsV1: metav1.NewFieldsV1("{")}}, fails: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Labels: tc.child, ManagedFields: tc.managed}}
			if !tc.byHand {
				child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "edge"}
			}
			switch got, err := Of(child, tc.cluster); {
			case (err != nil) != tc.fails:
				t.Fatalf("%s: Of() = %v", tc.reason, err)
			case err == nil && !maps.Equal(got, tc.want):
				t.Errorf("%s: it is selected by %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
