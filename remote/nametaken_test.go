package remote

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// TestNameTaken: a Cluster whose name somebody gave to another cluster before it came gets no Child. It is said where
// people look, once, and for as long as it is so.
func TestNameTaken(t *testing.T) {
	named := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
		u.SetNamespace("fleet")
		u.SetName(name)
		return u
	}
	going := named("alpha")
	going.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
	m := newMet(t)
	if err := m.client.DeleteAllOf(t.Context(), &v1alpha1.Layer{}, client.InNamespace("fleet")); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{}
	if err := m.client.Get(t.Context(), m.key, child); err != nil {
		t.Fatal(err)
	}
	child.Spec = v1alpha1.ChildSpec{KubeConfig: &v1alpha1.KubeConfigReference{SecretRef: &v1alpha1.SecretKeyReference{Name: "theirs"}}}
	if err := m.client.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason     string
		watch      *clusters.Watch
		own        bool
		taken, new bool
	}{
		{"there is no such Cluster", clusters.Fixed(named("beta")), false, false, false},
		{"a commit brings it", clusters.Fixed(named("alpha")), false, true, true},
		{"it was said", clusters.Fixed(named("alpha")), false, true, false},
		{"an agent that has just started knows no Clusters", &clusters.Watch{}, false, true, false},
		{"it is deleted", clusters.Fixed(going), false, false, false},
		{"it is made again", clusters.Fixed(named("alpha")), false, true, true},
		{"its name was free again, and it is gone", clusters.Fixed(named("beta")), false, false, false},
		{"the tier manages its own cluster", clusters.Fixed(named("alpha")), true, false, false},
	} {
		if err := m.client.Get(t.Context(), m.key, child); err != nil {
			t.Fatal(err)
		}
		if tc.own {
			child.Spec = v1alpha1.ChildSpec{InCluster: true}
			if err := m.client.Update(t.Context(), child); err != nil {
				t.Fatal(err)
			}
		}
		events := record.NewFakeRecorder(100)
		m.children.Clusters, m.children.Events = tc.watch, events
		_, err := m.children.Reconcile(t.Context(), ctrl.Request{NamespacedName: m.key})
		t.Logf("reconciled: %v", err)
		if err := m.client.Get(t.Context(), m.key, child); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.NameTakenCondition)
		if (c != nil) != tc.taken || c != nil && (c.Reason != v1alpha1.ReasonChildRefused || !strings.Contains(c.Message, "delete Child alpha")) {
			t.Errorf("%s: the Child says %+v", tc.reason, c)
		}
		told := 0
		for len(events.Events) > 0 {
			if strings.Contains(<-events.Events, v1alpha1.ReasonChildRefused) {
				told++
			}
		}
		if (told > 0) != tc.new || told > 1 {
			t.Errorf("%s: there are %d events", tc.reason, told)
		}
	}
}
