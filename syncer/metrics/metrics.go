// Package metrics has what Prometheus scrapes about the objects that are
// reconciled. What is counted while they are reconciled goes with them; what stands in
// them is read from the cache at each scrape.
//
// Invariants: no label has text without a bound, or a password; the number of series grows
// by a few for each object, and durations are told of each object only up to a number of
// objects, and of all others together.
//
// Failure model: what cannot be read is missing from one scrape.
package metrics

import (
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// mostTimed is of how many objects durations are told one by one: a histogram has thirteen
// series. Those of the others are told by kind, without a name.
const mostTimed = 100

// Metrics of the reconcilers. The duration has Flux's name and labels, so that
// existing dashboards keep working. It is safe for concurrent use.
type Metrics struct {
	duration *prometheus.HistogramVec
	ready    *prometheus.GaugeVec
	blocked  *prometheus.GaugeVec
	held     *prometheus.GaugeVec
	objects  *prometheus.GaugeVec
	drifted  *prometheus.GaugeVec

	mu    sync.Mutex // guards timed
	timed map[object]struct{}
}

type object struct {
	kind string
	types.NamespacedName
}

// New registers the metrics.
func New(registry prometheus.Registerer) *Metrics {
	labels := []string{"kind", "name", "namespace"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gotk_reconcile_duration_seconds",
			Help:    "The duration in seconds of a GitOps Toolkit resource reconciliation.",
			Buckets: prometheus.ExponentialBucketsRange(10e-3, 1800, 10),
		}, labels),
		ready:   gauge("cascade_resource_ready", "1 if the object is ready, 0 if it is not, by its Ready condition."),
		blocked: gauge("cascade_prune_blocked", "1 while deletes of the object are held for a person to decide; absent otherwise."),
		held:    gauge("cascade_create_held", "1 while the object declares Clusters that are held until a person says that they are new; absent otherwise."),
		objects: gauge("cascade_inventory_objects", "Number of objects in the inventory."),
		drifted: gauge("cascade_drifted_objects", "Number of objects that somebody else changed and that are left so; absent without any."),
		timed:   map[object]struct{}{},
	}
	registry.MustRegister(m.duration, m.ready, m.blocked, m.held, m.objects, m.drifted)
	return m
}

// Reconciled records the end of a reconcile that took so long, and the conditions
// that it left.
func (m *Metrics) Reconciled(kind string, name types.NamespacedName, o status.Object, took time.Duration) {
	timed := m.named(object{kind, name})
	m.duration.WithLabelValues(kind, timed.Name, timed.Namespace).Observe(took.Seconds())
	m.ready.WithLabelValues(kind, name.Name, name.Namespace).Set(truth(apimeta.IsStatusConditionTrue(o.GetConditions(), meta.ReadyCondition)))
	some(m.blocked, kind, name, truth(apimeta.IsStatusConditionTrue(o.GetConditions(), v1alpha1.PruneBlockedCondition)))
	some(m.held, kind, name, truth(apimeta.IsStatusConditionTrue(o.GetConditions(), v1alpha1.CreateHeldCondition)))
}

// named is the name by which the durations of an object are told; empty for one of the many.
func (m *Metrics) named(o object) types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.timed[o]; !ok && len(m.timed) >= mostTimed {
		return types.NamespacedName{}
	}
	m.timed[o] = struct{}{}
	return o.NamespacedName
}

// some has a series while its value is not zero.
func some(v *prometheus.GaugeVec, kind string, name types.NamespacedName, value float64) {
	if value == 0 {
		v.DeleteLabelValues(kind, name.Name, name.Namespace)
		return
	}
	v.WithLabelValues(kind, name.Name, name.Namespace).Set(value)
}

// Inventory records how many objects an owner answers for.
func (m *Metrics) Inventory(kind string, name types.NamespacedName, n int) {
	m.objects.WithLabelValues(kind, name.Name, name.Namespace).Set(float64(n))
}

// Drifted records how many objects of a Kustomization are left as somebody else
// changed them.
func (m *Metrics) Drifted(name types.NamespacedName, n int) {
	some(m.drifted, "Kustomization", name, float64(n))
}

// Forget drops the series of an object that is gone.
func (m *Metrics) Forget(kind string, name types.NamespacedName) {
	for _, v := range []interface{ DeleteLabelValues(...string) bool }{m.duration, m.ready, m.blocked, m.held, m.objects, m.drifted} {
		v.DeleteLabelValues(kind, name.Name, name.Namespace)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.timed, object{kind, name})
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
