// Package flux has the tests of what an existing Flux repository relies on: sources of
// Git, Kustomizations field by field, taking over from Flux's controllers, drift, and
// what commits cost at the API server.
package flux

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
