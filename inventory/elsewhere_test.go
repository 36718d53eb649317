package inventory

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestManagedElsewhere: a Cluster that another tier manages is neither touched nor created,
// and when it is gone from here, that is as it should be: the rest of the rendering is
// applied and pruned.
func TestManagedElsewhere(t *testing.T) {
	fleet := FleetOf(objectsFrom(t, fleetText))
	a, b := types.NamespacedName{Namespace: "ns", Name: "a"}, types.NamespacedName{Namespace: "ns", Name: "b"}
	part := Entry{Namespace: "ns", Name: "a-net", Group: "infrastructure.cluster.x-k8s.io", Kind: "XCluster", Version: "v1"}
	shared := Entry{Namespace: "ns", Name: "shared", Group: "infrastructure.cluster.x-k8s.io", Kind: "XMachineTemplate", Version: "v1"}
	for name, tt := range map[string]struct {
		reason  string
		settled bool
		is      ClusterLive
		blocked bool
		says    string
	}{
		"Gone":          {"the target has it", true, ClusterLive{State: Absent}, false, "managed elsewhere: Cluster/ns/a"},
		"GoneUnsettled": {"also in a first sync, in which nobody has to say that it is new", false, ClusterLive{State: Absent}, false, "managed elsewhere: Cluster/ns/a"},
		"Here":          {"it is on its way: nothing of its owner is pruned meanwhile", true, ClusterLive{State: Present, Paused: true}, true, "a pivot moves it"},
		"HereUnpaused":  {"whoever unpaused it, it is the pivot's", true, ClusterLive{State: Present}, true, "a pivot moves it"},
	} {
		t.Run(name, func(t *testing.T) {
			record := &FirstSync{Settled: tt.settled, Clusters: map[types.NamespacedName]Standing{a: ManagedElsewhere, b: Adopted, {Namespace: "ns", Name: "c"}: Adopted}}
			if record.Open(a) {
				t.Fatalf("%s: it may be created whatever the cluster says", tt.reason)
			}
			live := map[types.NamespacedName]ClusterLive{a: tt.is, b: {State: Present}, {Namespace: "ns", Name: "c"}: {State: Present}}
			loose := map[Entry]LooseLive{}
			for _, e := range fleet.Loose {
				loose[e] = LooseLive{State: Present}
			}
			c, err := PlanCreation(fleet, record, live, loose)
			if err != nil {
				t.Fatal(err)
			}
			if c.Blocked() != tt.blocked || !c.Withholding() || !c.Withholds(part) || c.Withholds(shared) {
				t.Errorf("%s: blocked %t, withholds its part %t and what others use %t", tt.reason, c.Blocked(), c.Withholds(part), c.Withholds(shared))
			}
			if !strings.Contains(c.Message(), tt.says) || strings.Contains(c.Message(), "approve create ns/a") {
				t.Errorf("%s: message %q", tt.reason, c.Message())
			}
			hold := c.Hold()
			if slices.Contains(hold.Clusters, "ns/a") || slices.Contains(hold.ManagedElsewhere, "ns/a") == tt.blocked {
				t.Errorf("%s: hold %+v", tt.reason, hold)
			}
			if c.MayCreate(clusterEntryOf(a)) {
				t.Errorf("%s: it may be created", tt.reason)
			}
		})
	}
	if _, err := PlanCreation(fleet, &FirstSync{Settled: true, Clusters: map[types.NamespacedName]Standing{a: ManagedElsewhere}}, nil, nil); err == nil {
		t.Error("nobody knows whether it is there, and it was decided")
	}
}

func clusterEntryOf(name types.NamespacedName) Entry {
	return Entry{Namespace: name.Namespace, Name: name.Name, Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
}
