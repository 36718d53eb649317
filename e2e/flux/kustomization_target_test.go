package flux

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func (s *kustomizationSpec) serviceAccount(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: deployer, namespace: $ns}\n"))
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.Kustomization(t, "app", "serviceAccountName: deployer")
	c := r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "ConfigMap/"+r.Namespace+"/a ")
	if !strings.Contains(c.Message, `User "system:serviceaccount:`+r.Namespace+`:deployer" cannot`) {
		t.Errorf("the message is %q", c.Message)
	}
	r.Apply(t, r.Fill(`apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`))
	r.Ready(t, "app")
	impersonated := 0
	for _, e := range r.Writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" {
			if e.ImpersonatedUser.Username != "system:serviceaccount:"+r.Namespace+":deployer" {
				t.Errorf("%s %s as %q", e.Verb, e.RequestURI, e.ImpersonatedUser.Username)
			}
			impersonated++
		}
	}
	if impersonated == 0 {
		t.Error("the audit log has no write")
	}
}

// serviceAccountGone: without the account nothing can be pruned with its rights,
// so it stays, and the Kustomization goes.
func (s *kustomizationSpec) serviceAccountGone(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Apply(t, r.Fill(`apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $ns}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`))
	r.Kustomization(t, "app", "serviceAccountName: deployer")
	r.Ready(t, "app")
	r.Delete(t, &corev1.ServiceAccount{}, "deployer")
	r.Delete(t, &kustomizev1.Kustomization{}, "app")
	r.Gone(t, &kustomizev1.Kustomization{}, "app")
	if r.Data(t, "a") == nil {
		t.Error("the object is gone")
	}
}

// kubeConfig: the objects are those of another cluster.
func (s *kustomizationSpec) kubeConfig(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Kustomization(t, "app", "{targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", `...Secret "other" not found`)
	other, err := r.Cluster(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "other"}, Data: map[string][]byte{"value.yaml": kubeconfig}}
	if err := r.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	k := r.Ready(t, "app")
	if diff := cmp.Diff([]string{"default_a__ConfigMap v1"}, scenario.Inventory(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	there := &corev1.ConfigMap{}
	if err := scenario.Get(t.Context(), other, there, "default", "a"); err != nil || there.Labels["kustomize.toolkit.fluxcd.io/namespace"] != r.Namespace {
		t.Errorf("labels %v, %v", there.Labels, err)
	}
	if err := r.Load(t.Context(), &corev1.ConfigMap{}, "default", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("it is in the first cluster: %v", err)
	}
	r.Delete(t, &kustomizev1.Kustomization{}, "app")
	r.Gone(t, &kustomizev1.Kustomization{}, "app")
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// managers: what a manager adds whose fields are not its own is removed, here and in other
// clusters, although nothing else is different. What others add stays.
func (s *kustomizationSpec) managers(t *testing.T) {
	t.Run("Removed", func(t *testing.T) {
		r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}"), "there/a.yaml": scenario.ConfigMapWith("edited", "", "{k: v}")})
		s.RestartAgent(t, "--override-manager=node-fetch")
		other, err := r.Cluster(t.Context(), "managers")
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := os.ReadFile(other.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "other"}, Data: map[string][]byte{"value": kubeconfig}}
		if err := r.Client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		r.Kustomization(t, "app", "")
		r.Kustomization(t, "there", "{targetNamespace: default, interval: 1s, kubeConfig: {secretRef: {name: other}}}")
		r.Ready(t, "app")
		r.Ready(t, "there")
		there, err := other.Client()
		if err != nil {
			t.Fatal(err)
		}
		objects := []struct {
			client          client.Client
			namespace, name string
		}{{r.Client, r.Namespace, "a"}, {there, "default", "edited"}}
		for _, in := range objects {
			for _, manager := range []string{"somebody", "kubectl-edit", "node-fetch"} {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in.namespace, Name: in.name}}
				patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"data":{"by-%s":"added"}}`, manager))
				if err := in.client.Patch(t.Context(), m, patch, client.FieldOwner(manager)); err != nil {
					t.Fatal(err)
				}
			}
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: in.namespace, Name: in.name}}
			kept := client.RawPatch(types.ApplyPatchType, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"kept":"added"}}`, in.name))
			if err := in.client.Patch(t.Context(), m, kept, client.FieldOwner("flux-client-side-apply")); err != nil {
				t.Fatal(err)
			}
		}
		for _, in := range objects {
			scenario.Eventually(t, scenario.Converge, "what is added to "+in.name+" is removed", func(ctx context.Context) error {
				m := &corev1.ConfigMap{}
				if err := in.client.Get(ctx, client.ObjectKey{Namespace: in.namespace, Name: in.name}, m); err != nil {
					return err
				}
				if diff := cmp.Diff(map[string]string{"k": "v", "by-somebody": "added", "kept": "added"}, m.Data); diff != "" {
					return fmt.Errorf("data: -want, +got:\n%s", diff)
				}
				return nil
			})
		}
	})
	t.Run("Raced", s.raced)
}

// targetMoves: what is applied to another cluster from now on is pruned in the
// one before, up to the number that a person has to approve.
func (s *kustomizationSpec) targetMoves(t *testing.T) {
	files := map[string]string{"app/a.yaml": scenario.ConfigMapWith("moving", "", "{k: v}")}
	r := s.Row(t, files)
	other, err := r.Cluster(t.Context(), "moved-to")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "other"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := r.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	r.Kustomization(t, "app", "{targetNamespace: default}")
	r.Ready(t, "app")
	// Away, and back.
	r.Kustomization(t, "app", "{targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.Ready(t, "app")
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving"); err != nil {
		t.Errorf("it is not where it moved to: %v", err)
	}
	if err := r.Load(t.Context(), &corev1.ConfigMap{}, "default", "moving"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still where it was: %v", err)
	}
	more := map[string]string{}
	for i := range 12 {
		more[fmt.Sprintf("app/more-%d.yaml", i)] = scenario.ConfigMapWith(fmt.Sprintf("moving-%d", i), "", "{k: v}")
	}
	r.Commit(t, more)
	r.Ready(t, "app")
	r.Kustomization(t, "app", "{targetNamespace: default, kubeConfig: null}")
	c := r.Says(t, "app", "Ready", "False", "PruneBlocked", "...cascade approve prune")
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving"); err != nil {
		t.Errorf("a removal that nobody approved was carried out: %v", err)
	}
	_, hash, _ := strings.Cut(c.Message, "--hash ")
	r.Patch(t, &kustomizev1.Kustomization{}, "app", fmt.Sprintf(`{"metadata":{"annotations":{"cascade.dev/approve-prune":%q}}}`, strings.Fields(hash)[0]))
	k := r.Ready(t, "app")
	if len(scenario.Inventory(k)) != 13 || k.Annotations["cascade.dev/target"] != "" {
		t.Errorf("inventory %v, target %q", scenario.Inventory(k), k.Annotations["cascade.dev/target"])
	}
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "moving-3"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still in the other cluster: %v", err)
	}
}
