// Package install has the tests of how an agent comes into a cluster and out of it:
// install, upgrade over an earlier version, lockdown, uninstall.
package install

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
