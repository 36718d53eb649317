package helm

import (
	"os"
	"regexp"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// kubeConfig: objects and storage are in another cluster.
func (h *releaseSpec) kubeConfig(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.ReleaseTells(t, "web", "Ready", "False", "RESTClientError", "...other")
	other, err := r.Cluster(t.Context(), "other-release")
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
	r.Request(t, "web")
	o := r.Released(t, "web", 1)
	if diff := cmp.Diff([]string{"default_default-web-settings__ConfigMap v1"}, scenario.ReleaseInventory(o)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	there := &corev1.ConfigMap{}
	if err := scenario.Get(t.Context(), other, there, "default", "default-web-settings"); err != nil || there.Labels["helm.toolkit.fluxcd.io/namespace"] != r.Namespace {
		t.Errorf("labels %v, %v", there.Labels, err)
	}
	if err := scenario.Get(t.Context(), other, &corev1.Secret{}, "default", "sh.helm.release.v1.default-web.v1"); err != nil {
		t.Errorf("Helm's storage is not in the other cluster: %v", err)
	}
	r.Absent(t, &corev1.ConfigMap{}, "default", "default-web-settings")
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "default-web-settings"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still in the other cluster: %v", err)
	}
	// Without the Secret nothing can be uninstalled, so it stays and the
	// HelmRelease goes.
	r.Release(t, "web", "{targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.Released(t, "web", 1)
	r.Delete(t, &corev1.Secret{}, "other")
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	if err := scenario.Get(t.Context(), other, &corev1.ConfigMap{}, "default", "default-web-settings"); err != nil {
		t.Errorf("it is not in the other cluster: %v", err)
	}
}

const deployer = `apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $ns}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`

func (h *releaseSpec) serviceAccount(t *testing.T) {
	r := h.Row(t)
	account, binding, _ := strings.Cut(r.Fill(deployer), "---\n")
	r.Apply(t, account)
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.Release(t, "web", "serviceAccountName: deployer")
	o := r.ReleaseTells(t, "web", "Ready", "False", "StateError", `...User "system:serviceaccount:`+r.Namespace+`:deployer" cannot list resource "secrets"`)
	if len(o.Status.History) != 0 {
		t.Errorf("history is %v", scenario.Snapshots(o))
	}
	r.Apply(t, binding)
	r.Request(t, "web")
	r.Released(t, "web", 1)
	impersonated := 0
	for _, e := range r.Writes(t, from) {
		if e.ObjectRef.Resource == "configmaps" || e.ObjectRef.Resource == "secrets" {
			if e.ImpersonatedUser.Username != "system:serviceaccount:"+r.Namespace+":deployer" {
				t.Errorf("%s %s as %q", e.Verb, e.RequestURI, e.ImpersonatedUser.Username)
			}
			impersonated++
		}
	}
	if impersonated < 2 {
		t.Errorf("the audit log has %d writes", impersonated)
	}
}

// serviceAccountGone: without the account nothing can be uninstalled with its
// rights, so it stays, and the HelmRelease goes.
func (h *releaseSpec) serviceAccountGone(t *testing.T) {
	r := h.Row(t)
	r.Apply(t, r.Fill(deployer))
	r.Release(t, "web", "serviceAccountName: deployer")
	r.Released(t, "web", 1)
	r.Delete(t, &corev1.ServiceAccount{}, "deployer")
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Has(t, "web-settings", "color", "red")
}

// namespaces: where the objects are and where Helm keeps its storage are two
// things, and a namespace is created when that is said.
func (h *releaseSpec) namespaces(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{targetNamespace: $ns-target, storageNamespace: $ns}")
	o := r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", `...namespaces "`+r.Namespace+`-target" not found`)
	if o.Status.StorageNamespace != r.Namespace {
		t.Errorf("the storage namespace is %q", o.Status.StorageNamespace)
	}
	r.Release(t, "made", "{targetNamespace: $ns-made, install: {createNamespace: true}}")
	r.Released(t, "made", 1)
	r.History(t, "made", r.Namespace+"-made/"+r.Namespace+"-made-made.v1 deployed app@1.0.0")
	if diff := cmp.Diff([]string{"v1 deployed"}, r.Storage(t, r.Namespace, r.Namespace+"-made-made")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	if err := r.Load(t.Context(), &corev1.ConfigMap{}, r.Namespace+"-made", r.Namespace+"-made-made-settings"); err != nil {
		t.Error(err)
	}
	r.Release(t, "stored", "{storageNamespace: $ns-made, releaseName: stored}")
	r.Released(t, "stored", 1)
	if diff := cmp.Diff([]string{"v1 deployed"}, r.Storage(t, r.Namespace+"-made", "stored")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.Has(t, "stored-settings", "color", "red")
}

// longName: a name that Helm does not take is shortened.
func (h *releaseSpec) longName(t *testing.T) {
	r := h.Row(t)
	name := strings.Repeat("long", 15)
	r.Release(t, name, "{}")
	o := r.Released(t, name, 1)
	want := regexp.MustCompile(`^(long){10}-[0-9a-f]{12}$`)
	if s := o.Status.History.Latest(); !want.MatchString(s.Name) || len(r.Storage(t, r.Namespace, s.Name)) != 1 {
		t.Errorf("the release is %q", s.Name)
	}
	r.Request(t, name)
	r.Released(t, name, 1)
}

func (h *releaseSpec) releaseName(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "releaseName: other")
	r.Released(t, "web", 1)
	r.Has(t, "other-settings", "color", "red")
	// With another name it is another release: the first goes.
	r.Release(t, "web", "releaseName: third")
	r.Event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.Namespace+"/other.v1 with chart app@1.0.0")
	r.Has(t, "third-settings", "color", "red")
	r.Released(t, "web", 1)
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "other-settings")
	r.History(t, "web", r.Namespace+"/third.v1 deployed app@1.0.0")
}
