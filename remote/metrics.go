package remote

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// Metrics of the children, one series each for connected, seeded and ready.
type Metrics struct {
	state *prometheus.GaugeVec
	below *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_child_condition",
			Help: "1 if the condition of the child is true.",
		}, []string{"namespace", "name", "condition"}),
		below: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_child_clusters",
			Help: "Clusters below the child as its agent reports them, all and ready ones.",
		}, []string{"namespace", "name", "state"}),
	}
	registry.MustRegister(m.state, m.below)
	return m
}

func (m *Metrics) observe(child *v1alpha1.Child) {
	for _, kind := range []string{v1alpha1.ConnectedCondition, v1alpha1.SeededCondition, v1alpha1.ReadyCondition} {
		value := 0.0
		if meta.IsStatusConditionTrue(child.Status.Conditions, kind) {
			value = 1
		}
		m.state.WithLabelValues(child.Namespace, child.Name, kind).Set(value)
	}
	var counts v1alpha1.ReportCounts
	if below := report.CountsBelow(child); below != nil {
		counts = *below
	}
	m.below.WithLabelValues(child.Namespace, child.Name, "total").Set(float64(counts.Total))
	m.below.WithLabelValues(child.Namespace, child.Name, "ready").Set(float64(counts.Ready))
}

func (m *Metrics) forget(key types.NamespacedName) {
	labels := prometheus.Labels{"namespace": key.Namespace, "name": key.Name}
	m.state.DeletePartialMatch(labels)
	m.below.DeletePartialMatch(labels)
}
