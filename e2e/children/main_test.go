// Package children has the tests of connections to children: from the declaration of a
// cluster to its deletion, by stages that providers make, with tokens that are replaced,
// servers that hang, and clusters that come again under their name.
package children

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
