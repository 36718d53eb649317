package hostile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cascade-gitops/cascade/e2e/gauge"
)

// cost tells what a time was spent on: without it, nobody can tell a slow agent from a
// machine that others use.
type cost struct {
	*stand
	begun time.Time
	tried map[string]histogram
	used  map[string]time.Duration
	queue map[string]histogram
}

// histogram is how often something was measured, and the sum in seconds.
type histogram struct {
	n   uint64
	sum float64
}

// clocks are the processor times up to now.
func (s *stand) clocks() map[string]time.Duration {
	agent, _ := gauge.CPU(s.pid)             // of a process that has ended it is none
	workers, _ := gauge.CPUOfChildren(s.pid) // the same
	tests, _ := gauge.CPU(os.Getpid())
	commits, _ := gauge.CPUOfChildren(os.Getpid())
	machine, _ := gauge.Machine()
	return map[string]time.Duration{"agent": agent, "workers": workers, "servers and forge": tests, "their children": commits, "all of the machine": machine}
}

// reconciles are those of each object, as the agent tells.
func (s *stand) reconciles(ctx context.Context) map[string]histogram {
	found := map[string]histogram{}
	for _, m := range s.families(ctx)["gotk_reconcile_duration_seconds"].GetMetric() {
		found[labelOf(m.GetLabel(), "kind")+" "+labelOf(m.GetLabel(), "namespace")] = histogram{m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()}
	}
	return found
}

// waits are what the agent tells of queues, in which objects wait for a reconcile, and
// jobs for a worker.
func (s *stand) waits(ctx context.Context) map[string]histogram {
	found, families := map[string]histogram{}, s.families(ctx)
	for family, label := range map[string]string{"workqueue_queue_duration_seconds": "controller", "cascade_worker_wait_seconds": "task", "cascade_worker_job_seconds": "task"} {
		for _, m := range families[family].GetMetric() {
			key := []string{strings.TrimSuffix(family, "_seconds"), labelOf(m.GetLabel(), label), labelOf(m.GetLabel(), "outcome")}
			h := m.GetHistogram()
			name := strings.TrimSpace(strings.Join(key, " "))
			was := found[name]
			found[name] = histogram{was.n + h.GetSampleCount(), was.sum + h.GetSampleSum()}
		}
	}
	return found
}

// families are the metrics of the agent; none if it has ended, which is told elsewhere.
func (s *stand) families(ctx context.Context) map[string]*dto.MetricFamily {
	body, err := s.agent.Read(ctx, "/metrics")
	if err != nil {
		return nil
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, _ := parser.TextToMetricFamilies(strings.NewReader(body)) // what it could parse
	return families
}

func labelOf[L interface {
	GetName() string
	GetValue() string
}](labels []L, name string) string {
	for _, l := range labels {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// watchCost begins to measure.
func (s *stand) watchCost(ctx context.Context) *cost {
	return &cost{stand: s, begun: time.Now(), used: s.clocks(), queue: s.waits(ctx), tried: s.reconciles(ctx)}
}

// since tells of the time since it was asked last.
func (c *cost) since(t *testing.T, when string) {
	t.Helper()
	took, used, queue, tried := time.Since(c.begun).Seconds(), c.clocks(), c.waits(t.Context()), c.reconciles(t.Context())
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		lines = append(lines, fmt.Sprintf("%s %.2f processors", name, (used[name]-c.used[name]).Seconds()/took))
	}
	for _, name := range slices.Sorted(maps.Keys(queue)) {
		is, was := queue[name], c.queue[name]
		if n := is.n - was.n; n > 0 {
			lines = append(lines, fmt.Sprintf("%s: %.2f each second, %.3f s each", name, float64(n)/took, (is.sum-was.sum)/float64(n)))
		}
	}
	often := slices.SortedFunc(maps.Keys(tried), func(a, b string) int {
		return cmp.Compare(tried[b].n-c.tried[b].n, tried[a].n-c.tried[a].n)
	})
	for _, name := range often[:min(12, len(often))] {
		is, was := tried[name], c.tried[name]
		lines = append(lines, fmt.Sprintf("%s was reconciled %d times, %.1f s", name, is.n-was.n, is.sum-was.sum))
	}
	t.Logf("%s, %.0f s:\n  %s", when, took, strings.Join(lines, "\n  "))
	c.begun, c.used, c.queue, c.tried = time.Now(), used, queue, tried
}
