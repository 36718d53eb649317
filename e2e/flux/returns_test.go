package flux

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFluxReturns: one of Flux's controllers comes to work in a tier, because what
// declares it is in Git and says so. The agent gives way: it ends, is alive and not ready
// while it waits, and writes nothing. It goes on where it was when the controller has
// ended.
func TestFluxReturns(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	s.Repository(t, "work", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "one")})
	s.Apply(t, scenario.Kustomization("app", "work", "app", ""))
	s.Value(t, "a", "one")
	s.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: flux-system}\n")

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "kustomize-controller-leader-election"}}
	if err := s.Client.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	renewals := make(chan struct{})
	renewing, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- lead(renewing, s, lease, renewals) }()
	agentIs(t, s, "waiting", func(d *appsv1.Deployment, p *corev1.Pod) error {
		if d.Status.ReadyReplicas != 0 || len(p.Status.ContainerStatuses) != 1 || p.Status.ContainerStatuses[0].RestartCount == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%d replicas are ready: %+v", d.Status.ReadyReplicas, p.Status.ContainerStatuses)
		}
		return nil
	})

	from := s.AuditOffset(t)
	s.Put(t, "work", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "two")})
	restarts := int32(-1)
	// Longer than the source's interval, the pause between two looks, and the patience of
	// the liveness probe.
	for range 20 {
		<-renewals
	}
	agentIs(t, s, "waiting", func(_ *appsv1.Deployment, p *corev1.Pod) error {
		restarts = p.Status.ContainerStatuses[0].RestartCount
		return nil
	})
	events, _, err := s.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.ByAgent() && e.Writes() {
			t.Errorf("beside Flux's controller the agent sent %s %s", e.Verb, e.RequestURI)
		}
	}
	if restarts != 1 {
		t.Errorf("the agent that waits was started %d times again, want once", restarts)
	}

	end()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.Value(t, "a", "two")
}

// lead holds a Lease as a controller of Flux does, until the context ends.
func lead(ctx context.Context, s *scenario.Tier, lease *coordinationv1.Lease, renewals chan<- struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		now := metav1.NowMicro()
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("kustomize-controller-0"), LeaseDurationSeconds: new(int32(35)), RenewTime: &now}
		if err := s.Client.Update(ctx, lease); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.Background(), scenario.Converge)
			defer cancel()
			if err := s.Load(ctx, lease, lease.Namespace, lease.Name); err != nil {
				return err
			}
			lease.Spec.HolderIdentity = new("")
			return s.Client.Update(ctx, lease)
		case renewals <- struct{}{}:
			<-tick.C
		case <-tick.C:
		}
	}
}

// agentIs waits until the agent's Deployment and its pod are as wanted.
func agentIs(t *testing.T, s *scenario.Tier, what string, wanted func(*appsv1.Deployment, *corev1.Pod) error) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the agent is "+what, func(ctx context.Context) error {
		d, pods := &appsv1.Deployment{}, &corev1.PodList{}
		if err := errors.Join(s.Load(ctx, d, stage.Namespace, "cascade"), s.Client.List(ctx, pods)); err != nil {
			return err
		}
		for i := range pods.Items {
			if strings.HasPrefix(pods.Items[i].Name, "cascade-") && pods.Items[i].Namespace == stage.Namespace {
				return wanted(d, &pods.Items[i])
			}
		}
		return errors.New("it has no pod")
	})
}
