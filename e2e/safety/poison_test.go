package safety

import (
	"fmt"
	"net/http"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
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
		for _, p := range []struct {
			o     client.Object
			name  string
			patch string
		}{
			{&kustomizev1.Kustomization{}, "app", `{"status":{"history":[{"digest":"sha256:x","firstReconciled":"2026-01-01T00:00:00Z","lastReconciled":"2026-01-01T00:00:00Z","lastReconciledDuration":"x","lastReconciledStatus":"x","totalReconciliations":1}]}}`},
			{&sourcev1.GitRepository{}, "git", `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"x","message":"","lastTransitionTime":"2026-01-01t00:00:00Z"}]}}`},
		} {
			p.o.SetNamespace(bad.Namespace)
			p.o.SetName(p.name)
			// The answer cannot be decoded either, so that of the error only a refusal counts.
			err := bad.Client.Status().Patch(t.Context(), p.o, client.RawPatch(types.MergePatchType, []byte(p.patch)))
			if status, ok := err.(interface{ Status() int }); ok && status.Status() >= http.StatusBadRequest {
				t.Fatal(err)
			}
		}
	}
	poison()
	good.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	good.Has(t, "a", "k", "two")
	good.Ready(t, "app")
	poison()
	s.RestartAgent(t)
	for i := range 3 {
		value := fmt.Sprint("again", i)
		good.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: "+value+"}")})
		good.Has(t, "a", "k", value)
		poison()
	}
	// It harms itself for as long as it takes to reconcile it.
	bad.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	bad.Has(t, "a", "k", "two")
}
