package children

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// byIdentity is a cluster for which nobody stores a credential: a token of a service
// account of the hub is exchanged for access. The cluster that takes these tokens is the
// hub's own, whose API server issues them.
func byIdentity(h *hub, t *testing.T) {
	f := h.fleet(t, "byidentity", map[string]string{"app/note.yaml": noteNamed("identified", "cluster", "${cluster_name}", "version", "1")})
	config, err := h.tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	own := &plane{Tier: h.tier, client: h.client}
	name := metav1.ObjectMeta{Namespace: f.name, Name: "edge"}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: name},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "edge-of-" + f.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.name, Name: "edge"}},
		},
	} {
		if err := h.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	way := func(account string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: name, Data: map[string]string{
			"provider": "generic", "address": config.Host, "ca.crt": string(config.CAData),
			"audiences": "https://kubernetes.default.svc.cluster.local", "serviceAccountName": account,
		}}
	}
	f.layer(t, "app", "edge")
	f.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: edge, labels: {cluster: edge}}, spec: {kubeConfig: {configMapRef: {name: edge}}}}")
	steps(t,
		step{"ConfigMapMissing", func(t *testing.T) {
			f.says(t, "edge", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigMissing, "ConfigMap edge")
		}},
		step{"OwnTokenStaysHere", func(t *testing.T) {
			if err := h.client.Create(t.Context(), way("")); err != nil {
				t.Fatal(err)
			}
			f.reconciled(t, "edge")
			f.says(t, "edge", v1alpha1.ConnectedCondition, v1alpha1.ReasonKubeconfigRefused, "must name a serviceAccountName")
		}},
		step{"Seeded", func(t *testing.T) {
			if err := h.client.Update(t.Context(), way("edge")); err != nil {
				t.Fatal(err)
			}
			f.reconciled(t, "edge")
			own.has(t, "identified", "cluster", "edge")
			f.ready(t, "edge", "")
		}},
		step{"NothingIsStored", func(t *testing.T) {
			secrets := &corev1.SecretList{}
			if err := h.client.List(t.Context(), secrets, client.InNamespace(f.name)); err != nil {
				t.Fatal(err)
			}
			for i := range secrets.Items {
				if !slices.Contains([]string{"git-auth"}, secrets.Items[i].Name) {
					t.Errorf("there is a Secret %s", secrets.Items[i].Name)
				}
			}
		}},
		step{"AccountLosesItsRights", func(t *testing.T) {
			// The parent has an account of its own by then, which goes on.
			if err := h.client.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "edge-of-" + f.name}}); err != nil {
				t.Fatal(err)
			}
			sha := f.commit(t, map[string]string{"app/note.yaml": noteNamed("identified", "cluster", "${cluster_name}", "version", "2")})
			own.has(t, "identified", "version", "2")
			f.ready(t, "edge", sha)
		}},
		step{"InCluster", func(t *testing.T) {
			// Nobody has to say where the tier's own cluster is.
			before := f.child1(t, "edge").Status.Identity.KubeSystemUID
			if err := h.client.Delete(t.Context(), f.child1(t, "edge")); err != nil {
				t.Fatal(err)
			}
			f.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: self, labels: {cluster: edge}}, spec: {inCluster: true}}")
			own.has(t, "identified", "cluster", "self")
			child := f.ready(t, "self", "")
			if id := child.Status.Identity; id == nil || id.KubeSystemUID != before {
				t.Errorf("the identity is %+v, want kube-system %s", id, before)
			}
			f.layer(t, "agent", "edge", "agent: {}")
			f.says(t, "self", v1alpha1.SeededCondition, v1alpha1.ReasonInvalidSpec, "own cluster")
		}},
		step{"BothWaysAreRefused", func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "both"}, Spec: v1alpha1.ChildSpec{KubeConfig: &v1alpha1.KubeConfigReference{
				SecretRef: &v1alpha1.SecretKeyReference{Name: "a"}, ConfigMapRef: &v1alpha1.LocalReference{Name: "b"},
			}}}
			if err := h.client.Create(t.Context(), child); err == nil || !strings.Contains(err.Error(), "exactly one of secretRef and configMapRef") {
				t.Error(fmt.Errorf("it is admitted, or refused for something else: %w", err))
			}
		}},
	)
}

// addedByHand: cascade child add makes a cluster a child, again without effect, and as no
// other one; cascade child remove takes it out again and leaves what is in it.
func addedByHand(h *hub, t *testing.T) {
	f := h.fleet(t, "added", map[string]string{"app/note.yaml": noteNamed("added", "cluster", "${cluster_name}")})
	p := h.plane(t, "added-by-hand", "--audit-reads") // with the controllers, one of which issues tokens
	program := scenario.Path(t, "bin", "cascade")
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, append([]string{"child", "-n", f.name, "--kubeconfig", h.tier.Kubeconfig()}, args...)...).CombinedOutput()
		return string(out), err
	}
	must := func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return out
	}
	with := []string{"--child-kubeconfig", p.Kubeconfig(), "--label", "cluster=edge"}
	f.layer(t, "app", "edge")
	steps(t,
		step{"Exported", func(t *testing.T) {
			out := must(t, append([]string{"add", "edge", "--export"}, with...)...)
			for _, part := range []string{"kind: Child", "kind: Secret", "name: edge-kubeconfig", "secretRef:"} {
				if !strings.Contains(out, part) {
					t.Errorf("what is printed lacks %q", part)
				}
			}
			if _, err := f.child(t.Context(), "edge"); !apierrors.IsNotFound(err) {
				t.Errorf("it was written as well: %v", err)
			}
		}},
		step{"Added", func(t *testing.T) {
			must(t, append([]string{"add", "edge"}, with...)...)
			p.has(t, "added", "cluster", "edge")
			f.ready(t, "edge", "")
		}},
		step{"Again", func(t *testing.T) {
			before := f.child1(t, "edge")
			must(t, append([]string{"add", "edge"}, with...)...)
			if after := f.child1(t, "edge"); after.UID != before.UID || after.Generation != before.Generation {
				t.Error("the Child is another one, or was changed")
			}
		}},
		step{"Repaired", func(t *testing.T) {
			// Nothing is said of labels: the layer still selects it.
			must(t, "add", "edge", "--child-kubeconfig", p.Kubeconfig())
			if label := f.child1(t, "edge").Labels["cluster"]; label != "edge" {
				t.Errorf("label cluster is %q", label)
			}
		}},
		step{"AsAnother", func(t *testing.T) {
			if out, err := run(append([]string{"add", "twin"}, with...)...); err == nil || !strings.Contains(out, "already") {
				t.Errorf("one cluster is two children: %v: %s", err, out)
			}
		}},
		step{"Removed", func(t *testing.T) {
			must(t, "remove", "edge", "--child-kubeconfig", p.Kubeconfig())
			p.has(t, "added", "cluster", "edge")
			account := &corev1.ServiceAccount{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: "kube-system", Name: "cascade-child"}, account); !apierrors.IsNotFound(err) {
				t.Errorf("the account is there still: %v", err)
			}
			secret := &corev1.Secret{}
			if err := h.client.Get(t.Context(), client.ObjectKey{Namespace: f.name, Name: "edge-kubeconfig"}, secret); !apierrors.IsNotFound(err) {
				t.Errorf("the Secret is there still: %v", err)
			}
		}},
	)
}
