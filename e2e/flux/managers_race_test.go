package flux

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// raced: somebody writes between the moment at which the managers of an object are read
// and the one at which they are replaced. What he adds stays his, so that it can be taken
// off as well; with the managers of the moment before, it would be nobody's and stay.
func (s *kustomizationSpec) raced(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("unused", "", "{k: v}")})
	config, err := s.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	add := func(manager string) {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "raced"}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"by-`+manager+`":"added"}}`))
		if err := r.Client.Patch(context.Background(), m, patch, client.FieldOwner(manager)); err != nil {
			t.Errorf("cannot write as %s: %v", manager, err)
		}
	}
	between := sync.OnceFunc(func() { add("kubectl-label") })
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			if request.Header.Get("Content-Type") == string(types.JSONPatchType) {
				between()
			}
			return next.RoundTrip(request)
		})
	})
	cluster, err := apply.Connect(config, r.Client.Scheme())
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	owner := apply.Owner{FieldManager: "kustomize-controller", LabelGroup: "kustomize.toolkit.fluxcd.io", Name: "raced", Namespace: r.Namespace}
	applied := func() {
		t.Helper()
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "raced", "namespace": r.Namespace}, "data": map[string]any{"k": "v"},
		}}
		if _, err := apply.New(cluster, owner, nil, time.Now).Sync(t.Context(), []apply.Phase{{Objects: []*unstructured.Unstructured{object}}}, apply.Options{
			Record: func(context.Context, []inventory.Entry) error { return nil },
		}); err != nil {
			t.Fatal(err)
		}
	}
	applied()
	add("kubectl-edit")
	applied()
	applied()
	m := &corev1.ConfigMap{}
	if err := r.Load(t.Context(), m, r.Namespace, "raced"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k": "v"}, m.Data); diff != "" {
		t.Errorf("data: -want, +got:\n%s", diff)
	}
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
