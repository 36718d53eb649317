package agent

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestFluxHolder(t *testing.T) {
	now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	lease := func(namespace, name, holder string, ago time.Duration) *coordinationv1.Lease {
		renewed := metav1.NewMicroTime(now.Add(-ago))
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: new(int32(35))},
		}
	}
	const kustomize, source = "kustomize-controller-leader-election", "source-controller-leader-election"
	for name, tc := range map[string]struct {
		reason string
		lease  *coordinationv1.Lease
		kinds  []string
		flux   string
		want   string
	}{
		"Held":      {"Flux works", lease("flux-system", kustomize, "pod", time.Second), controllerKinds(), FluxNamespace, "flux-system/" + kustomize},
		"Shard":     {"Flux works on a part of the objects", lease("flux-system", kustomize+"-0a1b2c3d", "pod", time.Second), controllerKinds(), FluxNamespace, "flux-system/" + kustomize + "-0a1b2c3d"},
		"Named":     {"Flux is where the agent was told", lease("gitops", kustomize, "pod", time.Second), controllerKinds(), "gitops", "gitops/" + kustomize},
		"Own place": {"Flux works in our namespace", lease("cascade-system", source, "pod", time.Second), controllerKinds(), FluxNamespace, "cascade-system/" + source},
		"Released":  {"it was scaled to zero in an orderly way", lease("flux-system", kustomize, "", time.Second), controllerKinds(), FluxNamespace, ""},
		"Lapsed":    {"it was killed a while ago", lease("flux-system", kustomize, "pod", time.Minute), controllerKinds(), FluxNamespace, ""},
		"Its part":  {"Flux fetches the sources, and we apply them", lease("flux-system", source, "pod", time.Second), []string{"Kustomization"}, FluxNamespace, ""},
		"Elsewhere": {"somebody's lease of that name in another namespace", lease("default", kustomize, "pod", time.Second), controllerKinds(), FluxNamespace, ""},
	} {
		t.Run(name, func(t *testing.T) {
			shard := sharding{kinds: tc.kinds}
			f := &fluxControllers{
				clients: fake.NewClientset(tc.lease), namespaces: fluxNamespaces("cascade-system", tc.flux), leases: shard.fluxLeases(),
				now: func() time.Time { return now },
			}
			got, err := f.holder(t.Context())
			if err != nil || got != tc.want {
				t.Errorf("%s: holder() = %q, %v, want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}
