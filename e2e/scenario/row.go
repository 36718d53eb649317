package scenario

import (
	"context"
	"fmt"
	"maps"
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

// Row is one row of a table: a namespace of a tier that it shares with other rows.
type Row struct {
	*Tier
	// Namespace is the name of the repository, too.
	Namespace string
	// Head is the last commit.
	Head string
	// requests counts the requests to reconcile.
	requests int
}

// Row begins a row: a namespace, a repository with files, and a GitRepository named
// git that follows it. It has the name of the subtest.
func (s *Tier) Row(t *testing.T, files map[string]string) *Row {
	t.Helper()
	return s.RowNamed(t, rowName(t), files)
}

// rowName makes a namespace's name of the subtest's, or of the test's if it is none.
func rowName(t *testing.T) string {
	_, name, isPart := strings.Cut(t.Name(), "/")
	if !isPart {
		name = t.Name()
	}
	return strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(name))
}

// RowNamed is Row under a name of the caller's.
func (s *Tier) RowNamed(t *testing.T, name string, files map[string]string) *Row {
	t.Helper()
	r := &Row{Tier: s, Namespace: name}
	if err := s.Git.Create(t.Context(), r.Namespace); err != nil {
		t.Fatal(err)
	}
	username, password := s.Git.Login()
	s.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: git-auth, namespace: %[1]s}
stringData: {username: %[2]s, password: %[3]s}
`, r.Namespace, username, password))
	r.Commit(t, files)
	s.Apply(t, r.GitRepository("git", r.Git.HTTPURL(r.Namespace)))
	return r
}

// GitRepository is the manifest of one in the row's namespace.
func (r *Row) GitRepository(name, url string) string {
	return fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %s, namespace: %s}
spec: {url: %s, ref: {branch: main}, secretRef: {name: git-auth}, interval: 10m}
`, name, r.Namespace, url)
}

// Commit changes files, where "" removes one, and has the source fetch the commit if
// there is a source yet.
func (r *Row) Commit(t *testing.T, files map[string]string) {
	t.Helper()
	filled := map[string]string{}
	for name, text := range files {
		filled[name] = r.Fill(text)
	}
	head, err := r.Git.Commit(t.Context(), r.Namespace, "main", "Change", func(dir string) error { return ChangeFiles(dir, filled) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Head != "" {
		r.Ask(t, &sourcev1.GitRepository{}, "git")
	}
	r.Head = head
}

// Fetched waits until the last commit is the source's.
func (r *Row) Fetched(t *testing.T) {
	t.Helper()
	Eventually(t, Converge, "the source has the last commit", func(ctx context.Context) error {
		g := &sourcev1.GitRepository{}
		if err := r.Load(ctx, g, r.Namespace, "git"); err != nil {
			return err
		}
		if a := g.Status.Artifact; a == nil || !strings.HasSuffix(a.Revision, r.Head) {
			return fmt.Errorf("its artifact is %+v", a)
		}
		return nil
	})
}

// NewRequest is a value for the annotation that asks for a reconcile.
func (r *Row) NewRequest(name string) string {
	r.requests++
	return fmt.Sprintf("%s-%d", name, r.requests)
}

// Ask asks for a reconcile of an object and returns the value of the request.
func (r *Row) Ask(t *testing.T, o client.Object, name string) string {
	t.Helper()
	at := r.NewRequest(name)
	r.Patch(t, o, name, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, at))
	return at
}

// Patch changes an object of the row's namespace as a user would.
func (r *Row) Patch(t *testing.T, o client.Object, name, patch string) {
	t.Helper()
	o.SetNamespace(r.Namespace)
	o.SetName(name)
	if err := r.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("somebody")); err != nil {
		t.Fatal(err)
	}
}

// Kustomization creates or replaces one. What spec says, in YAML, goes over: the
// directory of its name, its own namespace as target, and a retry each second.
func (r *Row) Kustomization(t *testing.T, name, spec string) {
	t.Helper()
	fields := map[string]any{
		"sourceRef": map[string]any{"kind": "GitRepository", "name": "git"}, "path": "./" + name, "targetNamespace": r.Namespace,
		"prune": true, "interval": "10m", "retryInterval": "1s",
	}
	over := map[string]any{}
	if err := yaml.Unmarshal([]byte(r.Fill(spec)), &over); err != nil {
		t.Fatal(err)
	}
	maps.Copy(fields, over)
	for key, value := range fields {
		if value == nil {
			delete(fields, key)
		}
	}
	u := stage.Object("kustomize.toolkit.fluxcd.io/v1", "Kustomization")
	u.Object["metadata"] = map[string]any{"namespace": r.Namespace, "name": name}
	u.Object["spec"] = fields
	if err := r.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// Read reads a Kustomization.
func (r *Row) Read(ctx context.Context, name string) (*kustomizev1.Kustomization, error) {
	k := &kustomizev1.Kustomization{}
	return k, r.Load(ctx, k, r.Namespace, name)
}

// Ready waits until a Kustomization has applied the last commit, and all of its status
// says so.
func (r *Row) Ready(t *testing.T, name string) *kustomizev1.Kustomization {
	t.Helper()
	var found *kustomizev1.Kustomization
	Eventually(t, Converge, "Kustomization "+name+" is ready", func(ctx context.Context) error {
		k, err := r.Read(ctx, name)
		if err != nil {
			return err
		}
		revision := "main@sha1:" + r.Head
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
		return fmt.Errorf("conditions are %s", Summary(k.Status.Conditions))
	})
	return found
}

// Handled waits until the agent has answered a request to reconcile a Kustomization,
// in whatever way.
func (r *Row) Handled(t *testing.T, name, at string) *kustomizev1.Kustomization {
	t.Helper()
	var found *kustomizev1.Kustomization
	Eventually(t, Converge, "the request of "+name+" is handled", func(ctx context.Context) error {
		k, err := r.Read(ctx, name)
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

// Delete deletes an object of the row's namespace.
func (r *Row) Delete(t *testing.T, o client.Object, name string) {
	t.Helper()
	o.SetNamespace(r.Namespace)
	o.SetName(name)
	if err := r.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// Gone waits until an object of the row's namespace is not there any more.
func (r *Row) Gone(t *testing.T, o client.Object, name string) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("%T %s is gone", o, name), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
}

// Data is that of a ConfigMap; nil if there is none.
func (r *Row) Data(t *testing.T, name string) map[string]string {
	t.Helper()
	cm := &corev1.ConfigMap{}
	err := r.Load(t.Context(), cm, r.Namespace, name)
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

// Has waits until a ConfigMap has a value under a key; "" is none.
func (r *Row) Has(t *testing.T, name, key, want string) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("ConfigMap %s has %s=%q", name, key, want), func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := r.Load(ctx, cm, r.Namespace, name); err != nil {
			return err
		}
		if cm.Data[key] != want {
			return fmt.Errorf("data is %v", cm.Data)
		}
		return nil
	})
}

// Object reads an object of the row's namespace.
func (r *Row) Object(t *testing.T, apiVersion, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := stage.Object(apiVersion, kind)
	if err := r.Load(t.Context(), u, r.Namespace, name); err != nil {
		t.Fatal(err)
	}
	return u
}

// Inventory lists the inventory of a Kustomization, sorted.
func Inventory(k *kustomizev1.Kustomization) []string {
	var ids []string
	if k.Status.Inventory != nil {
		for _, e := range k.Status.Inventory.Entries {
			ids = append(ids, e.ID+" "+e.Version)
		}
	}
	slices.Sort(ids)
	return ids
}

// Fill puts the row's namespace where a text has $ns, because kinds that are not
// namespaced must differ from row to row.
func (r *Row) Fill(text string) string { return strings.ReplaceAll(text, "$ns", r.Namespace) }

// Writes are those of the agent in the row's namespace that were no dry runs and that
// the API server accepted, in their order.
func (r *Row) Writes(t *testing.T, from int64) []stage.AuditEvent {
	t.Helper()
	events, _, err := r.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool {
		return !e.ByAgent() || e.ObjectRef.Namespace != r.Namespace && !strings.Contains(e.ObjectRef.Name, r.Namespace) ||
			strings.Contains(e.RequestURI, "dryRun") || e.ResponseStatus.Code >= 300
	})
}
