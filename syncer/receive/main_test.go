package receive

import (
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// workers do what is done by workers in the tests of this package.
var workers *worker.Pool

func TestMain(m *testing.M) {
	worker.Become(os.Args, expression.Tasks())
	workers = worker.New(worker.Options{Limits: worker.DefaultLimits()})
	code := m.Run()
	workers.Close()
	os.Exit(code)
}
