// Package faults has the tests of an agent that is killed in the middle of its work, and
// of one whose API server fails: nothing is lost, and nothing is left behind.
package faults

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
