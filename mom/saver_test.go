//go:build linux

package mom

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/state/archive"
)

func record(state string) unstructured.Unstructured {
	return unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": v1alpha1.AgentNamespace, "name": v1alpha1.FirstSyncConfigMap},
		"data": map[string]any{"state": state},
	}}
}

func TestOpened(t *testing.T) {
	newest := Beginning{How: Restore, Newest: true}
	for name, tc := range map[string]struct {
		reason    string
		objects   []unstructured.Unstructured
		beginning Beginning
		want      bool
	}{
		"Closed":  {"the last state, after which nothing was built", []unstructured.Unstructured{closing(), record(v1alpha1.FirstSyncSettled)}, newest, true},
		"Crashed": {"something may have been built after it", []unstructured.Unstructured{record(v1alpha1.FirstSyncSettled)}, newest, false},
		"Old":     {"something was built after it", []unstructured.Unstructured{closing(), record(v1alpha1.FirstSyncSettled)}, Beginning{How: Restore}, false},
		"Open":    {"it never was settled", []unstructured.Unstructured{closing(), record(v1alpha1.FirstSyncOpen)}, newest, false},
		"None":    {"there is no record", []unstructured.Unstructured{closing()}, newest, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &archive.Snapshot{Objects: tc.objects}
			if got := opened(s, tc.beginning); got != tc.want {
				t.Errorf("%s: got %t", tc.reason, got)
			}
			for i := range s.Objects {
				if isConfigMap(&s.Objects[i], closingName) {
					t.Errorf("%s: what is about the state is restored", tc.reason)
				}
			}
		})
	}
}
