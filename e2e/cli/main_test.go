// Package cli has the tests of command lines: what the flux and helm CLIs print for the
// agent, compared with what they print for Flux's own controllers; and what our own verbs
// say and do.
package cli

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
