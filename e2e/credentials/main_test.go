// Package credentials has the tests of credentials that lapse, which a real Vault leases.
package credentials

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
