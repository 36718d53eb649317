package worker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// times are the metrics of a pool.
type times struct{ wait, work *prometheus.HistogramVec }

func newTimes(registry prometheus.Registerer) times {
	buckets := []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100}
	t := times{
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cascade_worker_wait_seconds", Help: "Time that jobs waited for a worker.", Buckets: buckets,
		}, []string{"task"}),
		work: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cascade_worker_job_seconds", Help: "Time that workers took for jobs, by how the job ended.", Buckets: buckets,
		}, []string{"task", "outcome"}),
	}
	if registry != nil {
		registry.MustRegister(t.wait, t.work)
	}
	return t
}

func (t times) waited(task string, since time.Time) {
	t.wait.WithLabelValues(task).Observe(time.Since(since).Seconds())
}

func (t times) worked(task string, o outcome, since time.Time) {
	t.work.WithLabelValues(task, o.String()).Observe(time.Since(since).Seconds())
}
