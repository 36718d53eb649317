package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func objectsFrom(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for doc := range strings.SplitSeq(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, u)
	}
	return objects
}

// fleetText has two clusters that share a template, one of them with workers, an
// object of a third that is declared elsewhere, and what belongs to none.
const fleetText = `
{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: ns, name: a}, spec: {
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: XCluster, name: a-net},
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: XControlPlane, name: a-cp}}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XCluster, metadata: {namespace: ns, name: a-net},
  spec: {identityRef: {kind: XIdentity, name: id}}}
---
{apiVersion: controlplane.cluster.x-k8s.io/v1, kind: XControlPlane, metadata: {namespace: ns, name: a-cp},
  spec: {machineTemplate: {infrastructureRef: {kind: XMachineTemplate, name: shared}}}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XMachineTemplate, metadata: {namespace: ns, name: shared}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XIdentity, metadata: {namespace: ns, name: id}}
---
{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {namespace: ns, name: b}, spec: {
  controlPlaneRef: {apiVersion: controlplane.cluster.x-k8s.io/v1, kind: XControlPlane, name: b-cp}}}
---
{apiVersion: controlplane.cluster.x-k8s.io/v1, kind: XControlPlane, metadata: {namespace: ns, name: b-cp},
  spec: {machineTemplate: {infrastructureRef: {kind: XMachineTemplate, name: shared}}}}
---
{apiVersion: cluster.x-k8s.io/v1beta2, kind: MachineDeployment, metadata: {namespace: ns, name: b-md},
  spec: {clusterName: b, template: {spec: {bootstrap: {configRef: {kind: XConfigTemplate, name: b-md}}}}}}
---
{apiVersion: bootstrap.cluster.x-k8s.io/v1, kind: XConfigTemplate, metadata: {namespace: ns, name: b-md}}
---
{apiVersion: cluster.x-k8s.io/v1beta2, kind: MachinePool, metadata: {namespace: ns, name: c-mp, labels: {cluster.x-k8s.io/cluster-name: c}}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XMachineTemplate, metadata: {namespace: ns, name: nobodys}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XRoleIdentity, metadata: {name: global}}
---
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: XCluster, metadata: {namespace: ns, name: loose}}
---
{apiVersion: addons.cluster.x-k8s.io/v1beta2, kind: ClusterResourceSet, metadata: {namespace: ns, name: crs}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {namespace: ns, name: cm}}
`

func named(names ...string) []types.NamespacedName {
	var out []types.NamespacedName
	for _, n := range names {
		out = append(out, types.NamespacedName{Namespace: "ns", Name: n})
	}
	return out
}

func TestFleetOf(t *testing.T) {
	f := FleetOf(objectsFrom(t, fleetText))
	if !slices.Equal(f.Clusters, named("a", "b", "c")) {
		t.Errorf("clusters are %v", f.Clusters)
	}
	if len(f.Loose) != 1 || f.Loose[0].String() != "XCluster/ns/loose" {
		t.Errorf("loose are %v", f.Loose)
	}
	got := map[string]string{}
	for _, m := range f.members {
		var of []string
		for name := range m.of {
			of = append(of, name.Name)
		}
		slices.Sort(of)
		got[m.entry.Kind+"/"+m.entry.Name] = strings.Join(of, " ")
	}
	want := map[string]string{
		"Cluster/a": "a", "XCluster/a-net": "a", "XControlPlane/a-cp": "a", "XMachineTemplate/shared": "a b", "XIdentity/id": "a",
		"Cluster/b": "b", "XControlPlane/b-cp": "b", "MachineDeployment/b-md": "b", "XConfigTemplate/b-md": "b", "MachinePool/c-mp": "c",
		"XMachineTemplate/nobodys": "", "XRoleIdentity/global": "", "XCluster/loose": "",
	}
	for k, v := range want {
		if of, ok := got[k]; !ok || of != v {
			t.Errorf("%s belongs to %q, want %q", k, of, v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d objects are of Cluster API, want %d", len(got), len(want))
	}
}

func TestPlanCreation(t *testing.T) {
	absent, present := ClusterLive{State: Absent}, ClusterLive{State: Present}
	name := named("a")[0]
	only := `{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: ns, name: a}, spec: {controlPlaneRef: {kind: XControlPlane, name: a}}}
---
{apiVersion: controlplane.cluster.x-k8s.io/v1, kind: XControlPlane, metadata: {namespace: ns, name: a}}`
	cluster := Entry{Namespace: "ns", Name: "a", Group: "cluster.x-k8s.io", Kind: "Cluster"}
	plane := Entry{Namespace: "ns", Name: "a", Group: "controlplane.cluster.x-k8s.io", Kind: "XControlPlane"}
	for _, c := range []struct {
		reason   string
		settled  bool
		standing Standing
		seen     bool
		live     ClusterLive
		// want: what the message says, empty if nothing is held.
		want    string
		adopted bool
		create  bool
		err     bool
	}{
		{"a new tier asks", false, "", false, absent, "nobody has said whether it is new", false, false, false},
		{"what a person approved is created", false, Approved, false, absent, "", false, true, false},
		{"what is there is applied and adopted", false, "", false, present, "", true, false, false},
		{"what was approved and is there is adopted", false, Approved, false, present, "", true, false, false},
		{"adopted once is enough", false, Adopted, false, present, "", false, false, false},
		{"adopted and gone is asked for again", false, Adopted, false, absent, "nobody has said", false, false, false},
		{"paused means that it is being restored", false, "", false, ClusterLive{State: Present, Paused: true}, "being restored", false, false, false},
		{"a restored one may be paused later", false, Adopted, false, ClusterLive{State: Present, Paused: true}, "", false, false, false},
		{"a person knows better than the pause", false, Approved, false, ClusterLive{State: Present, Paused: true}, "", false, false, false},
		{"half a state is not adopted", false, "", false, ClusterLive{State: Present, Missing: []string{"XControlPlane/ns/a"}}, "it lacks XControlPlane/ns/a", false, false, false},
		{"a Cluster that is being built is not adopted yet", false, Approved, false, ClusterLive{State: Present, Missing: []string{"x"}}, "", false, false, false},
		{"unknown is neither held nor created", false, "", false, ClusterLive{State: Unknown, Problem: "timeout"}, "", false, false, true},
		{"unknown, approved", false, Approved, false, ClusterLive{State: Unknown}, "", false, false, true},
		{"a settled tier creates without asking", true, "", false, ClusterLive{}, "", false, true, false},
		{"a settled tier applies what is there", true, "", true, present, "", false, false, false},
		{"one that was moved is not built again", true, LastMoving, false, absent, "moved to another management cluster", false, false, false},
		{"one that was paused is not built again", true, LastPaused, false, absent, "moved to another management cluster", false, false, false},
		{"one that was moved and approved is", true, Approved, false, absent, "", false, true, false},
		{"one that is being moved is left alone", true, LastMoving, true, present, "moved to another management cluster", false, false, false},
		{"a paused one that is there is applied", true, LastPaused, true, ClusterLive{State: Present, Paused: true}, "", false, false, false},
		{"how it went must be known first", true, "", true, absent, "it has just gone", false, false, false},
		{"unknown in a settled tier", true, LastPaused, false, ClusterLive{State: Unknown}, "", false, false, true},
	} {
		t.Run(c.reason, func(t *testing.T) {
			record := &FirstSync{Settled: c.settled, Clusters: map[types.NamespacedName]Standing{}, Seen: map[types.NamespacedName]bool{}}
			if c.standing != "" {
				record.Clusters[name] = c.standing
			}
			if c.seen {
				record.Seen[name] = true
			}
			got, err := PlanCreation(FleetOf(objectsFrom(t, only)), record, map[types.NamespacedName]ClusterLive{name: c.live}, nil)
			if (err != nil) != c.err {
				t.Fatalf("error is %v", err)
			}
			if err != nil {
				return
			}
			message := got.Message()
			if got.Blocked() != (c.want != "") || !strings.Contains(message, c.want) {
				t.Errorf("message is %q", message)
			}
			if got.Blocked() && (!got.Withholds(cluster) || !got.Withholds(plane)) {
				t.Error("something of a held Cluster is not held")
			}
			if !got.Blocked() && (got.Withholds(cluster) || got.Withholds(plane)) {
				t.Error("something is held without a word")
			}
			if got.MayCreate(cluster) != c.create || !got.MayCreate(plane) {
				t.Errorf("may create: %v", got.MayCreate(cluster))
			}
			if (len(got.Adopted) == 1) != c.adopted {
				t.Errorf("adopted are %v", got.Adopted)
			}
			if hold := got.Hold(); got.Blocked() && !strings.Contains(c.want, "just gone") && !slices.Equal(hold.Clusters, []string{named("a")[0].String()}) {
				t.Errorf("a person is asked about %v", hold.Clusters)
			} else if (hold != nil) != got.Blocked() {
				t.Errorf("held are %v", hold)
			}
		})
	}
}

func TestSharedAndLooseObjects(t *testing.T) {
	f := FleetOf(objectsFrom(t, fleetText))
	loose := f.Loose[0]
	plan := func(record *FirstSync, is LooseLive) *Creation {
		t.Helper()
		c, err := PlanCreation(f, record, map[types.NamespacedName]ClusterLive{
			named("a")[0]: {State: Absent}, named("b")[0]: {State: Present}, named("c")[0]: {State: Absent},
		}, map[Entry]LooseLive{loose: is})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	holds := func(c *Creation) string {
		var held []string
		for _, u := range objectsFrom(t, fleetText) {
			if c.Withholds(Of(u)) {
				held = append(held, Of(u).Kind+"/"+u.GetName())
			}
		}
		return strings.Join(held, " ")
	}
	c := plan(&FirstSync{}, LooseLive{State: Absent})
	if got, want := holds(c), "Cluster/a XCluster/a-net XControlPlane/a-cp XIdentity/id MachinePool/c-mp XCluster/loose"; got != want {
		t.Errorf("held are %s, want %s", got, want)
	}
	if !slices.Equal(c.Names(), named("a", "c")) || len(c.Loose) != 1 {
		t.Errorf("held are %v and %v", c.Names(), c.Loose)
	}
	if c := plan(&FirstSync{}, LooseLive{State: Present}); c.Withholds(loose) {
		t.Error("a loose object that is there is held")
	}
	approved := &FirstSync{Clusters: map[types.NamespacedName]Standing{named("b")[0]: Approved}}
	if c := plan(approved, LooseLive{State: Absent, Of: &named("b")[0]}); c.Withholds(loose) {
		t.Error("a loose object of an approved Cluster is held")
	}
	if c := plan(&FirstSync{Settled: true}, LooseLive{}); c.Blocked() {
		t.Errorf("a settled tier holds %s", c.Message())
	}
	if _, err := PlanCreation(f, &FirstSync{}, map[types.NamespacedName]ClusterLive{
		named("a")[0]: {State: Absent}, named("b")[0]: {State: Present}, named("c")[0]: {State: Absent},
	}, nil); err == nil {
		t.Error("it is not known whether the loose object exists, and that is no error")
	}
}

// TestNeverCreatedUnasked: whatever the facts are, a Cluster is created only if it
// is confirmed absent and either approved, or the tier settled and nothing of it on
// record; or if nobody had to ask.
func TestNeverCreatedUnasked(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	standings := []Standing{"", Approved, Adopted, LastPaused, LastMoving}
	held := 0
	for range 10000 {
		var objects []*unstructured.Unstructured
		record := &FirstSync{Settled: random.IntN(2) == 0, Clusters: map[types.NamespacedName]Standing{}, Seen: map[types.NamespacedName]bool{}}
		live := map[types.NamespacedName]ClusterLive{}
		unknown := false
		for i := range 1 + random.IntN(4) {
			name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("c", i)}
			u := Entry{Namespace: "ns", Name: name.Name, Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}.Object()
			objects = append(objects, u)
			if s := standings[random.IntN(len(standings))]; s != "" {
				record.Clusters[name] = s
			}
			record.Seen[name] = random.IntN(2) == 0
			is := ClusterLive{State: State(random.IntN(3)), Paused: random.IntN(2) == 0}
			if random.IntN(3) == 0 {
				is.Missing = []string{"x"}
			}
			live[name] = is
			unknown = unknown || is.State == Unknown && !record.Open(name)
		}
		c, err := PlanCreation(FleetOf(objects), record, live, nil)
		if (err != nil) != unknown {
			t.Fatalf("error is %v, unknown is %v", err, unknown)
		}
		if err != nil {
			continue
		}
		for _, u := range objects {
			e := Of(u)
			name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
			if c.Withholds(e) {
				held++
				if c.MayCreate(e) {
					t.Fatalf("%s is held and may be created", e)
				}
				continue
			}
			if !c.MayCreate(e) {
				continue
			}
			standing := record.Clusters[name]
			asked := standing == Approved || record.Settled && !standing.departed() && !record.Seen[name]
			if !record.Open(name) && live[name].State != Absent || !asked {
				t.Fatalf("%s may be created: settled %v, standing %q, seen %v, live %v", e, record.Settled, standing, record.Seen[name], live[name])
			}
		}
	}
	if held < 1000 {
		t.Errorf("only %d were held: the test looks at nothing", held)
	}
}

func TestSettles(t *testing.T) {
	owner := func(kind, name string, ready bool, inventory ...Entry) Owner {
		group := "kustomize.toolkit.fluxcd.io"
		if kind == "HelmRelease" {
			group = "helm.toolkit.fluxcd.io"
		}
		return Owner{Entry: Entry{Namespace: "ns", Name: name, Group: group, Kind: kind}, Ready: ready, Inventory: inventory}
	}
	cluster := func(name string) Entry {
		return Entry{Namespace: "ns", Name: name, Group: "cluster.x-k8s.io", Kind: "Cluster"}
	}
	release := owner("HelmRelease", "hr", true, cluster("a"))
	elsewhere := owner("Kustomization", "far", true, cluster("z"))
	elsewhere.Elsewhere = true
	for _, c := range []struct {
		reason string
		owners []Owner
		exists []string
		want   bool
	}{
		{"nothing is declared yet", nil, nil, false},
		{"no Cluster is declared: there is nothing to be sure about", []Owner{owner("Kustomization", "k", true)}, nil, false},
		{"all are there", []Owner{owner("Kustomization", "k", true, cluster("a"), cluster("b"))}, []string{"a", "b"}, true},
		{"one is not", []Owner{owner("Kustomization", "k", true, cluster("a"), cluster("b"))}, []string{"a"}, false},
		{"one that is not ready may declare more", []Owner{owner("Kustomization", "k", true, cluster("a")), owner("Kustomization", "l", false)}, []string{"a"}, false},
		{"a release that is declared and not listed yet", []Owner{owner("Kustomization", "k", true, release.Entry), owner("HelmRelease", "other", true, cluster("a"))}, []string{"a"}, false},
		{"a release that is", []Owner{owner("Kustomization", "k", true, release.Entry), release}, []string{"a"}, true},
		{"Clusters of another management cluster do not count", []Owner{elsewhere}, nil, false},
		{"and do not stand in the way", []Owner{elsewhere, release}, []string{"a"}, true},
	} {
		exists := func(name types.NamespacedName) bool { return slices.Contains(c.exists, name.Name) }
		if got := Settles(c.owners, exists); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}

func TestCreationMessageIsBounded(t *testing.T) {
	var objects []*unstructured.Unstructured
	live := map[types.NamespacedName]ClusterLive{}
	for i := range 1000 {
		e := Entry{Namespace: "fleet", Name: fmt.Sprintf("cluster-%04d", i), Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
		objects = append(objects, e.Object())
		live[types.NamespacedName{Namespace: e.Namespace, Name: e.Name}] = ClusterLive{State: Absent}
	}
	c, err := PlanCreation(FleetOf(objects), &FirstSync{}, live, nil)
	if err != nil {
		t.Fatal(err)
	}
	message := c.Message()
	if len(message) > 20000 || !strings.Contains(message, "and 800 more Clusters") || len(c.Hold().Clusters) != mostNamed {
		t.Errorf("%d bytes, %d names: %s", len(message), len(c.Hold().Clusters), message[:200])
	}
}

// TestCreationElsewhere: what is held in another tier is decided about there, not in
// the one that says so.
func TestCreationElsewhere(t *testing.T) {
	e := Entry{Namespace: "fleet", Name: "a", Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"}
	c, err := PlanCreation(FleetOf([]*unstructured.Unstructured{e.Object()}), &FirstSync{Elsewhere: true}, map[types.NamespacedName]ClusterLive{{Namespace: "fleet", Name: "a"}: {State: Absent}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	message := c.Message()
	if want := "run, with the kubeconfig of the cluster that they are applied to: cascade approve create --pushed fleet/a"; !strings.HasSuffix(message, want) {
		t.Errorf("it says %s", message)
	}
	if hold := c.Hold(); !hold.Elsewhere || !slices.Equal(hold.Clusters, []string{"fleet/a"}) {
		t.Errorf("this tier is asked about %v", hold)
	}
}
