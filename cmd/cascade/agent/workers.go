package agent

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/image/message"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// leastWorkerMemory is what a worker needs to begin with, and a little.
const leastWorkerMemory = 96

// BecomeWorker makes a process that the agent started its worker, and does not return
// then. A program that runs the agent calls it first thing.
func BecomeWorker(args []string) {
	tasks := worker.Tasks{}
	for _, of := range []worker.Tasks{render.Tasks(), expression.Tasks(), release.Tasks(), message.Tasks()} {
		maps.Copy(tasks, of)
	}
	worker.Become(args, tasks)
}

// workers are the processes in which text of others is worked on.
type workers struct {
	most      int
	memoryMiB int64
	time      time.Duration
}

func (w *workers) bind(f *pflag.FlagSet) {
	limits := worker.DefaultLimits()
	f.IntVar(&w.most, "workers", limits.Workers,
		"processes at a time in which kustomize builds, charts are rendered and expressions are evaluated; there is none while there is nothing to do")
	f.Int64Var(&w.memoryMiB, "worker-memory", limits.Memory>>20, "memory of each of them in MiB; 96 at least")
	f.DurationVar(&w.time, "worker-time", limits.Time, "time of a processor that one build, chart or expression may take; 1s at least")
}

func (w *workers) check() error {
	switch {
	case w.most < 1:
		return errors.New("cannot use --workers below 1: kustomizations and charts need one")
	case w.memoryMiB < leastWorkerMemory:
		return fmt.Errorf("cannot use --worker-memory %d: %d is the least", w.memoryMiB, leastWorkerMemory)
	case w.time < time.Second:
		return fmt.Errorf("cannot use --worker-time %s: 1s is the least", w.time)
	}
	return nil
}

// build makes the pool of the agent, which ends with the manager.
func (w *workers) build(mgr ctrl.Manager, registry prometheus.Registerer) (*worker.Pool, error) {
	pool := worker.New(worker.Options{
		Limits: worker.Limits{Workers: w.most, Memory: w.memoryMiB << 20, Time: w.time}, Registry: registry,
	})
	if err := mgr.Add(pool); err != nil {
		return nil, fmt.Errorf("cannot set up workers: %w", err)
	}
	return pool, nil
}
