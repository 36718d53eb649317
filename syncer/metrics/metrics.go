// Package metrics has what Prometheus scrapes about the objects that are
// reconciled. Each object has its own series, which go with it. It is safe for
// concurrent use.
package metrics

import (
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Metrics of the reconcilers. The duration has Flux's name and labels, so that
// existing dashboards keep working.
type Metrics struct {
	duration *prometheus.HistogramVec
	ready    *prometheus.GaugeVec
	blocked  *prometheus.GaugeVec
	objects  *prometheus.GaugeVec
	drifted  *prometheus.GaugeVec
}

// New registers the metrics.
func New(registry prometheus.Registerer) *Metrics {
	labels := []string{"kind", "name", "namespace"}
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gotk_reconcile_duration_seconds",
			Help:    "The duration in seconds of a GitOps Toolkit resource reconciliation.",
			Buckets: prometheus.ExponentialBucketsRange(10e-3, 1800, 10),
		}, labels),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_resource_ready",
			Help: "1 if the object is ready, 0 if it is not, by its Ready condition.",
		}, labels),
		blocked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_prune_blocked",
			Help: "1 while deletes of the object are held for a person to decide.",
		}, labels),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cascade_inventory_objects",
			Help: "Number of objects in the inventory.",
		}, labels),
	}
	m.drifted = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "cascade_drifted_objects",
		Help: "Number of objects that somebody else changed and that are left so.",
	}, labels)
	registry.MustRegister(m.duration, m.ready, m.blocked, m.objects, m.drifted)
	return m
}

// Reconciled records the end of a reconcile that took so long, and the conditions
// that it left.
func (m *Metrics) Reconciled(kind string, name types.NamespacedName, o status.Object, took time.Duration) {
	m.duration.WithLabelValues(kind, name.Name, name.Namespace).Observe(took.Seconds())
	m.ready.WithLabelValues(kind, name.Name, name.Namespace).Set(truth(apimeta.IsStatusConditionTrue(o.GetConditions(), meta.ReadyCondition)))
	m.blocked.WithLabelValues(kind, name.Name, name.Namespace).Set(truth(apimeta.IsStatusConditionTrue(o.GetConditions(), v1alpha1.PruneBlockedCondition)))
}

// Inventory records how many objects an owner answers for.
func (m *Metrics) Inventory(kind string, name types.NamespacedName, n int) {
	m.objects.WithLabelValues(kind, name.Name, name.Namespace).Set(float64(n))
}

// Drifted records how many objects of a Kustomization are left as somebody else
// changed them.
func (m *Metrics) Drifted(name types.NamespacedName, n int) {
	m.drifted.WithLabelValues("Kustomization", name.Name, name.Namespace).Set(float64(n))
}

// Forget drops the series of an object that is gone.
func (m *Metrics) Forget(kind string, name types.NamespacedName) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.duration, m.ready, m.blocked, m.objects, m.drifted} {
		v.DeletePartialMatch(prometheus.Labels{"kind": kind, "name": name.Name, "namespace": name.Namespace})
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
