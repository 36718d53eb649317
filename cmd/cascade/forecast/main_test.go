package forecast

import (
	"flag"
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

var update = flag.Bool("update", false, "write the golden files anew")

// workers run kustomize in the tests of this package.
var workers *worker.Pool

func TestMain(m *testing.M) {
	worker.Become(os.Args, render.Tasks())
	flag.Parse()
	workers = worker.New(worker.Options{Limits: worker.DefaultLimits()})
	code := m.Run()
	workers.Close()
	os.Exit(code)
}
