// Package fleet has the tests of whole fleets: the example of testdata/repos in three
// tiers with real pods, a master of masters that is lost and rebuilt, and the
// simulated fleet held against a real API server.
package fleet

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
