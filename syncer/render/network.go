package render

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// DenyNetwork makes the process unable to reach the network through Go's
// default transport, and to run programs by name, git above all. kustomize uses
// both for almost any path field, without a time-out. It changes process-wide
// state and is called once, first thing, by a program that renders; everything
// that needs the network has an explicit transport, or says so by the context
// of its requests where a library builds its clients from the default one
// (source.AllowNetwork). A rendering never gets such a context.
func DenyNetwork() error {
	http.DefaultTransport = deniedTransport()
	if err := os.Setenv("PATH", ""); err != nil {
		return fmt.Errorf("cannot clear PATH: %w", err)
	}
	return nil
}

// deniedTransport is a real *http.Transport because libraries assert that the
// default one is. No connection outlives its request, so that none that was
// allowed serves a request that is not; HTTP/2 would share them.
func deniedTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !source.NetworkAllowed(ctx) {
				return nil, fmt.Errorf("cannot connect to %s: rendering has no network", address)
			}
			return dialer.DialContext(ctx, network, address)
		},
		DisableKeepAlives:     true,
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
	}
}

// errRemote is the answer to references that kustomize would follow.
var errRemote = errors.New("references to other repositories or hosts are not followed; copy the files into the source or use another source")

// pathFields are the fields of a kustomization file whose strings are paths
// that kustomize may fetch.
var pathFields = []string{
	"resources", "bases", "components", "crds", "configurations", "generators", "transformers", "validators",
	"patchesStrategicMerge",
}

var remote = regexp.MustCompile(`^([a-zA-Z][a-zA-Z0-9+.-]*:)?//|://|^git::|^[^/\s]+@[^/\s]+:|^(www\.)?(github|gitlab|bitbucket)\.[a-z]+[/:]|[?&](ref|version)=`)

// checkKustomization refuses references to other hosts, with the field's name,
// and hostile YAML in inline patches, which kustomize parses later on. It
// counts the nodes that aliases add to those, and tells whether the file names
// an OpenAPI schema.
func checkKustomization(data []byte) (added int, bringsSchema bool, err error) {
	var written map[string]any
	if err := yaml.Unmarshal(data, &written); err != nil {
		return 0, false, nil // kustomize reports it better
	}
	// kustomize takes field names in any case.
	k := lower(written).(map[string]any)
	for _, field := range pathFields {
		items, _ := k[strings.ToLower(field)].([]any)
		for i, item := range items {
			if s, ok := item.(string); ok && isRemote(s) {
				return 0, false, fmt.Errorf("%s[%d] %q: %w", field, i, s, errRemote)
			}
		}
	}
	for _, field := range []string{"openapi", "patches", "patchesJson6902", "replacements"} {
		for i, item := range list(k[strings.ToLower(field)]) {
			if s, ok := item["path"].(string); ok && isRemote(s) {
				return 0, false, fmt.Errorf("%s[%d].path %q: %w", field, i, s, errRemote)
			}
		}
	}
	for _, field := range []string{"configMapGenerator", "secretGenerator"} {
		for i, item := range list(k[strings.ToLower(field)]) {
			files, _ := item["files"].([]any)
			envs, _ := item["envs"].([]any)
			for _, v := range append(append(files, envs...), item["env"]) {
				s, _ := v.(string)
				if key, file, ok := strings.Cut(s, "="); ok && !isRemote(key) {
					s = file
				}
				if isRemote(s) {
					return 0, false, fmt.Errorf("%s[%d] %q: %w", field, i, s, errRemote)
				}
			}
		}
	}
	added, err = measureStrings(k)
	return added, k["openapi"] != nil, err
}

// lower returns a copy with the keys of all maps in lower case. Of keys that are
// then the same, all values are kept, as a list.
func lower(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			k, item = strings.ToLower(k), lower(item)
			if other, ok := out[k]; ok {
				item = slices.Concat(items(other), items(item))
			}
			out[k] = item
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = lower(item)
		}
		return out
	}
	return v
}

// items is a list as it is, and anything else as a list of itself.
func items(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
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

func measureStrings(v any) (added int, err error) {
	var items []any
	switch v := v.(type) {
	case string:
		return Added([]byte(v))
	case []any:
		items = v
	case map[string]any:
		for _, item := range v {
			items = append(items, item)
		}
	}
	for _, item := range items {
		n, err := measureStrings(item)
		if err != nil {
			return 0, err
		}
		added += n
	}
	return added, nil
}
