package install

import (
	"context"
	"fmt"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// seeded is a child whose agent a layer brings.
type seeded struct {
	*cluster
	there client.Client
}

// TestLayerValues: a layer says of an agent what an installation says, its children follow
// when it says something else, and an upgrade of their parent does not move them.
func TestLayerValues(t *testing.T) {
	scenario.Alongside(t)
	s := &seeded{cluster: startCluster(t, true)}
	s.install(t)
	below, err := s.Cluster(t.Context(), "below")
	if err != nil {
		t.Fatal(err)
	}
	if err := below.StartNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.there, err = below.Client(); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(below.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "below"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := s.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	s.Apply(t, `{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: below, namespace: cascade-system, labels: {below: "yes"}}, spec: {kubeConfig: {secretRef: {name: below}}}}`)

	s.says(t, "hostNetwork: false, labels: {team: a}, lockdown: {impersonates: [platform]}")
	d := s.is(t, "it is locked down, off the host's network", func(ctx context.Context, d *appsv1.Deployment) error {
		if d.Spec.Template.Spec.HostNetwork || d.Labels["team"] != "a" {
			return fmt.Errorf("host network %t, labels %v", d.Spec.Template.Spec.HostNetwork, d.Labels)
		}
		return s.admin(ctx, 0)
	})
	ns := &corev1.Namespace{}
	if err := s.there.Get(t.Context(), client.ObjectKey{Name: stage.Namespace}, ns); err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Errorf("the Namespace admits %q: %v", ns.Labels["pod-security.kubernetes.io/enforce"], err)
	}

	// Its parent has another version, and so has its next agent.
	s.must(t, "install", "--image", "cascade.local/e2e:next")
	layer := named("cascade.dev/v1alpha1", "Layer", stage.Namespace, "base")
	s.asked(t)
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(layer), layer); err != nil {
		t.Fatal(err)
	}
	if image := layer.Object["status"].(map[string]any)["agentImage"]; image != stage.Image {
		t.Errorf("the layer notes the image %v", image)
	}
	after := &appsv1.Deployment{}
	if err := s.there.Get(t.Context(), client.ObjectKeyFromObject(d), after); err != nil || after.Generation != d.Generation {
		t.Errorf("the upgrade of the parent moved the child: generation %d, and was %d: %v", after.Generation, d.Generation, err)
	}

	s.says(t, "image: cascade.local/e2e:next, hostNetwork: true")
	s.approved(t)
	s.is(t, "it is an administrator again, of the other image, and its roles are gone", func(ctx context.Context, d *appsv1.Deployment) error {
		if image := d.Spec.Template.Spec.Containers[0].Image; !d.Spec.Template.Spec.HostNetwork || image != "cascade.local/e2e:next" || d.Labels["team"] != "" {
			return fmt.Errorf("host network %t, image %s, labels %v", d.Spec.Template.Spec.HostNetwork, image, d.Labels)
		}
		role := &rbacv1.ClusterRole{}
		if err := s.there.Get(ctx, client.ObjectKey{Name: "cascade-kustomizations"}, role); !apierrors.IsNotFound(err) {
			return fmt.Errorf("role cascade-kustomizations is there: %v", err)
		}
		return s.admin(ctx, 1)
	})
}

// approved waits until the roles of the lockdown are held, which are more than go unasked, and
// lets them go.
func (s *seeded) approved(t *testing.T) {
	t.Helper()
	hash := ""
	scenario.Eventually(t, scenario.Converge, "the roles are held", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := s.Load(ctx, child, stage.Namespace, "below"); err != nil {
			return err
		}
		if l := child.Status.Layers; len(l) == 1 && l[0].Held != nil && l[0].Held.Prune != nil {
			hash = l[0].Held.Prune.Hash
			return nil
		}
		return fmt.Errorf("layers are %+v", child.Status.Layers)
	})
	s.must(t, "approve", "prune", "below", "-n", stage.Namespace, "--kind", "Child", "--hash", hash)
}

// admin is an error unless so many accounts are administrators by the agent's binding.
func (s *seeded) admin(ctx context.Context, want int) error {
	binding := &rbacv1.ClusterRoleBinding{}
	if err := s.there.Get(ctx, client.ObjectKey{Name: "cascade"}, binding); err != nil {
		return err
	}
	if len(binding.Subjects) != want {
		return fmt.Errorf("the binding has the subjects %v", binding.Subjects)
	}
	return nil
}

// says has the layer say something of its agent, and nothing else.
func (s *seeded) says(t *testing.T, agent string) {
	t.Helper()
	s.Apply(t, `apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: base, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {below: "yes"}}
  wait: true
  agent: {`+agent+`}
`)
}

// is waits until the child's agent is as it should be, and the child says so.
func (s *seeded) is(t *testing.T, what string, as func(context.Context, *appsv1.Deployment) error) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	scenario.Eventually(t, scenario.Converge, what, func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := s.Load(ctx, child, stage.Namespace, "below"); err != nil {
			return err
		}
		if err := s.there.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "cascade"}, d); err != nil {
			return fmt.Errorf("%w; %s %+v", err, scenario.Summary(child.Status.Conditions), child.Status.Layers)
		}
		if err := as(ctx, d); err != nil {
			return fmt.Errorf("%w; %s %+v", err, scenario.Summary(child.Status.Conditions), child.Status.Layers)
		}
		if len(child.Status.Layers) == 0 || !child.Status.Layers[0].Ready || child.Status.Report == nil || !child.Status.Report.Ready && child.Status.Report.Reason != v1alpha1.ReasonNoChildren {
			return fmt.Errorf("the child says %s, layers %+v, report %+v", scenario.Summary(child.Status.Conditions), child.Status.Layers, child.Status.Report)
		}
		return nil
	})
	return d
}

// asked has the layer compared with the child by the parent that is there now.
func (s *seeded) asked(t *testing.T) {
	t.Helper()
	const at = "2026-09-01T12:00:00Z"
	layer := named("cascade.dev/v1alpha1", "Layer", stage.Namespace, "base")
	if err := s.Client.Patch(t.Context(), layer, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":"`+at+`"}}}`))); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the layer is compared", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := s.Load(ctx, child, stage.Namespace, "below"); err != nil {
			return err
		}
		if l := child.Status.Layers; len(l) == 0 || l[0].LastHandledReconcileAt != at || !l[0].Ready {
			return fmt.Errorf("layers are %+v", l)
		}
		return nil
	})
}
