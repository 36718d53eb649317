package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFleet runs the example fleet, MoM → two masters → three tenants, and then
// does to it what happens to fleets. The parts build on each other's state, so
// one that fails ends the test.
func TestFleet(t *testing.T) {
	alongside(t)
	f := startFleet(t)
	for _, part := range []struct {
		name string
		run  func(*fleet, *testing.T)
	}{
		{"EveryTierIsReady", (*fleet).everyTierIsReady},
		{"ProvidersOfMasters", (*fleet).providersOfMasters},
		{"NoCredentialForAParent", (*fleet).noCredentialForAParent},
		{"CommitToAppsReachesEveryTenant", (*fleet).commitToApps},
		{"CommitMakesATenant", (*fleet).commitMakesATenant},
		{"FrozenTenantDelaysNobody", (*fleet).frozenTenant},
		{"RemovalInOneCommitIsRefused", (*fleet).removalInOneCommit},
		{"RemovalInTwoCommits", (*fleet).removalInTwoCommits},
		{"RecreatedClusterIsSeededAfresh", (*fleet).recreatedCluster},
		{"ReleasedTenant", (*fleet).releasedTenant},
		{"HandWrittenChildAndItsIdentity", (*fleet).handWrittenChild},
		{"DetachedFromTheMoM", (*fleet).detached},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f, t) }) {
			return
		}
	}
}

type fleet struct {
	*stage.Stage
	// tiers by name; masters and tenants are found once they exist.
	tiers map[string]*stage.Tier
	// version of the greeting that apps declares.
	version int
	// deltaUID is the kube-system UID of the first cluster named delta.
	deltaUID string
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	repos := filepath.Join("testdata", "repos")
	s := startStage(t, stage.Options{Repos: repos, Charts: filepath.Join("..", "deploy", "charts"),
		Components: filepath.Join("..", "bin", "components", "local"), Bootstrap: filepath.Join(repos, "masters", "bootstrap.yaml")})
	return &fleet{Stage: s, tiers: map[string]*stage.Tier{"mom": s.MoM}, version: 1}
}

// masters and their tenants, as the repositories declare them.
var declared = map[string][]string{"production": {"alpha", "beta"}, "staging": {"gamma"}}

func (f *fleet) everyTierIsReady(t *testing.T) {
	start := time.Now()
	for master := range declared {
		f.await(t, f.MoM, master)
	}
	for master, tenants := range declared {
		for _, tenant := range tenants {
			f.await(t, f.tiers[master], tenant)
		}
	}
	eventually(t, bringUp, "the tree shows every tier ready", func(ctx context.Context) error {
		out, err := f.Run(ctx, "cascade", "tree", "--kubeconfig", f.MoM.Kubeconfig())
		if err != nil {
			return err
		}
		if got := strings.Count(out, "True"); got != 6 {
			return fmt.Errorf("%d tiers of 6 are ready:\n%s", got, out)
		}
		return nil
	})
	eventually(t, converge, "the layer of the masters counts them", func(ctx context.Context) error {
		layer := &v1alpha1.Layer{}
		if err := get(ctx, f.MoM, layer, stage.Namespace, "master"); err != nil {
			return err
		}
		if got, want := layer.Status.Children, (v1alpha1.ChildCounts{Total: 2, Seeded: 2}); got != want {
			return fmt.Errorf("counts are %+v, conditions are %s", got, summary(layer.Status.Conditions))
		}
		return nil
	})
	t.Logf("every tier was ready %.1f s after the bootstrap", time.Since(start).Seconds())
}

// await waits until a child of a tier is ready and remembers it.
func (f *fleet) await(t *testing.T, parent *stage.Tier, name string) *stage.Tier {
	t.Helper()
	eventually(t, bringUp, fmt.Sprintf("child %s of %s is ready", name, parent.Name), func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := get(ctx, parent, child, stage.Namespace, name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
			return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
		}
		tier, err := parent.Child(ctx, name)
		if err != nil {
			return err
		}
		f.tiers[name] = tier
		return nil
	})
	return f.tiers[name]
}

func (f *fleet) greeting(version int, tenant string) string {
	return fmt.Sprintf("Hello from %s, version %d", tenant, version)
}

// greet commits a new greeting to apps.
func (f *fleet) greet(t *testing.T) {
	t.Helper()
	before, after := fmt.Sprintf("version %d", f.version), fmt.Sprintf("version %d", f.version+1)
	f.version++
	f.commit(t, "apps", "Greet again", func(dir string) error {
		return replaceIn(filepath.Join(dir, "hello", "deployment.yaml"), before, after)
	})
}

func (f *fleet) commit(t *testing.T, repo, message string, change func(dir string) error) string {
	t.Helper()
	sha, err := f.Git.Commit(t.Context(), repo, "main", message, change)
	if err != nil {
		t.Fatalf("cannot commit to %s: %v", repo, err)
	}
	return sha
}

// greeted waits until a tenant has the newest greeting.
func (f *fleet) greeted(t *testing.T, within time.Duration, tenants ...string) {
	t.Helper()
	start := time.Now()
	for _, name := range tenants {
		eventually(t, within, "the commit to apps reaches "+name, func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := get(ctx, f.tiers[name], d, "apps", "hello"); err != nil {
				return err
			}
			want := f.greeting(f.version, name)
			for _, env := range d.Spec.Template.Spec.Containers[0].Env {
				if env.Value == want {
					return nil
				}
			}
			return fmt.Errorf("the greeting is not %q", want)
		})
	}
	t.Logf("the commit reached %s within %.1f s", strings.Join(tenants, ", "), time.Since(start).Seconds())
}

func (f *fleet) commitToApps(t *testing.T) {
	f.greet(t)
	f.greeted(t, converge, "alpha", "beta", "gamma")
}

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

func (f *fleet) commitMakesATenant(t *testing.T) {
	start := time.Now()
	f.declareDelta(t, "")
	delta := f.await(t, f.tiers["staging"], "delta")
	eventually(t, converge, "delta runs its workload", func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := get(ctx, delta, d, "apps", "hello"); err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 1 {
			return fmt.Errorf("%d replicas are available", d.Status.AvailableReplicas)
		}
		return nil
	})
	eventually(t, bringUp, "Cluster API takes the seeded cluster for available", func(ctx context.Context) error {
		u, err := f.cluster(ctx, "delta")
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
		if err != nil {
			return err
		}
		state := map[any]any{}
		for _, c := range conditions {
			c := c.(map[string]any)
			state[c["type"]] = c["status"]
		}
		if state[v1alpha1.ClusterSeededCondition] != "True" || state["Available"] != "True" {
			return fmt.Errorf("conditions are %v", conditions)
		}
		return nil
	})
	f.deltaUID = kubeSystem(t, delta)
	t.Logf("the tenant ran its workload %.1f s after the commit", time.Since(start).Seconds())
}

func kubeSystem(t *testing.T, tier *stage.Tier) string {
	t.Helper()
	ns := &corev1.Namespace{}
	if err := get(t.Context(), tier, ns, "", "kube-system"); err != nil {
		t.Fatalf("cannot read identity of %s: %v", tier.Name, err)
	}
	return string(ns.UID)
}

// frozenTenant stops the API server of a tenant in its tracks. Both ways of a
// commit are tried: the one that tenants pull, and the one that the master
// pushes.
func (f *fleet) frozenTenant(t *testing.T) {
	alpha := f.tiers["alpha"]
	if err := alpha.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	thawed := false
	thaw := func() {
		if !thawed {
			thawed = true
			if err := alpha.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	defer thaw()
	eventually(t, bringUp, "the master notices that alpha is frozen", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := get(ctx, f.tiers["production"], child, stage.Namespace, "alpha"); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c == nil || c.Reason != v1alpha1.ReasonUnreachable {
			return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
		}
		return nil
	})
	f.greet(t)
	f.greeted(t, converge, "beta", "gamma")

	start := time.Now()
	f.commit(t, "env-production", "Push a note to each tenant", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "layers", "tenant", "note.yaml"), []byte(note), 0o644)
	})
	noted := func(ctx context.Context, name string) error {
		cm := &corev1.ConfigMap{}
		if err := get(ctx, f.tiers[name], cm, stage.Namespace, "note"); err != nil {
			return err
		}
		if cm.Data["cluster"] != name {
			return fmt.Errorf("the note is for %q", cm.Data["cluster"])
		}
		return nil
	}
	eventually(t, converge, "the layer reaches beta", func(ctx context.Context) error { return noted(ctx, "beta") })
	t.Logf("the layer reached beta within %.1f s of the commit", time.Since(start).Seconds())
	thaw()
	f.greeted(t, bringUp, "alpha")
	eventually(t, bringUp, "the layer reaches alpha", func(ctx context.Context) error { return noted(ctx, "alpha") })
	f.await(t, f.tiers["production"], "alpha")
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
	if err := get(ctx, f.tiers["staging"], k, stage.Namespace, "tenants"); err != nil {
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
	return u, get(ctx, f.tiers["staging"], u, stage.Namespace, name)
}

func (f *fleet) removalInOneCommit(t *testing.T) {
	_, from, err := f.tiers["staging"].Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	f.removeDelta(t)
	eventually(t, converge, "the removal is refused", func(ctx context.Context) error {
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
	f.greeted(t, converge, "gamma", "delta")
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
	eventually(t, converge, "the confirmation arrives", func(ctx context.Context) error {
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
	eventually(t, converge, "services are synced while the tenant goes", func(ctx context.Context) error {
		return get(ctx, f.tiers["staging"], &corev1.ConfigMap{}, "services", "note")
	})
	eventually(t, bringUp, "the cluster is gone", func(ctx context.Context) error {
		if _, err := f.cluster(ctx, "delta"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Cluster: %v", err)
		}
		if err := get(ctx, f.tiers["staging"], &v1alpha1.Child{}, stage.Namespace, "delta"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Child: %v", err)
		}
		if _, err := os.Stat(f.tiers["delta"].Dir); !os.IsNotExist(err) {
			return fmt.Errorf("directory of the control plane: %v", err)
		}
		return nil
	})
	t.Logf("the cluster was gone %.1f s after the commit", time.Since(start).Seconds())
	eventually(t, bringUp, "nothing of it is left on record", func(ctx context.Context) error {
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
	f.greeted(t, converge, "delta")
	child := &v1alpha1.Child{}
	if err := get(t.Context(), f.tiers["staging"], child, stage.Namespace, "delta"); err != nil {
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
	declaration, err := os.ReadFile(filepath.Join("testdata", "repos", "env-staging", "tenants", "gamma.yaml"))
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
		return hr, get(ctx, staging, hr, stage.Namespace, "epsilon")
	}

	start := time.Now()
	declare("Declare tenant epsilon", "", "")
	epsilon := f.await(t, staging, "epsilon")
	f.greeted(t, converge, "epsilon")
	t.Logf("the tenant was ready %.1f s after the commit", time.Since(start).Seconds())
	identity := kubeSystem(t, epsilon)

	start = time.Now()
	declare("Name the owner of epsilon", "    variables:\n", "    annotations: {example.com/owner: team-e}\n    variables:\n")
	eventually(t, converge, "the value arrives", func(ctx context.Context) error {
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
	eventually(t, converge, "the removal is refused", func(ctx context.Context) error {
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
	f.greeted(t, converge, "gamma", "epsilon")
	if u, err := f.cluster(t.Context(), "epsilon"); err != nil || u.GetDeletionTimestamp() != nil {
		t.Fatalf("Cluster epsilon is being deleted, or gone: %v", err)
	}
	f.noDeletes(t, staging, from)

	declare("Confirm the deletion of epsilon", "metadata:\n", "metadata:\n  annotations: {cascade.dev/deletion: confirmed}\n")
	eventually(t, converge, "the confirmation arrives", func(ctx context.Context) error {
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
	eventually(t, bringUp, "the cluster is gone", func(ctx context.Context) error {
		if _, err := f.cluster(ctx, "epsilon"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Cluster: %v", err)
		}
		if err := get(ctx, staging, &v1alpha1.Child{}, stage.Namespace, "epsilon"); !apierrors.IsNotFound(err) {
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
	eventually(t, bringUp, "nothing of it is left", func(ctx context.Context) error {
		for _, kind := range []struct{ version, kind string }{
			{"infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
		} {
			if err := get(ctx, staging, stage.Object(kind.version, kind.kind), stage.Namespace, "epsilon"); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", kind.kind, err)
			}
		}
		return nil
	})
}

// handWrittenChild connects a cluster by a kubeconfig instead of through Cluster
// API, pushes a layer without an agent, and then has the kubeconfig lead to
// another cluster, to which nothing may be written.
func (f *fleet) handWrittenChild(t *testing.T) {
	staging, gamma, alpha := f.tiers["staging"], f.tiers["gamma"], f.tiers["alpha"]
	f.commit(t, "env-staging", "A layer for clusters made by hand", func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "layers", "handmade"), 0o755); err != nil {
			return err
		}
		text := strings.NewReplacer("name: note", "name: handmade", "cascade-system", "default").Replace(note)
		return os.WriteFile(filepath.Join(dir, "layers", "handmade", "note.yaml"), []byte(text), 0o644)
	})
	c, err := staging.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), c, handmade); err != nil {
		t.Fatal(err)
	}
	lead := func(to *stage.Tier) {
		t.Helper()
		kubeconfig, err := os.ReadFile(to.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "handmade"}, Data: map[string][]byte{"value": kubeconfig}}
		if err := c.Create(t.Context(), secret); apierrors.IsAlreadyExists(err) {
			err = c.Update(t.Context(), secret)
			if err != nil {
				t.Fatal(err)
			}
		} else if err != nil {
			t.Fatal(err)
		}
	}
	state := func(reason string) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			child := &v1alpha1.Child{}
			if err := get(ctx, staging, child, stage.Namespace, "handmade"); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ReadyCondition); c == nil || c.Reason != reason {
				return fmt.Errorf("conditions are %s", summary(child.Status.Conditions))
			}
			return nil
		}
	}
	lead(gamma)
	eventually(t, converge, "the layer is in the cluster", state(v1alpha1.ReasonSucceeded))
	cm := &corev1.ConfigMap{}
	if err := get(t.Context(), gamma, cm, "default", "handmade"); err != nil || cm.Data["cluster"] != "handmade" {
		t.Fatalf("the note in gamma is %v, %v", cm.Data, err)
	}

	lead(alpha)
	eventually(t, converge, "the swap is noticed", state(v1alpha1.ReasonIdentityChanged))
	// A new commit for the layer must not reach the wrong cluster either.
	f.commit(t, "env-staging", "Change the layer", func(dir string) error {
		return replaceIn(filepath.Join(dir, "layers", "handmade", "note.yaml"), "cluster: ", "cluster: again-")
	})
	f.greet(t)
	f.greeted(t, converge, "gamma")
	if err := state(v1alpha1.ReasonIdentityChanged)(t.Context()); err != nil {
		t.Error(err)
	}
	if err := get(t.Context(), alpha, cm, "default", "handmade"); !apierrors.IsNotFound(err) {
		t.Errorf("the wrong cluster was written to: %v", err)
	}
	lead(gamma)
	eventually(t, bringUp, "the right cluster is followed again", func(ctx context.Context) error {
		if err := get(ctx, gamma, cm, "default", "handmade"); err != nil {
			return err
		}
		if cm.Data["cluster"] != "again-handmade" {
			return fmt.Errorf("the note is %v", cm.Data)
		}
		return nil
	})

	// No longer selected, and the layer says Delete.
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "handmade"}}
	if err := c.Patch(t.Context(), child, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"made-by":"nobody"}}}`))); err != nil {
		t.Fatal(err)
	}
	eventually(t, converge, "the layer is taken back", func(ctx context.Context) error {
		if err := get(ctx, gamma, cm, "default", "handmade"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the note is still there: %v", err)
		}
		if err := get(ctx, staging, child, stage.Namespace, "handmade"); err != nil {
			return err
		}
		if len(child.Status.Layers) > 0 {
			return fmt.Errorf("layers are %v", child.Status.Layers)
		}
		return nil
	})
}

const handmade = `apiVersion: cascade.dev/v1alpha1
kind: Child
metadata:
  name: handmade
  namespace: cascade-system
  labels: {made-by: hand}
spec:
  kubeConfig: {secretRef: {name: handmade}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata:
  name: handmade
  namespace: cascade-system
spec:
  clusterSelector:
    matchLabels: {made-by: hand}
  sourceRef: {kind: GitRepository, name: environment}
  path: ./layers/handmade
  wait: true
  deletionPolicy: Delete
`

// detached kills the MoM's control plane: the tiers below go on, and when it
// comes back it touches nothing.
func (f *fleet) detached(t *testing.T) {
	below := []string{"production", "staging", "alpha", "beta", "gamma", "delta"}
	before := map[string]map[string]string{}
	offsets := map[string]int64{}
	for _, name := range below {
		var err error
		before[name] = uids(t, f.tiers[name])
		if _, offsets[name], err = f.tiers[name].Audit(0); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.MoM.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.greet(t)
	f.greeted(t, converge, "alpha", "beta", "gamma", "delta")
	f.commit(t, "env-production", "Note for the services", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "services", "note.yaml"), []byte(strings.ReplaceAll(note, "cascade-system", "services")), 0o644)
	})
	eventually(t, converge, "the environment is synced without the MoM", func(ctx context.Context) error {
		return get(ctx, f.tiers["production"], &corev1.ConfigMap{}, "services", "note")
	})
	if err := f.MoM.StartControlPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Ask for a visit of each child and wait for the answer: then the MoM has
	// looked at everything below and done what it would do.
	token := time.Now().Format(time.RFC3339Nano)
	for master := range declared {
		eventually(t, bringUp, "the MoM visits "+master+" again", func(ctx context.Context) error {
			child := &v1alpha1.Child{}
			if err := get(ctx, f.MoM, child, stage.Namespace, master); err != nil {
				return err
			}
			if child.Annotations[fluxmeta.ReconcileRequestAnnotation] != token {
				return annotate(ctx, f.MoM, child, fluxmeta.ReconcileRequestAnnotation, token)
			}
			if child.Status.LastHandledReconcileAt != token || !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("handled %q, conditions are %s", child.Status.LastHandledReconcileAt, summary(child.Status.Conditions))
			}
			return nil
		})
	}
	for _, name := range below {
		after := uids(t, f.tiers[name])
		for object, uid := range before[name] {
			if after[object] != uid {
				t.Errorf("%s: %s had UID %s, has %q", name, object, uid, after[object])
			}
		}
		f.noDeletes(t, f.tiers[name], offsets[name])
	}
}

// annotate sets an annotation. It is an error in any case, so that the caller
// looks again.
func annotate(ctx context.Context, tier *stage.Tier, o client.Object, key, value string) error {
	c, err := tier.Client()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if err := c.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return err
	}
	return fmt.Errorf("just annotated")
}

// uids of every object of a cluster, without those that come and go by nature.
func uids(t *testing.T, tier *stage.Tier) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, o := range objects(t, tier) {
		switch o.GetKind() {
		case "Event", "Lease", "Pod", "EndpointSlice", "Endpoints":
			continue
		}
		found[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] = string(o.GetUID())
	}
	return found
}

// objects reads every object of a cluster.
func objects(t *testing.T, tier *stage.Tier) []unstructured.Unstructured {
	t.Helper()
	config, err := tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil {
		t.Fatalf("cannot discover the resources of %s: %v", tier.Name, err)
	}
	var all []unstructured.Unstructured
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Verbs.String(), "list") {
				continue
			}
			found, err := dyn.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			if err != nil {
				t.Fatalf("cannot list %s in %s: %v", r.Name, tier.Name, err)
			}
			all = append(all, found.Items...)
		}
	}
	return all
}

// noCredentialForAParent reads every object of every child and looks for
// anything that opens a tier above it: addresses, keys, certificates, tokens.
func (f *fleet) noCredentialForAParent(t *testing.T) {
	above := map[string][]string{"production": {"mom"}, "staging": {"mom"}}
	for master, tenants := range declared {
		for _, tenant := range tenants {
			above[tenant] = []string{"mom", master}
		}
	}
	for child, parents := range above {
		all := objects(t, f.tiers[child])
		if len(all) < 50 {
			t.Fatalf("%s has only %d objects; the test does not see all", child, len(all))
		}
		for _, parent := range parents {
			for what, secret := range f.credentials(t, f.tiers[parent]) {
				for i := range all {
					text, err := plainText(&all[i])
					if err != nil {
						t.Fatal(err)
					}
					if strings.Contains(text, secret) {
						t.Errorf("%s/%s in %s has the %s of %s", all[i].GetKind(), all[i].GetName(), child, what, parent)
					}
				}
			}
		}
		t.Logf("%s: %d objects have nothing of %s", child, len(all), strings.Join(parents, ", "))
	}
}

// credentials is what opens a cluster, in the forms in which it could lie
// about.
func (f *fleet) credentials(t *testing.T, tier *stage.Tier) map[string]string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(tier.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range config.Clusters {
		found["address"] = strings.TrimPrefix(c.Server, "https://")
		found["CA"] = strings.TrimSpace(string(c.CertificateAuthorityData))
	}
	for _, u := range config.AuthInfos {
		found["client certificate"] = strings.TrimSpace(string(u.ClientCertificateData))
		found["client key"] = strings.TrimSpace(string(u.ClientKeyData))
	}
	for what, v := range found {
		if len(v) < 10 {
			t.Fatalf("the %s of %s is %q; the test looks for nothing", what, tier.Name, v)
		}
	}
	return found
}

// plainText is an object's JSON with everything in base64 decoded besides.
func plainText(u *unstructured.Unstructured) (string, error) {
	data, err := json.Marshal(u.Object)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.Write(data)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			b.WriteString("\n" + v)
			if plain, err := base64.StdEncoding.DecodeString(v); err == nil {
				b.WriteString("\n" + string(plain))
				// A kubeconfig has base64 in it once more.
				for _, word := range strings.Fields(string(plain)) {
					if inner, err := base64.StdEncoding.DecodeString(word); err == nil {
						b.WriteString("\n" + string(inner))
					}
				}
			}
		case map[string]any:
			for _, item := range v {
				walk(item)
			}
		case []any:
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(u.Object)
	return b.String(), nil
}

// get reads an object of a tier.
func get(ctx context.Context, tier *stage.Tier, o client.Object, namespace, name string) error {
	c, err := tier.Client()
	if err != nil {
		return err
	}
	return c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
}

func summary(conditions []metav1.Condition) string {
	parts := make([]string, 0, len(conditions))
	for _, c := range conditions {
		parts = append(parts, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(parts, ", ")
}

func replaceIn(file, before, after string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.Contains(string(data), before) {
		return fmt.Errorf("%s does not have %q", file, before)
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(data), before, after)), 0o644)
}
