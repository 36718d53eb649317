package safety

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestPoisonedStatus: whoever may write the status of one object harms that one only,
// also while the agent starts. The Go types refuse what the definitions admit.
func TestPoisonedStatus(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	good := s.RowNamed(t, "good", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	good.Kustomization(t, "app", "")
	bad := s.RowNamed(t, "bad", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}"), "odd/b.yaml": scenario.ConfigMapWith("b", "", "{k: one}")})
	bad.Kustomization(t, "app", "")
	good.Ready(t, "app")
	bad.Ready(t, "app")
	poison := func() {
		for _, p := range []struct{ apiVersion, kind, name, patch string }{
			{"kustomize.toolkit.fluxcd.io/v1", "Kustomization", "app", `{"status":{"history":[{"digest":"sha256:x","firstReconciled":"2026-01-01T00:00:00Z","lastReconciled":"2026-01-01T00:00:00Z","lastReconciledDuration":"x","lastReconciledStatus":"x","totalReconciliations":1}]}}`},
			{"source.toolkit.fluxcd.io/v1", "GitRepository", "git", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"x","message":"","lastTransitionTime":"2026-01-01t00:00:00Z"}]}}`},
		} {
			o := stage.Object(p.apiVersion, p.kind)
			o.SetNamespace(bad.Namespace)
			o.SetName(p.name)
			if err := bad.Client.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(p.patch))); err != nil {
				t.Fatal(err)
			}
		}
	}
	poison()
	good.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	good.Has(t, "a", "k", "two")
	good.Ready(t, "app")
	poison()
	s.RestartAgent(t, "--concurrent=5")
	for i := range 3 {
		value := fmt.Sprint("again", i)
		good.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: "+value+"}")})
		good.Has(t, "a", "k", value)
		poison()
	}
	// It harms itself for as long as it takes to reconcile it.
	bad.Head = "" // the source is asked without reading it, which the test cannot either
	bad.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	bad.Patch(t, stage.Object("source.toolkit.fluxcd.io/v1", "GitRepository"), "git", `{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"now"}}}`)
	bad.Has(t, "a", "k", "two")
}
