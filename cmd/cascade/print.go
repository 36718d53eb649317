package main

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// printAs prints a value that is not an object of Kubernetes, as a tier of a tree, as json
// or yaml. cli-runtime's printers print what is one.
func printAs(out io.Writer, output string, v any) error {
	switch output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "yaml":
		data, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		_, err = out.Write(data)
		return err
	}
	return fmt.Errorf("cannot print as %q: use json or yaml", output)
}
