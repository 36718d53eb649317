// Package hostile has the test of tenants who mean harm: their repositories, charts,
// registries, Git and API servers, packs, statuses and SOPS files, hundreds at the same
// time, beside tenants whose commits must not wait for that.
package hostile

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
