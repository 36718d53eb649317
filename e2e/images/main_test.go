// Package images has the tests of image updates: ImageRepositories, ImagePolicies and ImageUpdateAutomations, field by field.
package images

import (
	"testing"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func TestMain(m *testing.M) { scenario.Main(m) }
