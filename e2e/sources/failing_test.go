package sources

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestSourceFailing: who is applied from a source that cannot be fetched says so within a
// minute, also when the agent starts without what the source had, and says it no more
// when it can be fetched again.
func TestSourceFailing(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	tells := func(part string) {
		t.Helper()
		scenario.Eventually(t, time.Minute+30*time.Second, fmt.Sprintf("it tells %q of its source", part), func(ctx context.Context) error {
			k, err := r.Read(ctx, "app")
			if err != nil {
				return err
			}
			c := apimeta.FindStatusCondition(k.Status.Conditions, v1alpha1.SourceFailingCondition)
			if part == "" && c != nil || part != "" && (c == nil || !strings.Contains(c.Message, part)) {
				return fmt.Errorf("its conditions are: %s", scenario.Summary(k.Status.Conditions))
			}
			if !apimeta.IsStatusConditionTrue(k.Status.Conditions, "Ready") {
				return fmt.Errorf("what was applied is not ready: %s", scenario.Summary(k.Status.Conditions))
			}
			return nil
		})
	}
	url := r.Git.HTTPURL(r.Namespace)
	r.Patch(t, &sourcev1.GitRepository{}, "git", fmt.Sprintf(`{"spec":{"url":%q,"interval":"5s"}}`, r.Git.HTTPURL("nowhere")))
	tells("new revisions do not arrive")
	s.RestartAgent(t, "--concurrent=5")
	tells("has not fetched it yet")
	r.Patch(t, &sourcev1.GitRepository{}, "git", fmt.Sprintf(`{"spec":{"url":%q}}`, url))
	tells("")
	r.Ready(t, "app")
}
