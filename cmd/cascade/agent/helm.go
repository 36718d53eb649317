package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/syncer/chart"
)

// helm bounds what Helm repositories and charts may cost.
type helm struct{ indexBytes, chartBytes, chartFileBytes int64 }

func (h *helm) bind(f *pflag.FlagSet) {
	f.Int64Var(&h.indexBytes, "helm-index-max-size", 50<<20, "most bytes of the index of a Helm repository")
	f.Int64Var(&h.chartBytes, "helm-chart-max-size", 10<<20, "most bytes of a packaged chart")
	f.Int64Var(&h.chartFileBytes, "helm-chart-file-max-size", 5<<20, "most bytes of one file of a chart")
}

func (*helm) check() error { return nil }

// build makes the indexes of repositories and the charts, and registers what they
// cost.
func (h *helm) build(dir func(string) string, registry prometheus.Registerer) (*chart.Indexes, *chart.Charts) {
	indexes := chart.NewIndexes(dir("indexes"), h.indexBytes, chart.DefaultIndexCacheBytes)
	charts := chart.NewCharts(indexes, dir("charts"), chart.Limits{Chart: h.chartBytes, File: h.chartFileBytes})
	countCharts(registry, indexes, charts)
	return indexes, charts
}

// countCharts registers what indexes and charts cost.
func countCharts(registry prometheus.Registerer, indexes *chart.Indexes, charts *chart.Charts) {
	for _, c := range []struct {
		name, help string
		count      func() int64
	}{
		{"cascade_helm_index_requests_total", "Requests for the index of a Helm repository.", func() int64 { return indexes.Counts().Requests }},
		{
			"cascade_helm_index_downloads_total", "Indexes of Helm repositories that were transferred.",
			func() int64 { return indexes.Counts().Downloads },
		},
		{"cascade_helm_index_parses_total", "Indexes of Helm repositories that were parsed.", func() int64 { return indexes.Counts().Parses }},
		{"cascade_helm_chart_downloads_total", "Charts that were downloaded.", func() int64 { return charts.Counts().Downloads }},
		{"cascade_helm_charts_packaged_total", "Charts that were packaged here.", func() int64 { return charts.Counts().Packaged }},
	} {
		options := prometheus.CounterOpts{Name: c.name, Help: c.help}
		registry.MustRegister(prometheus.NewCounterFunc(options, func() float64 { return float64(c.count()) }))
	}
}
