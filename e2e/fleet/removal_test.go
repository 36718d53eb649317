package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// deltaObjects is the declaration of a tenant by its Cluster API objects, where the
// repositories have HelmReleases of a chart.
const deltaObjects = `apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata:
  name: delta
  namespace: cascade-system
  labels:
    cascade.dev/tier: tenant
    environment: staging
  annotations:
    vars.cascade.dev/git_url: ${git_url}
spec:
  availabilityGates: [{conditionType: cascade.dev/Seeded}]
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: delta}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: delta}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata:
  name: delta
  namespace: cascade-system
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata:
  name: delta
  namespace: cascade-system
`

func (f *fleet) declareDelta(t *testing.T, annotation string) {
	t.Helper()
	text := deltaObjects
	if annotation != "" {
		text = strings.Replace(text, "  annotations:\n", "  annotations:\n    "+annotation+"\n", 1)
	}
	f.commit(t, "env-staging", "Declare tenant delta", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "tenants", "delta.yaml"), []byte(text), 0o644)
	})
}

func (f *fleet) removeDelta(t *testing.T) {
	t.Helper()
	f.commit(t, "env-staging", "Remove tenant delta", func(dir string) error {
		return os.Remove(filepath.Join(dir, "tenants", "delta.yaml"))
	})
}

const note = `apiVersion: v1
kind: ConfigMap
metadata:
  name: note
  namespace: cascade-system
data:
  cluster: ${cluster_name}
`

// tenants returns the Kustomization that declares the tenants of staging.
func (f *fleet) tenants(ctx context.Context) (*kustomizev1.Kustomization, *metav1.Condition, error) {
	k := &kustomizev1.Kustomization{}
	if err := scenario.Get(ctx, f.tiers["staging"], k, stage.Namespace, "tenants"); err != nil {
		return nil, nil, err
	}
	c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
	if c == nil {
		return k, nil, fmt.Errorf("it has no Ready condition")
	}
	return k, c, nil
}

func (f *fleet) cluster(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	return u, scenario.Get(ctx, f.tiers["staging"], u, stage.Namespace, name)
}

func (f *fleet) removalInOneCommit(t *testing.T) {
	_, from, err := f.tiers["staging"].Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	f.removeDelta(t)
	scenario.Eventually(t, scenario.Converge, "the removal is refused", func(ctx context.Context) error {
		_, c, err := f.tenants(ctx)
		if err != nil {
			return err
		}
		if c.Reason != v1alpha1.ReasonPruneBlocked || !strings.Contains(c.Message, "Cluster/cascade-system/delta") {
			return fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
	// The refusal holds nothing else up, in this repository or others.
	f.greet(t)
	f.greeted(t, scenario.Converge, "gamma", "delta")
	u, err := f.cluster(t.Context(), "delta")
	if err != nil || u.GetDeletionTimestamp() != nil {
		t.Fatalf("Cluster delta is being deleted, or gone: %v", err)
	}
	f.noDeletes(t, f.tiers["staging"], from)
}

// noDeletes fails if the agent deleted anything in a tier since an offset of
// its audit log.
func (f *fleet) noDeletes(t *testing.T, tier *stage.Tier, from int64) {
	t.Helper()
	events, _, err := tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(e.Verb, "delete") && e.ByAgent() {
			t.Errorf("%s: %s %s", tier.Name, e.Verb, e.RequestURI)
		}
	}
}

func (f *fleet) removalInTwoCommits(t *testing.T) {
	f.declareDelta(t, "cascade.dev/deletion: confirmed")
	scenario.Eventually(t, scenario.Converge, "the confirmation arrives", func(ctx context.Context) error {
		u, err := f.cluster(ctx, "delta")
		if err != nil {
			return err
		}
		if u.GetAnnotations()[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed {
			return fmt.Errorf("annotations are %v", u.GetAnnotations())
		}
		return nil
	})
	start := time.Now()
	f.removeDelta(t)
	// The agent is never blocked by the deletion: other work of the same tier
	// goes on meanwhile.
	f.commit(t, "env-staging", "Note for the services", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "services", "note.yaml"), []byte(strings.ReplaceAll(note, "cascade-system", "services")), 0o644)
	})
	scenario.Eventually(t, scenario.Converge, "services are synced while the tenant goes", func(ctx context.Context) error {
		return scenario.Get(ctx, f.tiers["staging"], &corev1.ConfigMap{}, "services", "note")
	})
	scenario.Eventually(t, scenario.BringUp, "the cluster is gone", func(ctx context.Context) error {
		if _, err := f.cluster(ctx, "delta"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Cluster: %v", err)
		}
		if err := scenario.Get(ctx, f.tiers["staging"], &v1alpha1.Child{}, stage.Namespace, "delta"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Child: %v", err)
		}
		if _, err := os.Stat(f.tiers["delta"].Dir); !os.IsNotExist(err) {
			return fmt.Errorf("directory of the control plane: %v", err)
		}
		return nil
	})
	t.Logf("the cluster was gone %.1f s after the commit", time.Since(start).Seconds())
	scenario.Eventually(t, scenario.BringUp, "nothing of it is left on record", func(ctx context.Context) error {
		k, c, err := f.tenants(ctx)
		if err != nil {
			return err
		}
		for _, e := range k.Status.Inventory.Entries {
			if strings.Contains(e.ID, "delta") {
				return fmt.Errorf("the inventory still has %s", e.ID)
			}
		}
		if c.Status != metav1.ConditionTrue {
			return fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

func (f *fleet) recreatedCluster(t *testing.T) {
	f.declareDelta(t, "")
	delta := f.await(t, f.tiers["staging"], "delta")
	if uid := kubeSystem(t, delta); uid == f.deltaUID {
		t.Fatalf("the cluster has the identity %s of the one that is gone", uid)
	}
	f.greeted(t, scenario.Converge, "delta")
	child := &v1alpha1.Child{}
	if err := scenario.Get(t.Context(), f.tiers["staging"], child, stage.Namespace, "delta"); err != nil {
		t.Fatal(err)
	}
	if child.Status.Identity == nil || child.Status.Identity.KubeSystemUID == f.deltaUID {
		t.Fatalf("the recorded identity is %v", child.Status.Identity)
	}
}

// releasedTenant does with a tenant that is a HelmRelease what the parts before did
// with one that is a Cluster: it comes by a commit, changes by one, does not go by
// one, and goes by two.
func (f *fleet) releasedTenant(t *testing.T) {
	staging := f.tiers["staging"]
	tenant := filepath.Join("tenants", "epsilon.yaml")
	declaration, err := os.ReadFile(scenario.Path(t, "e2e", "testdata", "repos", "env-staging", "tenants", "gamma.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(declaration), "name: gamma", "name: epsilon")
	declare := func(message, before, after string) {
		t.Helper()
		if !strings.Contains(text, before) {
			t.Fatalf("the declaration does not have %q", before)
		}
		text = strings.Replace(text, before, after, 1)
		f.commit(t, "env-staging", message, func(dir string) error {
			return os.WriteFile(filepath.Join(dir, tenant), []byte(text), 0o644)
		})
	}
	remove := func() {
		t.Helper()
		f.commit(t, "env-staging", "Remove tenant epsilon", func(dir string) error { return os.Remove(filepath.Join(dir, tenant)) })
	}
	release := func(ctx context.Context) (*helmv2.HelmRelease, error) {
		hr := &helmv2.HelmRelease{}
		return hr, scenario.Get(ctx, staging, hr, stage.Namespace, "epsilon")
	}

	start := time.Now()
	declare("Declare tenant epsilon", "", "")
	epsilon := f.await(t, staging, "epsilon")
	f.greeted(t, scenario.Converge, "epsilon")
	t.Logf("the tenant was ready %.1f s after the commit", time.Since(start).Seconds())
	identity := kubeSystem(t, epsilon)

	start = time.Now()
	declare("Name the owner of epsilon", "    variables:\n", "    annotations: {example.com/owner: team-e}\n    variables:\n")
	scenario.Eventually(t, scenario.Converge, "the value arrives", func(ctx context.Context) error {
		u, err := f.cluster(ctx, "epsilon")
		if err != nil {
			return err
		}
		if u.GetAnnotations()["example.com/owner"] != "team-e" {
			return fmt.Errorf("annotations are %v", u.GetAnnotations())
		}
		return nil
	})
	t.Logf("the value arrived %.1f s after the commit", time.Since(start).Seconds())
	if now := kubeSystem(t, epsilon); now != identity {
		t.Fatalf("the cluster has the identity %s, it had %s", now, identity)
	}

	_, from, err := staging.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	remove()
	scenario.Eventually(t, scenario.Converge, "the removal is refused", func(ctx context.Context) error {
		_, c, err := f.tenants(ctx)
		if err != nil {
			return err
		}
		if c.Reason != v1alpha1.ReasonPruneBlocked || !strings.Contains(c.Message, "HelmRelease/cascade-system/epsilon") {
			return fmt.Errorf("Ready is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
	t.Logf("the removal was refused %.1f s after the commit", time.Since(start).Seconds())
	f.greet(t)
	f.greeted(t, scenario.Converge, "gamma", "epsilon")
	if u, err := f.cluster(t.Context(), "epsilon"); err != nil || u.GetDeletionTimestamp() != nil {
		t.Fatalf("Cluster epsilon is being deleted, or gone: %v", err)
	}
	f.noDeletes(t, staging, from)

	declare("Confirm the deletion of epsilon", "metadata:\n", "metadata:\n  annotations: {cascade.dev/deletion: confirmed}\n")
	scenario.Eventually(t, scenario.Converge, "the confirmation arrives", func(ctx context.Context) error {
		hr, err := release(ctx)
		if err != nil {
			return err
		}
		if hr.Annotations[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed {
			return fmt.Errorf("annotations are %v", hr.Annotations)
		}
		return nil
	})
	start = time.Now()
	remove()
	scenario.Eventually(t, scenario.BringUp, "the cluster is gone", func(ctx context.Context) error {
		if _, err := f.cluster(ctx, "epsilon"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Cluster: %v", err)
		}
		if err := scenario.Get(ctx, staging, &v1alpha1.Child{}, stage.Namespace, "epsilon"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Child: %v", err)
		}
		if _, err := release(ctx); !apierrors.IsNotFound(err) {
			return fmt.Errorf("HelmRelease: %v", err)
		}
		if _, err := os.Stat(epsilon.Dir); !os.IsNotExist(err) {
			return fmt.Errorf("directory of the control plane: %v", err)
		}
		_, c, err := f.tenants(ctx)
		if err != nil {
			return err
		}
		if c.Status != metav1.ConditionTrue {
			return fmt.Errorf("Ready of the Kustomization is %s: %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
	t.Logf("the cluster was gone %.1f s after the commit", time.Since(start).Seconds())
	scenario.Eventually(t, scenario.BringUp, "nothing of it is left", func(ctx context.Context) error {
		for _, kind := range []struct{ version, kind string }{
			{"infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
		} {
			if err := scenario.Get(ctx, staging, stage.Object(kind.version, kind.kind), stage.Namespace, "epsilon"); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", kind.kind, err)
			}
		}
		return nil
	})
}
