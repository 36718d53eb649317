// Package notifications has the tests of what the agent tells others, and of what others
// tell it: Alerts and Providers, Receivers.
package notifications

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
