// Package hostile has the test of tenants who mean harm: their repositories, charts,
// registries, Git and API servers, packs, statuses and SOPS files, hundreds at the same
// time, beside tenants whose commits must not wait for that.
package hostile

import (
	"fmt"
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(neighbourRoot); root != "" {
		if err := serveNeighbour(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	scenario.Main(m)
}
