// Package helm has the tests of releases: HelmReleases field by field, what many of them
// cost, and the engine that installs, upgrades and removes releases, on an API server.
package helm

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
