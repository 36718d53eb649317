package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/observed"
)

func TestOutdates(t *testing.T) {
	for name, tc := range map[string]struct {
		reason         string
		kind           string
		live, declared string
		want           bool
	}{
		"Newer":      {"somebody installed a later Flux", "CustomResourceDefinition", "v2.10.0", "v2.9.5", true},
		"Same":       {"our own", "CustomResourceDefinition", "v2.9.5", "v2.9.5", false},
		"Older":      {"an upgrade", "CustomResourceDefinition", "v2.8.1", "v2.9.5", false},
		"Unlabelled": {"nobody says what it is", "CustomResourceDefinition", "", "v2.9.5", false},
		"Rubbish":    {"a label is any text", "CustomResourceDefinition", "latest", "v2.9.5", false},
		"Other":      {"a Deployment with such labels is none", "Deployment", "v2.10.0", "v2.9.5", false},
		"Undeclared": {"what declares no release knows nothing", "CustomResourceDefinition", "v2.10.0", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{"kind": tc.kind}}
			u.SetLabels(map[string]string{"app.kubernetes.io/part-of": "flux", "app.kubernetes.io/version": tc.declared})
			if got := outdates(&observed.Object{FluxRelease: tc.live}, u); got != tc.want {
				t.Errorf("%s: %v", tc.reason, got)
			}
		})
	}
	if outdates(nil, &unstructured.Unstructured{Object: map[string]any{"kind": "CustomResourceDefinition"}}) {
		t.Error("what is not there is no newer")
	}
}
