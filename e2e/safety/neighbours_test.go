package safety

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// neighbours is how many HelmReleases never become ready, and how many Kustomizations.
const neighbours = 40

// TestFailingNeighbours: while many wait for what never becomes ready, with the default
// concurrency, a commit to another Kustomization is applied as soon as without them. The
// times are told, not judged.
func TestFailingNeighbours(t *testing.T) {
	scenario.Alongside(t)
	h := scenario.StartHelmTier(t)
	good := h.RowNamed(t, "good", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: begin}")})
	good.Kustomization(t, "app", "")
	good.Ready(t, "app")
	measure := func(when string) {
		t.Helper()
		var times []time.Duration
		for i := range 20 {
			value := fmt.Sprint(when, "-", i)
			begin := time.Now()
			good.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: "+value+"}")})
			good.Has(t, "a", "k", value)
			times = append(times, time.Since(begin))
		}
		slices.Sort(times)
		t.Logf("%s: a commit is applied within %s (median), %s (most)", when, times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	}
	measure("quiet")

	// No node is one for its pods.
	const never = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: 1, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, " +
		"spec: {nodeSelector: {none: such}, containers: [{name: run, image: 'cascade.local/e2e:dev'}]}}}}"
	files := map[string]string{}
	for i := range neighbours {
		name := fmt.Sprint("waiting-", i)
		files[name+"/never.yaml"] = fmt.Sprintf(never, name) + "\n"
	}
	bad := h.RowNamed(t, "bad", files)
	for i := range neighbours {
		bad.Kustomization(t, fmt.Sprint("waiting-", i), "{wait: true, timeout: 5m}")
	}
	releases := h.Row(t)
	for i := range neighbours {
		name := fmt.Sprint("hung-", i)
		releases.Release(t, name, "{timeout: 5m, values: {objects: ["+fmt.Sprintf(never, name)+"]}}")
	}
	waits := func() {
		t.Helper()
		scenario.Eventually(t, 2*scenario.Converge, "all others wait", func(ctx context.Context) error {
			kustomizations, releaseList := &kustomizev1.KustomizationList{}, &helmv2.HelmReleaseList{}
			if err := errors.Join(h.Client.List(ctx, kustomizations, client.InNamespace(bad.Namespace)), h.Client.List(ctx, releaseList, client.InNamespace(releases.Namespace))); err != nil {
				return err
			}
			waiting := 0
			for _, k := range kustomizations.Items {
				if meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReconcilingCondition) && k.Status.Inventory != nil {
					waiting++
				}
			}
			for _, o := range releaseList.Items {
				if meta.IsStatusConditionTrue(o.Status.Conditions, fluxmeta.ReconcilingCondition) && o.Status.LastAttemptedRevision != "" {
					waiting++
				}
			}
			if waiting != 2*neighbours {
				return fmt.Errorf("%d wait", waiting)
			}
			return nil
		})
	}
	waits()
	measure("beside those that fail")
	waits()
}
