package backup

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Metrics of StateBackups. The nil Metrics records nothing.
type Metrics struct {
	success, stale, objects, bytes *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"namespace", "name"})
	}
	m := &Metrics{
		success: gauge("cascade_state_backup_last_success_timestamp_seconds", "Unix time at which the newest saved version of the tier's state was last found to be the present one; that of the object's creation as long as there is none."),
		stale:   gauge("cascade_state_backup_stale_after_seconds", "Age of the last success past which the backup counts as too old."),
		objects: gauge("cascade_state_backup_objects", "Objects of the newest saved version."),
		bytes:   gauge("cascade_state_backup_bytes", "Bytes of the newest saved version."),
	}
	registry.MustRegister(m.success, m.stale, m.objects, m.bytes)
	return m
}

func (m *Metrics) record(o *v1alpha1.StateBackup, t timing) {
	if m == nil {
		return
	}
	of := []string{o.Namespace, o.Name}
	m.success.WithLabelValues(of...).Set(float64(since(o).Unix()))
	m.stale.WithLabelValues(of...).Set(t.stale.Seconds())
	m.objects.WithLabelValues(of...).Set(float64(o.Status.Objects))
	m.bytes.WithLabelValues(of...).Set(float64(o.Status.Bytes))
}

// forget drops the metrics of an object that is gone, or suspended: nobody is to be told of
// a backup that is not made on purpose.
func (m *Metrics) forget(name types.NamespacedName) {
	if m == nil {
		return
	}
	for _, g := range []*prometheus.GaugeVec{m.success, m.stale, m.objects, m.bytes} {
		g.DeleteLabelValues(name.Namespace, name.Name)
	}
}
