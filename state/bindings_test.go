package state

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestBindings: what is on record of what ClusterResourceSets applied is as it was saved when a Cluster goes on,
// whatever their controller, which heeds no pause of a Cluster, made of it meanwhile.
func TestBindings(t *testing.T) {
	const set, binding = "{apiVersion: addons.cluster.x-k8s.io/v1beta2, kind: ClusterResourceSet, metadata: {name: cni, namespace: fleet}, spec: {strategy: ApplyOnce, clusterSelector: {matchLabels: {cni: x}}}}",
		"{apiVersion: addons.cluster.x-k8s.io/v1beta2, kind: ClusterResourceSetBinding, metadata: {name: a, namespace: fleet}, spec: {clusterName: a, bindings: [{clusterResourceSetName: cni, resources: [{kind: ConfigMap, name: cni, applied: true, hash: x}]}]}}"
	saved := object(t, binding, "ClusterResourceSet/cni")
	empty := saved.DeepCopy()
	empty.Object["spec"] = map[string]any{"clusterName": "a", "bindings": []any{map[string]any{"clusterResourceSetName": "cni"}}}
	empty.SetOwnerReferences(nil)
	name, deleted := types.NamespacedName{Namespace: "fleet", Name: "a"}, false
	for test, tc := range map[string]struct {
		reason string
		// after is what the controller does once an object of a kind was made.
		after func(ctx context.Context, c kube.Client, kind string) error
	}{
		"Undisturbed": {reason: "it comes late", after: func(context.Context, kube.Client, string) error { return nil }},
		"Made": {reason: "it makes an empty record before the saved one", after: func(ctx context.Context, c kube.Client, kind string) error {
			if kind == "Cluster" {
				return c.Create(ctx, empty.DeepCopy())
			}
			return nil
		}},
		"Emptied": {reason: "it writes over the saved one", after: func(ctx context.Context, c kube.Client, kind string) error {
			there := empty.DeepCopy()
			if kind != "Secret" || c.Get(ctx, name, there) != nil {
				return nil
			}
			there.Object["spec"] = empty.DeepCopy().Object["spec"]
			return c.Update(ctx, there)
		}},
		"Deleted": {reason: "it deletes one whose Cluster it does not see yet", after: func(ctx context.Context, c kube.Client, kind string) error {
			if kind == "ClusterResourceSetBinding" && !deleted {
				deleted = true
				return c.Delete(ctx, empty.DeepCopy())
			}
			return nil
		}},
	} {
		t.Run(test, func(t *testing.T) {
			c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, c kube.WithWatch, o kube.Object, options ...kube.CreateOption) error {
					if err := giveUID().Create(ctx, c, o, options...); err != nil {
						return err
					}
					return tc.after(ctx, c, o.GetObjectKind().GroupVersionKind().Kind)
				},
			}).Build()
			a := cluster(t, "a")
			report, err := Restore(t.Context(), c, snapshotOf(a, []*unstructured.Unstructured{object(t, set), saved}), Options{})
			if err != nil || !slices.Equal(report.Resumed, []string{"fleet/a"}) {
				t.Fatalf("%s: resumed %q, %v", tc.reason, report.Resumed, err)
			}
			there := empty.DeepCopy()
			if err := c.Get(t.Context(), name, there); err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if diff, _, _ := unstructured.NestedSlice(there.Object, "spec", "bindings"); len(diff) != 1 || diff[0].(map[string]any)["resources"] == nil {
				t.Errorf("%s: what was applied is forgotten: %v", tc.reason, there.Object["spec"])
			}
			if owners := there.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != "here/ClusterResourceSet/fleet/cni" {
				t.Errorf("%s: it has the owners %v", tc.reason, owners)
			}
			// A Cluster that goes on has its record from its own controller.
			there.Object["spec"] = empty.DeepCopy().Object["spec"]
			if err := c.Update(t.Context(), there); err != nil {
				t.Fatal(err)
			}
			if _, err := Restore(t.Context(), c, snapshotOf(a, []*unstructured.Unstructured{object(t, set), saved}), Options{}); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), name, there); err != nil {
				t.Fatal(err)
			}
			if list, _, _ := unstructured.NestedSlice(there.Object, "spec", "bindings"); list[0].(map[string]any)["resources"] != nil {
				t.Errorf("%s: a Cluster that goes on has its record written over", tc.reason)
			}
		})
	}
}
