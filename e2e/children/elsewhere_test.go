package children

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// kubeconfigElsewhere has a Cluster go into the cluster itself, as a pivot leaves it: what its controller
// renews there comes to the parent, which needs it when its account is gone.
func kubeconfigElsewhere(h *hub, t *testing.T) {
	f := h.fleet(t, "elsewhere", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	p := h.plane(t, "elsewhere")
	f.layer(t, "app", "c")
	f.declare(t, "c")
	f.report(t, "c", initialized)
	first, second := p.issue(t), p.issue(t)
	f.handOver(t, "c", first.kubeconfig)
	f.ready(t, "c", "")
	name := types.NamespacedName{Namespace: f.name, Name: clusterapi.KubeconfigSecret("c")}
	token := func(kubeconfig []byte) string {
		config, err := (capibridge.Allowed{}).Kubeconfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		return config.BearerToken
	}
	var owner types.UID

	steps(t,
		step{"Moved", func(t *testing.T) {
			scenario.InstallClusterAPI(t, p.client)
			cluster := object("cluster.x-k8s.io/v1beta2", "Cluster", f.name, "c")
			cluster.Object["spec"] = f.cluster(t, "c").Object["spec"]
			for _, o := range []client.Object{
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.name}}, cluster,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string][]byte{clusterapi.KubeconfigKey: second.kubeconfig}},
			} {
				if err := p.client.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			owner = cluster.GetUID()
			mark := &corev1.ConfigMap{}
			firstsync.ManageElsewhere(mark, "test", types.NamespacedName{Namespace: f.name, Name: "c"})
			patch, err := json.Marshal(map[string]any{"data": mark.Data})
			if err != nil {
				t.Fatal(err)
			}
			record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
			if err := f.client.Patch(t.Context(), record, client.RawPatch(types.MergePatchType, patch)); err != nil {
				t.Fatal(err)
			}
			// A pivot writes the record long before the Cluster goes.
			f.reconciled(t, "c")
		}},
		step{"Follows", func(t *testing.T) {
			from := p.now(t)
			f.dropCluster(t, "c", false)
			scenario.Eventually(t, scenario.Converge, "the kubeconfig here follows that of the cluster", func(ctx context.Context) error {
				secret := &corev1.Secret{}
				if err := f.client.Get(ctx, name, secret); err != nil {
					return err
				}
				if token(secret.Data[clusterapi.KubeconfigKey]) != token(second.kubeconfig) {
					child, err := f.child(ctx, "c")
					if err != nil {
						return err
					}
					return fmt.Errorf("it does not yet, conditions are %s", scenario.Summary(child.Status.Conditions))
				}
				return nil
			})
			if !slices.ContainsFunc(p.requests(t, from), func(e stage.AuditEvent) bool {
				return e.User.Username == parentUser && e.Verb == "get" && e.ObjectRef.Resource == "secrets" && e.ObjectRef.Name == name.Name && e.ResponseStatus.Code == http.StatusOK
			}) {
				t.Error("the parent's account has not read the Secret")
			}
			roles := &rbacv1.RoleList{}
			if err := p.client.List(t.Context(), roles, client.InNamespace(f.name)); err != nil {
				t.Fatal(err)
			}
			if len(roles.Items) != 1 || len(roles.Items[0].OwnerReferences) != 1 || roles.Items[0].OwnerReferences[0].UID != owner {
				t.Errorf("the right does not go with the Cluster: %+v", roles.Items)
			}
		}},
		step{"Needed", func(t *testing.T) {
			p.revoke(t, first)
			p.dismiss(t)
			child := f.reconciled(t, "c")
			if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ConnectedCondition) {
				t.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
			}
		}},
	)
}
