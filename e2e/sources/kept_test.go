package sources

import (
	"context"
	"fmt"
	"testing"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestKeptSource: an agent with a directory that outlives it works on, when it begins anew
// and the source cannot be fetched: it corrects drift, and applies a change of the spec.
// Nothing that the source had is taken for removed, and the source says that it fails.
func TestKeptSource(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	path := "--snapshot-path=" + t.TempDir()
	s.RestartAgent(t, path)
	r := s.Row(t, map[string]string{
		"app/a.yaml":  scenario.ConfigMapWith("a", "", "{k: one}"),
		"more/b.yaml": scenario.ConfigMapWith("b", "", "{k: one}"),
	})
	r.Kustomization(t, "app", "")
	r.Kustomization(t, "more", "")
	r.Ready(t, "app")
	r.Ready(t, "more")
	uid := func(name string) string {
		cm := &corev1.ConfigMap{}
		if err := r.Load(t.Context(), cm, r.Namespace, name); err != nil {
			t.Fatal(err)
		}
		return string(cm.UID)
	}
	before := uid("a") + uid("b")
	url := r.Git.HTTPURL(r.Namespace)
	r.Patch(t, &sourcev1.GitRepository{}, "git", fmt.Sprintf(`{"spec":{"url":%q,"interval":"5s"}}`, r.Git.HTTPURL("nowhere")))
	s.RestartAgent(t, path)
	r.Patch(t, stage.Object("v1", "ConfigMap"), "a", `{"data":{"k":"drifted"}}`)
	r.Kustomization(t, "app", "commonMetadata: {labels: {edited: later}}")
	scenario.Eventually(t, scenario.Converge, "drift is corrected and the change of the spec is applied", func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := r.Load(ctx, cm, r.Namespace, "a"); err != nil {
			return err
		}
		if cm.Labels["edited"] != "later" || cm.Data["k"] != "one" {
			return fmt.Errorf("labels %v, data %v", cm.Labels, cm.Data)
		}
		return nil
	})
	r.Ready(t, "more")
	if after := uid("a") + uid("b"); after != before {
		t.Errorf("the objects are others now: %s, before %s", after, before)
	}
	// The source can be fetched again: its next commit is applied.
	r.Patch(t, &sourcev1.GitRepository{}, "git", fmt.Sprintf(`{"spec":{"url":%q}}`, url))
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	r.Has(t, "a", "k", "two")
	r.Ready(t, "app")
}
