package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// pushedClusters is a management cluster without an agent of its own: its Clusters
// come with a layer of its parent. It is lost and built again like any other.
func pushedClusters(h *hub, t *testing.T) {
	y := h.yard(t, "pushed", map[string]string{"fleet/a.yaml": clusterText("a"), "fleet/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "pushed")
	definitions(t, p.client)
	y.layer(t, "fleet", "c")
	y.declare(t, "c")
	y.report(t, "c", initialized)
	y.handOver(t, "c", p.kubeconfig(t, func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo) {}))
	absent := func(t *testing.T, name string) {
		t.Helper()
		if there, err := partsOf(t.Context(), p.client, name); err != nil || len(there) > 0 {
			t.Errorf("of cluster %s there are %v, %v", name, there, err)
		}
	}
	held := func(t *testing.T, names string) {
		t.Helper()
		y.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonCreateHeld, "nobody has said whether it is new", "cascade approve create --pushed "+names)
	}
	approve := func(t *testing.T, names ...string) {
		t.Helper()
		if out, err := h.Run(t.Context(), "cascade", append(append([]string{"approve", "create", "--pushed"}, names...), "--kubeconfig", p.Kubeconfig())...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		y.visit(t, "c")
	}
	acts(t,
		act{"HeldUntilAPersonSaysSo", func(t *testing.T) {
			held(t, "default/a")
			absent(t, "a")
			p.has(t, "note", "version", "1")
			for _, e := range y.child1(t, "c").Status.Layers[0].Inventory {
				if strings.HasSuffix(e.ID, "_Cluster") {
					t.Errorf("the inventory has %s", e.ID)
				}
			}
		}},
		act{"TheRestGoesOn", func(t *testing.T) {
			sha := y.commit(t, map[string]string{"fleet/note.yaml": noteNamed("note", "version", "2")})
			y.fetched(t, sha)
			p.has(t, "note", "version", "2")
			held(t, "default/a")
			absent(t, "a")
		}},
		act{"Approved", func(t *testing.T) {
			approve(t, "default/a")
			createdIn(t, p.client, "a")
			y.ready(t, "c", "")
		}},
		act{"SettledAsksNobody", func(t *testing.T) {
			sha := y.commit(t, map[string]string{"fleet/b.yaml": clusterText("b")})
			createdIn(t, p.client, "b")
			y.ready(t, "c", sha)
		}},
		act{"RebuiltAsksAgain", func(t *testing.T) {
			p.rebuild(t)
			definitions(t, p.client)
			y.visit(t, "c")
			child := y.says(t, "c", v1alpha1.ConnectedCondition, v1alpha1.ReasonIdentityChanged)
			if err := y.client.Delete(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			p.has(t, "note", "version", "2")
			held(t, "default/a default/b")
			absent(t, "a")
			absent(t, "b")
		}},
		act{"RestoredIsAdopted", func(t *testing.T) {
			if err := stage.Apply(t.Context(), p.client, clusterText("a")); err != nil {
				t.Fatal(err)
			}
			before, err := partsOf(t.Context(), p.client, "a")
			if err != nil {
				t.Fatal(err)
			}
			y.visit(t, "c")
			held(t, "default/b")
			absent(t, "b")
			approve(t, "default/b")
			createdIn(t, p.client, "b")
			y.ready(t, "c", "")
			after, err := partsOf(t.Context(), p.client, "a")
			if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("of cluster a there were %v, now %v: %v", before, after, err)
			}
			eventually(t, converge, "the child has it on record", func(ctx context.Context) error {
				cm := &corev1.ConfigMap{}
				if err := p.client.Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.SeedConfigMap}, cm); err != nil {
					return err
				}
				if text := cm.Data[y.namespace+".fleet"]; !strings.Contains(text, `"settled":true`) {
					return fmt.Errorf("it is %s", text)
				}
				return nil
			})
		}},
	)
}
