package remote

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestNotListedYet: a process that has just begun does not know the Clusters yet. For a
// while its Children say what they said before; then they say why nothing is done.
func TestNotListedYet(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	child := childNamed("alpha", []metav1.Condition{
		{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: start},
		{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: start},
	})
	child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "alpha"}
	at := start.Time
	now := func() time.Time { return at }
	random := func() float64 { return 0 }
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child).WithStatusSubresource(&child).Build()
	children := &Children{
		Events: &record.FakeRecorder{},
		Client: c, Clusters: &clusters.Watch{}, Now: now, Rand: random,
		Connections: link.NewPool(t.Context(), scheme, now, random), Metrics: NewMetrics(prometheus.NewRegistry()), ObserveInterval: time.Minute,
	}
	key := client.ObjectKeyFromObject(&child)
	connected := func() (metav1.ConditionStatus, string) {
		t.Helper()
		if _, err := children.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		got := &v1alpha1.Child{}
		if err := c.Get(t.Context(), key, got); err != nil {
			t.Fatal(err)
		}
		found := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConnectedCondition)
		return found.Status, found.Message
	}
	for _, after := range []time.Duration{0, time.Second, listHolds - time.Second} {
		at = start.Add(after)
		if status, message := connected(); status != metav1.ConditionTrue {
			t.Errorf("%s after the start Connected is %s: %s", after, status, message)
		}
	}
	at = start.Add(listHolds)
	if status, message := connected(); status != metav1.ConditionUnknown || message != errNotListed.Error() {
		t.Errorf("after %s Connected is %s: %s", listHolds, status, message)
	}
}
