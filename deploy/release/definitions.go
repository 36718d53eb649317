package main

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// definitions are those of the manifests of an installation that define kinds, for those
// who install them by themselves.
func definitions(manifests string) (string, error) {
	var found strings.Builder
	for text := range strings.SplitSeq("\n"+manifests, "\n---\n") {
		var object struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			return "", fmt.Errorf("cannot read what cascade install --export printed: %w", err)
		}
		if object.Kind == "CustomResourceDefinition" {
			fmt.Fprintf(&found, "---\n%s\n", strings.TrimSpace(text))
		}
	}
	if found.Len() == 0 {
		return "", errors.New("cannot find definitions in what cascade install --export printed")
	}
	return found.String(), nil
}
