// Package pivot has the tests of Clusters that are moved between two real control planes,
// with Cluster API and the local provider on both: killed at any request, turned back, and
// gone on with.
package pivot

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
