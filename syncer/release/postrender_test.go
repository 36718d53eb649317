package release

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/kustomize"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// TestPostRenderers: patches come first, the marks of the HelmRelease last; a patch that
// doubles what it patches ends as an error of its own.
func TestPostRenderers(t *testing.T) {
	copies := "- {op: add, path: /data, value: {a: {b: \"" + strings.Repeat("x", 100) + "\"}}}\n"
	for i := range 40 {
		copies += fmt.Sprintf("- {op: copy, from: /data, path: /data/a/c%d}\n", i)
	}
	pool := worker.New(worker.Options{Limits: worker.Limits{Workers: 1, Memory: 160 << 20, Time: worker.DefaultLimits().Time}})
	defer pool.Close()
	for name, tt := range map[string]struct {
		reason, patch string
		want          []string
		exceeded      bool
	}{
		"Patched":  {"an ordinary patch", "- {op: add, path: /data, value: {k: v}}", []string{"k: v", "helm.toolkit.fluxcd.io/name: web", "note: "}, false},
		"Doubling": {"a patch of 40 lines that makes 2^40 of them", copies, nil, true},
		"Broken":   {"an error of the patch", "- {op: nothing}", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &v2.HelmRelease{}
			obj.Name, obj.Namespace = "web", "apps"
			obj.Spec.CommonMetadata = &v2.CommonMetadata{Annotations: map[string]string{"note": "n"}}
			obj.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{Patches: []kustomize.Patch{{Patch: tt.patch, Target: &kustomize.Selector{Kind: "ConfigMap"}}}}}}
			data := []byte("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n")
			var err error
			for _, step := range postRenderers(t.Context(), obj, pool) {
				if err == nil {
					data, err = step(data)
				}
			}
			var exceeded *worker.Exceeded
			if errors.As(err, &exceeded) != tt.exceeded || (err == nil) != (tt.want != nil) {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(data), want) {
					t.Errorf("%s: %s lacks %q", tt.reason, data, want)
				}
			}
		})
	}
}
