// Package notifications has the tests of what the agent tells others, and of what others
// tell it: Alerts and Providers, Receivers.
package notifications

import (
	"fmt"
	"os"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(forgedURL); url != "" {
		if err := forge(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	scenario.Main(m)
}
