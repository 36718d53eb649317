package flux

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// takeoverReleases are what the fixture's HelmReleases are of: the version of the
// release that Flux's helm-controller left.
var takeoverReleases = map[string]int{"web": 2, "pinned": 1, "tested": 1}

// takeoverCharts are in the repository, as they were when the fixture was recorded.
func takeoverCharts(t *testing.T) *origins.Charts {
	t.Helper()
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	charts.Add(scenario.AppChart("app", "1.0.0"), scenario.AppChart("app", "1.1.0"))
	return charts
}

// TestHelmTakeover: a cluster in which Flux's helm-controller and source-controller
// worked until now is left to the agent. What they made is a fixture that was
// recorded from them: HelmReleases and sources with their status, Helm's storage,
// and what was released.
func TestHelmTakeover(t *testing.T) {
	scenario.Alongside(t)
	charts := takeoverCharts(t)
	o := &takeover{Tier: scenario.StartTier(t)}
	o.scale(t, 0)
	data, err := os.ReadFile(filepath.Join("testdata", "takeover", "helm", "recorded.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if o.recorded, err = ssautil.ReadObjects(strings.NewReader(strings.ReplaceAll(string(data), "${charts_url}", charts.URL()))); err != nil {
		t.Fatal(err)
	}
	for _, u := range o.recorded {
		name := ssautil.FmtUnstructured(u)
		scenario.Eventually(t, scenario.Converge, name+" is as it was", func(ctx context.Context) error {
			c, err := o.MoM.Client()
			if err != nil {
				return err
			}
			return o.restoreOne(ctx, c, u)
		})
		if diff := cmp.Diff(managers(u), managers(o.live(t, u))); diff != "" {
			t.Fatalf("the fixture is not what was recorded: field managers of %s: -want, +got:\n%s", name, diff)
		}
	}
	for _, part := range []struct {
		name string
		run  func(*takeover, *testing.T)
	}{
		{"NothingIsReleased", (*takeover).nothingIsReleased},
		{"ReleasesGoOn", (*takeover).releasesGoOn},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(o, t) }) {
			return
		}
	}
}

// askReleases asks every HelmRelease, and waits until each has answered and is
// ready.
func (o *takeover) askReleases(t *testing.T, at string) {
	t.Helper()
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&sourcev1.HelmRepository{ObjectMeta: metav1.ObjectMeta{Name: "charts"}}}
	for name := range takeoverReleases {
		objects = append(objects, &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, object := range objects {
		object.SetNamespace(stage.Namespace)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, at)
		if err := c.Patch(t.Context(), object, client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("flux")); err != nil {
			t.Fatal(err)
		}
	}
	for name := range takeoverReleases {
		scenario.Eventually(t, scenario.Converge, "HelmRelease "+name+" has been reconciled by the agent", func(ctx context.Context) error {
			r := &helmv2.HelmRelease{}
			if err := scenario.Get(ctx, o.MoM, r, stage.Namespace, name); err != nil {
				return err
			}
			if r.Status.LastHandledReconcileAt != at || !meta.IsStatusConditionTrue(r.Status.Conditions, fluxmeta.ReadyCondition) {
				return fmt.Errorf("handled %s: %s", r.Status.LastHandledReconcileAt, scenario.Summary(r.Status.Conditions))
			}
			return nil
		})
	}
}

// nothingIsReleased: after two passes every object is the one it was, and Helm's
// storage has no release more.
func (o *takeover) nothingIsReleased(t *testing.T) {
	before := o.identities(t)
	histories := map[string][]string{}
	for name := range takeoverReleases {
		histories[name] = o.releaseHistory(t, name)
	}
	_, from, err := o.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	o.scale(t, 1)
	o.askReleases(t, "2026-11-02T10:00:00Z")
	o.askReleases(t, "2026-11-02T11:00:00Z")
	if diff := cmp.Diff(before, o.identities(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-before, +after:\n%s", diff)
	}
	for name, version := range takeoverReleases {
		if diff := cmp.Diff(histories[name], o.releaseHistory(t, name)); diff != "" {
			t.Errorf("history of %s: -before, +after:\n%s", name, diff)
		}
		if len(histories[name]) == 0 || !strings.Contains(histories[name][0], fmt.Sprintf(".v%d ", version)) {
			t.Errorf("the fixture's history of %s is %v", name, histories[name])
		}
	}
	events, _, err := o.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	writes := 0
	for _, e := range events {
		switch {
		case !e.ByAgent() || strings.Contains(e.RequestURI, "dryRun=All") || e.ObjectRef.Resource == "events" || e.ObjectRef.Resource == "leases":
		case strings.HasPrefix(e.Verb, "delete"):
			t.Errorf("the agent asked for %s %s", e.Verb, e.RequestURI)
		case strings.HasSuffix(e.ObjectRef.APIGroup, ".toolkit.fluxcd.io"):
			// That none of it changed what they declare their generations show.
			writes++
		case e.ObjectRef.Namespace == stage.Namespace && e.ObjectRef.Resource == "configmaps":
			// The agent's own report.
		default:
			t.Errorf("the agent wrote: %s %s", e.Verb, e.RequestURI)
		}
	}
	if writes == 0 {
		t.Error("the audit log has no status of the agent: it does not show what it is to show")
	}
}

func (o *takeover) releaseHistory(t *testing.T, name string) []string {
	t.Helper()
	r := &helmv2.HelmRelease{}
	if err := scenario.Get(t.Context(), o.MoM, r, stage.Namespace, name); err != nil {
		t.Fatal(err)
	}
	return scenario.Snapshots(r)
}

// releasesGoOn: what was taken over is upgraded and uninstalled as any other.
func (o *takeover) releasesGoOn(t *testing.T) {
	row := &scenario.Row{Tier: o.Tier, Namespace: stage.Namespace}
	row.Patch(t, &helmv2.HelmRelease{}, "web", `{"spec":{"values":{"settings":{"color":"white"}}}}`)
	got := row.Released(t, "web", takeoverReleases["web"]+1)
	if first := got.Status.History.Latest().FirstDeployed; first.IsZero() || !first.Before(&got.Status.History.Latest().LastDeployed) {
		t.Errorf("the snapshot is %+v", got.Status.History.Latest())
	}
	if diff := cmp.Diff([]string{"v1 superseded", "v2 superseded", "v3 deployed"}, row.Storage(t, stage.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	row.Delete(t, &helmv2.HelmRelease{}, "pinned")
	row.Gone(t, &helmv2.HelmRelease{}, "pinned")
	row.Gone(t, &sourcev1.HelmChart{}, stage.Namespace+"-pinned")
	if got := row.Storage(t, stage.Namespace, "pinned"); len(got) != 0 {
		t.Errorf("storage has %v", got)
	}
	if slices.Contains(row.Storage(t, stage.Namespace, "tested"), "v2 deployed") {
		t.Error("a release that nobody touched was upgraded")
	}
}
