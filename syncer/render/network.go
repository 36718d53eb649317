package render

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// DenyNetwork makes the process unable to reach the network through Go's
// default transport, and to run programs by name, git above all. kustomize uses
// both for almost any path field, without a time-out. It changes process-wide
// state and is called once, first thing, by a program that renders; everything
// that needs the network has an explicit transport.
func DenyNetwork() error {
	http.DefaultTransport = denied{}
	if err := os.Setenv("PATH", ""); err != nil {
		return fmt.Errorf("cannot clear PATH: %w", err)
	}
	return nil
}

type denied struct{}

func (denied) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("cannot request %s: rendering has no network", r.URL.Host)
}

// errRemote is the answer to references that kustomize would follow.
var errRemote = errors.New("references to other repositories or hosts are not followed; copy the files into the source or use another source")

// pathFields are the fields of a kustomization file whose strings are paths
// that kustomize may fetch.
var pathFields = []string{
	"resources", "bases", "components", "crds", "configurations", "generators", "transformers", "validators",
	"patchesStrategicMerge",
}

var remote = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9+.-]*:)?//|://|^git::|^[^/\s]+@[^/\s]+:|^(www\.)?(github|gitlab|bitbucket)\.[a-z]+/|[?&](ref|version)=`)

// checkKustomization refuses references to other hosts, with the field's name,
// and hostile YAML in inline patches, which kustomize parses later on.
func checkKustomization(data []byte) error {
	var k map[string]any
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil // kustomize reports it better
	}
	for _, field := range pathFields {
		items, _ := k[field].([]any)
		for i, item := range items {
			if s, ok := item.(string); ok && isRemote(s) {
				return fmt.Errorf("%s[%d] %q: %w", field, i, s, errRemote)
			}
		}
	}
	for _, field := range []string{"openapi", "patches", "patchesJson6902", "replacements"} {
		for i, item := range list(k[field]) {
			if s, ok := item["path"].(string); ok && isRemote(s) {
				return fmt.Errorf("%s[%d].path %q: %w", field, i, s, errRemote)
			}
		}
	}
	for _, field := range []string{"configMapGenerator", "secretGenerator"} {
		for i, item := range list(k[field]) {
			files, _ := item["files"].([]any)
			envs, _ := item["envs"].([]any)
			for _, v := range append(append(files, envs...), item["env"]) {
				s, _ := v.(string)
				if key, file, ok := strings.Cut(s, "="); ok && !isRemote(key) {
					s = file
				}
				if isRemote(s) {
					return fmt.Errorf("%s[%d] %q: %w", field, i, s, errRemote)
				}
			}
		}
	}
	return checkStrings(k)
}

func isRemote(s string) bool {
	// Inline patches are written where paths are expected.
	return !strings.Contains(s, "\n") && remote.MatchString(s)
}

// list reads a field that holds one map or a list of maps.
func list(v any) []map[string]any {
	switch v := v.(type) {
	case map[string]any:
		return []map[string]any{v}
	case []any:
		var out []map[string]any
		for _, item := range v {
			if m, ok := item.(map[string]any); ok {
				out = append(out, m)
			}
		}
		return out
	}
	return nil
}

func checkStrings(v any) error {
	switch v := v.(type) {
	case string:
		return Check([]byte(v))
	case []any:
		for _, item := range v {
			if err := checkStrings(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, item := range v {
			if err := checkStrings(item); err != nil {
				return err
			}
		}
	}
	return nil
}
