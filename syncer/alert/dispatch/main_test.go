package dispatch

import (
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// workers evaluate the expressions of the tests.
var workers *worker.Pool

func TestMain(m *testing.M) {
	worker.Become(os.Args, expression.Tasks())
	workers = worker.New(worker.Options{Limits: worker.DefaultLimits()})
	code := m.Run()
	workers.Close()
	os.Exit(code)
}
