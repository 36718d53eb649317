package remote

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Metrics are what is counted while children are reconciled. What stands in them a Fleet
// tells.
type Metrics struct{ seeded prometheus.Histogram }

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{seeded: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "cascade_seed_duration_seconds",
		Help:    "Time from the first contact with a child until all its layers were in place for the first time.",
		Buckets: prometheus.ExponentialBuckets(1, 3, 8),
	})}
	registry.MustRegister(m.seeded)
	return m
}

// observe is told of a child before and after a reconcile.
func (m *Metrics) observe(before, after *v1alpha1.Child, now time.Time) {
	if m == nil || before.Status.Identity == nil || !meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.SeededCondition) {
		return
	}
	connected := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConnectedCondition)
	if was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.SeededCondition); was == nil || was.Status == "True" || connected == nil {
		return
	}
	if neverSeeded(before) {
		m.seeded.Observe(max(0, now.Sub(connected.LastTransitionTime.Time).Seconds()))
	}
}

// neverSeeded reports whether some layer of a child was never applied completely.
func neverSeeded(child *v1alpha1.Child) bool {
	for i := range child.Status.Layers {
		if child.Status.Layers[i].Digest == "" {
			return true
		}
	}
	return len(child.Status.Layers) == 0
}
