package fleet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFleet runs the example fleet, MoM → two masters → three tenants, and then
// does to it what happens to fleets. The parts build on each other's state, so
// one that fails ends the test.
func TestFleet(t *testing.T) {
	scenario.Alongside(t)
	f := startFleet(t)
	for _, part := range []struct {
		name string
		run  func(*fleet, *testing.T)
	}{
		{"EveryTierIsReady", (*fleet).everyTierIsReady},
		{"ProvidersOfMasters", (*fleet).providersOfMasters},
		{"NoCredentialForAParent", (*fleet).noCredentialForAParent},
		{"CommitToAppsReachesEveryTenant", (*fleet).commitToApps},
		{"TreeIsFresh", (*fleet).treeIsFresh},
		{"PushReachesEveryTenant", (*fleet).pushReachesEveryTenant},
		{"PlanIsWhatHappens", (*fleet).planIsWhatHappens},
		{"CommitMakesATenant", (*fleet).commitMakesATenant},
		{"FrozenTenantDelaysNobody", (*fleet).frozenTenant},
		{"RemovalInOneCommitIsRefused", (*fleet).removalInOneCommit},
		{"RemovalInTwoCommits", (*fleet).removalInTwoCommits},
		{"RecreatedClusterIsSeededAfresh", (*fleet).recreatedCluster},
		{"ReleasedTenant", (*fleet).releasedTenant},
		{"HandWrittenChildAndItsIdentity", (*fleet).handWrittenChild},
		{"SilentMaster", (*fleet).silentMaster},
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
	repos := scenario.Path(t, "e2e", "testdata", "repos")
	s := scenario.StartStage(t, stage.Options{Repos: repos, Charts: scenario.Path(t, "deploy", "charts"),
		Components: scenario.Path(t, "bin", "components", "local"), Bootstrap: filepath.Join(repos, "masters", "bootstrap.yaml")})
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
	scenario.Eventually(t, scenario.BringUp, "the tree shows every tier ready", func(ctx context.Context) error {
		root, err := f.tree(ctx)
		if err != nil {
			return err
		}
		want := map[string]bool{"this tier": true}
		for master, tenants := range declared {
			path := "this tier > " + stage.Namespace + "/" + master
			want[path] = true
			for _, tenant := range tenants {
				want[path+" > "+stage.Namespace+"/"+tenant] = true
			}
		}
		if got := root.tiers(""); !maps.Equal(got, want) {
			return fmt.Errorf("whether tiers are ready is %v: %+v", got, root)
		}
		return nil
	})
	scenario.Eventually(t, scenario.Converge, "the layer of the masters counts them", func(ctx context.Context) error {
		layer := &v1alpha1.Layer{}
		if err := scenario.Get(ctx, f.MoM, layer, stage.Namespace, "master"); err != nil {
			return err
		}
		if got, want := layer.Status.Children, (v1alpha1.ChildCounts{Total: 2, Current: 2, Seeded: 2}); got != want {
			return fmt.Errorf("counts are %+v, conditions are %s", got, scenario.Summary(layer.Status.Conditions))
		}
		return nil
	})
	t.Logf("every tier was ready %.1f s after the bootstrap", time.Since(start).Seconds())
}

// node is a tier in what cascade tree prints as JSON.
type node struct {
	Name     string
	Ready    bool
	Reason   string
	Since    time.Time
	Heard    *time.Time
	Children []node
}

// tiers says of the node and of all below it whether they are ready, by their paths.
func (n node) tiers(above string) map[string]bool {
	ready := map[string]bool{above + n.Name: n.Ready}
	for _, child := range n.Children {
		maps.Copy(ready, child.tiers(above+n.Name+" > "))
	}
	return ready
}

// await waits until a child of a tier is ready and remembers it.
func (f *fleet) await(t *testing.T, parent *stage.Tier, name string) *stage.Tier {
	t.Helper()
	scenario.Eventually(t, scenario.BringUp, fmt.Sprintf("child %s of %s is ready", name, parent.Name), func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, parent, child, stage.Namespace, name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
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

// greet commits a new greeting to apps, and returns the commit.
func (f *fleet) greet(t *testing.T) string {
	t.Helper()
	before, after := fmt.Sprintf("version %d", f.version), fmt.Sprintf("version %d", f.version+1)
	f.version++
	return f.commit(t, "apps", "Greet again", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, "hello", "deployment.yaml"), before, after)
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
		scenario.Eventually(t, within, "the commit to apps reaches "+name, func(ctx context.Context) error {
			d := &appsv1.Deployment{}
			if err := scenario.Get(ctx, f.tiers[name], d, "apps", "hello"); err != nil {
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
	f.greeted(t, scenario.Converge, "alpha", "beta", "gamma")
}

func (f *fleet) commitMakesATenant(t *testing.T) {
	start := time.Now()
	f.declareDelta(t, "")
	delta := f.await(t, f.tiers["staging"], "delta")
	scenario.Eventually(t, scenario.Converge, "delta runs its workload", func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := scenario.Get(ctx, delta, d, "apps", "hello"); err != nil {
			return err
		}
		if d.Status.AvailableReplicas != 1 {
			return fmt.Errorf("%d replicas are available", d.Status.AvailableReplicas)
		}
		return nil
	})
	scenario.Eventually(t, scenario.BringUp, "Cluster API takes the seeded cluster for available", func(ctx context.Context) error {
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
	if err := scenario.Get(t.Context(), tier, ns, "", "kube-system"); err != nil {
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
	scenario.Eventually(t, scenario.BringUp, "the master notices that alpha is frozen", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, f.tiers["production"], child, stage.Namespace, "alpha"); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition); c == nil || c.Reason != v1alpha1.ReasonUnreachable {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
	f.greet(t)
	f.greeted(t, scenario.Converge, "beta", "gamma")

	start := time.Now()
	f.commit(t, "env-production", "Push a note to each tenant", func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "layers", "tenant", "note.yaml"), []byte(note), 0o644)
	})
	noted := func(ctx context.Context, name string) error {
		cm := &corev1.ConfigMap{}
		if err := scenario.Get(ctx, f.tiers[name], cm, stage.Namespace, "note"); err != nil {
			return err
		}
		if cm.Data["cluster"] != name {
			return fmt.Errorf("the note is for %q", cm.Data["cluster"])
		}
		return nil
	}
	scenario.Eventually(t, scenario.Converge, "the layer reaches beta", func(ctx context.Context) error { return noted(ctx, "beta") })
	t.Logf("the layer reached beta within %.1f s of the commit", time.Since(start).Seconds())
	thaw()
	f.greeted(t, scenario.BringUp, "alpha")
	scenario.Eventually(t, scenario.BringUp, "the layer reaches alpha", func(ctx context.Context) error { return noted(ctx, "alpha") })
	f.await(t, f.tiers["production"], "alpha")
}
