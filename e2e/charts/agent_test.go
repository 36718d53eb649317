package charts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/deploy"
)

// TestAgentChart: the chart of the agent renders what the program installs, for each set of
// values that the program's own golden files are for.
func TestAgentChart(t *testing.T) {
	sets, err := filepath.Glob(filepath.Join("..", "..", "deploy", "testdata", "values", "*.yaml"))
	if err != nil || len(sets) == 0 {
		t.Fatalf("no values: %v", err)
	}
	for _, file := range sets {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			o, err := deploy.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			crds, err := deploy.CRDs()
			if err != nil {
				t.Fatal(err)
			}
			rights, workload, err := deploy.Agent(o)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]any{}
			for _, u := range append(append(crds, rights...), workload...) {
				want[nameOf(u)] = u.Object
			}
			got := map[string]any{}
			for _, u := range agentObjects(t, string(text)) {
				got[nameOf(u)] = u.Object
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-program, +chart:\n%s", diff)
			}
		})
	}
}

func nameOf(u *unstructured.Unstructured) string {
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// agentObjects are what the chart renders, without the annotations that are for Helm.
func agentObjects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	const policy = "helm.sh/resource-policy"
	r := render(t, "cascade", values(t, text))
	var objects []*unstructured.Unstructured
	for _, u := range r.Objects {
		annotations := u.GetAnnotations()
		if keeps := annotations[policy] == "keep"; keeps != kept(u) {
			t.Errorf("%s: helm uninstall keeps it: %t", nameOf(u), keeps)
		}
		delete(annotations, policy)
		if u.SetAnnotations(annotations); len(annotations) == 0 {
			unstructured.RemoveNestedField(u.Object, "metadata", "annotations")
		}
		objects = append(objects, u)
	}
	return objects
}

// kept: with these, other objects or data would go.
func kept(u *unstructured.Unstructured) bool {
	switch u.GetKind() {
	case "CustomResourceDefinition", "Namespace", "PersistentVolumeClaim":
		return true
	}
	return false
}

// TestAgentChartRefuses: the words are those of a Layer, and a typo is an error.
func TestAgentChartRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ reason, values, err string }{
		"Unknown":  {"a typo", "imgae: x", "imgae"},
		"Nested":   {"deeper, too", "lockdown: {account: x}", "account"},
		"Enum":     {"a word that there is not", "metricsAuth: basic", "metricsAuth"},
		"Replicas": {"more than an agent shares out", "replicas: 99", "replicas"},
		"Claim":    {"a volume is for one", "{replicas: 2, storage: {claim: {size: 1Gi}}}", "a volume is for one"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := tryRender(t, "cascade", "demo", values(t, tc.values)); err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
	r := render(t, "cascade", values(t, "createNamespace: false"))
	for _, u := range r.Objects {
		if u.GetKind() == "Namespace" {
			t.Error("the Namespace is made though it is not to be")
		}
	}
}
