package release

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestDeclaresOwnKinds: who asks which kinds of objects a release would have learns of those that its chart brings
// with it, too.
func TestDeclaresOwnKinds(t *testing.T) {
	hook := strings.ReplaceAll(manifestOf(named("ConfigMap", "hook")), "namespace: apps}", "namespace: apps, annotations: {"+helmrelease.HookAnnotation+": pre-install}}")
	c := &chart.Chart{
		Metadata:  &chart.Metadata{Name: "web", Version: "1.0.0", APIVersion: "v2"},
		Templates: []*common.File{{Name: "templates/all.yaml", Data: []byte(manifestOf(named("ConfigMap", "settings"), named("Widget", "b")) + hook)}},
		Files:     []*common.File{{Name: "crds/widgets.yaml", Data: []byte("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.shop.io}\n")}},
	}
	all := []inventory.Entry{named("ConfigMap", "settings"), named("Widget", "b"), named("ConfigMap", "hook")}
	for name, tc := range map[string]struct {
		reason string
		// defined: somebody installed the chart in the cluster before.
		defined, unserved bool
		want              []inventory.Entry
	}{
		"Defined":   {"the cluster has the kind", true, false, all},
		"Undefined": {"it comes with the install", false, false, nil},
		"Unserved":  {"which objects there would be is known all the same", false, true, all},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(&smallServer{noWidgets: !tc.defined})
			defer srv.Close()
			cluster, err := apply.Connect(&rest.Config{Host: srv.URL}, runtime.NewScheme())
			if err != nil {
				t.Fatal(err)
			}
			r := &Releases{Events: record.NewFakeRecorder(100), Now: time.Now, Workers: workers}
			objects, err := r.Declares(t.Context(), Request{
				Object: &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}}, Cluster: cluster, Unserved: tc.unserved,
				Chart: Chart{Name: "web", Version: "1.0.0", Load: func(context.Context) (*chart.Chart, error) { return c, nil }},
			})
			if got := inventory.OfAll(objects); (err != nil) != (tc.want == nil) || !inventory.Equal(got, tc.want) {
				t.Errorf("%s: Declares() = %v, %v, want %v", tc.reason, got, err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), "no matches for kind") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}
