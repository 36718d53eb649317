package sources

import (
	"context"
	"fmt"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestSuspendedSource: an agent that begins anew has what a suspended source had, and not
// what it has by now. Without it, no change of a Kustomization would be applied.
func TestSuspendedSource(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"suspend":true}}`)
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	s.RestartAgent(t, "--concurrent=5")
	r.Kustomization(t, "app", "commonMetadata: {labels: {edited: later}}")
	scenario.Eventually(t, scenario.Converge, "the change of the spec is applied", func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := r.Load(ctx, cm, r.Namespace, "a"); err != nil {
			return err
		}
		if cm.Labels["edited"] != "later" || cm.Data["k"] != "one" {
			return fmt.Errorf("labels %v, data %v", cm.Labels, cm.Data)
		}
		return nil
	})
	r.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"suspend":false}}`)
	r.Ready(t, "app")
	r.Has(t, "a", "k", "two")
}
