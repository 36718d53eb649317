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

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestLostMaster loses a master with its etcd, while its tenant runs, and has it built
// again from Git by the MoM, as the example fleet is. The new master has another identity
// and looks new from inside. The tenant must not be built a second time, nor touched; with
// the saved state restored it is managed as before.
func TestLostMaster(t *testing.T) {
	scenario.Alongside(t)
	f := startSmallFleet(t)
	master, tenant := f.tiers["production"], f.tiers["alpha"]
	// The master was new, and nobody approved its tenant.
	f.settled(t, master, "its parent says so")
	saved := f.save(t, master, "alpha")
	before, running, objects := kubeSystem(t, master), f.controlPlanes(t), uids(t, tenant)
	_, from, err := tenant.Audit(0)
	if err != nil {
		t.Fatal(err)
	}

	start := time.Now()
	if err := master.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	master = f.rebuild(t, "production", master)
	if now := kubeSystem(t, master); now == before {
		t.Fatalf("the master still has the identity %s", now)
	}
	f.holds(t, master, "alpha")
	t.Logf("the new master held its tenant %.1f s after the old one was lost", time.Since(start).Seconds())
	f.seeded(t, "production")
	f.tenantStands(t, master, tenant, running)

	// Neither another agent nor the parent's next push makes it forget that.
	if err := syscall.Kill(master.Agent(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.commit(t, "masters", "Say more about masters", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, "layers", "master", "sync.yaml"), "interval: 2s", "interval: 3s")
	})
	f.wait(t, "the push after the loss arrives", func(ctx context.Context) error {
		u := stage.Object("source.toolkit.fluxcd.io/v1", "GitRepository")
		if err := scenario.Get(ctx, master, u, stage.Namespace, "environment"); err != nil {
			return err
		}
		if interval := u.Object["spec"].(map[string]any)["interval"]; interval != "3s" {
			return fmt.Errorf("the interval is %v", interval)
		}
		return nil
	})
	f.holds(t, master, "alpha")
	f.tenantStands(t, master, tenant, running)

	start = time.Now()
	if _, err := f.Run(t.Context(), "clusterctl", "move", "--from-directory", saved, "--to-kubeconfig", master.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	f.await(t, master, "alpha")
	f.await(t, f.MoM, "production")
	t.Logf("the tenant was managed %.1f s after the restoration began", time.Since(start).Seconds())
	f.settled(t, master, "")
	if was, is := processesOf("alpha", running), processesOf("alpha", f.controlPlanes(t)); !maps.Equal(is, was) {
		t.Errorf("the control planes of alpha are %v, they were %v", is, was)
	}
	after := uids(t, tenant)
	for object, uid := range objects {
		if after[object] != uid {
			t.Errorf("%s had UID %s, has %q", object, uid, after[object])
		}
	}
	f.noDeletes(t, tenant, from)
	f.noWritesByParent(t, tenant, from)
}

// rebuild has a master built again by its declaration in Git, as environments go and come,
// and returns the new one.
func (f *fleet) rebuild(t *testing.T, name string, lost *stage.Tier) *stage.Tier {
	t.Helper()
	file := filepath.Join("clusters", name+".yaml")
	var declaration []byte
	f.commit(t, "masters", "Confirm that "+name+" goes", func(dir string) (err error) {
		if declaration, err = os.ReadFile(filepath.Join(dir, file)); err != nil {
			return err
		}
		return scenario.ReplaceIn(filepath.Join(dir, file), "metadata:\n", "metadata:\n  annotations: {"+v1alpha1.DeletionAnnotation+": "+v1alpha1.DeletionConfirmed+"}\n")
	})
	f.wait(t, "the confirmation arrives", func(ctx context.Context) error {
		hr := &helmv2.HelmRelease{}
		if err := scenario.Get(ctx, f.MoM, hr, stage.Namespace, name); err != nil {
			return err
		}
		if hr.Annotations[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed {
			return fmt.Errorf("annotations are %v", hr.Annotations)
		}
		return nil
	})
	f.commit(t, "masters", "Remove "+name, func(dir string) error { return os.Remove(filepath.Join(dir, file)) })
	scenario.Eventually(t, scenario.BringUp, "the lost cluster is gone", func(ctx context.Context) error {
		if err := scenario.Get(ctx, f.MoM, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), stage.Namespace, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("Cluster: %v", err)
		}
		if err := scenario.Get(ctx, f.MoM, &helmv2.HelmRelease{}, stage.Namespace, name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("HelmRelease: %v", err)
		}
		if _, err := os.Stat(lost.Dir); !os.IsNotExist(err) {
			return fmt.Errorf("its etcd is there: %v", err)
		}
		return nil
	})
	f.commit(t, "masters", "Build "+name+" again", func(dir string) error { return os.WriteFile(filepath.Join(dir, file), declaration, 0o644) })
	var built *stage.Tier
	scenario.Eventually(t, scenario.BringUp, "its successor has an agent", func(ctx context.Context) (err error) {
		if built, err = f.MoM.Child(ctx, name); err != nil {
			return err
		}
		if built.Agent() == 0 {
			return fmt.Errorf("no agent runs")
		}
		return nil
	})
	f.tiers[name] = built
	return built
}

// seeded waits until the layers of a master are in place, its providers among them.
func (f *fleet) seeded(t *testing.T, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.BringUp, "the layers of "+name+" are in place", func(ctx context.Context) error {
		child := &v1alpha1.Child{}
		if err := scenario.Get(ctx, f.MoM, child, stage.Namespace, name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.SeededCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
}

// settled waits until the first sync of a tier is over, and the record says why in such
// words.
func (f *fleet) settled(t *testing.T, tier *stage.Tier, why string) {
	t.Helper()
	f.wait(t, "the first sync of "+tier.Name+" is over", func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := scenario.Get(ctx, tier, cm, stage.Namespace, v1alpha1.FirstSyncConfigMap); err != nil {
			return err
		}
		if cm.Data["state"] != v1alpha1.FirstSyncSettled || !strings.Contains(cm.Data["why"], why) {
			return fmt.Errorf("the record is %v", cm.Data)
		}
		return nil
	})
}

// processesOf are the control planes of a cluster, of all that run, with their processes.
func processesOf(name string, running map[string]string) map[string]string {
	found := map[string]string{}
	for dir, pid := range running {
		if strings.HasPrefix(dir, name+"-") {
			found[dir] = pid
		}
	}
	return found
}

// tenantStands: the new master has no object of Cluster API, and of its tenant there is
// the one control plane that there was.
func (f *fleet) tenantStands(t *testing.T, master, tenant *stage.Tier, running map[string]string) {
	t.Helper()
	noClusters(t, master)
	was, is := processesOf(tenant.Name, running), processesOf(tenant.Name, f.controlPlanes(t))
	if len(was) != 1 || !maps.Equal(is, was) {
		t.Errorf("the control planes of %s are %v, they were %v", tenant.Name, is, was)
	}
}
