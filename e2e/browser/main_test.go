// Package browser has the test of the pages about a tier in a real browser: Debian's
// chromium, driven over its debugging protocol, and axe-core, which looks for what keeps
// people from using a page.
package browser

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
