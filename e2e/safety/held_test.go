package safety

import (
	"fmt"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestHeldWithoutRecord: what was held stays held when nothing but the condition says
// so, as in the status that an older agent wrote.
func TestHeldWithoutRecord(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	r := s.Row(t, map[string]string{"app/readme.md": "x", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/a.yaml": ""})
	r.Says(t, "app", "Ready", "False", "PruneBlocked", "nothing is declared any more")
	r.Patch(t, &kustomizev1.Kustomization{}, "app", fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.HeldAnnotation))
	// One of two objects is no removal that is held for its size.
	r.Commit(t, map[string]string{"app/b.yaml": scenario.ConfigMapWith("b", "", "{k: v}")})
	r.Has(t, "b", "k", "v")
	r.Says(t, "app", "Ready", "False", "PruneBlocked", "an earlier removal was held")
	r.Has(t, "a", "k", "v")
}
