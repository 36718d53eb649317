package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer"
)

// repository creates one with files and a GitRepository that follows it.
func (o *oneTier) repository(t *testing.T, name string, files map[string]string) {
	t.Helper()
	if err := o.Git.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	o.put(t, name, files)
	o.apply(t, fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %[1]s, namespace: cascade-system}
spec:
  url: %[2]s
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 1s
`, name, o.Git.HTTPURL(name)))
}

// put commits files.
func (o *oneTier) put(t *testing.T, repo string, files map[string]string) {
	t.Helper()
	_, err := o.Git.Commit(t.Context(), repo, "main", "Change", func(dir string) error {
		for name, text := range files {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (o *oneTier) apply(t *testing.T, text string) {
	t.Helper()
	c, err := o.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), c, text); err != nil {
		t.Fatal(err)
	}
}

func kustomization(name, repo, path, more string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s, namespace: cascade-system}
spec:
  sourceRef: {kind: GitRepository, name: %s}
  path: %s
  targetNamespace: default
  prune: true
  interval: 10m
  retryInterval: 1s
%s`, name, repo, path, more)
}

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {value: %q}\n", name, value)
}

// condition waits for a reason of a Kustomization's Ready condition.
func (o *oneTier) condition(t *testing.T, name, reason string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	eventually(t, converge, fmt.Sprintf("Kustomization %s says %s", name, reason), func(ctx context.Context) error {
		k := &kustomizev1.Kustomization{}
		if err := get(ctx, o.MoM, k, stage.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Errorf("conditions are %s", summary(k.Status.Conditions))
		}
		found = *c
		return nil
	})
	return found
}

// value waits until a ConfigMap has a value; "" waits until it is gone.
func (o *oneTier) value(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("ConfigMap %s has %q", name, want), func(ctx context.Context) error {
		got, err := o.read(ctx, name)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

func (o *oneTier) read(ctx context.Context, name string) (string, error) {
	cm := &corev1.ConfigMap{}
	err := get(ctx, o.MoM, cm, "default", name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return cm.Data["value"], err
}

func (o *oneTier) remove(t *testing.T, name string) {
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
	eventually(t, converge, "Kustomization "+name+" is gone", func(ctx context.Context) error {
		err := get(ctx, o.MoM, &kustomizev1.Kustomization{}, stage.Namespace, name)
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
func (o *oneTier) healthAndDependencies(t *testing.T) {
	o.repository(t, "flows", map[string]string{
		"first/slow.yaml":   unhealthy,
		"second/after.yaml": configMap("after", "1"),
		"third/other.yaml":  configMap("other", "1"),
	})
	o.apply(t, kustomization("first", "flows", "./first", "  wait: true\n  timeout: 2s\n"))
	o.apply(t, kustomization("second", "flows", "./second", "  dependsOn: [{name: first}]\n"))
	o.condition(t, "second", fluxmeta.DependencyNotReadyReason)
	if c := o.condition(t, "first", fluxmeta.HealthCheckFailedReason); !strings.Contains(c.Message, "Deployment/default/slow") {
		t.Errorf("the message does not name what is unhealthy: %s", c.Message)
	}
	o.apply(t, kustomization("third", "flows", "./third", ""))
	o.value(t, "other", "1")
	if got, err := o.read(t.Context(), "after"); err != nil || got != "" {
		t.Fatalf("the dependant was applied: %q, %v", got, err)
	}
	o.put(t, "flows", map[string]string{"first/slow.yaml": strings.ReplaceAll(unhealthy, `["false"]`, `["true"]`)})
	o.condition(t, "first", fluxmeta.ReconciliationSucceededReason)
	o.value(t, "after", "1")
}

// suspended: nothing arrives while spec.suspend is set, and reconcile waits for
// what does.
func (o *oneTier) suspended(t *testing.T) {
	o.apply(t, kustomization("third", "flows", "./third", "  suspend: true\n"))
	o.put(t, "flows", map[string]string{"third/other.yaml": configMap("other", "2"), "second/after.yaml": configMap("after", "2")})
	o.value(t, "after", "2") // the same commit, so the suspended one had its chance
	if got, err := o.read(t.Context(), "other"); err != nil || got != "1" {
		t.Fatalf("the suspended Kustomization applied %q, %v", got, err)
	}
	o.apply(t, kustomization("third", "flows", "./third", "  suspend: false\n"))
	o.value(t, "other", "2")

	o.put(t, "flows", map[string]string{"third/other.yaml": configMap("other", "3")})
	out, err := o.Run(t.Context(), "cascade", "reconcile", "kustomization", "third", "--with-source", "--kubeconfig", o.MoM.Kubeconfig())
	if err != nil || !strings.Contains(out, "applied revision main@sha1:") {
		t.Fatalf("reconcile said %q, %v", out, err)
	}
	if got, err := o.read(t.Context(), "other"); err != nil || got != "3" {
		t.Fatalf("after reconcile the object has %q, %v", got, err)
	}
}

// pruning: an object that Git no longer declares goes, one that carries another
// owner's labels or asks to stay does not.
func (o *oneTier) pruning(t *testing.T) {
	o.repository(t, "prune", map[string]string{
		"set/stays.yaml": configMap("stays", "1"), "set/goes.yaml": configMap("goes", "1"),
		"set/taken.yaml": configMap("taken", "1"), "set/kept.yaml": configMap("kept", "1"),
	})
	o.apply(t, kustomization("prune", "prune", "./set", ""))
	o.value(t, "kept", "1")
	o.condition(t, "prune", fluxmeta.ReconciliationSucceededReason)
	// Suspended, because drift of the owner labels would be corrected.
	o.apply(t, kustomization("prune", "prune", "./set", "  suspend: true\n"))
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
	o.apply(t, kustomization("prune", "prune", "./set", "  suspend: false\n"))
	o.value(t, "goes", "")
	o.condition(t, "prune", fluxmeta.ReconciliationSucceededReason)
	for _, name := range []string{"stays", "taken", "kept"} {
		if got, err := o.read(t.Context(), name); err != nil || got != "1" {
			t.Errorf("ConfigMap %s has %q, %v", name, got, err)
		}
	}
}

// inhabitedNamespace: a Namespace goes with what is declared in it, but not while
// it holds what somebody else put there.
func (o *oneTier) inhabitedNamespace(t *testing.T) {
	o.repository(t, "spaces", map[string]string{
		"set/space.yaml":   "apiVersion: v1\nkind: Namespace\nmetadata: {name: space}\n",
		"set/inside.yaml":  strings.Replace(configMap("inside", "1"), "{name: inside}", "{name: inside, namespace: space}", 1),
		"set/outside.yaml": strings.Replace(configMap("outside", "1"), "{name: outside}", "{name: outside, namespace: default}", 1),
	})
	o.apply(t, strings.Replace(kustomization("spaces", "spaces", "./set", ""), "  targetNamespace: default\n", "", 1))
	o.condition(t, "spaces", fluxmeta.ReconciliationSucceededReason)
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
	if held := o.condition(t, "spaces", syncer.ReasonPruneBlocked); !strings.Contains(held.Message, "Namespace/space") {
		t.Errorf("the message does not name the Namespace: %s", held.Message)
	}
	if err := get(t.Context(), o.MoM, guest, "space", "guest"); err != nil {
		t.Errorf("the guest is gone: %v", err)
	}
	if err := c.Delete(t.Context(), guest); err != nil {
		t.Fatal(err)
	}
	// What was held with it is for a person to decide, now that nothing is protected.
	if _, err := o.Run(t.Context(), "cascade", "reconcile", "kustomization", "spaces", "--kubeconfig", o.MoM.Kubeconfig()); err == nil {
		t.Error("a removal that was held is carried out by itself")
	}
	held := o.condition(t, "spaces", syncer.ReasonPruneBlocked)
	_, hash, _ := strings.Cut(held.Message, "--hash ")
	if _, err := o.Run(t.Context(), "cascade", "approve", "prune", "spaces", "--hash", hash, "--kubeconfig", o.MoM.Kubeconfig()); err != nil {
		t.Fatalf("cannot approve what is held: %v: %s", err, held.Message)
	}
	eventually(t, converge, "the empty Namespace is gone", func(ctx context.Context) error {
		if err := get(ctx, o.MoM, &corev1.Namespace{}, "", "space"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
}

// deletionPolicies: what goes with a Kustomization.
func (o *oneTier) deletionPolicies(t *testing.T) {
	o.repository(t, "policies", map[string]string{"a/a.yaml": configMap("orphan", "1"), "b/b.yaml": configMap("mirror", "1"), "c/c.yaml": configMap("waits", "1")})
	o.apply(t, kustomization("orphan", "policies", "./a", "  deletionPolicy: Orphan\n"))
	o.apply(t, kustomization("mirror", "policies", "./b", ""))
	o.apply(t, kustomization("waits", "policies", "./c", "  deletionPolicy: WaitForTermination\n"))
	for _, name := range []string{"orphan", "mirror", "waits"} {
		o.value(t, name, "1")
		o.condition(t, name, fluxmeta.ReconciliationSucceededReason)
		o.remove(t, name)
	}
	o.value(t, "mirror", "")
	o.value(t, "waits", "")
	if got, err := o.read(t.Context(), "orphan"); err != nil || got != "1" {
		t.Errorf("the orphan has %q, %v", got, err)
	}
}

// refusals: what is not supported or not there is said by reason, on the object
// that asks for it, and nothing is applied.
func (o *oneTier) refusals(t *testing.T) {
	o.repository(t, "refusals", map[string]string{
		"ok/ok.yaml":                  configMap("refused", "1"),
		"remote/kustomization.yaml":   "resources: [https://example.com/base.yaml]\n",
		"cycle/cycle.yaml":            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cycle}\ndata: &a {k: *a}\n",
		"missing/substitution.yaml":   configMap("missing", "${nowhere}"),
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
		o.apply(t, kustomization(name, "refusals", c.path, c.more))
		got := o.condition(t, name, c.reason)
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
	endless := strings.Replace(kustomization("endless", "refusals", "./ok", ""), "interval: 10m", "interval: 9999999h", 1)
	if err := stage.Apply(t.Context(), c, endless); err == nil || !strings.Contains(err.Error(), "cascade-durations") {
		t.Errorf("an interval that no controller can read is admitted: %v", err)
	}
	if got, err := o.read(t.Context(), "refused"); err != nil || got != "" {
		t.Errorf("a refused Kustomization applied %q, %v", got, err)
	}
	if pid := o.MoM.Agent(); pid == 0 {
		t.Error("the agent is gone")
	}
}
