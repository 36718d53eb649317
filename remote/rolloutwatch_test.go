package remote

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestGoneWhileNobodyLed: a Rollout that was deleted while no process led the tier, or by one that
// ended before it had let all clusters go, is found by the next one.
func TestGoneWhileNobodyLed(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	child := childNamed("alpha", nil)
	child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "gone"}, {Name: "stays"}}
	stays := &v1alpha1.Rollout{}
	stays.Namespace, stays.Name = child.Namespace, "stays"
	for name, elected := range map[string]chan struct{}{"Alone": nil, "Elected": make(chan struct{})} {
		t.Run(name, func(t *testing.T) {
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			r := &Rollouts{
				Client:   fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child, stays).Build(),
				rollouts: &rolloutKind{now: time.Now, served: true},
			}
			want := map[types.NamespacedName]bool{{Namespace: "fleet", Name: "gone"}: true}
			if elected != nil {
				r.Part.Elected = elected
				want[types.NamespacedName{Namespace: "fleet", Name: "stays"}] = true
			}
			if err := r.onElected(t.Context(), queue); err != nil {
				t.Fatal(err)
			}
			if elected != nil {
				close(elected)
			}
			for len(want) > 0 {
				got, _ := queue.Get()
				if !want[got.NamespacedName] {
					t.Fatalf("it looks at %s", got)
				}
				delete(want, got.NamespacedName)
			}
		})
	}
}
