package remote

import (
	"slices"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
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

// TestChartVersion: the newest version of a HelmChart is what was fetched of it here, whose status
// comes later, or else what its status says; and a new status wakes the Rollouts that take versions of it.
func TestChartVersion(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, sourcev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	web := &sourcev1.HelmChart{}
	web.Namespace, web.Name, web.Status.Artifact = "fleet", "web", &fluxmeta.Artifact{Revision: "1.2.0"}
	rolloutOf := func(namespace, name string, ref v1alpha1.RolloutSourceReference) *v1alpha1.Rollout {
		o := &v1alpha1.Rollout{}
		o.Namespace, o.Name, o.Spec.SourceRef = namespace, name, &ref
		return o
	}
	r := &Rollouts{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(web,
			rolloutOf("fleet", "here", v1alpha1.RolloutSourceReference{Kind: "HelmChart", Name: "web"}),
			rolloutOf("apps", "there", v1alpha1.RolloutSourceReference{Kind: "HelmChart", Namespace: "fleet", Name: "web"}),
			rolloutOf("apps", "other", v1alpha1.RolloutSourceReference{Kind: "HelmChart", Name: "web"}),
			rolloutOf("fleet", "source", v1alpha1.RolloutSourceReference{Kind: "GitRepository", Name: "web"})).Build(),
		Snapshots: source.NewSnapshots(), rollouts: &rolloutKind{now: time.Now, served: true},
	}
	key := source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: client.ObjectKeyFromObject(web)}
	newest := func() string {
		is, _, observed, err := r.candidate(t.Context(), &v1alpha1.Rollout{}, &moved{from: key})
		if err != nil || is.Revision != observed {
			t.Fatalf("the candidate is %+v, %s was looked at: %v", is, observed, err)
		}
		return observed
	}
	if got := newest(); got != "1.2.0" {
		t.Errorf("where another process fetches it, it is %s", got)
	}
	r.Snapshots.Put(key, &source.Snapshot{Revision: "1.3.0"})
	if got := newest(); got != "1.3.0" {
		t.Errorf("before the status says so, it is %s", got)
	}
	web.Spec.ValuesFiles = []string{"values-prod.yaml"}
	if err := r.Client.Update(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	r.Snapshots.Put(key, &source.Snapshot{Revision: "1.3.0+2"})
	if got := newest(); got != "1.3.0" {
		t.Errorf("with values files, it is %s", got)
	}
	var woken []string
	for _, request := range r.ofChart(t.Context(), web) {
		woken = append(woken, request.String())
	}
	slices.Sort(woken)
	if diff := cmp.Diff([]string{"apps/there", "fleet/here"}, woken); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	after := web.DeepCopy()
	after.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	if otherVersion().Update(event.TypedUpdateEvent[*sourcev1.HelmChart]{ObjectOld: web, ObjectNew: after}) {
		t.Error("the same version wakes")
	}
	after.Status.Artifact.Revision = "1.3.0"
	if !otherVersion().Update(event.TypedUpdateEvent[*sourcev1.HelmChart]{ObjectOld: web, ObjectNew: after}) {
		t.Error("another version does not wake")
	}
}
