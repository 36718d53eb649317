package release

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// TestDefinitionsHostile: definitions are parsed in this process, all of a chart together.
func TestDefinitionsHostile(t *testing.T) {
	c := &chart.Chart{Metadata: &chart.Metadata{Name: "c", Version: "1.0.0", APIVersion: "v2"}}
	for i := range 20 {
		file := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a}\nspec: [" + strings.Repeat("b,", 20_000) + "]\n"
		c.Files = append(c.Files, &common.File{Name: fmt.Sprintf("crds/%d.yaml", i), Data: []byte(file)})
	}
	if _, err := definitionsOf(c); !errors.Is(err, render.ErrHostile) {
		t.Errorf("definitionsOf() = %v, want %v", err, render.ErrHostile)
	}
	c.Files = c.Files[:10]
	if found, err := definitionsOf(c); err != nil || len(found) != 10 {
		t.Errorf("definitionsOf() = %d objects, %v", len(found), err)
	}
}
