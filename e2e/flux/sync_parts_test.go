package flux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

func (o *syncTier) remove(t *testing.T, name string) {
	t.Helper()
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	k := &kustomizev1.Kustomization{}
	k.Namespace, k.Name = stage.Namespace, name
	if err := c.Delete(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "Kustomization "+name+" is gone", func(ctx context.Context) error {
		err := scenario.Get(ctx, o.MoM, &kustomizev1.Kustomization{}, stage.Namespace, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %v", err)
	})
}

const unhealthy = `apiVersion: apps/v1
kind: Deployment
metadata: {name: slow}
spec:
  replicas: 1
  selector: {matchLabels: {app: slow}}
  template:
    metadata: {labels: {app: slow}}
    spec:
      containers: [{name: slow, image: "cascade.local/e2e:dev", command: ["sleep", "1000000"], readinessProbe: {exec: {command: ["false"]}, periodSeconds: 1}}]
`

// healthAndDependencies: a dependant waits while its dependency is not healthy,
// and is woken when it is. Meanwhile the unhealthy one holds no worker.
func (o *syncTier) healthAndDependencies(t *testing.T) {
	o.Repository(t, "flows", map[string]string{
		"first/slow.yaml":   unhealthy,
		"second/after.yaml": scenario.ConfigMap("after", "1"),
		"third/other.yaml":  scenario.ConfigMap("other", "1"),
	})
	o.Apply(t, scenario.Kustomization("first", "flows", "./first", "  wait: true\n  timeout: 2s\n"))
	o.Apply(t, scenario.Kustomization("second", "flows", "./second", "  dependsOn: [{name: first}]\n"))
	o.Reason(t, "second", fluxmeta.DependencyNotReadyReason)
	if c := o.Reason(t, "first", fluxmeta.HealthCheckFailedReason); !strings.Contains(c.Message, "Deployment/default/slow") {
		t.Errorf("the message does not name what is unhealthy: %s", c.Message)
	}
	o.Apply(t, scenario.Kustomization("third", "flows", "./third", ""))
	o.Value(t, "other", "1")
	if got, err := o.ConfigMapValue(t.Context(), "after"); err != nil || got != "" {
		t.Fatalf("the dependant was applied: %q, %v", got, err)
	}
	o.Put(t, "flows", map[string]string{"first/slow.yaml": strings.ReplaceAll(unhealthy, `["false"]`, `["true"]`)})
	o.Reason(t, "first", fluxmeta.ReconciliationSucceededReason)
	o.Value(t, "after", "1")
}

// suspended: nothing arrives while spec.suspend is set, and reconcile waits for
// what does.
func (o *syncTier) suspended(t *testing.T) {
	o.Apply(t, scenario.Kustomization("third", "flows", "./third", "  suspend: true\n"))
	o.Put(t, "flows", map[string]string{"third/other.yaml": scenario.ConfigMap("other", "2"), "second/after.yaml": scenario.ConfigMap("after", "2")})
	o.Value(t, "after", "2") // the same commit, so the suspended one had its chance
	if got, err := o.ConfigMapValue(t.Context(), "other"); err != nil || got != "1" {
		t.Fatalf("the suspended Kustomization applied %q, %v", got, err)
	}
	o.Apply(t, scenario.Kustomization("third", "flows", "./third", "  suspend: false\n"))
	o.Value(t, "other", "2")

	o.Put(t, "flows", map[string]string{"third/other.yaml": scenario.ConfigMap("other", "3")})
	out, err := o.Run(t.Context(), "cascade", "reconcile", "kustomization", "third", "--with-source", "--kubeconfig", o.MoM.Kubeconfig())
	if err != nil || !strings.Contains(out, "applied revision main@sha1:") {
		t.Fatalf("reconcile said %q, %v", out, err)
	}
	if got, err := o.ConfigMapValue(t.Context(), "other"); err != nil || got != "3" {
		t.Fatalf("after reconcile the object has %q, %v", got, err)
	}
}

// ignoredFiles: a line in .sourceignore hides most of a small Kustomization, which the
// guard by numbers would let pass. It is held until the line goes; what is removed from Git
// goes as ever.
func (o *syncTier) ignoredFiles(t *testing.T) {
	files := map[string]string{}
	for i := range 4 {
		name := fmt.Sprint("hidden-", i)
		files["set/"+name+".yaml"] = scenario.ConfigMap(name, "1")
	}
	files["set/seen.yaml"] = scenario.ConfigMap("seen", "1")
	o.Repository(t, "hidden", files)
	o.Apply(t, scenario.Kustomization("hidden", "hidden", "./set", ""))
	o.Value(t, "hidden-3", "1")
	o.Reason(t, "hidden", fluxmeta.ReconciliationSucceededReason)
	o.Put(t, "hidden", map[string]string{".sourceignore": "set/hidden-*\n"})
	if c := o.Reason(t, "hidden", v1alpha1.ReasonPruneBlocked); !strings.Contains(c.Message, "4 of 5 objects are still in files that the source ignores, set/hidden-0.yaml among them") {
		t.Errorf("the message does not say why: %s", c.Message)
	}
	o.Value(t, "hidden-0", "1")
	remove := func(names ...string) {
		t.Helper()
		_, err := o.Git.Commit(t.Context(), "hidden", "main", "Remove "+names[0], func(dir string) error {
			var failures []error
			for _, name := range names {
				failures = append(failures, os.Remove(filepath.Join(dir, name)))
			}
			return errors.Join(failures...)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	remove(".sourceignore")
	o.Reason(t, "hidden", fluxmeta.ReconciliationSucceededReason)
	remove("set/hidden-0.yaml", "set/hidden-1.yaml")
	o.Value(t, "hidden-0", "")
	o.Value(t, "hidden-1", "")
	o.Value(t, "hidden-2", "1")
	o.Reason(t, "hidden", fluxmeta.ReconciliationSucceededReason)
}

// pruning: an object that Git no longer declares goes, one that carries another
// owner's labels or asks to stay does not.
func (o *syncTier) pruning(t *testing.T) {
	o.Repository(t, "prune", map[string]string{
		"set/stays.yaml": scenario.ConfigMap("stays", "1"), "set/goes.yaml": scenario.ConfigMap("goes", "1"),
		"set/taken.yaml": scenario.ConfigMap("taken", "1"), "set/kept.yaml": scenario.ConfigMap("kept", "1"),
	})
	o.Apply(t, scenario.Kustomization("prune", "prune", "./set", ""))
	o.Value(t, "kept", "1")
	o.Reason(t, "prune", fluxmeta.ReconciliationSucceededReason)
	// Suspended, because drift of the owner labels would be corrected.
	o.Apply(t, scenario.Kustomization("prune", "prune", "./set", "  suspend: true\n"))
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	for name, patch := range map[string]string{
		"taken": `{"metadata":{"labels":{"kustomize.toolkit.fluxcd.io/name":"another"}}}`,
		"kept":  `{"metadata":{"annotations":{"kustomize.toolkit.fluxcd.io/prune":"Disabled"}}}`,
	} {
		cm := &corev1.ConfigMap{}
		cm.Namespace, cm.Name = "default", name
		if err := c.Patch(t.Context(), cm, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	_, err = o.Git.Commit(t.Context(), "prune", "main", "Drop three", func(dir string) error {
		var failures []error
		for _, name := range []string{"goes", "taken", "kept"} {
			failures = append(failures, os.Remove(filepath.Join(dir, "set", name+".yaml")))
		}
		return errors.Join(failures...)
	})
	if err != nil {
		t.Fatal(err)
	}
	// Twice: the second answer means that the snapshot of the first is in use.
	for range 2 {
		if _, err := o.Run(t.Context(), "cascade", "reconcile", "source", "prune", "--kubeconfig", o.MoM.Kubeconfig()); err != nil {
			t.Fatal(err)
		}
	}
	o.Apply(t, scenario.Kustomization("prune", "prune", "./set", "  suspend: false\n"))
	o.Value(t, "goes", "")
	o.Reason(t, "prune", fluxmeta.ReconciliationSucceededReason)
	for _, name := range []string{"stays", "taken", "kept"} {
		if got, err := o.ConfigMapValue(t.Context(), name); err != nil || got != "1" {
			t.Errorf("ConfigMap %s has %q, %v", name, got, err)
		}
	}
}

// inhabitedNamespace: a Namespace goes with what is declared in it, but not while
// it holds what somebody else put there.
func (o *syncTier) inhabitedNamespace(t *testing.T) {
	o.Repository(t, "spaces", map[string]string{
		"set/space.yaml":   "apiVersion: v1\nkind: Namespace\nmetadata: {name: space}\n",
		"set/inside.yaml":  strings.Replace(scenario.ConfigMap("inside", "1"), "{name: inside}", "{name: inside, namespace: space}", 1),
		"set/outside.yaml": strings.Replace(scenario.ConfigMap("outside", "1"), "{name: outside}", "{name: outside, namespace: default}", 1),
	})
	o.Apply(t, strings.Replace(scenario.Kustomization("spaces", "spaces", "./set", ""), "  targetNamespace: default\n", "", 1))
	o.Reason(t, "spaces", fluxmeta.ReconciliationSucceededReason)
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	guest := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "space", Name: "guest"}}
	if err := c.Create(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	_, err = o.Git.Commit(t.Context(), "spaces", "main", "Drop the namespace", func(dir string) error {
		return errors.Join(os.Remove(filepath.Join(dir, "set", "space.yaml")), os.Remove(filepath.Join(dir, "set", "inside.yaml")))
	})
	if err != nil {
		t.Fatal(err)
	}
	if held := o.Reason(t, "spaces", v1alpha1.ReasonPruneBlocked); !strings.Contains(held.Message, "Namespace/space") {
		t.Errorf("the message does not name the Namespace: %s", held.Message)
	}
	if err := scenario.Get(t.Context(), o.MoM, guest, "space", "guest"); err != nil {
		t.Errorf("the guest is gone: %v", err)
	}
	if err := c.Delete(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	// What was held with it is for a person to decide, now that nothing is protected.
	if _, err := o.Run(t.Context(), "cascade", "reconcile", "kustomization", "spaces", "--kubeconfig", o.MoM.Kubeconfig()); err == nil {
		t.Error("a removal that was held is carried out by itself")
	}
	held := o.Reason(t, "spaces", v1alpha1.ReasonPruneBlocked)
	_, hash, _ := strings.Cut(held.Message, "--hash ")
	if _, err := o.Run(t.Context(), "cascade", "approve", "prune", "spaces", "--hash", hash, "--kubeconfig", o.MoM.Kubeconfig()); err != nil {
		t.Fatalf("cannot approve what is held: %v: %s", err, held.Message)
	}
	scenario.Eventually(t, scenario.Converge, "the empty Namespace is gone", func(ctx context.Context) error {
		if err := scenario.Get(ctx, o.MoM, &corev1.Namespace{}, "", "space"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
}

// deletionPolicies: what goes with a Kustomization.
func (o *syncTier) deletionPolicies(t *testing.T) {
	o.Repository(t, "policies", map[string]string{"a/a.yaml": scenario.ConfigMap("orphan", "1"), "b/b.yaml": scenario.ConfigMap("mirror", "1"), "c/c.yaml": scenario.ConfigMap("waits", "1")})
	o.Apply(t, scenario.Kustomization("orphan", "policies", "./a", "  deletionPolicy: Orphan\n"))
	o.Apply(t, scenario.Kustomization("mirror", "policies", "./b", ""))
	o.Apply(t, scenario.Kustomization("waits", "policies", "./c", "  deletionPolicy: WaitForTermination\n"))
	for _, name := range []string{"orphan", "mirror", "waits"} {
		o.Value(t, name, "1")
		o.Reason(t, name, fluxmeta.ReconciliationSucceededReason)
		o.remove(t, name)
	}
	o.Value(t, "mirror", "")
	o.Value(t, "waits", "")
	if got, err := o.ConfigMapValue(t.Context(), "orphan"); err != nil || got != "1" {
		t.Errorf("the orphan has %q, %v", got, err)
	}
}

// refusals: what is not supported or not there is said by reason, on the object
// that asks for it, and nothing is applied.
func (o *syncTier) refusals(t *testing.T) {
	o.Repository(t, "refusals", map[string]string{
		"ok/ok.yaml":                  scenario.ConfigMap("refused", "1"),
		"remote/kustomization.yaml":   "resources: [https://example.com/base.yaml]\n",
		"cycle/cycle.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cycle}\ndata: &a {k: *a}\n",
		"missing/substitution.yaml":   scenario.ConfigMap("missing", "${nowhere}"),
		"immutable/namespace.yaml":    "apiVersion: v1\nkind: Secret\nmetadata: {name: secret}\ntype: [not, a, type]\nstringData: {password: hunter2hunter2}\n",
		"undeclared/undeclared.yaml":  "apiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: nothing}\n",
		"encrypted/secret.yaml":       "apiVersion: v1\nkind: Secret\nmetadata: {name: encrypted}\ndata: {a: ZW5j}\nsops: {mac: x}\n",
		"traversal/kustomization.yml": "resources: [../../../../etc/passwd]\n",
	})
	for name, c := range map[string]struct{ path, more, reason string }{
		"impersonated": {"./ok", "  serviceAccountName: somebody\n", fluxmeta.ReconciliationFailedReason},
		"elsewhere":    {"./ok", "  kubeConfig: {secretRef: {name: x}}\n", fluxmeta.ReconciliationFailedReason},
		"remote":       {"./remote", "", fluxmeta.BuildFailedReason},
		"cycle":        {"./cycle", "", fluxmeta.BuildFailedReason},
		"missing":      {"./missing", "  postBuild: {substitute: {a: b}}\n", fluxmeta.BuildFailedReason},
		"invalid":      {"./immutable", "", fluxmeta.ReconciliationFailedReason},
		"undeclared":   {"./undeclared", "", fluxmeta.ReconciliationFailedReason},
		"encrypted":    {"./encrypted", "", fluxmeta.BuildFailedReason},
		"traversal":    {"./traversal", "", fluxmeta.BuildFailedReason},
		"nowhere":      {"./nowhere", "", fluxmeta.ArtifactFailedReason},
	} {
		o.Apply(t, scenario.Kustomization(name, "refusals", c.path, c.more))
		got := o.Reason(t, name, c.reason)
		if strings.Contains(got.Message, "hunter2") || strings.Contains(got.Message, "root:") {
			t.Errorf("%s: the message leaks: %s", name, got.Message)
		}
		t.Logf("%s: %s: %s", name, got.Reason, got.Message)
		o.remove(t, name)
	}
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	// One that decodes nowhere would stop the watch of all the others.
	endless := strings.Replace(scenario.Kustomization("endless", "refusals", "./ok", ""), "interval: 10m", "interval: 9999999h", 1)
	if err := stage.Apply(t.Context(), c, endless); err == nil || !strings.Contains(err.Error(), "cascade-durations") {
		t.Errorf("an interval that no controller can read is admitted: %v", err)
	}
	if got, err := o.ConfigMapValue(t.Context(), "refused"); err != nil || got != "" {
		t.Errorf("a refused Kustomization applied %q, %v", got, err)
	}
	if pid := o.MoM.Agent(); pid == 0 {
		t.Error("the agent is gone")
	}
}
