package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// spec is the one tier on which every row of the compatibility table that needs
// an API server is tried. Rows run at the same time, each in a namespace and on a
// repository of its own.
type spec struct {
	oneTier
	// client is one for all rows: to make one asks the API server for all that it
	// has.
	client client.Client
}

func startSpec(t *testing.T) *spec {
	t.Helper()
	repos := t.TempDir()
	bootstrap := filepath.Join(repos, "bootstrap.yaml")
	if err := os.WriteFile(bootstrap, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := &spec{}
	s.Stage = startStage(t, stage.Options{Repos: repos, Bootstrap: bootstrap})
	var err error
	if s.client, err = s.MoM.Client(); err != nil {
		t.Fatal(err)
	}
	return s
}

// load reads an object.
func (s *spec) load(ctx context.Context, o client.Object, namespace, name string) error {
	return s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// apply creates or updates the objects of a YAML stream.
func (s *spec) apply(t *testing.T, text string) {
	t.Helper()
	if err := stage.Apply(t.Context(), s.client, text); err != nil {
		t.Fatal(err)
	}
}

// row is one row of the table.
type row struct {
	*spec
	// ns is the namespace, and the name of the repository.
	ns string
	// head is the last commit.
	head  string
	asked int
}

// row begins one: a namespace, a repository with files, and a GitRepository named
// git that follows it.
func (s *spec) row(t *testing.T, files map[string]string) *row {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	return s.begin(t, strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(name)), files)
}

// begin is row under a name of the caller's.
func (s *spec) begin(t *testing.T, name string, files map[string]string) *row {
	t.Helper()
	r := &row{spec: s, ns: name}
	if err := s.Git.Create(t.Context(), r.ns); err != nil {
		t.Fatal(err)
	}
	username, password := s.Git.Login()
	s.apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: git-auth, namespace: %[1]s}
stringData: {username: %[2]s, password: %[3]s}
`, r.ns, username, password))
	r.commit(t, files)
	s.apply(t, r.source("git", r.Git.HTTPURL(r.ns)))
	return r
}

func (r *row) source(name, url string) string {
	return fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %s, namespace: %s}
spec: {url: %s, ref: {branch: main}, secretRef: {name: git-auth}, interval: 10m}
`, name, r.ns, url)
}

// commit changes files, "" removes one, and has the source fetch it if there is
// one yet.
func (r *row) commit(t *testing.T, files map[string]string) {
	t.Helper()
	head, err := r.Git.Commit(t.Context(), r.ns, "main", "Change", func(dir string) error {
		for name, text := range files {
			file := filepath.Join(dir, name)
			if text == "" {
				if err := os.Remove(file); err != nil {
					return err
				}
				continue
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(r.fill(text)), 0o644)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.head != "" {
		r.ask(t, &sourcev1.GitRepository{}, "git")
	}
	r.head = head
}

// fetched waits until the last commit is the source's.
func (r *row) fetched(t *testing.T) {
	t.Helper()
	eventually(t, converge, "the source has the last commit", func(ctx context.Context) error {
		g := &sourcev1.GitRepository{}
		if err := r.load(ctx, g, r.ns, "git"); err != nil {
			return err
		}
		if a := g.Status.Artifact; a == nil || !strings.HasSuffix(a.Revision, r.head) {
			return fmt.Errorf("its artifact is %+v", a)
		}
		return nil
	})
}

// ask sets a new request for a reconcile and returns it.
func (r *row) ask(t *testing.T, o client.Object, name string) string {
	t.Helper()
	r.asked++
	at := fmt.Sprintf("%s-%d", name, r.asked)
	r.patch(t, o, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, at))
	return at
}

// patch changes an object of the row's namespace as a user would.
func (r *row) patch(t *testing.T, o client.Object, name, patch string) {
	t.Helper()
	o.SetNamespace(r.ns)
	o.SetName(name)
	if err := r.client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
}

// kustomization makes or replaces one. What spec says, in YAML, goes over: the
// directory of its name, its own namespace as target, and a retry each second.
func (r *row) kustomization(t *testing.T, name, spec string) {
	t.Helper()
	fields := map[string]any{
		"sourceRef": map[string]any{"kind": "GitRepository", "name": "git"}, "path": "./" + name, "targetNamespace": r.ns,
		"prune": true, "interval": "10m", "retryInterval": "1s",
	}
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(r.fill(spec)), &over); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, over)
	for key, value := range fields {
		if value == nil {
			delete(fields, key)
		}
	}
	u := stage.Object("kustomize.toolkit.fluxcd.io/v1", "Kustomization")
	u.Object["metadata"] = map[string]any{"namespace": r.ns, "name": name}
	u.Object["spec"] = fields
	if err := r.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

func (r *row) read(ctx context.Context, name string) (*kustomizev1.Kustomization, error) {
	k := &kustomizev1.Kustomization{}
	return k, r.load(ctx, k, r.ns, name)
}

// says waits until a condition of a Kustomization has a status, a reason, and a
// message that begins or, with a leading "...", goes on like this. It must be
// about the generation that is there.
func (r *row) says(t *testing.T, name, kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	eventually(t, converge, fmt.Sprintf("Kustomization %s says %s=%s, %s: %s", name, kind, status, reason, message), func(ctx context.Context) error {
		k, err := r.read(ctx, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != k.Generation {
			return fmt.Errorf("conditions are %s", summary(k.Status.Conditions))
		}
		rest, anywhere := strings.CutPrefix(message, "...")
		if anywhere && !strings.Contains(c.Message, rest) || !anywhere && !strings.HasPrefix(c.Message, message) {
			return fmt.Errorf("conditions are %s", summary(k.Status.Conditions))
		}
		found = *c
		return nil
	})
	return found
}

// ready waits until the last commit is applied, and all that says so is there.
func (r *row) ready(t *testing.T, name string) *kustomizev1.Kustomization {
	t.Helper()
	var found *kustomizev1.Kustomization
	eventually(t, converge, "Kustomization "+name+" is ready", func(ctx context.Context) error {
		k, err := r.read(ctx, name)
		if err != nil {
			return err
		}
		revision := "main@sha1:" + r.head
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		switch {
		case c == nil || c.Status != metav1.ConditionTrue || c.Reason != fluxmeta.ReconciliationSucceededReason || c.Message != "Applied revision: "+revision:
		case meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReconcilingCondition) != nil || meta.FindStatusCondition(k.Status.Conditions, fluxmeta.StalledCondition) != nil:
		case k.Status.LastAppliedRevision != revision || k.Status.LastAttemptedRevision != revision:
			return fmt.Errorf("revisions are %s, %s", k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision)
		case k.Status.ObservedGeneration != k.Generation:
			return fmt.Errorf("observed generation is %d of %d", k.Status.ObservedGeneration, k.Generation)
		default:
			found = k
			return nil
		}
		return fmt.Errorf("conditions are %s", summary(k.Status.Conditions))
	})
	return found
}

// handled waits until a request is answered, in whatever way.
func (r *row) handled(t *testing.T, name, at string) *kustomizev1.Kustomization {
	t.Helper()
	var found *kustomizev1.Kustomization
	eventually(t, converge, "the request of "+name+" is handled", func(ctx context.Context) error {
		k, err := r.read(ctx, name)
		if err != nil {
			return err
		}
		if k.Status.LastHandledReconcileAt != at {
			return fmt.Errorf("last handled is %q", k.Status.LastHandledReconcileAt)
		}
		found = k
		return nil
	})
	return found
}

// delete deletes an object of the row's namespace.
func (r *row) delete(t *testing.T, o client.Object, name string) {
	t.Helper()
	o.SetNamespace(r.ns)
	o.SetName(name)
	if err := r.client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// gone waits until an object is not there any more.
func (r *row) gone(t *testing.T, o client.Object, name string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("%T %s is gone", o, name), func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// data of a ConfigMap; nil if there is none.
func (r *row) data(t *testing.T, name string) map[string]string {
	t.Helper()
	cm := &corev1.ConfigMap{}
	err := r.load(t.Context(), cm, r.ns, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	if cm.Data == nil {
		return map[string]string{}
	}
	return cm.Data
}

// has waits until a ConfigMap has a value under a key; "" is none.
func (r *row) has(t *testing.T, name, key, want string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("ConfigMap %s has %s=%q", name, key, want), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := r.load(ctx, cm, r.ns, name); err != nil {
			return err
		}
		if cm.Data[key] != want {
			return fmt.Errorf("data is %v", cm.Data)
		}
		return nil
	})
}

// object reads one of the row's namespace.
func (r *row) object(t *testing.T, apiVersion, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := stage.Object(apiVersion, kind)
	if err := r.load(t.Context(), u, r.ns, name); err != nil {
		t.Fatal(err)
	}
	return u
}

// ids of an inventory, sorted.
func ids(k *kustomizev1.Kustomization) []string {
	var ids []string
	if k.Status.Inventory != nil {
		for _, e := range k.Status.Inventory.Entries {
			ids = append(ids, e.ID+" "+e.Version)
		}
	}
	slices.Sort(ids)
	return ids
}

// fill puts the row's namespace where a text has $ns, as kinds that are not
// namespaced must differ from row to row.
func (r *row) fill(text string) string { return strings.ReplaceAll(text, "$ns", r.ns) }

// crd is a namespaced kind of the row's own group.
const crd = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.$ns.example.com}
spec:
  group: $ns.example.com
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
