package flux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestTakeover: a cluster in which Flux's controllers worked until now is left to
// the agent. What they made is a fixture that was recorded from them, with field
// managers, labels, inventories and status.
func TestTakeover(t *testing.T) {
	scenario.Alongside(t)
	o := startTakeover(t)
	for _, part := range []struct {
		name string
		run  func(*takeover, *testing.T)
	}{
		{"NothingIsTouched", (*takeover).nothingIsTouched},
		{"WorkGoesOn", (*takeover).workGoesOn},
		{"AdoptsWhatKubectlApplied", (*takeover).adoptsWhatKubectlApplied},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(o, t) }) {
			return
		}
	}
}

type takeover struct {
	*scenario.Tier
	// recorded are the objects as the fixture has them.
	recorded []*unstructured.Unstructured
}

const takeoverBootstrap = `apiVersion: v1
kind: Secret
metadata: {name: shop-vars, namespace: cascade-system}
stringData: {password: hunter2hunter2}
`

// restoring is the field manager of what only makes the fixture; it must own
// nothing in the end.
const restoring = "takeover-fixture"

func startTakeover(t *testing.T) *takeover {
	t.Helper()
	repos := t.TempDir()
	if err := os.CopyFS(filepath.Join(repos, "repo"), os.DirFS(filepath.Join("testdata", "takeover", "repo"))); err != nil {
		t.Fatal(err)
	}
	o := &takeover{Tier: scenario.StartTierWith(t, repos, takeoverBootstrap)}
	o.scale(t, 0)
	o.restore(t)
	return o
}

// scale starts or stops the agent, as one does with Flux's controllers.
func (o *takeover) scale(t *testing.T, replicas int32) {
	t.Helper()
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = stage.Namespace, "cascade"
	if err := c.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%d agents run", replicas), func(ctx context.Context) error {
		if err := scenario.Get(ctx, o.MoM, d, stage.Namespace, "cascade"); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.Replicas != replicas || d.Status.ReadyReplicas != replicas {
			return fmt.Errorf("%d replicas, %d ready", d.Status.Replicas, d.Status.ReadyReplicas)
		}
		if running := o.MoM.Agent() != 0; running && replicas == 0 {
			return errors.New("its process still runs")
		}
		return nil
	})
}

// restore makes every object of the fixture with the field managers that it has
// there: the API server takes managedFields as they are written when nothing else
// changes.
func (o *takeover) restore(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "takeover", "recorded.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	head, err := o.Git.Commit(t.Context(), "repo", "main", "What Flux applied", nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("${commit}", head, "${git_url}", "http://"+o.Git.HTTPAddress()).Replace(string(data))
	if o.recorded, err = ssautil.ReadObjects(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	for _, u := range o.recorded {
		name := ssautil.FmtUnstructured(u)
		scenario.Eventually(t, scenario.Converge, name+" is as it was", func(ctx context.Context) error {
			// A new client each time: kinds appear on the way.
			c, err := o.MoM.Client()
			if err != nil {
				return err
			}
			return o.restoreOne(ctx, c, u)
		})
		got := o.live(t, u)
		if diff := cmp.Diff(managers(u), managers(got)); diff != "" {
			t.Fatalf("the fixture is not what was recorded: field managers of %s: -want, +got:\n%s", name, diff)
		}
	}
}

func (o *takeover) restoreOne(ctx context.Context, c client.Client, u *unstructured.Unstructured) error {
	live := u.DeepCopy()
	live.SetManagedFields(nil)
	if err := c.Create(ctx, live, client.FieldOwner(restoring)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(u), live); err != nil {
		return err
	}
	if status, ok := u.Object["status"]; ok && strings.HasSuffix(u.GroupVersionKind().Group, ".toolkit.fluxcd.io") {
		live.Object["status"] = status
		// A fresh object begins to count again.
		if err := unstructured.SetNestedField(live.Object, live.GetGeneration(), "status", "observedGeneration"); err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(live.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, condition := range conditions {
			condition.(map[string]any)["observedGeneration"] = live.GetGeneration()
		}
		if err := unstructured.SetNestedSlice(live.Object, conditions, "status", "conditions"); err != nil {
			return err
		}
		if err := c.Status().Update(ctx, live, client.FieldOwner(restoring)); err != nil {
			return err
		}
	}
	fields := u.GetManagedFields()
	for _, m := range live.GetManagedFields() {
		if m.Manager != restoring && !slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool {
			return f.Manager == m.Manager && f.Subresource == m.Subresource
		}) {
			fields = append(fields, m) // of a controller that has seen it already
		}
	}
	live.SetManagedFields(fields)
	return c.Update(ctx, live, client.FieldOwner(restoring))
}

// managers says who owns which fields. Controllers of Kubernetes add themselves
// when they see an object.
func managers(u *unstructured.Unstructured) map[string]string {
	owned := map[string]string{}
	for _, m := range u.GetManagedFields() {
		if m.Manager == "controlplane" || strings.HasPrefix(m.Manager, "kube-") {
			continue
		}
		var fields any
		if err := json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields); err != nil {
			owned[m.Manager] = err.Error()
			continue
		}
		data, _ := json.MarshalIndent(fields, "", " ")
		owned[fmt.Sprintf("%s %s %s", m.Manager, m.Operation, m.Subresource)] = string(data)
	}
	return owned
}

func (o *takeover) live(t *testing.T, like *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	u := stage.Object(like.GetAPIVersion(), like.GetKind())
	if err := scenario.Get(t.Context(), o.MoM, u, like.GetNamespace(), like.GetName()); err != nil {
		t.Fatal(err)
	}
	return u
}

// identity is what a takeover must not change.
type identity struct {
	UID         types.UID
	Generation  int64
	Labels      map[string]string
	Annotations map[string]string
	Finalizers  []string
	Managers    map[string]string
	// Version is the resource version of kinds that no controller of Kubernetes
	// writes to: not even a write that changes nothing was stored.
	Version string
}

// quiet are the kinds of the fixture that nobody but their owner writes to.
var quiet = []string{
	"ClusterRole", "ConfigMap", "Ingress", "LimitRange", "NetworkPolicy", "Order", "PriorityClass", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
}

func (o *takeover) identities(t *testing.T) map[string]identity {
	t.Helper()
	found := map[string]identity{}
	for _, u := range o.recorded {
		live := o.live(t, u)
		i := identity{UID: live.GetUID(), Generation: live.GetGeneration(), Labels: live.GetLabels(), Annotations: live.GetAnnotations(), Finalizers: live.GetFinalizers()}
		if strings.HasSuffix(u.GroupVersionKind().Group, ".toolkit.fluxcd.io") {
			// Who was asked to reconcile has another annotation, and a status that
			// is ours now.
			delete(i.Annotations, fluxmeta.ReconcileRequestAnnotation)
		} else {
			i.Managers = managers(live)
		}
		if slices.Contains(quiet, u.GetKind()) {
			i.Version = live.GetResourceVersion()
		}
		found[ssautil.FmtUnstructured(u)] = i
	}
	return found
}

// ask asks for a reconcile of everything that is not suspended.
func (o *takeover) ask(t *testing.T, at string) {
	t.Helper()
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{
		&sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}},
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "infra"}},
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "nested"}},
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Name: "stopped"}},
	} {
		object.SetNamespace(stage.Namespace)
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, at)
		if err := c.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch), client.FieldOwner("flux")); err != nil {
			t.Fatal(err)
		}
	}
}

func (o *takeover) answered(t *testing.T, at string) {
	t.Helper()
	for _, name := range []string{"infra", "apps", "nested", "stopped"} {
		scenario.Eventually(t, scenario.Converge, "Kustomization "+name+" has been reconciled by the agent", func(ctx context.Context) error {
			k := &kustomizev1.Kustomization{}
			if err := scenario.Get(ctx, o.MoM, k, stage.Namespace, name); err != nil {
				return err
			}
			if k.Status.LastHandledReconcileAt != at || !meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) {
				return fmt.Errorf("handled %s: %s", k.Status.LastHandledReconcileAt, scenario.Summary(k.Status.Conditions))
			}
			return nil
		})
	}
}

// nothingIsTouched: after two full passes of the agent every object is the one it
// was. The API server was asked to verify them, by server-side apply as Flux's
// manager, and stored nothing; what people took back was left alone.
func (o *takeover) nothingIsTouched(t *testing.T) {
	before := o.identities(t)
	inventories := map[string][]string{}
	for _, name := range []string{"infra", "apps", "nested", "stopped"} {
		inventories[name] = o.inventory(t, name)
	}
	_, from, err := o.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	o.ask(t, "2026-11-02T10:00:00Z")
	o.scale(t, 1)
	o.answered(t, "2026-11-02T10:00:00Z")
	o.ask(t, "2026-11-02T11:00:00Z")
	o.answered(t, "2026-11-02T11:00:00Z")
	if diff := cmp.Diff(before, o.identities(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-before, +after:\n%s", diff)
	}
	for name, want := range inventories {
		if diff := cmp.Diff(want, o.inventory(t, name)); diff != "" {
			t.Errorf("inventory of %s: -before, +after:\n%s", name, diff)
		}
	}
	events, _, err := o.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	writes := 0
	for _, e := range events {
		switch {
		case !e.ByAgent() || strings.Contains(e.RequestURI, "dryRun=All") || e.ObjectRef.Resource == "events":
		case strings.HasPrefix(e.Verb, "delete"):
			t.Errorf("the agent asked for %s %s", e.Verb, e.RequestURI)
		case strings.HasSuffix(e.ObjectRef.APIGroup, ".toolkit.fluxcd.io") && e.ObjectRef.Subresource == "status":
			writes++
		case e.ObjectRef.Namespace == stage.Namespace && e.ObjectRef.Resource == "configmaps":
			// The agent's own report.
		case e.Verb == "patch" && e.ObjectRef.Subresource == "" && strings.Contains(e.RequestURI, "fieldManager=kustomize-controller&force=true") &&
			e.ObjectRef.Name != "handed-over" && e.ObjectRef.Name != "created-once":
		default:
			t.Errorf("the agent wrote: %s %s", e.Verb, e.RequestURI)
		}
	}
	if writes == 0 {
		t.Error("the audit log has no status of the agent: it does not show what it is to show")
	}
}

func (o *takeover) inventory(t *testing.T, name string) []string {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	if err := scenario.Get(t.Context(), o.MoM, k, stage.Namespace, name); err != nil {
		t.Fatal(err)
	}
	var ids []string
	if k.Status.Inventory != nil {
		for _, e := range k.Status.Inventory.Entries {
			ids = append(ids, e.ID+" "+e.Version)
		}
	}
	slices.Sort(ids)
	return ids
}

// workGoesOn: what the agent took over it answers for. A commit changes one
// object, and what Git no longer declares goes, but for what is marked to stay.
func (o *takeover) workGoesOn(t *testing.T) {
	handedOver := o.recordedObject(t, "ConfigMap", "handed-over")
	policy := o.recordedObject(t, "NetworkPolicy", "web")
	before := o.live(t, handedOver)
	if _, err := o.Git.Commit(t.Context(), "repo", "main", "Go on", func(dir string) error {
		return errors.Join(
			scenario.ReplaceIn(filepath.Join(dir, "nested", "inner.yaml"), `value: "1"`, `value: "2"`),
			scenario.ReplaceIn(filepath.Join(dir, "apps", "modes.yaml"), "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: kept\n  annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}\ndata: {value: \"1\"}\n", ""),
			scenario.ReplaceIn(filepath.Join(dir, "apps", "workloads.yaml"), "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: web\nspec:\n  podSelector: {matchLabels: {app: web}}\n  ingress: [{ports: [{port: 8080}]}]\n", ""),
		)
	}); err != nil {
		t.Fatal(err)
	}
	o.ask(t, "2026-11-02T12:00:00Z")
	scenario.Eventually(t, scenario.Converge, "the commit is in the cluster", func(ctx context.Context) error {
		inner := stage.Object("v1", "ConfigMap")
		if err := scenario.Get(ctx, o.MoM, inner, "shop", "pre-inner"); err != nil {
			return err
		}
		if value, _, _ := unstructured.NestedString(inner.Object, "data", "value"); value != "2" {
			return fmt.Errorf("the object has %q", value)
		}
		gone := stage.Object(policy.GetAPIVersion(), policy.GetKind())
		if err := scenario.Get(ctx, o.MoM, gone, "shop", "web"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the NetworkPolicy is still there: %v", err)
		}
		return nil
	})
	o.live(t, o.recordedObject(t, "ConfigMap", "kept"))
	if after := o.live(t, handedOver); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Error("the object that people took back was written")
	}
	// Suspended: the same directory, under another name.
	stopped := o.live(t, o.recordedObject(t, "ConfigMap", "inner-stopped"))
	if value, _, _ := unstructured.NestedString(stopped.Object, "data", "value"); value != "1" {
		t.Errorf("the suspended Kustomization applied %q", value)
	}
}

func (o *takeover) recordedObject(t *testing.T, kind, name string) *unstructured.Unstructured {
	t.Helper()
	i := slices.IndexFunc(o.recorded, func(u *unstructured.Unstructured) bool { return u.GetKind() == kind && u.GetName() == name })
	if i < 0 {
		t.Fatalf("the fixture has no %s %s", kind, name)
	}
	return o.recorded[i]
}

// adoptsWhatKubectlApplied: objects that people made by hand come under a
// Kustomization. They stay the objects they are; what kubectl owned is ours, and
// what Git does not declare of it goes.
func (o *takeover) adoptsWhatKubectlApplied(t *testing.T) {
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	byHand := func(name string, annotations map[string]any) *unstructured.Unstructured {
		u := stage.Object("v1", "ConfigMap")
		u.Object["metadata"] = map[string]any{"namespace": "default", "name": name, "annotations": annotations}
		u.Object["data"] = map[string]any{"value": "1", "extra": "by hand"}
		return u
	}
	applied := byHand("applied", map[string]any{
		"kubectl.kubernetes.io/last-applied-configuration": `{"apiVersion":"v1","data":{"extra":"by hand","value":"1"},"kind":"ConfigMap","metadata":{"name":"applied"}}`,
	})
	if err := c.Create(t.Context(), applied, client.FieldOwner("kubectl-client-side-apply")); err != nil {
		t.Fatal(err)
	}
	serverSide := byHand("server-side", map[string]any{})
	if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(serverSide), client.FieldOwner("kubectl")); err != nil {
		t.Fatal(err)
	}
	foreign := byHand("foreign", map[string]any{})
	if err := c.Create(t.Context(), foreign, client.FieldOwner("another-controller")); err != nil {
		t.Fatal(err)
	}
	o.Repository(t, "adopt", map[string]string{
		"set/applied.yaml": scenario.ConfigMap("applied", "1"), "set/server-side.yaml": scenario.ConfigMap("server-side", "1"), "set/foreign.yaml": scenario.ConfigMap("foreign", "1"),
	})
	o.Apply(t, scenario.Kustomization("adopt", "adopt", "./set", ""))
	o.Reason(t, "adopt", fluxmeta.ReconciliationSucceededReason)
	for _, want := range []struct {
		before *unstructured.Unstructured
		extra  bool
		reason string
	}{
		{applied, false, "kubectl apply is undone by Git, and its annotation goes"},
		{serverSide, false, "kubectl apply --server-side is undone by Git"},
		{foreign, true, "a field that another controller set and Git does not declare is that controller's"},
	} {
		got := o.live(t, want.before)
		if got.GetUID() != want.before.GetUID() {
			t.Errorf("%s was created anew", got.GetName())
		}
		if got.GetLabels()["kustomize.toolkit.fluxcd.io/name"] != "adopt" || got.GetLabels()["kustomize.toolkit.fluxcd.io/namespace"] != stage.Namespace {
			t.Errorf("%s has labels %v", got.GetName(), got.GetLabels())
		}
		if _, ok := got.GetAnnotations()["kubectl.kubernetes.io/last-applied-configuration"]; ok {
			t.Errorf("%s still has kubectl's annotation", got.GetName())
		}
		if _, ok, _ := unstructured.NestedString(got.Object, "data", "extra"); ok != want.extra {
			t.Errorf("%s: %s, but data is %v", got.GetName(), want.reason, got.Object["data"])
		}
		for manager := range managers(got) {
			if strings.HasPrefix(manager, "kubectl") {
				t.Errorf("%s is still managed by %s", got.GetName(), manager)
			}
		}
		if _, ok := managers(got)["kustomize-controller Apply "]; !ok {
			t.Errorf("%s is managed by %v", got.GetName(), managers(got))
		}
	}
}
