package safety

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

func (s *wipeOutRow) wrongPath(t *testing.T) {
	s.Commit(t, map[string]string{"other/a.yaml": scenario.ConfigMapWith("other", "", "{}")})
	s.declare(t, "")
	s.Kustomization(t, "app", "path: ./other")
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) namePrefix(t *testing.T) {
	s.declare(t, "")
	s.Kustomization(t, "app", "namePrefix: new-")
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) targetNamespace(t *testing.T) {
	s.Apply(t, s.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-moved}\n"))
	s.declare(t, "")
	s.Kustomization(t, "app", "targetNamespace: $ns-moved")
	s.refused(t, "app", blocked)
}

// substitutionLost: names are made of a variable, which is gone.
func (s *wipeOutRow) substitutionLost(t *testing.T) {
	f := fixture()
	f["app/cluster.yaml"] = strings.ReplaceAll(f["app/cluster.yaml"], "name: prod", "name: \"${env:=nothing}\"")
	s.Commit(t, f)
	s.Kustomization(t, "app", "postBuild: {substitute: {env: prod}}")
	s.Ready(t, "app")
	s.noted(t)
	s.Kustomization(t, "app", "postBuild: {substitute: {other: x}}")
	s.refused(t, "app", blocked)
}

// variablesLost: the ConfigMap with the variables is gone.
func (s *wipeOutRow) variablesLost(t *testing.T) {
	f := fixture()
	f["app/cluster.yaml"] = strings.ReplaceAll(f["app/cluster.yaml"], "name: prod", "name: \"${env}\"")
	s.Commit(t, f)
	s.Apply(t, s.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: $ns}\ndata: {env: prod}\n"))
	s.Kustomization(t, "app", "postBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}")
	s.Ready(t, "app")
	s.noted(t)
	s.lost = []string{"ConfigMap/vars"}
	s.Delete(t, &corev1.ConfigMap{}, "vars")
	s.Ask(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", "BuildFailed")
}

// synced declares a Kustomization in Git, for which another one stands.
func (s *wipeOutRow) synced(name, more string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s}
spec: {sourceRef: {kind: GitRepository, name: git}, path: ./app, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1s%s}
`, name, more)
}

// parented declares the fixture through a Kustomization of a Kustomization.
func (s *wipeOutRow) parented(t *testing.T) {
	t.Helper()
	f := fixture()
	f["root/app.yaml"], f["root/a.yaml"] = s.synced("app", ""), scenario.ConfigMapWith("root", "", "{}")
	s.Commit(t, f)
	s.Kustomization(t, "root", "interval: 2s")
	s.Ready(t, "root")
	s.Ready(t, "app")
	s.noted(t)
}

func (s *wipeOutRow) kustomizationRemovedByParent(t *testing.T) {
	s.parented(t)
	s.Commit(t, map[string]string{"root/app.yaml": ""})
	s.refused(t, "root", blocked)
	if k, err := s.Read(t.Context(), "app"); err != nil || !k.DeletionTimestamp.IsZero() {
		t.Errorf("the Kustomization is deleted: %v", err)
	}
}

// kustomizationRenamed: the one with the new name answers for everything before
// the one with the old name goes, and nothing is touched.
func (s *wipeOutRow) kustomizationRenamed(t *testing.T) {
	s.parented(t)
	s.Commit(t, map[string]string{"root/app.yaml": s.synced("renamed", "")})
	s.Ready(t, "renamed")
	s.Gone(t, &kustomizev1.Kustomization{}, "app")
	s.Ready(t, "root")
	s.spared(t)
	if k, err := s.Read(t.Context(), "renamed"); err != nil || len(scenario.Inventory(k)) != len(s.uids)-1 {
		t.Errorf("inventory is %v of %v, %v", scenario.Inventory(k), s.uids, err)
	}
}

func (s *wipeOutRow) kustomizationDeleted(t *testing.T) {
	s.declare(t, "")
	s.Delete(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", blocked)
}

// kustomizationRemovesItself: as flux bootstrap makes it, it declares itself.
func (s *wipeOutRow) kustomizationRemovesItself(t *testing.T) {
	f := fixture()
	f["app/self.yaml"] = s.synced("app", "")
	s.Commit(t, f)
	s.Kustomization(t, "app", "")
	s.Ready(t, "app")
	s.noted(t)
	s.Commit(t, map[string]string{"app/self.yaml": ""})
	s.refused(t, "app", blocked)
	if k, err := s.Read(t.Context(), "app"); err != nil || !k.DeletionTimestamp.IsZero() {
		t.Errorf("it deleted itself: %v", err)
	}
}

// sharedWithAnother: two Kustomizations declare the same objects, and one of them
// stops to, also with what it confirmed.
func (s *wipeOutRow) sharedWithAnother(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"second/cluster.yaml": clusterOf("prod", ", annotations: {cascade.dev/deletion: confirmed}"), "second/web.yaml": scenario.ConfigMapWith("web", "", "{k: v}"), "second/a.yaml": scenario.ConfigMapWith("second", "", "{}")})
	// So that the first does not take its objects back at once.
	s.Patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":true}}`)
	s.Kustomization(t, "second", "")
	s.Ready(t, "second")
	s.Commit(t, map[string]string{"second/cluster.yaml": "", "second/web.yaml": ""})
	s.Ready(t, "second")
	s.spared(t)
	s.Patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":null}}`)
	s.Ready(t, "app")
	s.spared(t)
}

// protectionStripped: a second Kustomization, with the same field manager, takes
// prune: disabled off an object of the first, and then lets go of it.
func (s *wipeOutRow) protectionStripped(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/kept.yaml": scenario.ConfigMapWith("kept", ", annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", "{k: v}")})
	s.Ready(t, "app")
	s.noted(t)
	s.Patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":true}}`)
	s.Commit(t, map[string]string{"second/kept.yaml": scenario.ConfigMapWith("kept", "", "{k: v}"), "second/a.yaml": scenario.ConfigMapWith("second", "", "{}")})
	s.Kustomization(t, "second", "")
	s.Ready(t, "second")
	if u := s.Object(t, "v1", "ConfigMap", "kept"); len(u.GetAnnotations()) > 0 {
		t.Fatalf("annotations are %v, so that nothing is tried", u.GetAnnotations())
	}
	s.Commit(t, map[string]string{"second/kept.yaml": ""})
	s.Ready(t, "second")
	s.spared(t)
}

// elsewhere starts another cluster and applies the fixture there.
func (s *wipeOutRow) elsewhere(t *testing.T) (*stage.Tier, func() map[string]string) {
	t.Helper()
	other, err := s.Cluster(t.Context(), s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	c, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), c, clusterKind+"---\n"+s.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n")); err != nil {
		t.Fatal(err)
	}
	s.lead(t, other)
	s.Commit(t, map[string]string{"app/cluster.yaml": clusterOf("prod", ""), "app/web.yaml": workloads})
	s.Kustomization(t, "app", "kubeConfig: {secretRef: {name: way}}")
	s.Ready(t, "app")
	found := func() map[string]string {
		there := map[string]string{}
		for kind, version := range map[string]string{"Cluster": clusterVersion, "Deployment": "apps/v1", "ConfigMap": "v1", "PersistentVolumeClaim": "v1"} {
			l := list(version, kind)
			if err := c.List(t.Context(), l, client.InNamespace(s.Namespace)); err != nil {
				t.Fatal(err)
			}
			for i := range l.Items {
				if l.Items[i].GetDeletionTimestamp() == nil {
					there[kind+"/"+l.Items[i].GetName()] = string(l.Items[i].GetUID())
				}
			}
		}
		return there
	}
	if len(found()) < 4 {
		t.Fatalf("there are only %v", found())
	}
	return other, found
}

// lead makes the Secret lead to a cluster.
func (s *wipeOutRow) lead(t *testing.T, to *stage.Tier) {
	t.Helper()
	kubeconfig, err := os.ReadFile(to.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "way", "namespace": s.Namespace}, "stringData": map[string]any{"value": string(kubeconfig)},
	}}
	if err := s.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for object, uid := range before {
		if after[object] != uid {
			t.Errorf("%s had UID %s, now it has %q", object, uid, after[object])
		}
	}
}

// kubeconfigSwapped: the Secret leads to another live cluster, our own, where a
// Cluster of the same name is somebody else's.
func (s *wipeOutRow) kubeconfigSwapped(t *testing.T) {
	_, found := s.elsewhere(t)
	before := found()
	made(t, s.HelmRow.Row, clusterOf("prod", ""))
	s.noted(t)
	s.lost = []string{"Secret/way"}
	s.lead(t, s.MoM)
	s.Commit(t, map[string]string{"app/cluster.yaml": "", "app/b.yaml": scenario.ConfigMapWith("b", "", "{}")})
	scenario.Eventually(t, scenario.Converge, "the Kustomization has looked at the last commit", func(ctx context.Context) error {
		k, err := s.Read(ctx, "app")
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if !strings.HasSuffix(k.Status.LastAttemptedRevision, s.Head) || c == nil || c.Status == metav1.ConditionUnknown {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		t.Logf("%s: %s", c.Reason, c.Message)
		return nil
	})
	s.spared(t)
	same(t, before, found())
}

// kubeconfigRemoved: from now on it is for our own cluster.
func (s *wipeOutRow) kubeconfigRemoved(t *testing.T) {
	_, found := s.elsewhere(t)
	before := found()
	s.Kustomization(t, "app", "")
	s.reason(t, "app", blocked)
	same(t, before, found())
}

// releasedInGit declares a HelmRelease with a Cluster through a Kustomization.
func (s *wipeOutRow) releasedInGit(t *testing.T) {
	t.Helper()
	s.Commit(t, map[string]string{"root/web.yaml": gitRelease(fmt.Sprintf(precious, "")), "root/a.yaml": scenario.ConfigMapWith("root", "", "{}")})
	s.Kustomization(t, "root", "")
	s.Ready(t, "root")
	s.HelmRow.Released(t, "web", scenario.AnyVersion)
	s.from, s.uids = s.AuditOffset(t), s.there(t)
	if _, ok := s.uids["Cluster/precious"]; !ok {
		t.Fatalf("there is no Cluster, only %v", s.uids)
	}
}

func gitRelease(values string) string {
	return "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: web}\nspec:\n  interval: 10m\n  timeout: 1m\n" +
		"  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}\n  values: {" + values + "}\n"
}

// releaseRefused waits until the HelmRelease says that it is held.
func (s *wipeOutRow) releaseRefused(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the HelmRelease says what is held", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := s.Load(ctx, o, s.Namespace, "web"); err != nil {
			return err
		}
		if !strings.Contains(scenario.Summary(o.Status.Conditions), blocked) || o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	s.spared(t)
}

func (s *wipeOutRow) helmReleaseRemoved(t *testing.T) {
	s.releasedInGit(t)
	s.Commit(t, map[string]string{"root/web.yaml": ""})
	s.refused(t, "root", blocked)
	o := &helmv2.HelmRelease{}
	if err := s.Load(t.Context(), o, s.Namespace, "web"); err != nil || !o.DeletionTimestamp.IsZero() {
		t.Errorf("the HelmRelease is deleted: %v", err)
	}
}

func (s *wipeOutRow) helmValuesRenderNothing(t *testing.T) {
	s.releasedInGit(t)
	s.Commit(t, map[string]string{"root/web.yaml": gitRelease("settings: {color: blue}")})
	s.Has(t, "web-settings", "color", "blue")
	s.releaseRefused(t)
}

func (s *wipeOutRow) helmChartReplaced(t *testing.T) {
	s.a.Charts.Add(scenario.AppChart(s.Namespace, "1.0.0"))
	s.releasedInGit(t)
	s.Ask(t, &sourcev1.HelmRepository{}, "charts")
	s.Commit(t, map[string]string{"root/web.yaml": strings.Replace(gitRelease("settings: {color: blue}"), "chart: app", "chart: $ns", 1)})
	s.releaseRefused(t)
}

func (s *wipeOutRow) helmReleaseRenamed(t *testing.T) {
	s.releasedInGit(t)
	s.Commit(t, map[string]string{"root/web.yaml": strings.Replace(gitRelease(fmt.Sprintf(precious, "")), "spec:\n", "spec:\n  releaseName: renamed\n", 1)})
	s.releaseRefused(t)
}

// helmStorageLost: Helm's own records are gone, and the values have no Cluster.
func (s *wipeOutRow) helmStorageLost(t *testing.T) {
	s.releasedInGit(t)
	if err := s.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(s.Namespace), client.MatchingLabels{"owner": "helm"}); err != nil {
		t.Fatal(err)
	}
	s.Commit(t, map[string]string{"root/web.yaml": gitRelease("settings: {color: blue}")})
	s.Has(t, "web-settings", "color", "blue")
	s.Ready(t, "root")
	s.spared(t)
}
