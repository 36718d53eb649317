package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Tier is a stage with one tier, whose agent the test installed. Tests that need
// only an API server and the agent share it between the rows of a table.
type Tier struct {
	*stage.Stage
	// Client is one for all rows, because to make one asks the API server for
	// everything that it serves.
	Client client.Client
}

// StartTier starts a tier that has nothing but the agent.
func StartTier(t *testing.T) *Tier {
	t.Helper()
	return StartTierWith(t, "", "")
}

// StartTierWith starts a tier with repositories, which are the directories of repos,
// and with the manifests that a person applies once.
func StartTierWith(t *testing.T, repos, bootstrap string) *Tier {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bootstrap.yaml")
	if err := os.WriteFile(file, []byte(bootstrap), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &Tier{Stage: StartStage(t, stage.Options{Repos: repos, Bootstrap: file})}
	var err error
	if s.Client, err = s.MoM.Client(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Load reads an object.
func (s *Tier) Load(ctx context.Context, o client.Object, namespace, name string) error {
	return s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

// Apply creates or updates the objects of a YAML stream.
func (s *Tier) Apply(t *testing.T, text string) {
	t.Helper()
	if err := stage.Apply(t.Context(), s.Client, text); err != nil {
		t.Fatal(err)
	}
}

// AuditOffset is where the audit log ends.
func (s *Tier) AuditOffset(t *testing.T) int64 {
	t.Helper()
	_, from, err := s.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// Repository creates a repository with files, and a GitRepository in the agent's
// namespace that follows it.
func (s *Tier) Repository(t *testing.T, name string, files map[string]string) {
	t.Helper()
	if err := s.Git.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	s.Put(t, name, files)
	s.Apply(t, fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: %[1]s, namespace: cascade-system}
spec:
  url: %[2]s
  ref: {branch: main}
  secretRef: {name: git-auth}
  interval: 1s
`, name, s.Git.HTTPURL(name)))
}

// Put commits files to a repository.
func (s *Tier) Put(t *testing.T, repo string, files map[string]string) {
	t.Helper()
	_, err := s.Git.Commit(t.Context(), repo, "main", "Change", func(dir string) error { return WriteFiles(dir, files) })
	if err != nil {
		t.Fatal(err)
	}
}

// Reason waits until the Ready condition of a Kustomization in the agent's namespace
// has a reason.
func (s *Tier) Reason(t *testing.T, name, reason string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	Eventually(t, Converge, fmt.Sprintf("Kustomization %s says %s", name, reason), func(ctx context.Context) error {
		k := &kustomizev1.Kustomization{}
		if err := s.Load(ctx, k, stage.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if c == nil || c.Reason != reason {
			return fmt.Errorf("conditions are %s", Summary(k.Status.Conditions))
		}
		found = *c
		return nil
	})
	return found
}

// Value waits until a ConfigMap of namespace default has a value; "" waits until it is
// gone.
func (s *Tier) Value(t *testing.T, name, want string) {
	t.Helper()
	Eventually(t, Converge, fmt.Sprintf("ConfigMap %s has %q", name, want), func(ctx context.Context) error {
		got, err := s.ConfigMapValue(ctx, name)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// ConfigMapValue reads what a ConfigMap of namespace default, made by ConfigMap, has;
// "" if there is none.
func (s *Tier) ConfigMapValue(ctx context.Context, name string) (string, error) {
	cm := &corev1.ConfigMap{}
	err := s.Load(ctx, cm, "default", name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	return cm.Data["value"], err
}

// RestartAgent runs the agent with more flags, and waits until it does.
func (s *Tier) RestartAgent(t *testing.T, flags ...string) {
	t.Helper()
	d := stage.Object("apps/v1", "Deployment")
	if err := s.Load(t.Context(), d, stage.Namespace, "cascade"); err != nil {
		t.Fatal(err)
	}
	containers, _, err := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
	if err != nil {
		t.Fatal(err)
	}
	container := containers[0].(map[string]any)
	for _, flag := range flags {
		container["args"] = append(container["args"].([]any), flag)
	}
	if err := unstructured.SetNestedSlice(d.Object, containers, "spec", "template", "spec", "containers"); err != nil {
		t.Fatal(err)
	}
	before := s.MoM.Agent()
	if err := s.Client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Converge, "the agent runs with its new flags", func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := s.Load(ctx, d, stage.Namespace, "cascade"); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != 1 || d.Status.ReadyReplicas != 1 || d.Status.Replicas != 1 {
			return fmt.Errorf("status is %+v", d.Status)
		}
		// A pod that ends is no replica any more, while its process still runs.
		if pid := s.MoM.Agent(); pid == 0 || pid == before {
			return fmt.Errorf("the agent is process %d, was %d", pid, before)
		}
		return nil
	})
}
