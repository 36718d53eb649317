package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
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

// TestFluxBehindClock: a Lease that is renewed is held, however far ahead the clock of this node is. One that was
// killed keeps nobody waiting for longer than it would have held.
func TestFluxBehindClock(t *testing.T) {
	const name = "kustomize-controller-leader-election"
	for what, tc := range map[string]struct {
		reason string
		ahead  time.Duration
		every  time.Duration // between two renewals; zero: it was killed
		want   time.Duration
	}{
		"Renewed": {"Flux works", time.Minute, 5 * time.Second, 0},
		"Hours":   {"so it does, and the clock is that of another time zone", 9 * time.Hour, 5 * time.Second, 0},
		"Killed":  {"it was killed a minute ago", time.Minute, 0, 35 * time.Second},
		"Gone":    {"it was killed days ago, and each start of the agent would wait", 48 * time.Hour, 0, -1},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				l := &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: FluxNamespace, Name: name},
					Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("pod"), RenewTime: new(metav1.NewMicroTime(begin)), LeaseDurationSeconds: new(int32(35))},
				}
				clients := fake.NewClientset(l)
				renew := func() {
					l = l.DeepCopy()
					l.Spec.RenewTime = new(metav1.NewMicroTime(time.Now()))
					if _, err := clients.CoordinationV1().Leases(FluxNamespace).Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
						t.Error(err)
					}
				}
				f := &fluxControllers{
					clients: clients, namespaces: []string{FluxNamespace}, leases: (&sharding{kinds: controllerKinds()}).fluxLeases(),
					now: func() time.Time { return time.Now().Add(tc.ahead) }, log: logr.Discard(),
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				var renewing sync.WaitGroup
				if tc.every > 0 {
					renewing.Go(func() {
						for ctx.Err() == nil {
							time.Sleep(tc.every)
							renew()
						}
					})
				}
				err := f.await(ctx, "")
				if tc.want == 0 {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: after %s it begins beside Flux: %v", tc.reason, time.Since(begin), err)
					}
					cancel()
					renewing.Wait()
					return
				}
				if took := time.Since(begin); err != nil || took != max(tc.want, 0) {
					t.Errorf("%s: it began after %s, %v", tc.reason, took, err)
				}
				// It comes back while the agent works, as Start looks whenever a Lease changes.
				time.Sleep(time.Hour)
				if holder, err := f.holder(t.Context()); err != nil || holder != "" {
					t.Errorf("%s: nobody came back, and %q works, %v", tc.reason, holder, err)
				}
				renew()
				if holder, err := f.holder(t.Context()); err != nil || holder != FluxNamespace+"/"+name {
					t.Errorf("%s: it came back, and %q works, %v", tc.reason, holder, err)
				}
			})
		})
	}
}
