package remote

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
)

// TestSeededAs: "restored from a backup" takes a proof (C1).
func TestSeededAs(t *testing.T) {
	cluster := capibridge.Cluster{Namespace: "fleet", Name: "a", UID: "new"}
	lineage := []epoch.Mark{{Epoch: 2, Holder: "me"}, {Epoch: 1, Holder: "before"}}
	for name, tc := range map[string]struct {
		reason   string
		cluster  record.Cluster
		parent   epoch.Mark
		want     string
		conflict bool
		// own: somebody says that it is the cluster of this tier.
		own bool
	}{
		"Same":         {"the ordinary case", record.Cluster{Namespace: "fleet", Name: "a", UID: "new"}, lineage[0], "", false, false},
		"Restored":     {"the Cluster of that name has another UID since it was restored", record.Cluster{Namespace: "fleet", Name: "a", UID: "old"}, epoch.Mark{Epoch: 9, Holder: "lost"}, "old", false, false},
		"Another":      {"another tier seeded the cluster under another name", record.Cluster{Namespace: "fleet", Name: "b", UID: "old"}, epoch.Mark{Epoch: 9, Holder: "other"}, "", true, false},
		"Elsewhere":    {"another tier has a Cluster of that name in another namespace", record.Cluster{Namespace: "other", Name: "a", UID: "old"}, epoch.Mark{Epoch: 9, Holder: "other"}, "", true, false},
		"Forgotten":    {"this tier seeded the cluster under another name, and has no such Child any more", record.Cluster{Namespace: "fleet", Name: "b", UID: "old"}, lineage[1], "", false, false},
		"Earlier":      {"an earlier version did not record the name", record.Cluster{UID: "old"}, epoch.Mark{}, "old", false, false},
		"NoClusterAPI": {"it was made by hand", record.Cluster{}, lineage[0], "", false, false},
		"OwnAbove":     {"the tier above made it, under a name of its own", record.Cluster{Namespace: "fleet", Name: "b", UID: "old"}, epoch.Mark{Epoch: 9, Holder: "above"}, "", false, true},
		"OwnEarlier":   {"an earlier version of the tier above did not record the name", record.Cluster{UID: "old"}, epoch.Mark{}, "", false, true},
		"OwnName":      {"it has the same name here", record.Cluster{Namespace: "fleet", Name: "a", UID: "old"}, epoch.Mark{Epoch: 9, Holder: "above"}, "old", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := seededAs(cluster, []*record.Record{{Cluster: tc.cluster, Parent: tc.parent}}, lineage, tc.own)
			if conflict := reason.Of(err) == v1alpha1.ReasonIdentityConflict; conflict != tc.conflict || got != tc.want {
				t.Errorf("%s: seededAs() = %q, %v", tc.reason, got, err)
			}
		})
	}
}

// TestHandMade: a cluster that another tier has by a kubeconfig is no more taken over than one that Cluster API made (read 695).
func TestHandMade(t *testing.T) {
	lineage := []epoch.Mark{{Epoch: 2, Holder: "me"}, {Epoch: 1, Holder: "before"}}
	other := epoch.Mark{Epoch: 9, Holder: "other"}
	for name, tc := range map[string]struct {
		reason   string
		cluster  record.Cluster
		parent   epoch.Mark
		approval string
		conflict bool
	}{
		"Another":   {"another tier has it under another name", record.Cluster{Namespace: "fleet", Name: "b"}, other, "", true},
		"Elsewhere": {"another tier has it in another namespace", record.Cluster{Namespace: "other", Name: "a"}, other, "", true},
		"Rebuilt":   {"this tier was made anew of the same repository", record.Cluster{Namespace: "fleet", Name: "a"}, other, "", false},
		"Renamed":   {"this tier had it under another name", record.Cluster{Namespace: "fleet", Name: "b"}, lineage[1], "", false},
		"Earlier":   {"an earlier version did not record the name", record.Cluster{}, other, "", false},
		"Approved":  {"a person says that the other tier gave it up", record.Cluster{Namespace: "fleet", Name: "b"}, other, "9/other", false},
		"Disproved": {"a person said so of another one", record.Cluster{Namespace: "fleet", Name: "b"}, other, "9/another", true},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", nil)
			child.Annotations = map[string]string{v1alpha1.ApproveTakeOverAnnotation: tc.approval}
			err := handMade(&child, capibridge.Cluster{Namespace: "fleet", Name: "a"}, []*record.Record{{Cluster: tc.cluster, Parent: tc.parent}}, lineage)
			if conflict := reason.Of(err) == v1alpha1.ReasonIdentityConflict; conflict != tc.conflict || conflict != (err != nil) {
				t.Errorf("%s: handMade() = %v", tc.reason, err)
			}
		})
	}
}

// TestMeetHandMade: nothing is written to a cluster that another tier has under another name, until a person lets this
// tier take it over as the Child says (read 695).
func TestMeetHandMade(t *testing.T) {
	m := newMet(t)
	m.keeps(t, "app", epoch.Mark{Epoch: 9, Holder: "there"})
	// As the other tier's push writes it.
	child := childNamed("edge", nil)
	child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "far"}
	there := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(m.far.record).Build()
	p := &push{run: &run{child: &child, recorded: child.DeepCopy(), notes: &notes{}}, cluster: capibridge.Cluster{Namespace: "fleet", Name: "edge"}}
	listed, err := record.List(t.Context(), there)
	if err != nil || len(listed) != 1 {
		t.Fatalf("the records are %v, %v", listed, err)
	}
	if err := p.putRecord(t.Context(), listed[0], &v1alpha1.ChildLayer{Name: "app"}, there); err != nil {
		t.Fatal(err)
	}
	kind := m.far.record.TypeMeta
	if err := there.Get(t.Context(), types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: record.Name(listed[0].Layer)}, m.far.record); err != nil {
		t.Fatal(err)
	}
	m.far.record.TypeMeta = kind

	met := m.contact(t)
	connected := meta.FindStatusCondition(met.Status.Conditions, v1alpha1.ConnectedCondition)
	if connected == nil || connected.Reason != v1alpha1.ReasonIdentityConflict || met.Status.Identity != nil || len(m.writes) > 0 {
		t.Fatalf("Connected is %+v, the identity %+v, written %v", connected, met.Status.Identity, m.writes)
	}
	_, approval, _ := strings.Cut(connected.Message, v1alpha1.ApproveTakeOverAnnotation+"=")
	met.Annotations = map[string]string{v1alpha1.ApproveTakeOverAnnotation: approval}
	if err := m.client.Update(t.Context(), met); err != nil {
		t.Fatal(err)
	}
	if met = m.contact(t); met.Status.Identity == nil || met.Status.Identity.TakingOver || len(m.writes) == 0 {
		t.Errorf("approved as %q, it is not taken over: %+v", approval, met.Status)
	}
}

// TestReserve: two Children of this process never stand for one cluster (C1).
func TestReserve(t *testing.T) {
	r := &Children{}
	a, b := types.NamespacedName{Namespace: "fleet", Name: "a"}, types.NamespacedName{Namespace: "fleet", Name: "b"}
	if _, ok := r.reserve("one", a); !ok {
		t.Error("the first Child does not get the cluster")
	}
	if by, ok := r.reserve("one", b); ok || by != a {
		t.Errorf("the second Child gets it as well, or is told of %s", by)
	}
	if _, ok := r.reserve("one", a); !ok {
		t.Error("the first Child loses it")
	}
	r.identities.release(a)
	if _, ok := r.reserve("one", b); !ok {
		t.Error("a cluster stays taken after its Child is gone")
	}
	if _, ok := r.reserve("two", b); !ok {
		t.Error("a Child whose kubeconfig leads elsewhere now does not get that cluster")
	}
	if by, ok := r.reserve("one", a); !ok {
		t.Errorf("a cluster stays with %s, whose kubeconfig led there once", by)
	}
}

// TestBoundMessages: a Child of ten layers that all fail at length stays small.
func TestBoundMessages(t *testing.T) {
	layers := make([]v1alpha1.ChildLayer, 10)
	for i := range layers {
		layers[i].Message = string(make([]byte, maxLayerMessage))
	}
	boundMessages(layers)
	size := 0
	for _, l := range layers {
		size += len(l.Message)
	}
	if size > maxLayerMessages || layers[9].Message == "" {
		t.Errorf("the messages have %d bytes", size)
	}
	one := []v1alpha1.ChildLayer{{Message: string(make([]byte, maxLayerMessage))}}
	if boundMessages(one); len(one[0].Message) != maxLayerMessage {
		t.Errorf("a message of one layer is cut to %d bytes", len(one[0].Message))
	}
}
