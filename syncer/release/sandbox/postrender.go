package sandbox

import (
	"bytes"
	"fmt"

	"helm.sh/helm/v4/pkg/postrenderer"

	"github.com/cascade-gitops/cascade/syncer/render"
)

// PostRenderer changes the manifests of a release.
type PostRenderer func(manifests []byte) ([]byte, error)

// chain runs post renderers one after the other. Helm parses what comes out of it in
// this process.
type chain struct {
	steps []PostRenderer
	room  func(text, nodes int) error
}

var _ postrenderer.PostRenderer = (*chain)(nil)

// Run implements Helm's PostRenderer.
func (c *chain) Run(manifests *bytes.Buffer) (*bytes.Buffer, error) {
	data := manifests.Bytes()
	for i := 0; ; i++ {
		// The check is repeated, because a patch may bring YAML of its own.
		if len(data) > mostOutput {
			return nil, exceeds("its manifests are larger than %d MiB", mostOutput>>20)
		}
		nodes, err := render.CheckManifests(data)
		if err != nil {
			return nil, fmt.Errorf("cannot read rendered manifests: %w", err)
		}
		if c.room != nil {
			if err := c.room(len(data), nodes); err != nil {
				return nil, err
			}
		}
		if i == len(c.steps) {
			return bytes.NewBuffer(data), nil
		}
		if data, err = c.steps[i](data); err != nil {
			return nil, err
		}
	}
}
