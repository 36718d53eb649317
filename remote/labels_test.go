package remote

import (
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestAsClusters: a layer that is pushed to Clusters by who applied them is counted on the same
// clusters, though no Child says who did.
func TestAsClusters(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	cluster := &unstructured.Unstructured{}
	cluster.SetNamespace("fleet")
	cluster.SetName("alpha")
	cluster.SetLabels(map[string]string{owner: "prod", "site": "here"})
	of := map[string]string{"site": "here"}
	for name, tc := range map[string]struct {
		reason   string
		selector *metav1.LabelSelector
		child    string
		watch    *clusters.Watch
		ok       bool
		want     map[string]string
	}{
		"Owner":    {"a label of Flux", &metav1.LabelSelector{MatchLabels: map[string]string{owner: "prod"}}, "alpha", clusters.Fixed(cluster), true, cluster.GetLabels()},
		"Any":      {"that there is one", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: owner, Operator: metav1.LabelSelectorOpExists}}}, "alpha", clusters.Fixed(cluster), true, cluster.GetLabels()},
		"Layer":    {"a label of a tier above", &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LayerLabelGroup + "/name": "x"}}, "alpha", clusters.Fixed(cluster), true, cluster.GetLabels()},
		"Others":   {"labels that Children have cost nothing", &metav1.LabelSelector{MatchLabels: of}, "alpha", clusters.Fixed(cluster), true, of},
		"None":     {"it selects all", nil, "alpha", clusters.Fixed(cluster), true, of},
		"ByHand":   {"a Child without a Cluster has its own", &metav1.LabelSelector{MatchLabels: map[string]string{owner: "prod"}}, "", clusters.Fixed(cluster), true, of},
		"Gone":     {"there is no such Cluster", &metav1.LabelSelector{MatchLabels: map[string]string{owner: "prod"}}, "beta", clusters.Fixed(cluster), true, of},
		"Unlisted": {"who starts knows no Cluster yet, and must not take all for unselected", &metav1.LabelSelector{MatchLabels: map[string]string{owner: "prod"}}, "alpha", &clusters.Watch{}, false, of},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("alpha", nil)
			child.Labels = maps.Clone(of)
			kept := child.Labels
			if tc.child != "" {
				child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: tc.child}
			}
			children := []v1alpha1.Child{child}
			if ok := asClusters(children, tc.watch, nil, tc.selector); ok != tc.ok {
				t.Errorf("%s: asClusters() = %t", tc.reason, ok)
			}
			if !maps.Equal(children[0].Labels, tc.want) {
				t.Errorf("%s: it is selected by %v", tc.reason, children[0].Labels)
			}
			if !maps.Equal(kept, of) {
				t.Errorf("%s: the labels of the cache were changed: %v", tc.reason, kept)
			}
		})
	}
}

// TestAsClustersDeclared: a Child that somebody declares may have more labels than its Cluster, and be of
// another owner. Layers are pushed by those of both (TestClusterGoes), and counted by them.
func TestAsClustersDeclared(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	cluster := &unstructured.Unstructured{}
	cluster.SetNamespace("fleet")
	cluster.SetName("alpha")
	cluster.SetLabels(map[string]string{owner: "prod", "site": "there"})
	child := childNamed("alpha", nil)
	child.Namespace, child.Labels = "fleet", map[string]string{owner: "children", "site": "here", "part": "x"}
	child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: "alpha"}
	children := []v1alpha1.Child{child}
	ok := asClusters(children, clusters.Fixed(cluster), &metav1.LabelSelector{MatchLabels: map[string]string{owner: "prod"}})
	if want := map[string]string{owner: "prod", "site": "here", "part": "x"}; !ok || !maps.Equal(children[0].Labels, want) {
		t.Errorf("it is selected by %v, want %v", children[0].Labels, want)
	}
}

// TestSelectedByOwner: the layer is counted, and lets no child go, where it selects Clusters by who
// applied them.
func TestSelectedByOwner(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	s := standWith(t, 2, interceptor.Funcs{})
	var all []*unstructured.Unstructured
	for _, name := range []string{"c00", "c01"} {
		child := &v1alpha1.Child{}
		key := types.NamespacedName{Namespace: removed.Namespace, Name: name}
		if err := s.client.Get(t.Context(), key, child); err != nil {
			t.Fatal(err)
		}
		child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: name}
		if err := s.client.Update(t.Context(), child); err != nil {
			t.Fatal(err)
		}
		cluster := &unstructured.Unstructured{}
		cluster.SetNamespace(key.Namespace)
		cluster.SetName(name)
		cluster.SetLabels(map[string]string{owner: "prod", "tier": "tenant"})
		all = append(all, cluster)
	}
	s.layers.clusters = clusters.Fixed(all...)
	s.edit(t, func(l *v1alpha1.Layer) { l.Spec.ClusterSelector.MatchLabels = map[string]string{owner: "prod"} })
	s.reconcile(t)
	s.now = s.now.Add(time.Minute)
	layer := s.reconcile(t)
	if layer.Status.Children.Total != 2 || grantedOf(layer) != 0 {
		t.Errorf("%d children are counted, %d are let go: %+v", layer.Status.Children.Total, grantedOf(layer), readyOf(layer))
	}
}

// TestStaysElsewhere: where another tier manages a Cluster, a layer that selects Clusters by who applied them has what it
// had there: it is neither counted as one that leaves, nor does the Child say that it no longer selects it.
func TestStaysElsewhere(t *testing.T) {
	const owner = "kustomize.toolkit.fluxcd.io/name"
	by := func(more map[string]string) *v1alpha1.Layer {
		layer := layerOn("app")
		layer.Spec.DeletionPolicy = v1alpha1.DeletionDelete
		layer.Spec.ClusterSelector = metav1.LabelSelector{MatchLabels: more, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: owner, Operator: metav1.LabelSelectorOpIn, Values: []string{"prod"}}}}
		return layer
	}
	for name, tc := range map[string]struct {
		reason string
		layer  *v1alpha1.Layer
		here   bool
		had    int32
		stays  bool
	}{
		"Elsewhere": {"who applied the Cluster is not known here", by(nil), false, 12, true},
		"And":       {"and it has the other labels", by(map[string]string{"site": "here"}), false, 12, true},
		"Left":      {"the child lacks another label by now", by(map[string]string{"site": "there"}), false, 12, false},
		"Never":     {"it never had the layer", by(nil), false, 0, false},
		"Here":      {"the Cluster is here, and somebody else applied it", by(nil), true, 12, false},
	} {
		t.Run(name, func(t *testing.T) {
			of := newPaced(time.Minute)
			of.Client = fake.NewClientBuilder().WithScheme(removalScheme(t)).WithObjects(tc.layer).Build()
			of.child.Namespace, of.child.Labels = "fleet", map[string]string{"site": "here"}
			of.labels = of.child.Labels
			of.child.Status.Layers = []v1alpha1.ChildLayer{{Name: "app", Ready: true, Objects: tc.had}}
			if !tc.here {
				of.condition(v1alpha1.ManagedElsewhereCondition, metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere, "another tier")
			}
			selected, err := of.selected(t.Context())
			if err != nil || (len(selected) == 1) != tc.stays {
				t.Errorf("%s: selected are %v, %v", tc.reason, selected, err)
			}
			children := []v1alpha1.Child{*of.child}
			for _, h := range holdersOf(tc.layer, children) {
				if h.Leaves == tc.stays {
					t.Errorf("%s: it leaves: %t", tc.reason, h.Leaves)
				}
			}
			if takes := (&moved{layer: tc.layer}).takes(of.child); takes != tc.stays {
				t.Errorf("%s: its Rollout takes it: %t", tc.reason, takes)
			}
			summarize(tc.layer, children, aims{})
			if counted := tc.layer.Status.Children; (counted.Total == 1) != tc.stays || counted.Elsewhere != counted.Total {
				t.Errorf("%s: counted are %+v", tc.reason, counted)
			}
		})
	}
}
