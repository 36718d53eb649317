package render

import (
	"context"
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// workers do what the tests render with kustomize.
var workers *worker.Pool

func TestMain(m *testing.M) {
	worker.Become(os.Args, Tasks())
	workers = worker.New(worker.Options{Limits: worker.DefaultLimits()})
	code := m.Run()
	workers.Close()
	os.Exit(code)
}

// rendered is Render with workers.
func rendered(ctx context.Context, files Files, b Build) (*Rendering, error) {
	if b.Workers == nil {
		b.Workers = workers
	}
	return Render(ctx, files, b)
}
