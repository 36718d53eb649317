package safety

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// inventoryEdited: somebody else's Cluster is written into an inventory.
func (s *wipeOutRow) inventoryEdited(t *testing.T) {
	s.declare(t, "")
	made(t, s.HelmRow.Row, clusterOf("other", ", annotations: {cascade.dev/deletion: confirmed}"))
	s.noted(t)
	k, err := s.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before := k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: s.Namespace + "_other_cluster.x-k8s.io_Cluster", Version: "v1beta2"})
	if err := s.Client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.Commit(t, map[string]string{"app/b.yaml": scenario.ConfigMapWith("b", "", "{}")})
	s.Ready(t, "app")
	s.spared(t)
	// And what nobody can read is no reason to delete either.
	k, err = s.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before = k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: "nonsense", Version: "v1"})
	if err := s.Client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.loses(t, map[string]string{"app/b.yaml": scenario.ConfigMapWith("c", "", "{}")})
	s.refused(t, "app", "ReconciliationFailed")
}

// inventoryOfABackup: a person brings back what Git does not declare any more, as
// it was, labels, confirmation and all, and so is the inventory.
func (s *wipeOutRow) inventoryOfABackup(t *testing.T) {
	s.declare(t, "")
	labels := fmt.Sprintf(", labels: {kustomize.toolkit.fluxcd.io/name: app, kustomize.toolkit.fluxcd.io/namespace: %s}", s.Namespace)
	made(t, s.HelmRow.Row, clusterOf("restored", labels+", annotations: {cascade.dev/deletion: confirmed}"))
	made(t, s.HelmRow.Row, scenario.ConfigMapWith("restored", labels, "{}"))
	s.noted(t)
	k, err := s.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before := k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: s.Namespace + "_restored_cluster.x-k8s.io_Cluster", Version: "v1beta2"},
		kustomizev1.ResourceRef{ID: s.Namespace + "_restored__ConfigMap", Version: "v1"})
	if err := s.Client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.Commit(t, map[string]string{"app/b.yaml": scenario.ConfigMapWith("b", "", "{}")})
	s.Ready(t, "app")
	s.spared(t)
}

// forcedRecreation: spec.force, and a change that cannot be made in place.
func (s *wipeOutRow) forcedRecreation(t *testing.T) {
	ca := func(value string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: prod-ca, labels: {cluster.x-k8s.io/cluster-name: prod}}\ntype: cluster.x-k8s.io/secret\nimmutable: true\nstringData: {tls.key: " + value + "}\n"
	}
	s.Commit(t, map[string]string{"app/ca.yaml": ca("one")})
	s.declare(t, "force: true")
	s.Commit(t, map[string]string{"app/ca.yaml": ca("two")})
	s.refused(t, "app", "ReconciliationFailed")
}

// namespaceDeleted: kubectl delete namespace. It is refused; the agent has labelled
// what has a Cluster. If a person insists that it is not protected, workloads go, as
// they do without us; the Cluster and what it needs do not, nor does the Kustomization.
func (s *wipeOutRow) namespaceDeleted(t *testing.T) {
	s.declare(t, "")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	s.a.guarded(t, s.Namespace, "true")
	if err := s.Client.Delete(t.Context(), ns); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is protected by the label") {
		t.Fatalf("the delete is answered with %v", err)
	}
	s.spared(t)
	s.a.unguard(t, s.Namespace)
	if err := s.Client.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	s.lost = []string{"Deployment/web", "ConfigMap/web", "PersistentVolumeClaim/data", "Secret/" + s.Namespace + "-account"}
	s.refused(t, "app", blocked)
}

// agentKilled: in the middle of it, several times.
func (s *wipeOutRow) agentKilled(t *testing.T) {
	s.declare(t, "")
	for i := range 3 {
		s.loses(t, map[string]string{fmt.Sprintf("app/b%d.yaml", i): scenario.ConfigMapWith(fmt.Sprintf("b%d", i), "", "{}")})
		if pid := s.MoM.Agent(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		s.refused(t, "app", blocked)
		s.Commit(t, fixture())
		s.Ready(t, "app")
	}
	s.spared(t)
}

// manyConfirmedAtOnce: a common annotation confirms all of them, and the directory
// goes. That is what it was asked for; but one after another, so that there is
// time to see that it was a mistake.
func (s *wipeOutRow) manyConfirmedAtOnce(t *testing.T) {
	held := ", finalizers: [example.com/held], annotations: {cascade.dev/deletion: confirmed}"
	s.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{}"), "app/one.yaml": clusterOf("one", held), "app/two.yaml": clusterOf("two", held), "app/three.yaml": clusterOf("three", held)})
	s.Kustomization(t, "app", "{interval: 2s}")
	s.Ready(t, "app")
	s.a.guarded(t, s.Namespace, "true")
	s.Commit(t, map[string]string{"app/one.yaml": "", "app/two.yaml": "", "app/three.yaml": ""})
	deleting := func(ctx context.Context) (names []string, err error) {
		l := clusterList()
		if err := s.Client.List(ctx, l, client.InNamespace(s.Namespace)); err != nil {
			return nil, err
		}
		for i := range l.Items {
			if l.Items[i].GetDeletionTimestamp() != nil {
				names = append(names, l.Items[i].GetName())
			}
		}
		return names, nil
	}
	for range 3 {
		var going []string
		scenario.Eventually(t, scenario.Converge, "one Cluster is being deleted", func(ctx context.Context) (err error) {
			if going, err = deleting(ctx); err == nil && len(going) == 0 {
				return fmt.Errorf("none is")
			}
			return err
		})
		s.Handled(t, "app", s.Ask(t, &kustomizev1.Kustomization{}, "app"))
		if again, err := deleting(t.Context()); err != nil || len(again) != 1 || again[0] != going[0] {
			t.Fatalf("%v are being deleted after %v, %v", again, going, err)
		}
		s.Patch(t, stage.Object(clusterVersion, "Cluster"), going[0], `{"metadata":{"finalizers":null}}`)
	}
	scenario.Eventually(t, scenario.Converge, "all three are gone", func(ctx context.Context) error {
		l := clusterList()
		if err := s.Client.List(ctx, l, client.InNamespace(s.Namespace)); err != nil {
			return err
		}
		if len(l.Items) > 0 {
			return fmt.Errorf("%d are left", len(l.Items))
		}
		return nil
	})
	s.a.guarded(t, s.Namespace, "")
}

// discoveryPartial: an aggregated API does not answer, so nobody knows what is in
// a Namespace.
func (s *wipeOutRow) discoveryPartial(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"base/ns.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-base}\n", "base/a.yaml": scenario.ConfigMapWith("base", "", "{}")})
	s.Kustomization(t, "base", "targetNamespace: null")
	s.Commit(t, map[string]string{"base/a.yaml": scenario.ConfigMapWith("base", ", namespace: $ns-base", "{}")})
	s.Ready(t, "base")
	s.noted(t)
	api := stage.Object("apiregistration.k8s.io/v1", "APIService")
	api.SetName("v1.absent.example.com")
	api.Object["spec"] = map[string]any{
		"group": "absent.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
		"service": map[string]any{"namespace": "default", "name": "absent"},
	}
	if err := s.Client.Create(t.Context(), api); err != nil {
		t.Fatal(err)
	}
	s.Commit(t, map[string]string{"base/ns.yaml": "", "app/cluster.yaml": "", "app/account.yaml": ""})
	s.refused(t, "base", "PruneFailed", blocked)
	s.refused(t, "app", "PruneFailed", blocked)
	if err := s.Client.Delete(t.Context(), api); err != nil {
		t.Fatal(err)
	}
}

// versionsNotServed: a definition is there, and each of its objects a 404.
func (s *wipeOutRow) versionsNotServed(t *testing.T) {
	s.declare(t, "")
	serve := func(served bool) {
		t.Helper()
		u := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
		if err := s.Load(t.Context(), u, "", "clusters.cluster.x-k8s.io"); err != nil {
			t.Fatal(err)
		}
		versions, _, err := unstructured.NestedSlice(u.Object, "spec", "versions")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range versions {
			v.(map[string]any)["served"] = served
		}
		if err := unstructured.SetNestedSlice(u.Object, versions, "spec", "versions"); err != nil {
			t.Fatal(err)
		}
		if err := s.Client.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	serve(false)
	scenario.Eventually(t, scenario.Converge, "Clusters are not served", func(ctx context.Context) error {
		if err := s.Client.List(ctx, clusterList()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("they are: %v", err)
		}
		return nil
	})
	s.Commit(t, map[string]string{"app/cluster.yaml": "", "app/account.yaml": ""})
	s.reason(t, "app", "PruneFailed", blocked)
	serve(true)
	scenario.Eventually(t, scenario.Converge, "Clusters are served again", func(ctx context.Context) error { return s.Client.List(ctx, clusterList()) })
	s.Ask(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", blocked)
}

// kindDeleted deletes a definition of a kind that syncs.
func (s *wipeOutRow) kindDeleted(t *testing.T, name string) {
	t.Helper()
	u := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	u.SetName(name)
	if err := s.Client.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the definition is gone, with all of its objects", func(ctx context.Context) error {
		if err := s.Load(ctx, u, "", name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	s.spared(t)
}

func (s *wipeOutRow) helmReleaseKindDeleted(t *testing.T) {
	s.releasedInGit(t)
	s.kindDeleted(t, "helmreleases.helm.toolkit.fluxcd.io")
}

func (s *wipeOutRow) kustomizationKindDeleted(t *testing.T) {
	s.declare(t, "")
	s.kindDeleted(t, "kustomizations.kustomize.toolkit.fluxcd.io")
}
