package sandbox

import (
	"bytes"
	"fmt"

	"helm.sh/helm/v4/pkg/postrenderer"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// PostRenderer changes the manifests of a release.
type PostRenderer func(manifests []byte) ([]byte, error)

// chain runs post renderers one after the other. It checks the manifests before
// each of them, because kustomize's YAML parser does not survive hostile ones.
type chain struct {
	steps []PostRenderer
	// budget is told how much there is.
	budget *budget
}

var _ postrenderer.PostRenderer = (*chain)(nil)

// Run implements Helm's PostRenderer.
func (c *chain) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	data := manifests.Bytes()
	for _, step := range c.steps {
		// The check is repeated, because a patch may bring YAML of its own.
		if err := c.budget.output(len(data)); err != nil {
			return nil, err
		}
		if err := render.Check(data); err != nil {
			return nil, fmt.Errorf("cannot read rendered manifests: %w", err)
		}
		err := render.WithSchema(func() (err error) {
			data, err = step(data)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return bytes.NewBuffer(data), nil
}
