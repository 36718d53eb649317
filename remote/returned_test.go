package remote

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	records "github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestRecall: what is in place of layers that do not select a cluster is found by the records that are in it,
// when it is met for the first time, or again as another Cluster.
func TestRecall(t *testing.T) {
	ours, theirs := epoch.Mark{Epoch: 1, Holder: "here"}, epoch.Mark{Epoch: 7, Holder: "there"}
	for name, tc := range map[string]struct {
		reason string
		by     epoch.Mark
		// absent: the tier has no Layer of which the record is.
		absent bool
		before []v1alpha1.ChildLayer
		want   map[string]int32
		left   bool
	}{
		"Ours":    {"the Child was deleted, or its status lost", ours, false, nil, map[string]int32{"x": 2}, false},
		"Back":    {"another tier had the Cluster, and marked the record", theirs, false, []v1alpha1.ChildLayer{{Name: "x", Objects: 9}}, map[string]int32{"x": 2}, false},
		"Theirs":  {"a layer of another tier has the same name", theirs, false, nil, nil, false},
		"Absent":  {"the Layer comes later, or is gone", ours, true, nil, nil, true},
		"Another": {"the Cluster was made again, and nothing is in place", ours, true, []v1alpha1.ChildLayer{{Name: "y", Objects: 9}}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.children.Cluster = &apply.Cluster{Client: m.client}
			events := record.NewFakeRecorder(100)
			m.children.Events = events
			if !tc.absent {
				layer := layerOn("x")
				layer.Spec.ClusterSelector.MatchLabels, layer.Spec.DeletionPolicy = map[string]string{"site": "elsewhere"}, v1alpha1.DeletionDelete
				if err := m.client.Create(t.Context(), layer); err != nil {
					t.Fatal(err)
				}
			}
			child := &v1alpha1.Child{}
			if err := m.client.Get(t.Context(), m.key, child); err != nil {
				t.Fatal(err)
			}
			child.Spec.Suspend = true // nothing is done about it
			if err := m.client.Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			child.Status.Layers = tc.before
			if err := m.client.Status().Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			rec := &records.Record{Layer: types.NamespacedName{Namespace: "fleet", Name: "x"}, Parent: tc.by, Inventory: []inventory.Entry{{Kind: "Secret", Namespace: "n", Name: "a", Version: "v1"}, {Kind: "Secret", Namespace: "n", Name: "b", Version: "v1"}}}
			there := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
			if err := rec.Put(t.Context(), there); err != nil {
				t.Fatal(err)
			}
			m.far.record = &corev1.ConfigMap{}
			if err := there.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: records.Name(rec.Layer)}, m.far.record); err != nil {
				t.Fatal(err)
			}
			child = m.contact(t)
			if child.Status.Identity == nil {
				t.Fatalf("it was not met: %+v", child.Status.Conditions)
			}
			for _, e := range child.Status.Layers {
				if e.Name != "app" && tc.want[e.Name] != e.Objects || e.Ready {
					t.Errorf("%s: the Child says %+v", tc.reason, e)
				}
			}
			for layer := range tc.want {
				if !onRecord(entryOf(child, layer)) {
					t.Errorf("%s: the Child says nothing of layer %s", tc.reason, layer)
				}
			}
			left := false
			for range len(events.Events) {
				left = left || strings.Contains(<-events.Events, "ObjectsLeft")
			}
			if left != tc.left {
				t.Errorf("%s: an event says what stays: %t", tc.reason, left)
			}
		})
	}
}

// TestLeavingOfAnother: a Cluster that has another UID may be the one of before. What is to be removed from it yet stays
// on record until it is asked, and nothing else does.
func TestLeavingOfAnother(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	child := d.child.DeepCopy()
	child.Status.Identity.ClusterUID = "before"
	child.Status.Layers = append(child.Status.Layers, v1alpha1.ChildLayer{Name: "x", Objects: 12, Digest: "d", Reason: v1alpha1.ReasonManagedElsewhere}, v1alpha1.ChildLayer{Name: "y"})
	child.Status.Layers[0].Objects = 3
	r := &run{Children: d.children, child: child, recorded: d.child.DeepCopy(), notes: d.children.notesOf(client.ObjectKeyFromObject(child))}
	if _, ok, _, err := r.facts(t.Context()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	layers := r.child.Status.Layers
	if r.child.Status.Identity != nil || len(layers) != 1 || layers[0].Name != "x" || layers[0].Objects != 12 || layers[0].Digest != "" {
		t.Errorf("the Child says %+v", r.child.Status)
	}
}

// copyHere is what a pivot makes here of a Cluster that another tier has.
func copyHere() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": map[string]any{"paused": true},
		"status": map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}},
	}}
	u.SetNamespace("fleet")
	u.SetName("alpha")
	u.SetUID("copy")
	u.SetLabels(map[string]string{"site": "here"})
	u.SetAnnotations(map[string]string{v1alpha1.PivotAnnotation: "x-1", v1alpha1.PivotOfAnnotation: "there"})
	return u
}

// TestCopyOnItsWay: what a pivot makes here of a Cluster that another tier has is not this tier's before the pivot
// switches. The Child stands as it is, so that the Cluster is moved again if this one is turned back.
func TestCopyOnItsWay(t *testing.T) {
	a := newAway(t)
	a.far.record = &corev1.ConfigMap{} // the child has an account for this tier
	events := record.NewFakeRecorder(100)
	a.children.Events = events
	child := &v1alpha1.Child{}
	if err := a.client.Get(t.Context(), a.key, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "app", Ready: true, Reason: v1alpha1.ReasonSucceeded, Revision: "r1", Digest: "d", LastAttemptedDigest: "d", Objects: 3}}
	if err := a.client.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	nothing := a.children.Clusters
	for _, step := range []struct {
		reason string
		here   *clusters.Watch
	}{
		{"the Cluster is elsewhere", nothing},
		{"a copy is on its way", clusters.Fixed(copyHere())},
		{"it was turned back", nothing},
	} {
		a.children.Clusters = step.here
		a.after(2 * time.Minute)
		child = a.contact(t)
		a.says(t, child, v1alpha1.ReasonManagedElsewhere, "another tier")
		status := &child.Status
		if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.SeededCondition) || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition) {
			t.Errorf("%s: the Child says %+v", step.reason, status.Conditions)
		}
		if status.Identity == nil || status.Identity.ClusterUID != "here" || len(status.Layers) != 1 || !status.Layers[0].Ready || status.Layers[0].Digest != "d" {
			t.Errorf("%s: it has on record %+v, %+v", step.reason, status.Identity, status.Layers)
		}
	}
	for range len(events.Events) {
		if said := <-events.Events; strings.Contains(said, "ClusterRecreated") {
			t.Errorf("an event says %q", said)
		}
	}
}

// TestCopySwitched: a pivot that is past switch has given the Cluster to this tier. How far it is says the Child, as it
// did, whose cluster is to be met anew.
func TestCopySwitched(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	d.children.Clusters = clusters.Fixed(copyHere())
	d.children.Elsewhere = func(context.Context, types.NamespacedName) (bool, error) { return false, nil }
	child := d.child.DeepCopy()
	child.Status.MovingTo = v1alpha1.ManagementParent
	child.Status.Conditions = append(child.Status.Conditions,
		metav1.Condition{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere},
		metav1.Condition{Type: v1alpha1.ManagementCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPivotRunning})
	r := &run{Children: d.children, child: child, recorded: d.child.DeepCopy(), notes: d.children.notesOf(client.ObjectKeyFromObject(child))}
	if _, ok, _, err := r.facts(t.Context()); !ok || err != nil || r.elsewhere {
		t.Fatal(ok, err, r.elsewhere)
	}
	is := &v1alpha1.Child{}
	if err := d.client.Get(t.Context(), client.ObjectKeyFromObject(child), is); err != nil {
		t.Fatal(err)
	}
	status := is.Status
	if status.Identity != nil || status.MovingTo != v1alpha1.ManagementParent || len(status.Conditions) != 1 || status.Conditions[0].Type != v1alpha1.ManagementCondition {
		t.Errorf("the Child says %+v", status)
	}
}

// TestRecordDeleted: what a layer applied is found in a child in which somebody deleted the record of that. A layer of which
// nothing is on record in this tier has nothing there.
func TestRecordDeleted(t *testing.T) {
	const ours = v1alpha1.LayerLabelGroup
	for name, tc := range map[string]struct {
		reason  string
		objects int32
		without bool // a kubeconfig to look with
		want    int
	}{
		"Deleted":    {"the status says that there is something", 12, false, 1},
		"First":      {"nothing was ever sent", 0, false, 0},
		"Kubeconfig": {"there is nothing to look with", 12, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMet(t)
			m.far.record = &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
				Namespace: "n", Name: "applied", Labels: map[string]string{ours + "/name": "x", ours + "/namespace": "fleet"},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: seedManager, Operation: metav1.ManagedFieldsOperationApply}},
			}}
			config, err := m.children.InCluster()
			if err != nil {
				t.Fatal(err)
			}
			child := childNamed("alpha", nil)
			l := m.children.Connections.Of(m.key)
			p := &push{run: &run{Children: m.children, child: &child, recorded: child.DeepCopy(), notes: &notes{earlier: map[string]string{}}}}
			read := true
			p.session = l.Begin(link.Request{Recorded: "far", Read: func(context.Context) (*rest.Config, error) {
				if tc.without && !read {
					return nil, reason.Because(v1alpha1.ReasonKubeconfigMissing, errors.New("it is gone"))
				}
				read = !tc.without
				return config, nil
			}})
			entry := &v1alpha1.ChildLayer{Name: "x", Objects: tc.objects}
			rec, err := p.openRecord(t.Context(), types.NamespacedName{Namespace: "fleet", Name: "x"}, entry)
			if err != nil || rec.Exists() || len(rec.Inventory) != tc.want {
				t.Fatalf("%s: the record is %+v, %v", tc.reason, rec, err)
			}
			if tc.want > 0 && rec.Inventory[0].ID() != "n_applied__ConfigMap" {
				t.Errorf("%s: found is %v", tc.reason, rec)
			}
		})
	}
}
