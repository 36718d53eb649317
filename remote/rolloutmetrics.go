package remote

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// RolloutMetrics are those of Rollouts. None grows with the clusters or the revisions.
type RolloutMetrics struct {
	clusters  *prometheus.GaugeVec
	phase     *prometheus.GaugeVec
	since     *prometheus.GaugeVec
	approved  *prometheus.GaugeVec
	condition *prometheus.GaugeVec
}

// NewRolloutMetrics registers the metrics.
func NewRolloutMetrics(registry prometheus.Registerer) *RolloutMetrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, append([]string{"namespace", "name"}, labels...))
	}
	m := &RolloutMetrics{
		clusters:  gauge("cascade_rollout_clusters", "Clusters of the Rollout by their state towards the revision that it brings.", "state"),
		phase:     gauge("cascade_rollout_phase", "1 for the phase that the run of the Rollout is in; Completed, too, once the source and all clusters are back at the last good revision, and while there is no cluster to bring a revision to.", "phase"),
		since:     gauge("cascade_rollout_phase_timestamp_seconds", "Unix time at which the run came into its phase."),
		approved:  gauge("cascade_rollout_approval_timestamp_seconds", "Unix time of the last approval of a wave of the run; 0 without one."),
		condition: gauge("cascade_rollout_condition", "0 for each condition of the Rollout that is False, of Ready, Upstream, Published and ApprovalTags; absent otherwise, while it is suspended, and for Ready where the phase of the run is the reason.", "condition"),
	}
	registry.MustRegister(m.clusters, m.phase, m.since, m.approved, m.condition)
	return m
}

func (m *RolloutMetrics) record(o *v1alpha1.Rollout) {
	if m == nil {
		return
	}
	of := func(labels ...string) []string { return append([]string{o.Namespace, o.Name}, labels...) }
	c := o.Status.Clusters
	for state, n := range map[string]int32{"updated": c.Updated, "updating": c.Updating, "pending": c.Pending, "failed": c.Failed, "deferred": c.Deferred} {
		m.clusters.WithLabelValues(of(state)...).Set(float64(n))
	}
	suspended := o.Spec.Suspend && o.Annotations[v1alpha1.UnreadAnnotation] == "" // by a person
	for _, kind := range []string{v1alpha1.ReadyCondition, v1alpha1.UpstreamCondition, v1alpha1.PublishedCondition, v1alpha1.ApprovalTagsCondition} {
		if c := meta.FindStatusCondition(o.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse && !byPhase(c) && !suspended {
			m.condition.WithLabelValues(of(kind)...).Set(0)
		} else {
			m.condition.DeleteLabelValues(of(kind)...)
		}
	}
	m.phase.DeletePartialMatch(prometheus.Labels{"namespace": o.Namespace, "name": o.Name})
	run := o.Status.Run
	if run == nil {
		return
	}
	phase := run.Phase
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
	if rollout.IsBack(&o.Status) || ready != nil && ready.Reason == v1alpha1.ReasonNoChildren {
		phase = v1alpha1.RolloutCompleted // no other run follows, and what was taken back, or has begun, concerns nobody any more
	}
	m.phase.WithLabelValues(of(string(phase))...).Set(1)
	m.since.WithLabelValues(of()...).Set(seconds(run.Since.Time))
	var last time.Time
	for _, a := range run.Approvals {
		last = a.At.Time
	}
	m.approved.WithLabelValues(of()...).Set(seconds(last))
}

// byPhase reports whether a condition is False for the phase of the run alone, which has a metric of
// its own. In such a phase a Rollout may be refused as well, which the phase does not tell.
func byPhase(c *metav1.Condition) bool {
	switch c.Reason {
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonReverting, v1alpha1.ReasonReverted, v1alpha1.ReasonAborted:
		return c.Type == v1alpha1.ReadyCondition
	}
	return false
}

func seconds(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.UnixNano()) / 1e9
}

func (m *RolloutMetrics) forget(key types.NamespacedName) {
	if m == nil {
		return
	}
	labels := prometheus.Labels{"namespace": key.Namespace, "name": key.Name}
	for _, g := range []*prometheus.GaugeVec{m.clusters, m.phase, m.since, m.approved, m.condition} {
		g.DeletePartialMatch(labels)
	}
}
