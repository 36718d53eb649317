package children

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
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
