package kustomization

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/inventory"
)

// hiddenFiles are files that a source ignores.
type hiddenFiles map[string]string

func (h hiddenFiles) Ignored(_ string, f func(string, func() ([]byte, error)) bool) error {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !f(name, func() ([]byte, error) { return []byte(h[name]), nil }) {
			break
		}
	}
	return nil
}

// TestIgnored: what ignored files declare is found, and what is no manifest is not parsed, which would take hundreds of megabytes.
func TestIgnored(t *testing.T) {
	config := func(name string) string { return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n" }
	bundle := strings.Repeat(config("other")+"---\n", 26_000)
	const flat = 2_000_000
	for name, tt := range map[string]struct {
		reason string
		files  hiddenFiles
		want   string
		// parses: it has to be read, and takes memory.
		parses bool
	}{
		"Declared":  {reason: "the file that still has it", files: hiddenFiles{"a.yaml": config("other"), "b.yaml": config("gone")}, want: "b.yaml"},
		"Prefix":    {reason: "the build gave it a prefix", files: hiddenFiles{"a.yaml": config("one")}, want: "a.yaml"},
		"Variable":  {reason: "its name is one of the build", files: hiddenFiles{"a.yaml": config(`"${NAME}"`)}, want: "a.yaml"},
		"JSON":      {reason: "manifests may be JSON", files: hiddenFiles{"a.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"gone"}}`}, want: "a.json"},
		"List":      {reason: "or a list of them", files: hiddenFiles{"a.yaml": "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: gone}}\n"}, want: "a.yaml"},
		"Others":    {reason: "of another kind, in no manifest, in no YAML", files: hiddenFiles{"a.yaml": strings.Replace(config("gone"), "ConfigMap", "Secret", 1), "b.yaml": "kind: [", "c.txt": config("gone")}},
		"Bundle":    {reason: "a file of many documents is large, and each of them is not", files: hiddenFiles{"a.yaml": bundle + config("gone")}, want: "a.yaml", parses: true},
		"Flat":      {reason: "braces that are little but commas", files: hiddenFiles{"a.yaml": "kind: {" + strings.Repeat("b,", flat) + "}\n"}},
		"Texts":     {reason: "a list of short texts", files: hiddenFiles{"a.json": `{"kind":[` + strings.Repeat("1,", flat) + "1]}"}},
		"Lines":     {reason: "a list of nothing", files: hiddenFiles{"a.yaml": "kind:\n" + strings.Repeat("-\n", flat)}},
		"Expands":   {reason: "aliases that add to it", files: hiddenFiles{"a.yaml": "a: &a [" + strings.Repeat("b,", 1000) + "]\nkind: [" + strings.Repeat("*a,", 500) + "]\n"}},
		"FlatFirst": {reason: "what is after it is looked at", files: hiddenFiles{"a.yaml": "kind: {" + strings.Repeat("b,", flat) + "}\n---\n" + config("gone")}, want: "a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			e := inventory.Entry{Kind: "ConfigMap", Version: "v1", Namespace: "apps", Name: "gone"}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			found, err := ignored(tt.files, ".", []inventory.Entry{e})
			runtime.ReadMemStats(&after)
			if err != nil || found[e] != tt.want {
				t.Errorf("%s: it is in %q, %v; want %q", tt.reason, found[e], err, tt.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 32<<20 && !tt.parses {
				t.Errorf("%s: %d MiB were allocated", tt.reason, n>>20)
			}
		})
	}
	r := &Reconciler{looking: make(chan struct{})} // without a place
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ignored(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ignored() = %v while files of others are read", err)
	}
}
