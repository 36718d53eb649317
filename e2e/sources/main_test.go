// Package sources has the tests of sources besides Git: registries, Helm repositories,
// charts and buckets, field by field.
package sources

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
