package capibridge

import (
	"os"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// workers do what is done by workers in the tests of this package.
var workers *worker.Pool

func TestMain(m *testing.M) {
	worker.Become(os.Args, expression.Tasks())
	limits := worker.DefaultLimits()
	limits.Time = time.Second
	workers = worker.New(worker.Options{Limits: limits})
	code := m.Run()
	workers.Close()
	os.Exit(code)
}
