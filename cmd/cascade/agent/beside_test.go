package agent

import (
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/cmd/cascade/lease"
)

// TestLeave: which kinds are left to Flux's controllers that work beside the agent, or
// because the cluster does not have them.
func TestLeave(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	held := func(namespace, name string) *coordinationv1.Lease {
		holder, renewed := "pod", metav1.NewMicroTime(now.Add(-time.Second))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(35))},
		}
	}
	const notification, images = "notification.toolkit.fluxcd.io", "image.toolkit.fluxcd.io/v1"
	all := map[string][]string{
		notification + "/v1": {"Receiver"}, notification + "/v1beta3": {"Alert", "Provider"},
		images: {"ImageRepository", "ImagePolicy", "ImageUpdateAutomation"}, "source.extensions.fluxcd.io/v1beta1": {"ArtifactGenerator"},
		"cascade.dev/v1alpha1": {"Layer", "Credential", "StateBackup"},
	}
	earlier := map[string][]string{"cascade.dev/v1alpha1": {"Layer"}}
	without := func(version string) map[string][]string {
		rest := map[string][]string{}
		for v, kinds := range all {
			if v != version {
				rest[v] = kinds
			}
		}
		return rest
	}
	for name, tc := range map[string]struct {
		reason string
		lease  *coordinationv1.Lease
		served map[string][]string
		kinds  []string
		want   []leftKind
	}{
		"Alone":   {"no controller of Flux is there", nil, all, controllerKinds(), nil},
		"Held":    {"events are told by Flux", held("flux-system", lease.NotificationController), all, controllerKinds(), []leftKind{{"Receiver", leftToFlux, "flux-system/" + lease.NotificationController}, {"Alert", leftToFlux, "flux-system/" + lease.NotificationController}, {"Provider", leftToFlux, "flux-system/" + lease.NotificationController}}},
		"Shard":   {"a part of the events is", held("flux-system", lease.NotificationController+"-0a1b2c3d"), all, []string{"Receiver"}, []leftKind{{"Receiver", leftToFlux, "flux-system/" + lease.NotificationController + "-0a1b2c3d"}}},
		"Beside":  {"in our namespace", held("cascade-system", lease.SourceWatcher), all, controllerKinds(), []leftKind{{"ArtifactGenerator", leftToFlux, "cascade-system/" + lease.SourceWatcher}}},
		"NotOurs": {"of kinds that this process was not asked for", held("flux-system", lease.SourceWatcher), all, []string{"Receiver"}, nil},
		"Missing": {"a cluster without the definitions", nil, without("source.extensions.fluxcd.io/v1beta1"), controllerKinds(), []leftKind{{kind: "ArtifactGenerator", reason: leftMissing}}},
		"Old":     {"definitions of an earlier Flux have other versions", nil, without(images), []string{"ImagePolicy"}, []leftKind{{kind: "ImagePolicy", reason: leftMissing}}},
		"Earlier": {"our own definitions are those of an earlier version", nil, earlier, []string{"Layer", "Credential", "StateBackup"}, []leftKind{{kind: "Credential", reason: leftMissing}, {kind: "StateBackup", reason: leftMissing}}},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tc.lease != nil {
				objects = append(objects, tc.lease)
			}
			clients := fake.NewClientset(objects...)
			for version, kinds := range tc.served {
				list := &metav1.APIResourceList{GroupVersion: version}
				for _, kind := range kinds {
					list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind})
				}
				d := clients.Discovery().(*fakediscovery.FakeDiscovery)
				d.Resources = append(d.Resources, list)
			}
			s := &sharding{kinds: slices.Clone(tc.kinds)}
			f, err := newFluxControllers(&rest.Config{}, &place{namespace: "cascade-system", flux: FluxNamespace}, s, func() time.Time { return now }, logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			f.clients = clients
			got, err := f.leave(t.Context())
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%s: leave() = %v, %v, want %v", tc.reason, got, err, tc.want)
			}
			f.left = got
			s.leave(got) // as the agent does, which goes on to look
			if slices.ContainsFunc(got, func(l leftKind) bool { return slices.Contains(s.kinds, l.kind) }) || len(s.kinds)+len(got) != len(tc.kinds) {
				t.Errorf("%s: the agent goes on with %v", tc.reason, s.kinds)
			}
			if free, err := f.free(t.Context()); err != nil || len(free) > 0 {
				t.Errorf("%s: nothing changed, and %v is free, %v", tc.reason, free, err)
			}
		})
	}
}

// TestFree: a kind that was left alone is free when its controller has ended.
func TestFree(t *testing.T) {
	clients := fake.NewClientset()
	clients.Discovery().(*fakediscovery.FakeDiscovery).Resources = []*metav1.APIResourceList{
		{GroupVersion: "source.extensions.fluxcd.io/v1beta1", APIResources: []metav1.APIResource{{Kind: "ArtifactGenerator"}}},
	}
	left := leftKind{"ArtifactGenerator", leftToFlux, "flux-system/" + lease.SourceWatcher}
	f := &fluxControllers{clients: clients, namespaces: fluxNamespaces("cascade-system", FluxNamespace), kinds: []string{"ArtifactGenerator"}, left: []leftKind{left}, now: time.Now}
	free, err := f.free(t.Context())
	if err != nil || !slices.Equal(free, []leftKind{left}) {
		t.Fatalf("free() = %v, %v", free, err)
	}
	if got := both(nil, free); len(got) > 0 {
		t.Errorf("at the first look %v is taken over", got)
	}
	if got := both(free, free); !slices.Equal(got, free) {
		t.Errorf("at the second look %v is taken over", got)
	}
	s := sharding{kinds: []string{"Kustomization", "ArtifactGenerator"}}
	s.leave(f.left)
	if !slices.Equal(s.kinds, []string{"Kustomization"}) || len(s.besideLeases()) > 0 {
		t.Errorf("kinds %v, leases %v", s.kinds, s.besideLeases())
	}
}
