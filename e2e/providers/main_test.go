// Package providers has the tests of what clusters are made with: the charts of clusters
// against the API servers of their providers, layers that install providers, and the
// kubeconfigs and conditions that providers leave.
package providers

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
