package flux

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// heldOnRecord: what a person has to decide about is data beside the condition, and is
// removed once it is decided.
func (s *kustomizationSpec) heldOnRecord(t *testing.T) {
	r := s.Row(t, map[string]string{"app/readme.md": "x", "app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/a.yaml": ""})
	r.Says(t, "app", "Ready", "False", "PruneBlocked", "")
	k, err := r.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	held, known := v1alpha1.HeldOf(k)
	if !known || held.Prune == nil || held.Prune.Deletes != 1 || held.Prune.Hash == "" {
		t.Fatalf("on record is %q", k.Annotations[v1alpha1.HeldAnnotation])
	}
	r.Patch(t, k, "app", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.ApprovePruneAnnotation, held.Prune.Hash))
	if text := r.Ready(t, "app").Annotations[v1alpha1.HeldAnnotation]; text != "" {
		t.Errorf("what was decided is still on record: %s", text)
	}
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "a")
}

// clusterScoped: a namespace in the manifest of a cluster-scoped object does not make it
// another object, nor does one in an inventory that was written by another program.
func (s *kustomizationSpec) clusterScoped(t *testing.T) {
	const kind = "rbac.authorization.k8s.io_ClusterRole"
	role := func(namespace string) map[string]string {
		return map[string]string{"app/role.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: $ns" + namespace + "}\nrules: []\n"}
	}
	r := s.Row(t, role(", namespace: one"))
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	uid := r.Object(t, "rbac.authorization.k8s.io/v1", "ClusterRole", r.Namespace).GetUID()
	same := func(when string) {
		t.Helper()
		k := r.Ready(t, "app")
		if diff := cmp.Diff([]string{"_" + r.Namespace + "_" + kind + " v1"}, scenario.Inventory(k)); diff != "" {
			t.Errorf("%s: inventory: -want, +got:\n%s", when, diff)
		}
		if r.Object(t, "rbac.authorization.k8s.io/v1", "ClusterRole", r.Namespace).GetUID() != uid {
			t.Fatalf("%s: the object is another one", when)
		}
	}
	same("first")
	r.Commit(t, role(", namespace: two"))
	same("another namespace")
	r.Commit(t, role(""))
	same("no namespace")
	// The agent remembers nothing that is not in the status.
	k := r.Ready(t, "app")
	k.Status.Inventory.Entries[0].ID = "one_" + r.Namespace + "_" + kind
	if err := r.Client.Status().Update(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	r.Commit(t, role(", labels: {a: b}"))
	same("recorded with a namespace")
}

// clusterScopedKinds: kustomize sets targetNamespace on every custom resource. The kind
// is defined beside its object.
func (s *kustomizationSpec) clusterScopedKinds(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/crd.yaml": strings.Replace(scenario.ThingCRD, "scope: Namespaced", "scope: Cluster", 1),
		"app/a.yaml":   thing,
	})
	r.Kustomization(t, "app", "targetNamespace: one")
	r.Ready(t, "app")
	uid := r.Object(t, r.Namespace+".example.com/v1", "Thing", "thing").GetUID()
	r.Kustomization(t, "app", "targetNamespace: two")
	k := r.Ready(t, "app")
	if want := "_thing_" + r.Namespace + ".example.com_Thing v1"; !slices.Contains(scenario.Inventory(k), want) {
		t.Errorf("inventory %v has no %s", scenario.Inventory(k), want)
	}
	if r.Object(t, r.Namespace+".example.com/v1", "Thing", "thing").GetUID() != uid {
		t.Error("the object is another one")
	}
}

// versionDropped: a kind is watched in the version that its first manifest had. When the
// manifests have another one and that version goes, drift is corrected as before.
func (s *kustomizationSpec) versionDropped(t *testing.T) {
	definition := func(served string) string {
		return strings.Replace(scenario.ThingCRD, "  - name: v1\n", `  - name: v2
    served: `+served+`
    storage: false
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v1
`, 1)
	}
	declared := func(version string) map[string]string {
		return map[string]string{"app/a.yaml": strings.Replace(thing, "/v1", "/"+version, 1) + "spec: {k: declared}\n"}
	}
	r := s.Row(t, declared("v2"))
	r.Apply(t, r.Fill(definition("true")))
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, declared("v1"))
	r.Ready(t, "app")
	drift := func() {
		t.Helper()
		o := stage.Object(r.Namespace+".example.com/v1", "Thing")
		r.Patch(t, o, "thing", `{"spec":{"k":"drifted"}}`)
		scenario.Eventually(t, scenario.Converge, "the drift is corrected", func(ctx context.Context) error {
			if err := r.Load(ctx, o, r.Namespace, "thing"); err != nil {
				return err
			}
			if k, _, _ := unstructured.NestedString(o.Object, "spec", "k"); k != "declared" {
				return fmt.Errorf("spec.k is %q", k)
			}
			return nil
		})
	}
	drift()
	r.Apply(t, r.Fill(definition("false")))
	scenario.Eventually(t, scenario.Converge, "the version is gone", func(ctx context.Context) error {
		err := r.Load(ctx, stage.Object(r.Namespace+".example.com/v2", "Thing"), r.Namespace, "thing")
		if !apierrors.IsNotFound(err) && !apimeta.IsNoMatchError(err) {
			return fmt.Errorf("it is served: %v", err)
		}
		return nil
	})
	drift()
}

// kindMisspelt: an object of a kind that nobody serves was never there. Its entry goes when
// the manifest is mended, or with the Kustomization.
func (s *kustomizationSpec) kindMisspelt(t *testing.T) {
	wrong := map[string]string{
		"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}"),
		"app/b.yaml": "apiVersion: v1\nkind: Configmap\nmetadata: {name: b}\n",
		"app/c.yaml": "apiVersion: apps/v1\nkind: Deploymnet\nmetadata: {name: c}\n",
		"app/d.yaml": "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomisation\nmetadata: {name: d}\n",
	}
	r := s.Row(t, wrong)
	r.Kustomization(t, "app", "")
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "...no matches for kind")
	r.Commit(t, map[string]string{"app/b.yaml": "", "app/c.yaml": "", "app/d.yaml": ""})
	if diff := cmp.Diff([]string{r.Namespace + "_a__ConfigMap v1"}, scenario.Inventory(r.Ready(t, "app"))); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.Commit(t, wrong)
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "...no matches for kind")
	r.Delete(t, &kustomizev1.Kustomization{}, "app")
	r.Gone(t, &kustomizev1.Kustomization{}, "app")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "a")
}

// pruneAsServiceAccount: an account that may write objects need not be able to tell what
// decides about their deletion: which kinds there are, and which Clusters.
func (s *kustomizationSpec) pruneAsServiceAccount(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml":     scenario.ConfigMapWith("a", "", "{k: v}"),
		"app/b.yaml":     scenario.ConfigMapWith("b", ", labels: {cluster.x-k8s.io/cluster-name: gone}", "{k: v}"),
		"app/thing.yaml": thing,
	})
	r.Apply(t, r.Fill(scenario.ThingCRD))
	r.Apply(t, r.Fill(`apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $ns}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: deployer, namespace: $ns}
rules:
- {apiGroups: ["", $ns.example.com], resources: [configmaps, things], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: $ns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: deployer}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $ns}]
`))
	r.Kustomization(t, "app", "{serviceAccountName: deployer, targetNamespace: "+r.Namespace+"}")
	r.Ready(t, "app")
	crd := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	crd.SetName("things." + r.Namespace + ".example.com")
	if err := r.Client.Delete(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the definition is gone", func(ctx context.Context) error {
		if err := r.Client.Get(ctx, client.ObjectKeyFromObject(crd), crd); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	r.Commit(t, map[string]string{"app/b.yaml": "", "app/thing.yaml": ""})
	if diff := cmp.Diff([]string{r.Namespace + "_a__ConfigMap v1"}, scenario.Inventory(r.Ready(t, "app"))); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "b")
}

func (s *kustomizationSpec) pruneFalse(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: v}"), "app/b.yaml": scenario.ConfigMapWith("b", "", "{k: v}")})
	r.Kustomization(t, "app", "prune: false")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/b.yaml": ""})
	k := r.Ready(t, "app")
	if diff := cmp.Diff([]string{r.Namespace + "_a__ConfigMap v1"}, scenario.Inventory(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
	if r.Data(t, "b") == nil {
		t.Error("the object is gone")
	}
}

func (s *kustomizationSpec) everyDeletionPolicy(t *testing.T) {
	r := s.Row(t, map[string]string{
		"mirror/a.yaml": scenario.ConfigMapWith("mirror", "", "{}"), "unpruned/a.yaml": scenario.ConfigMapWith("unpruned", "", "{}"),
		"deleted/a.yaml": scenario.ConfigMapWith("deleted", "", "{}"), "orphan/a.yaml": scenario.ConfigMapWith("orphan", "", "{}"),
	})
	rows := []struct {
		name, spec string
		stays      bool
		reason     string
	}{
		{"mirror", "deletionPolicy: MirrorPrune", false, "it does as prune says"},
		{"unpruned", "prune: false", true, "MirrorPrune is the default"},
		{"deleted", "{deletionPolicy: Delete, prune: false}", false, "whatever prune says"},
		{"orphan", "deletionPolicy: Orphan", true, "whatever prune says"},
	}
	for _, c := range rows {
		r.Kustomization(t, c.name, c.spec)
	}
	for _, c := range rows {
		r.Ready(t, c.name)
		r.Delete(t, &kustomizev1.Kustomization{}, c.name)
		r.Gone(t, &kustomizev1.Kustomization{}, c.name)
		if there := r.Data(t, c.name) != nil; there != c.stays {
			t.Errorf("%s: the object is there: %t, but %s", c.name, there, c.reason)
		}
	}
}

// forceHeld: an object that is to be created anew and does not go, because a finalizer
// holds it, delays nobody. There are more of them than Kustomizations are reconciled at
// the same time.
func (s *kustomizationSpec) forceHeld(t *testing.T) {
	const held = 6
	files := func(value string) map[string]string {
		files := map[string]string{"good/good.yaml": scenario.ConfigMapWith("good", "", fmt.Sprintf("{k: %q}", value))}
		for i := range held {
			name := fmt.Sprint("held-", i)
			files[name+"/a.yaml"] = scenario.ConfigMapWith(name, ", finalizers: [example.com/hold]", fmt.Sprintf("{k: %q}\nimmutable: true", value))
		}
		return files
	}
	r := s.Row(t, files("1"))
	r.Kustomization(t, "good", "")
	for i := range held {
		r.Kustomization(t, fmt.Sprint("held-", i), "force: true")
	}
	for i := range held {
		r.Ready(t, fmt.Sprint("held-", i))
	}
	r.Commit(t, files("2"))
	for i := range held {
		r.Says(t, fmt.Sprint("held-", i), "Reconciling", "True", "Progressing", "...its finalizers hold it")
	}
	r.Commit(t, map[string]string{"good/good.yaml": scenario.ConfigMapWith("good", "", `{k: "3"}`)})
	r.Ready(t, "good")
	for i := range held {
		r.Patch(t, &corev1.ConfigMap{}, fmt.Sprint("held-", i), `{"metadata":{"finalizers":null}}`)
	}
	for i := range held {
		r.Has(t, fmt.Sprint("held-", i), "k", "2")
		r.Ready(t, fmt.Sprint("held-", i))
		r.Patch(t, &corev1.ConfigMap{}, fmt.Sprint("held-", i), `{"metadata":{"finalizers":null}}`)
	}
}

// force creates anew what cannot be changed.
func (s *kustomizationSpec) force(t *testing.T) {
	frozen := func(name, metadata, value string) string {
		return scenario.ConfigMapWith(name, metadata, fmt.Sprintf("{k: %q}\nimmutable: true", value))
	}
	marked := ", annotations: {kustomize.toolkit.fluxcd.io/force: enabled}"
	r := s.Row(t, map[string]string{"app/a.yaml": frozen("a", "", "1"), "marked/b.yaml": frozen("b", marked, "1")})
	r.Kustomization(t, "app", "")
	r.Kustomization(t, "marked", "")
	r.Ready(t, "app")
	r.Ready(t, "marked")
	a, b := r.Object(t, "v1", "ConfigMap", "a").GetUID(), r.Object(t, "v1", "ConfigMap", "b").GetUID()
	r.Commit(t, map[string]string{"app/a.yaml": frozen("a", "", "2"), "marked/b.yaml": frozen("b", marked, "2")})
	r.Ready(t, "marked")
	if got := r.Object(t, "v1", "ConfigMap", "b"); got.GetUID() == b || r.Data(t, "b")["k"] != "2" {
		t.Errorf("what says force: enabled was not created anew: %v", got.Object["data"])
	}
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "ConfigMap/"+r.Namespace+"/a dry-run failed (Invalid): ")
	if r.Object(t, "v1", "ConfigMap", "a").GetUID() != a {
		t.Error("without force the object was created anew")
	}
	r.Kustomization(t, "app", "force: true")
	r.Ready(t, "app")
	if r.Object(t, "v1", "ConfigMap", "a").GetUID() == a || r.Data(t, "a")["k"] != "2" {
		t.Error("with force the object was not created anew")
	}
}

// forceInvalid: force deletes nothing that could not be created again. What is not valid, and what a
// policy refuses, is refused in the same words as the change of an immutable field.
func (s *kustomizationSpec) forceInvalid(t *testing.T) {
	workload := func(name, spec string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: " + name + "}\nspec:\n  " + spec + "\n  selector: {matchLabels: {app: a}}\n" +
			"  template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: a}]}}\n"
	}
	r := s.Row(t, map[string]string{
		"invalid/a.yaml": workload("a", "replicas: 0"), "refused/b.yaml": workload("b", "replicas: 0"),
		"policy/policy.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: $ns}\n" +
			"spec:\n  failurePolicy: Fail\n  matchConstraints:\n    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}]\n" +
			"  validations: [{expression: object.spec.replicas != 7, message: not seven}]\n" +
			"---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata: {name: $ns}\n" +
			"spec: {policyName: $ns, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $ns}}}}\n",
	})
	for _, name := range []string{"policy", "invalid", "refused"} {
		r.Kustomization(t, name, "force: true")
		r.Ready(t, name)
	}
	a, b := r.Object(t, "apps/v1", "Deployment", "a").GetUID(), r.Object(t, "apps/v1", "Deployment", "b").GetUID()
	r.Commit(t, map[string]string{"invalid/a.yaml": workload("a", "replicas: -1"), "refused/b.yaml": workload("b", "replicas: 7")})
	r.Says(t, "invalid", "Ready", "False", "ReconciliationFailed", "...must be greater than or equal to 0")
	r.Says(t, "refused", "Ready", "False", "ReconciliationFailed", "...not seven")
	if r.Object(t, "apps/v1", "Deployment", "a").GetUID() != a || r.Object(t, "apps/v1", "Deployment", "b").GetUID() != b {
		t.Error("a workload was deleted that could not be created again")
	}
}

// applyOrder: what others need comes first, whatever the files are called, and a
// custom resource goes with the definition of its kind.
func (s *kustomizationSpec) applyOrder(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/1.yaml": "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: $ns}\nwebhooks: []\n",
		"app/2.yaml": strings.ReplaceAll(thing, "{name: thing}", "{name: thing, namespace: $ns}"),
		"app/3.yaml": strings.ReplaceAll(strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"), "{name: slow}", "{name: slow, namespace: $ns}"),
		"app/4.yaml": scenario.ConfigMapWith("a", ", namespace: $ns", "{}"),
		"app/5.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: $ns}\n",
		"app/6.yaml": "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: $ns}\nvalue: 1\n",
		"app/7.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: $ns}\nrules: []\n",
		"app/8.yaml": scenario.ThingCRD,
		"app/9.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: $ns-inner}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-inner}\n",
	})
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.Kustomization(t, "app", "targetNamespace: null")
	r.Ready(t, "app")
	var order []string
	for _, e := range r.Writes(t, from) {
		// A definition that is not served within a moment makes the agent begin again.
		if !strings.HasSuffix(e.ObjectRef.APIGroup, ".toolkit.fluxcd.io") && e.ObjectRef.Resource != "events" &&
			(e.Verb == "patch" || e.Verb == "create") && !slices.Contains(order, e.ObjectRef.Resource) {
			order = append(order, e.ObjectRef.Resource)
		}
	}
	want := []string{"customresourcedefinitions", "namespaces", "clusterroles", "priorityclasses", "serviceaccounts", "configmaps", "deployments", "things", "validatingwebhookconfigurations"}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

// serverSideApplyModes: what the annotation kustomize.toolkit.fluxcd.io/ssa says,
// and reconcile: disabled, on the object in Git and in the cluster.
func (s *kustomizationSpec) serverSideApplyModes(t *testing.T) {
	mode := func(name, value string) string {
		return scenario.ConfigMapWith(name, ", annotations: {kustomize.toolkit.fluxcd.io/ssa: "+value+"}", "{k: git}")
	}
	r := s.Row(t, map[string]string{
		"app/override.yaml": mode("override", "Override"), "app/merge.yaml": mode("merge", "Merge"),
		"app/absent.yaml": mode("absent", "IfNotPresent"), "app/ignored.yaml": mode("ignored", "Ignore"),
		"app/off.yaml":  scenario.ConfigMapWith("off", ", labels: {kustomize.toolkit.fluxcd.io/reconcile: disabled}", "{k: git}"),
		"app/live.yaml": scenario.ConfigMapWith("live", "", "{k: git}"), "app/plain.yaml": scenario.ConfigMapWith("plain", "", "{k: git}"),
	})
	r.Kustomization(t, "app", "")
	k := r.Ready(t, "app")
	for _, name := range []string{"ignored", "off"} {
		if r.Data(t, name) != nil {
			t.Errorf("%s was created", name)
		}
	}
	// What is skipped is in the inventory all the same.
	if got := scenario.Inventory(k); len(got) != 7 {
		t.Errorf("inventory is %v", got)
	}
	r.Patch(t, &corev1.ConfigMap{}, "live", `{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/reconcile":"Disabled"}}}`)
	for _, name := range []string{"override", "merge", "absent", "live", "plain"} {
		u := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}}
		if err := r.Client.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"data":{"k":"by hand","extra":"by hand"}}`)), client.FieldOwner("kubectl-edit")); err != nil {
			t.Fatal(err)
		}
	}
	r.Handled(t, "app", r.Ask(t, &kustomizev1.Kustomization{}, "app"))
	r.Ready(t, "app")
	for name, want := range map[string]map[string]string{
		"override": {"k": "git"},
		"plain":    {"k": "git"},
		"merge":    {"k": "git", "extra": "by hand"},
		"absent":   {"k": "by hand", "extra": "by hand"},
		"live":     {"k": "by hand", "extra": "by hand"},
	} {
		if diff := cmp.Diff(want, r.Data(t, name)); diff != "" {
			t.Errorf("%s: -want, +got:\n%s", name, diff)
		}
	}
	// None of what is skipped is pruned.
	files := map[string]string{"app/plain.yaml": "", "app/live.yaml": "", "app/absent.yaml": ""}
	r.Commit(t, files)
	r.Ready(t, "app")
	if r.Data(t, "plain") != nil || r.Data(t, "live") == nil {
		t.Errorf("plain %v, live %v", r.Data(t, "plain"), r.Data(t, "live"))
	}
}

func (s *kustomizationSpec) ownerLabels(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", ", labels: {kustomize.toolkit.fluxcd.io/name: forged}", "{k: v}")})
	r.Kustomization(t, "app", "")
	k := r.Ready(t, "app")
	a := r.Object(t, "v1", "ConfigMap", "a")
	if diff := cmp.Diff(map[string]string{"kustomize.toolkit.fluxcd.io/name": "app", "kustomize.toolkit.fluxcd.io/namespace": r.Namespace}, a.GetLabels()); diff != "" {
		t.Errorf("labels: -want, +got:\n%s", diff)
	}
	for _, m := range a.GetManagedFields() {
		if m.Manager != "kustomize-controller" || m.Operation != metav1.ManagedFieldsOperationApply {
			t.Errorf("the object is managed by %s %s", m.Manager, m.Operation)
		}
	}
	if !slices.ContainsFunc(k.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.Manager == "gotk-kustomize-controller" && m.Operation == metav1.ManagedFieldsOperationUpdate && m.Subresource == "status"
	}) || !slices.Contains(k.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("finalizers %v, managers %v", k.Finalizers, k.ManagedFields)
	}
}

// inventory: the names that Flux's tools parse.
func (s *kustomizationSpec) inventory(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml": scenario.ConfigMapWith("a", ", namespace: $ns", "{k: v}"),
		"app/b.yaml": strings.ReplaceAll(strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"), "{name: slow}", "{name: slow, namespace: $ns}"),
		"app/c.yaml": "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: \"example:reader\", namespace: $ns}\nrules: []\n",
		"app/d.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-inner}\n",
		"app/e.yaml": "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: slow, namespace: $ns}\nspec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: slow}, maxReplicas: 2}\n",
	})
	r.Kustomization(t, "app", "targetNamespace: null")
	k := r.Ready(t, "app")
	var got []string
	for _, e := range k.Status.Inventory.Entries {
		got = append(got, e.ID+" "+e.Version)
	}
	want := []string{
		"_" + r.Namespace + "-inner__Namespace v1", r.Namespace + "_example__reader_rbac.authorization.k8s.io_Role v1", r.Namespace + "_a__ConfigMap v1",
		r.Namespace + "_slow_apps_Deployment v1", r.Namespace + "_slow_autoscaling_HorizontalPodAutoscaler v2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the order in which they were applied: -want, +got:\n%s", diff)
	}
}

// pruneExceptions: what is marked, and what is another's by now, stays.
func (s *kustomizationSpec) pruneExceptions(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml": scenario.ConfigMapWith("a", "", "{}"), "app/goes.yaml": scenario.ConfigMapWith("goes", "", "{}"), "app/marked.yaml": scenario.ConfigMapWith("marked", "", "{}"),
		"app/declared.yaml": scenario.ConfigMapWith("declared", ", annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", "{}"),
		"app/taken.yaml":    scenario.ConfigMapWith("taken", "", "{}"), "app/missing.yaml": scenario.ConfigMapWith("missing", "", "{}"),
	})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Kustomization(t, "app", "suspend: true") // or drift would be corrected
	r.Patch(t, &corev1.ConfigMap{}, "marked", `{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/prune":"Disabled"}}}`)
	r.Patch(t, &corev1.ConfigMap{}, "taken", `{"metadata":{"labels":{"kustomize.toolkit.fluxcd.io/name":"another"}}}`)
	r.Delete(t, &corev1.ConfigMap{}, "missing")
	r.Commit(t, map[string]string{"app/goes.yaml": "", "app/marked.yaml": "", "app/declared.yaml": "", "app/taken.yaml": "", "app/missing.yaml": ""})
	r.Fetched(t) // or what the commit before declares would be corrected first
	r.Kustomization(t, "app", "")
	k := r.Ready(t, "app")
	r.Gone(t, &corev1.ConfigMap{}, "goes")
	for _, name := range []string{"a", "marked", "declared", "taken"} {
		if r.Data(t, name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	if diff := cmp.Diff([]string{r.Namespace + "_a__ConfigMap v1"}, scenario.Inventory(k)); diff != "" {
		t.Errorf("inventory: -want, +got:\n%s", diff)
	}
}

// pruneOrder is the reverse of the order in which things are applied.
func (s *kustomizationSpec) pruneOrder(t *testing.T) {
	r := s.Row(t, map[string]string{
		"app/a.yaml":  scenario.ConfigMapWith("a", "", "{}"),
		"app/sa.yaml": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa}\n", "app/cm.yaml": scenario.ConfigMapWith("cm", "", "{}"),
		"app/svc.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: svc}\nspec: {ports: [{port: 80}]}\n",
		"app/dep.yaml": strings.ReplaceAll(neverReady, "replicas: 1", "replicas: 0"),
	})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	r.Commit(t, map[string]string{"app/sa.yaml": "", "app/cm.yaml": "", "app/svc.yaml": "", "app/dep.yaml": ""})
	r.Ready(t, "app")
	var order []string
	for _, e := range r.Writes(t, from) {
		if e.Verb == "delete" {
			order = append(order, e.ObjectRef.Resource)
		}
	}
	if diff := cmp.Diff([]string{"deployments", "services", "configmaps", "serviceaccounts"}, order); diff != "" {
		t.Errorf("order: -want, +got:\n%s", diff)
	}
}

// failedApplyKeepsInventory: while one object cannot be applied nothing is
// pruned, and nothing that was answered for is forgotten.
func (s *kustomizationSpec) failedApplyKeepsInventory(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{}"), "app/b.yaml": scenario.ConfigMapWith("b", "", "{}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/b.yaml": "", "app/thing.yaml": thing})
	r.Says(t, "app", "Ready", "False", "ReconciliationFailed", "")
	k, err := r.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{r.Namespace + "_a__ConfigMap v1", r.Namespace + "_b__ConfigMap v1"} {
		if !slices.Contains(scenario.Inventory(k), id) {
			t.Errorf("inventory is %v", scenario.Inventory(k))
		}
	}
	if r.Data(t, "b") == nil {
		t.Error("the object is gone")
	}
	r.Commit(t, map[string]string{"app/thing.yaml": ""})
	r.Ready(t, "app")
	r.Gone(t, &corev1.ConfigMap{}, "b")
}

// revertedCommit: an older revision is one like any other.
func (s *kustomizationSpec) revertedCommit(t *testing.T) {
	r := s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")})
	r.Ready(t, "app")
	r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
	r.Ready(t, "app")
	if got := r.Data(t, "a")["k"]; got != "one" {
		t.Errorf("the object has %q", got)
	}
}
