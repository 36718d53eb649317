package deploy

import (
	"fmt"

	"sigs.k8s.io/yaml"
)

// Parse reads the values of an agent, in the words of spec.agent of a Layer and with the
// namespace besides. What it does not know is an error.
func Parse(text []byte) (Options, error) {
	var o Options
	if err := yaml.UnmarshalStrict(text, &o); err != nil {
		return Options{}, fmt.Errorf("cannot read values: %w; docs/install.md lists all", err)
	}
	return o, o.check()
}
