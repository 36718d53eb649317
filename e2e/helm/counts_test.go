package helm

import (
	"context"
	"fmt"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// releases is the size of TestHelmCounts.
const releases = 30

// TestHelmCounts counts what many releases of one chart cost: at the repository,
// and at the API server when nothing changes.
func TestHelmCounts(t *testing.T) {
	scenario.Alongside(t)
	h := scenario.StartHelmTier(t)
	r := h.Row(t)
	before := h.Charts.Count("GET", "/index.yaml", 200)
	if o, _ := r.Indexed(t, "charts"); o == nil {
		t.Fatal("there is no index")
	}
	indexes := h.Charts.Count("GET", "/index.yaml", 200)
	if indexes-before > 1 {
		t.Errorf("the index was downloaded %d times", indexes-before)
	}
	for i := range releases {
		r.Release(t, fmt.Sprintf("web-%02d", i), "{interval: 5s, driftDetection: {mode: enabled}, chart: {spec: {interval: 10m}}}")
	}
	all(t, r.Row, "1.0.0")
	if got := h.Charts.Count("GET", "/app-1.0.0.tgz", 200); got != 1 {
		t.Errorf("the chart was downloaded %d times for %d releases", got, releases)
	}
	if got := h.Charts.Count("GET", "/index.yaml", 200); got != indexes {
		t.Errorf("the index was downloaded %d more times for %d releases", got-indexes, releases)
	}
	for name, want := range map[string]string{"cascade_helm_index_parses_total": "1", "cascade_helm_index_downloads_total": "1", "cascade_helm_chart_downloads_total": "1"} {
		text, err := scenario.AgentMetrics(t.Context(), r.MoM)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n"+name+" "+want+"\n") {
			t.Errorf("the agent's metrics do not say %s %s", name, want)
		}
	}

	// An interval in which nothing changes, with drift detection.
	config, err := r.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	passed(t, r, 1) // what the first leaves to be done is done
	resources := []string{"secrets", "configmaps", "helmreleases", "helmcharts", "helmrepositories", "events"}
	from, counted := r.AuditOffset(t), scenario.Served(t, kube, resources...)
	begun, err := scenario.Passes(t.Context(), r.MoM, "HelmRelease", r.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	passed(t, r, 2)
	requests, most := 0, 0
	for key, n := range scenario.Served(t, kube, resources...) {
		if n -= counted[key]; n > 0 {
			t.Logf("%s: %d", key, n)
			requests += n
		}
	}
	after, err := scenario.Passes(t.Context(), r.MoM, "HelmRelease", r.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range after {
		most += n - begun[name]
	}
	// Other parts of the agent ask as well, for its report and the like, and passes
	// may be on their way.
	if most += releases; requests > most {
		t.Errorf("%d requests for %d releases, want at most %d", requests, releases, most)
	}
	for _, e := range r.Writes(t, from) {
		if e.ObjectRef.Resource != "events" {
			t.Errorf("the agent wrote without a reason: %s %s", e.Verb, e.RequestURI)
		}
	}

	// Another chart in the repository is one more index, and no more charts; one
	// that is wanted is one more chart.
	h.Charts.Add(scenario.AppChart("other", "1.0.0"))
	r.Answered(t, &sourcev1.HelmRepository{}, "charts")
	if got := h.Charts.Count("GET", "/index.yaml", 200) - indexes; got != 1 {
		t.Errorf("the index was downloaded %d more times", got)
	}
	// An index that is as it was is not sent again.
	r.Answered(t, &sourcev1.HelmRepository{}, "charts")
	if got, not := h.Charts.Count("GET", "/index.yaml", 200)-indexes, h.Charts.Count("GET", "/index.yaml", 304); got != 1 || not == 0 {
		t.Errorf("the index was downloaded %d more times, and was unchanged %d times", got, not)
	}
	if got := h.Charts.Count("GET", "/app-1.0.0.tgz", 200); got != 1 {
		t.Errorf("the chart was downloaded %d times", got)
	}
	for i := range releases {
		r.Release(t, fmt.Sprintf("web-%02d", i), "{interval: 10m, chart: {spec: {interval: 10m, version: 1.1.0}}}")
	}
	all(t, r.Row, "1.1.0")
	if got := h.Charts.Count("GET", "/app-1.1.0.tgz", 200); got != 1 {
		t.Errorf("the next chart was downloaded %d times for %d releases", got, releases)
	}
}

// all waits until every release is ready with a chart.
func all(t *testing.T, r *scenario.Row, version string) {
	t.Helper()
	scenario.Eventually(t, 2*scenario.Converge, "every release is ready with chart "+version, func(ctx context.Context) error {
		list := &helmv2.HelmReleaseList{}
		if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
			return err
		}
		if len(list.Items) != releases {
			return fmt.Errorf("%d releases are there", len(list.Items))
		}
		for _, o := range list.Items {
			if s := o.Status.History.Latest(); s == nil || s.ChartVersion != version || !meta.IsStatusConditionTrue(o.Status.Conditions, fluxmeta.ReadyCondition) {
				return fmt.Errorf("%s has %s, conditions are %s", o.Name, scenario.Snapshots(&o), scenario.Summary(o.Status.Conditions))
			}
		}
		return nil
	})
}

// passed waits until every release was reconciled n more times.
func passed(t *testing.T, r *scenario.HelmRow, n int) {
	t.Helper()
	var before map[string]int
	scenario.Eventually(t, scenario.Converge, "the agent tells its passes", func(ctx context.Context) (err error) {
		before, err = scenario.Passes(ctx, r.MoM, "HelmRelease", r.Namespace)
		return err
	})
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("every release is reconciled %d more times", n), func(ctx context.Context) error {
		now, err := scenario.Passes(ctx, r.MoM, "HelmRelease", r.Namespace)
		if err != nil {
			return err
		}
		for i := range releases {
			if name := fmt.Sprintf("web-%02d", i); now[name] < before[name]+n {
				return fmt.Errorf("%s was %d times, and %d before", name, now[name], before[name])
			}
		}
		return nil
	})
}
