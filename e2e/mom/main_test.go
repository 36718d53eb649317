// Package mom has the tests of `cascade mom`: a management cluster in one file, which comes,
// makes masters, goes, and goes on elsewhere.
package mom

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
