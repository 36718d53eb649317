package stall

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/park"
)

// TestWatchdog: a reconcile that does not end is told of: on its object, by a metric, and
// after a while by the health check, until it ends.
func TestWatchdog(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// after is how long after its begin the first look comes, of so many.
		after   time.Duration
		looks   int
		told    bool
		healthy bool
	}{
		"Working": {"it is within its deadline", Deadline, unhealthyAfter, false, true},
		"Late":    {"it may still end", Deadline + grace + time.Second, unhealthyAfter - 1, true, true},
		"Lost":    {"nothing gives the worker back but a restart", Deadline + grace + time.Second, unhealthyAfter, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := kustomizev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(k).WithStatusSubresource(k).Build()
			now := time.Unix(1_000_000, 0)
			w := New(c, func() time.Time { return now }, prometheus.NewRegistry())
			began, ends, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			guarded := w.Guard("Kustomization", func() client.Object { return &kustomizev1.Kustomization{} }, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
				close(began)
				<-ends
				return reconcile.Result{}, nil
			}))
			go func() {
				defer close(ended)
				_, _ = guarded.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(k)}) // it returns nothing
			}()
			<-began
			now = now.Add(tc.after)
			for range tc.looks {
				w.look(t.Context())
			}
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(k), k); err != nil {
				t.Fatal(err)
			}
			ready := apimeta.FindStatusCondition(k.Status.Conditions, v1alpha1.ReadyCondition)
			if told := ready != nil && ready.Reason == v1alpha1.ReasonWorkerStalled; told != tc.told {
				t.Errorf("%s: Ready is %+v", tc.reason, ready)
			}
			if got := testutil.ToFloat64(w.stuck.WithLabelValues("Kustomization")) == 1; got != tc.told {
				t.Errorf("%s: the metric says %t", tc.reason, got)
			}
			if err := w.Check(nil); (err == nil) != tc.healthy {
				t.Errorf("%s: Check() = %v", tc.reason, err)
			}
			close(ends)
			<-ended
			w.look(t.Context())
			if err := w.Check(nil); err != nil || testutil.ToFloat64(w.stuck.WithLabelValues("Kustomization")) != 0 {
				t.Errorf("%s: it is told of after its end: %v", tc.reason, err)
			}
		})
	}
}

// TestTally: the metrics tell how the reconciles of a kind stand, from its lot.
func TestTally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		w := New(fake.NewClientBuilder().Build(), time.Now, registry)
		ends := make(chan struct{})
		retries := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute)
		lot := w.Lot("Child", func() client.Object { return &v1alpha1.Child{} }, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			if req.Name == "waits" {
				return reconcile.Result{}, park.Wait(ctx, func() error { <-ends; return nil })
			}
			<-ends
			return reconcile.Result{}, nil
		}), park.Options{Workers: 3, Parked: 8, Patience: time.Second, Aside: 1, Backoff: retries})
		for _, name := range []string{"long", "longer", "waits"} {
			go func() {
				_, _ = lot.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}) // it returns nothing
			}()
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want := `
# HELP cascade_reconciles Reconciles under way, of kinds that may wait without a worker: running, aside as they take long, or waiting.
# TYPE cascade_reconciles gauge
cascade_reconciles{kind="Child",state="aside"} 1
cascade_reconciles{kind="Child",state="running"} 1
cascade_reconciles{kind="Child",state="waiting"} 1
# HELP cascade_reconciles_aside_limit How many reconciles of the kind there may be aside. Without room, those that take long keep the workers of the kind.
# TYPE cascade_reconciles_aside_limit gauge
cascade_reconciles_aside_limit{kind="Child"} 1
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "cascade_reconciles", "cascade_reconciles_aside_limit"); err != nil {
			t.Error(err)
		}
		close(ends)
		synctest.Wait()
		if n := lot.Counts(); n != (park.Counts{}) {
			t.Errorf("under way are %+v after the end", n)
		}
	})
}
