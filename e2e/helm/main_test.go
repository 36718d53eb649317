// Package helm has the tests of releases: HelmReleases field by field, what many of them
// cost, and the engine that installs, upgrades and removes releases, on an API server.
package helm

import (
	"maps"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

func TestMain(m *testing.M) {
	// The engine is tested in this process, which is its own worker.
	tasks := release.Tasks()
	maps.Copy(tasks, expression.Tasks())
	worker.Become(os.Args, tasks)
	scenario.Main(m)
}

// newReleases is an engine as an agent has it.
func newReleases(t *testing.T, events record.EventRecorder) *release.Releases {
	t.Helper()
	workers := worker.New(worker.Options{Limits: worker.DefaultLimits()})
	t.Cleanup(workers.Close)
	return &release.Releases{Events: events, Now: time.Now, Workers: workers}
}
