// Package safety has the tests that nothing is lost: ways to lose a fleet in Git and what
// becomes of its clusters, random walks through such ways, the first sync of a tier
// without records, and charts and archives that mean harm.
package safety

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
