package children

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// pushedClusters is a management cluster without an agent of its own: its Clusters
// come with a layer of its parent. It is lost and built again like any other.
func pushedClusters(h *hub, t *testing.T) {
	f := h.fleet(t, "pushed", map[string]string{"fleet/a.yaml": scenario.LocalCluster("a"), "fleet/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "pushed")
	scenario.InstallClusterAPI(t, p.client)
	f.layer(t, "fleet", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	f.handOver(t, "c", p.kubeconfig(t, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	absent := func(t *testing.T, name string) {
		t.Helper()
		if there, err := scenario.ClusterParts(t.Context(), p.client, name); err != nil || len(there) > 0 {
			t.Errorf("of cluster %s there are %v, %v", name, there, err)
		}
	}
	held := func(t *testing.T, names string) {
		t.Helper()
		f.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonCreateHeld, "nobody has said whether it is new", "cascade approve create --pushed "+names)
	}
	approve := func(t *testing.T, names ...string) {
		t.Helper()
		if out, err := h.Run(t.Context(), "cascade", append(append([]string{"approve", "create", "--pushed"}, names...), "--kubeconfig", p.Kubeconfig())...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		f.reconciled(t, "c")
	}
	steps(t,
		step{"HeldUntilAPersonSaysSo", func(t *testing.T) {
			held(t, "default/a")
			absent(t, "a")
			p.has(t, "note", "version", "1")
			for _, e := range p.inventory(t, f.name, f.child1(t, "c").Status.Layers[0].Name) {
				if e.Kind == "Cluster" {
					t.Errorf("what is held is in the inventory: %s", e)
				}
			}
		}},
		step{"TheRestGoesOn", func(t *testing.T) {
			sha := f.commit(t, map[string]string{"fleet/note.yaml": noteNamed("note", "version", "2")})
			f.fetched(t, sha)
			p.has(t, "note", "version", "2")
			held(t, "default/a")
			absent(t, "a")
		}},
		step{"Approved", func(t *testing.T) {
			approve(t, "default/a")
			scenario.ClusterCreated(t, p.client, "a")
			f.ready(t, "c", "")
		}},
		step{"SettledAsksNobody", func(t *testing.T) {
			sha := f.commit(t, map[string]string{"fleet/b.yaml": scenario.LocalCluster("b")})
			scenario.ClusterCreated(t, p.client, "b")
			f.ready(t, "c", sha)
		}},
		step{"BackupAsksAgain", func(t *testing.T) {
			// As docs/rebuild.md says of a backup of etcd. The layer's own record in it says
			// settled.
			if r, err := p.record(t.Context(), f.name, "fleet"); err != nil || !r.Settled {
				t.Fatalf("the layer's record is %+v, %v", r, err)
			}
			record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
			if err := p.client.Patch(t.Context(), record, client.RawPatch(types.MergePatchType, []byte(`{"data":{"state":"adopt"}}`))); err != nil {
				t.Fatal(err)
			}
			f.commit(t, map[string]string{"fleet/c.yaml": scenario.LocalCluster("c")})
			held(t, "default/c")
			absent(t, "c")
			approve(t, "default/c")
			scenario.ClusterCreated(t, p.client, "c")
			f.ready(t, "c", "")
			if out, err := h.Run(t.Context(), "cascade", "approve", "first-sync", "--kubeconfig", p.Kubeconfig()); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}},
		step{"RebuiltAsksAgain", func(t *testing.T) {
			p.rebuild(t)
			scenario.InstallClusterAPI(t, p.client)
			f.reconciled(t, "c")
			child := f.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged)
			if err := f.client.Delete(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			p.has(t, "note", "version", "2")
			held(t, "default/a default/b default/c")
			absent(t, "a")
			absent(t, "b")
			absent(t, "c")
		}},
		step{"RestoredIsAdopted", func(t *testing.T) {
			if err := stage.Apply(t.Context(), p.client, scenario.LocalCluster("a")); err != nil {
				t.Fatal(err)
			}
			before, err := scenario.ClusterParts(t.Context(), p.client, "a")
			if err != nil {
				t.Fatal(err)
			}
			f.reconciled(t, "c")
			held(t, "default/b default/c")
			absent(t, "b")
			approve(t, "default/b", "default/c")
			scenario.ClusterCreated(t, p.client, "b")
			f.ready(t, "c", "")
			after, err := scenario.ClusterParts(t.Context(), p.client, "a")
			if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("of cluster a there were %v, now %v: %v", before, after, err)
			}
			scenario.Eventually(t, scenario.Converge, "the child has it on record", func(ctx context.Context) error {
				r, err := p.record(ctx, f.name, "fleet")
				if err == nil && !r.Settled {
					err = fmt.Errorf("the record is %+v", r)
				}
				if err != nil {
					return err
				}
				return nil
			})
		}},
	)
}
