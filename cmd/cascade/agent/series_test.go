package agent

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/status"
)

const (
	// budget of series of a tier with 1000 children, as docs/metrics.md says, and what of it
	// the agent needs whatever the fleet. e2e/children: TestEnvironmentPrometheus counts that.
	budget   = 15000
	ofItself = 1700
)

// TestSeriesBudget: a tier with a thousand tenants, each of them a HelmRelease with its chart
// and with credentials that lapse, has no more series than its budget.
func TestSeriesBudget(t *testing.T) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	counted := metrics.New(registry)
	var objects []client.Object
	reconciled := func(kind string, o status.Object, inventory bool) {
		key := client.ObjectKeyFromObject(o)
		counted.Reconciled(kind, key, o, time.Second)
		if inventory {
			counted.Inventory(kind, key, 10)
		}
		objects = append(objects, o)
	}
	now := metav1.NewTime(time.Unix(1000, 0))
	valid := metav1.NewTime(time.Now().Add(365 * 24 * time.Hour))
	for i := range 1000 {
		named := metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("c", i)}
		reconciled("HelmRelease", &helmv2.HelmRelease{ObjectMeta: named}, true)
		reconciled("HelmChart", &sourcev1.HelmChart{ObjectMeta: named}, false)
		objects = append(objects, &v1alpha1.Child{ObjectMeta: named, Status: v1alpha1.ChildStatus{
			HeardAt: &now, Credentials: []v1alpha1.ChildCredential{{Name: "a", ExpiresAt: &valid, RenewAt: &valid}, {Name: "b", ExpiresAt: &valid, RenewAt: &valid}},
			Report: &v1alpha1.Report{},
		}})
	}
	for i := range 10 {
		named := metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprint("l", i)}
		reconciled("Kustomization", &kustomizev1.Kustomization{ObjectMeta: named}, true)
		reconciled("GitRepository", &sourcev1.GitRepository{ObjectMeta: named}, false)
		objects = append(objects, &v1alpha1.Layer{ObjectMeta: named})
	}
	c := fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).Build()
	registry.MustRegister(
		&remote.Fleet{Client: c, Connections: link.NewPool(t.Context(), s, time.Now, rand.Float64), Now: time.Now},
		metrics.NewInfo(c, []string{"HelmRelease", "HelmChart", "Kustomization", "GitRepository"}, []string{metrics.Gotk}, func(client.Object) bool { return true }, func() bool { return true }),
	)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total, by := 0, map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n := 1
			if h := m.GetHistogram(); h != nil {
				n = len(h.GetBucket()) + 3 // the bucket without a bound, the sum and the count
			}
			by[f.GetName()] += n
			total += n
		}
	}
	t.Logf("%d series of objects, %v", total, by)
	if by["cascade_child_condition"] != 3000 || by["gotk_resource_info"] != 2020 {
		t.Errorf("some of the objects were not counted: %v", by)
	}
	if total+ofItself > budget {
		t.Errorf("%d series and %d of the agent itself, more than %d: %v", total, ofItself, budget, by)
	}
}
