package compose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

func fleet(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "fleet", Name: name}
}

// objects reads manifests in flow style, one a line. Those of namespace fleet name none.
func objects(t *testing.T, lines ...string) []*unstructured.Unstructured {
	t.Helper()
	var list []*unstructured.Unstructured
	for _, line := range lines {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(line), &u.Object); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if u.GetNamespace() == "" && u.GetKind() != "Namespace" && !strings.HasSuffix(u.GetKind(), "Identity") {
			u.SetNamespace("fleet")
		}
		list = append(list, u)
	}
	return list
}

const (
	core  = "apiVersion: cluster.x-k8s.io/v1beta2, "
	infra = "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, "
	plane = "apiVersion: controlplane.cluster.x-k8s.io/v1beta2, "
	helm  = "apiVersion: helm.toolkit.fluxcd.io/v2, "
)

// cluster declares a Cluster with its infrastructure.
func cluster(name, value string) []string {
	return []string{
		fmt.Sprintf("{%skind: Cluster, metadata: {name: %s, annotations: {value: %q}}, spec: {infrastructureRef: {kind: AWSCluster, name: %s}}}", core, name, value, name),
		fmt.Sprintf("{%skind: AWSCluster, metadata: {name: %s, annotations: {value: %q}}}", infra, name, value),
	}
}

// show names objects with their values.
func show(objects []*unstructured.Unstructured) []string {
	var lines []string
	for _, u := range objects {
		line := u.GetKind() + "/" + u.GetName()
		if v := u.GetAnnotations()["value"]; v != "" {
			line += " " + v
		}
		lines = append(lines, line)
	}
	return lines
}

func TestRead(t *testing.T) {
	lines := []string{
		"{" + core + "kind: Cluster, metadata: {name: a}, spec: {topology: {classRef: {name: big}}, controlPlaneRef: {kind: KubeadmControlPlane, name: a}}}",
		"{" + plane + "kind: KubeadmControlPlane, metadata: {name: a}, spec: {machineTemplate: {spec: {infrastructureRef: {kind: AWSMachineTemplate, name: a-1}}}}}",
		"{" + infra + "kind: AWSMachineTemplate, metadata: {name: a-1}}",
		"{" + core + "kind: ClusterClass, metadata: {name: big}, spec: {infrastructure: {templateRef: {kind: AWSClusterTemplate, name: big}}}}",
		"{" + infra + "kind: AWSClusterTemplate, metadata: {name: big}, spec: {template: {spec: {identityRef: {kind: AWSClusterRoleIdentity, name: role}}}}}",
		"{" + infra + "kind: AWSClusterRoleIdentity, metadata: {name: role}}",
		"{" + core + "kind: Cluster, metadata: {name: b}, spec: {topology: {classRef: {name: big}}}}",
		"{" + core + "kind: MachineDeployment, metadata: {name: b-md}, spec: {clusterName: b, template: {spec: {infrastructureRef: {kind: AWSMachineTemplate, name: b-1}}}}}",
		"{" + infra + "kind: AWSMachineTemplate, metadata: {name: b-1}}",
		"{" + infra + "kind: AWSMachineTemplate, metadata: {name: loose}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: labelled, labels: {cluster.x-k8s.io/cluster-name: a}}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: common}}",
		"{" + helm + "kind: HelmRelease, metadata: {name: of-c}, spec: {valuesFrom: [{kind: ConfigMap, name: values-c}]}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: values-c}}",
		"{" + helm + "kind: HelmRelease, metadata: {name: d}}",
		"{" + helm + "kind: HelmRelease, metadata: {name: release-e}, spec: {releaseName: e}}",
		"{" + helm + "kind: HelmRelease, metadata: {name: addon}}",
		"{" + helm + "kind: HelmRelease, metadata: {name: d2, labels: {cluster.x-k8s.io/cluster-name: f}}}",
	}
	r := Read("r1", objects(t, lines...), Releases{
		Made:  map[types.NamespacedName][]types.NamespacedName{fleet("of-c"): {fleet("c")}},
		Known: map[types.NamespacedName]bool{fleet("d"): true, fleet("e"): true, fleet("d2"): true},
	})
	got := map[string]string{}
	for i, u := range r.Objects() {
		var names []string
		for _, c := range r.of[i] {
			names = append(names, c.Name)
		}
		got[u.GetKind()+"/"+u.GetName()] = strings.Join(names, " ")
	}
	want := map[string]string{
		"Cluster/a": "a", "KubeadmControlPlane/a": "a", "AWSMachineTemplate/a-1": "a", "ConfigMap/labelled": "a",
		// What several refer to, also where it has no namespace.
		"ClusterClass/big": "a b", "AWSClusterTemplate/big": "a b", "AWSClusterRoleIdentity/role": "a b",
		"Cluster/b": "b", "MachineDeployment/b-md": "b", "AWSMachineTemplate/b-1": "b",
		// By what it made, by its name, by the name of the release, by its label; and its values.
		"HelmRelease/of-c": "c", "ConfigMap/values-c": "c", "HelmRelease/d": "d", "HelmRelease/release-e": "e", "HelmRelease/d2": "f",
		"AWSMachineTemplate/loose": "", "ConfigMap/common": "", "HelmRelease/addon": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what belongs to which Cluster: -want, +got:\n%s", diff)
	}
	var names []string
	for _, c := range r.Clusters() {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "a b c d e f" {
		t.Errorf("its Clusters are %s", got)
	}
}

func TestCompose(t *testing.T) {
	common := func(value string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: common, annotations: {value: %q}}}", value)
	}
	class := func(value string) string {
		return fmt.Sprintf("{%skind: ClusterClass, metadata: {name: big, annotations: {value: %q}}}", core, value)
	}
	classy := func(name, value string) string {
		return fmt.Sprintf("{%skind: Cluster, metadata: {name: %s, annotations: {value: %q}}, spec: {topology: {classRef: {name: big}}}}", core, name, value)
	}
	identity := func(namespace, value string) string {
		return fmt.Sprintf("{%skind: AWSClusterRoleIdentity, metadata: {name: role, namespace: %s, annotations: {value: %q}}}", infra, namespace, value)
	}
	identified := func(name, value string) string {
		return fmt.Sprintf("{%skind: AWSCluster, metadata: {name: %s, labels: {cluster.x-k8s.io/cluster-name: %s}, annotations: {value: %q}}, spec: {identityRef: {kind: AWSClusterRoleIdentity, name: role}}}",
			infra, name, name, value)
	}
	past := func(revision string, run int64) Pin {
		return PinOf(&v1alpha1.ChildRollout{RolloutRevision: v1alpha1.RolloutRevision{Revision: revision}, Run: run, Past: true})
	}
	all := func(value string, names ...string) []string {
		lines := []string{common(value)}
		for _, name := range names {
			lines = append(lines, cluster(name, value)...)
		}
		return lines
	}
	for name, tc := range map[string]struct {
		reason     string
		r2, r1, r0 []string
		pins       map[string]Pin
		held       []string
		waiting    []string
		good       string
		owned      []string
		want       string
		kept       string
	}{
		"AllNewest": {
			reason: "all have the newest revision", r2: all("2", "a", "b"), r1: all("1", "a", "b"),
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r2", 2, ""}},
			want: "ConfigMap/common 2, Cluster/a 2, AWSCluster/a 2, Cluster/b 2, AWSCluster/b 2",
		},
		"OneBehind": {
			reason: "one has the former, with what belongs to it; the order stays", r2: all("2", "a", "b"), r1: all("1", "a", "b"),
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r1", 1, ""}},
			want: "ConfigMap/common 2, Cluster/a 2, AWSCluster/a 2, Cluster/b 1, AWSCluster/b 1",
		},
		"New": {
			reason: "a Cluster that nobody governs is created from the newest", r2: all("2", "a", "new"), r1: all("1", "a"),
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "ConfigMap/common 2, Cluster/a 1, AWSCluster/a 1, Cluster/new 2, AWSCluster/new 2",
		},
		"NotYet": {
			reason: "what the newest revision adds to a Cluster comes with its pin",
			r2:     append(all("2", "a"), "{"+core+"kind: MachineDeployment, metadata: {name: a-md}, spec: {clusterName: a}}"), r1: all("1", "a"),
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "ConfigMap/common 2, Cluster/a 1, AWSCluster/a 1",
		},
		"Removed": {
			reason: "a Cluster that the newest revision does not declare stays while its pin does", r2: all("2", "b"), r1: all("1", "a", "b"),
			pins: map[string]Pin{"a": {"r1", 1, ""}, "b": {"r2", 2, ""}}, owned: []string{"Cluster/a", "AWSCluster/a"},
			want: "ConfigMap/common 2, Cluster/b 2, AWSCluster/b 2, Cluster/a 1, AWSCluster/a 1",
		},
		"RemovedNow": {
			reason: "and goes with it", r2: all("2", "b"), r1: all("1", "a", "b"),
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r1", 1, ""}}, owned: []string{"Cluster/a", "AWSCluster/a"},
			want: "ConfigMap/common 2, Cluster/b 1, AWSCluster/b 1",
		},
		"SharedChanges": {
			reason: "what both need stays as the one behind has it", r2: []string{class("2"), classy("a", "2"), classy("b", "2")}, r1: []string{class("1"), classy("a", "1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r1", 1, ""}},
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1",
		},
		"SharedGone": {
			reason: "and if the newest revision lacks it", r2: cluster("a", "2"), r1: []string{class("1"), classy("b", "1"), "{apiVersion: v1, kind: ConfigMap, metadata: {name: gone}}"},
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r1", 1, ""}},
			want: "Cluster/a 2, AWSCluster/a 2, ClusterClass/big 1, Cluster/b 1",
		},
		"SharedFurthest": {
			reason: "of three revisions the one that is furthest behind, whatever its name", r2: []string{class("2"), classy("a", "2")},
			r1: []string{class("1"), classy("b", "1")}, r0: []string{class("0"), classy("c", "0")},
			pins: map[string]Pin{"a": {"r2", 3, ""}, "b": {"r1", 1, ""}, "c": {"r0", 2, ""}},
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/c 0, Cluster/b 1",
		},
		"SharedCreated": {
			reason: "a Cluster that was created from the newest revision shares what the others have", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 0, ""}, "b": {"r1", 12, ""}}, good: "r1",
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1",
		},
		"NotNeededBefore": {
			reason: "what Clusters begin to need with a commit that they may not have yet stays for whoever uses it", r2: []string{class("2"), classy("a", "2")},
			r1:   append(cluster("a", "1"), class("1")),
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "ClusterClass/big 1, Cluster/a 1, AWSCluster/a 1",
		},
		"NotNeededGone": {
			reason: "unless the newest revision lacks it", r2: cluster("a", "2"), r1: append(cluster("a", "1"), class("1")),
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "Cluster/a 1, AWSCluster/a 1",
		},
		"SharedCreatedBefore": {
			reason: "also once there is a newer one", r2: []string{class("2"), classy("a", "2"), classy("new", "2")}, r1: []string{class("1"), classy("a", "1"), classy("new", "1")}, r0: []string{class("0"), classy("a", "0")},
			pins: map[string]Pin{"a": {"r0", 12, ""}, "new": {"r1", 0, ""}}, good: "r0",
			want: "ClusterClass/big 0, Cluster/a 0, Cluster/new 1",
		},
		"SharedBefore": {
			reason: "Clusters that no run has reached yet keep what they share", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 1, ""}, "b": {"r1", 0, ""}},
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1",
		},
		"SharedReverted": {
			reason: "in a run that is reverted the good revision stays", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r1", 2, ""}}, good: "r1",
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1",
		},
		"SharedPast": {
			reason: "what a version without Rollouts brought to all is there, and one that did not get it on record, or is new, changes nothing of it",
			r2:     []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": past("r2", 6), "b": {"r1", 6, ""}}, good: "r1",
			want: "ClusterClass/big 2, Cluster/a 2, Cluster/b 1",
		},
		"SharedPastNewest": {
			reason: "also where no run was before", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": past("r2", 0), "b": {"r1", 0, ""}},
			want: "ClusterClass/big 2, Cluster/a 2, Cluster/b 1",
		},
		"SharedPastBack": {
			reason: "the last one that has it goes back with what all share", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			r0: []string{class("0"), classy("c", "0")}, pins: map[string]Pin{"a": {"r2", 7, ""}, "b": past("r1", 6), "c": {"r0", 5, ""}}, good: "r2",
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/c 0, Cluster/b 1",
		},
		"SharedByTwo": {
			reason: "which of two Rollouts is further behind their runs do not say: what is there stays", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, "staging"}, "b": {"r1", 38, "production"}}, owned: []string{"ClusterClass/big"},
			want: "Cluster/a 2, Cluster/b 1", kept: "ClusterClass/big",
		},
		"SharedByTwoBefore": {
			reason: "nor where one has given nothing yet", r2: []string{class("2"), classy("c", "2")}, r1: []string{class("1"), classy("b", "1")}, r0: []string{class("0"), classy("a", "0")},
			pins: map[string]Pin{"a": {"r0", 38, "production"}, "b": {"r1", 0, "staging"}}, owned: []string{"ClusterClass/big"},
			want: "Cluster/c 2, Cluster/a 0, Cluster/b 1", kept: "ClusterClass/big",
		},
		"SharedByTwoAgree": {
			reason: "until both have it alike", r2: []string{class("2"), classy("a", "2"), classy("b", "2")},
			pins: map[string]Pin{"a": {"r2", 2, "staging"}, "b": {"r2", 38, "production"}}, owned: []string{"ClusterClass/big"},
			want: "ClusterClass/big 2, Cluster/a 2, Cluster/b 2",
		},
		"SharedByTwoSame": {
			reason: "at whatever revisions", r2: []string{class("1"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, "staging"}, "b": {"r1", 38, "production"}}, owned: []string{"ClusterClass/big"},
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1",
		},
		"SharedByTwoFurthest": {
			reason: "of each Rollout the one counts that is furthest behind", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1"), classy("c", "1")},
			pins: map[string]Pin{"a": {"r2", 39, "production"}, "b": {"r1", 38, "production"}, "c": {"r1", 2, "staging"}}, owned: []string{"ClusterClass/big"},
			want: "ClusterClass/big 1, Cluster/a 2, Cluster/b 1, Cluster/c 1",
		},
		"SharedByTwoNew": {
			reason: "what is not there is created: others need it", r2: []string{class("2"), classy("a", "2")}, r1: []string{class("1"), classy("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, "staging"}, "b": {"r1", 38, "production"}},
			want: "ClusterClass/big 2, Cluster/a 2, Cluster/b 1",
		},
		"NoMoreShared": {
			reason: "what no Cluster needs in the newest revision, and one behind does", r2: []string{class("2")}, r1: []string{class("1"), classy("a", "1")},
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "ClusterClass/big 1, Cluster/a 1",
		},
		"Held": {
			reason: "a Cluster that waits keeps what is there, and gets nothing", r2: append(all("2", "a", "b"), "{"+core+"kind: MachineDeployment, metadata: {name: b-md}, spec: {clusterName: b}}"),
			pins: map[string]Pin{"a": {"r2", 2, ""}}, held: []string{"b"}, owned: []string{"ConfigMap/common", "Cluster/a", "AWSCluster/a", "Cluster/b", "AWSCluster/b", "ConfigMap/old"},
			want: "ConfigMap/common 2, Cluster/a 2, AWSCluster/a 2", kept: "Cluster/b, AWSCluster/b, ConfigMap/old",
		},
		"HeldShared": {
			reason: "what it may need with others stays, too", r2: []string{class("2"), classy("a", "2"), classy("b", "2")},
			pins: map[string]Pin{"a": {"r2", 2, ""}}, held: []string{"b"}, owned: []string{"ClusterClass/big", "Cluster/b"},
			want: "Cluster/a 2", kept: "ClusterClass/big, Cluster/b",
		},
		"HeldSharedNew": {
			reason: "and is created if it is not there: others need it", r2: []string{class("2"), classy("a", "2"), classy("b", "2")},
			pins: map[string]Pin{"a": {"r2", 2, ""}}, held: []string{"b"},
			want: "ClusterClass/big 2, Cluster/a 2",
		},
		"HeldSharedRoot": {
			reason: "also what has no namespace in the cluster, and one in what kustomize renders",
			r2:     []string{identity("fleet", "2"), identified("a", "2"), identified("b", "2")},
			pins:   map[string]Pin{"a": {"r2", 2, "base"}}, held: []string{"b"}, owned: []string{"AWSClusterRoleIdentity/role", "Cluster/b", "AWSCluster/b"},
			want: "AWSCluster/a 2", kept: "AWSClusterRoleIdentity/role, Cluster/b, AWSCluster/b",
		},
		"SharedRoot": {
			reason: "of two revisions with other namespaces the one that is behind", r2: []string{identity("other", "2"), identified("a", "2")},
			r1:   []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: first}}", identity("fleet", "1"), identified("b", "1")},
			pins: map[string]Pin{"a": {"r2", 2, "base"}, "b": {"r1", 1, "base"}}, owned: []string{"AWSClusterRoleIdentity/role"},
			want: "AWSClusterRoleIdentity/role 1, AWSCluster/a 2, AWSCluster/b 1",
		},
		"NamelessEntry": {
			reason: "an entry without a namespace that an apply left which failed is none of a kind that has namespaces",
			r2:     []string{"{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: other, annotations: {value: new}}}", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, annotations: {value: there}}}"},
			owned:  []string{"ConfigMap//x", "ConfigMap/x"},
			want:   "ConfigMap/x new, ConfigMap/x there",
		},
		"Missing": {
			reason: "a revision that is not there is none of the others", r2: all("2", "a", "b"),
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r9", 1, ""}}, owned: []string{"ConfigMap/common", "Cluster/a", "AWSCluster/a", "Cluster/b", "AWSCluster/b", "AWSMachineTemplate/b-1"},
			want: "ConfigMap/common 2, Cluster/a 2, AWSCluster/a 2", kept: "Cluster/b, AWSCluster/b, AWSMachineTemplate/b-1",
		},
		"MissingGone": {
			reason: "nor is the end of a Cluster that no other revision declares", r2: all("2", "a"),
			pins: map[string]Pin{"a": {"r2", 2, ""}, "b": {"r9", 1, ""}}, owned: []string{"ConfigMap/common", "Cluster/a", "AWSCluster/a", "Cluster/b", "AWSCluster/b"},
			want: "ConfigMap/common 2, Cluster/a 2, AWSCluster/a 2", kept: "Cluster/b, AWSCluster/b",
		},
		"HeldElsewhere": {
			reason: "a Cluster that is removed goes, although another one waits", r2: all("2", "b"),
			pins: map[string]Pin{"a": {"r2", 2, ""}}, held: []string{"b"}, owned: []string{"ConfigMap/common", "Cluster/a", "Cluster/b", "AWSCluster/b"},
			want: "ConfigMap/common 2", kept: "Cluster/b, AWSCluster/b",
		},
		"Waiting": {
			reason: "workers that wait for their control plane stay, the rest goes on", r2: all("2", "a"), r1: all("1", "a"),
			pins: map[string]Pin{"a": {"r2", 2, ""}}, waiting: []string{"fleet_a_infrastructure.cluster.x-k8s.io_AWSCluster"}, owned: []string{"AWSCluster/a"},
			want: "ConfigMap/common 2, Cluster/a 2", kept: "AWSCluster/a",
		},
		"WaitingNew": {
			reason: "and are not created before", r2: all("2", "a"), r1: all("1", "a"),
			pins: map[string]Pin{"a": {"r2", 2, ""}}, waiting: []string{"fleet_a_infrastructure.cluster.x-k8s.io_AWSCluster"},
			want: "ConfigMap/common 2, Cluster/a 2",
		},
		"Namespace": {
			reason: "a Namespace that is gone from Git stays with what is in it", r2: all("2"),
			r1:   append([]string{"{apiVersion: v1, kind: Namespace, metadata: {name: fleet}}", "{apiVersion: v1, kind: Namespace, metadata: {name: empty}}"}, all("1", "a")...),
			pins: map[string]Pin{"a": {"r1", 1, ""}},
			want: "ConfigMap/common 2, Namespace/fleet, Cluster/a 1, AWSCluster/a 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Newest: Read("r2", objects(t, tc.r2...), Releases{}), Older: map[string]*Rendering{}, Good: map[string]string{"": tc.good}}
			for revision, lines := range map[string][]string{"r1": tc.r1, "r0": tc.r0} {
				if lines != nil {
					f.Older[revision] = Read(revision, objects(t, lines...), Releases{})
				}
			}
			f.Pins, f.Held, f.Waiting = map[types.NamespacedName]Pin{}, map[types.NamespacedName]bool{}, map[string]bool{}
			for name, pin := range tc.pins {
				f.Pins[fleet(name)] = pin
			}
			for _, name := range tc.held {
				f.Held[fleet(name)] = true
			}
			for _, id := range tc.waiting {
				f.Waiting[id] = true
			}
			for _, text := range tc.owned {
				f.Owned = append(f.Owned, owned(text))
			}
			f.Roots = map[schema.GroupKind]bool{{Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSClusterRoleIdentity"}: true}
			got := Compose(f)
			if diff := cmp.Diff(tc.want, strings.Join(show(got.Objects), ", ")); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			var kept []string
			for _, e := range got.Kept {
				kept = append(kept, e.Kind+"/"+e.Name)
			}
			if diff := cmp.Diff(tc.kept, strings.Join(kept, ", ")); diff != "" {
				t.Errorf("%s: kept: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// owned is an entry of namespace fleet, unless its kind has none; kind//name is one without a namespace.
func owned(text string) inventory.Entry {
	kind, name, _ := strings.Cut(text, "/")
	e := inventory.Entry{Namespace: "fleet", Kind: kind, Name: name}
	if name, nameless := strings.CutPrefix(name, "/"); nameless {
		e.Namespace, e.Name = "", name
	}
	switch kind {
	case "Cluster", "ClusterClass", "MachineDeployment":
		e.Group, e.Version = "cluster.x-k8s.io", "v1beta2"
	case "AWSCluster", "AWSMachineTemplate":
		e.Group, e.Version = "infrastructure.cluster.x-k8s.io", "v1beta2"
	case "AWSClusterRoleIdentity":
		e.Namespace, e.Group, e.Version = "", "infrastructure.cluster.x-k8s.io", "v1beta2"
	case "ConfigMap":
		e.Version = "v1"
	}
	return e
}

// world is a random fleet at some revisions.
type world struct {
	facts Facts
	all   map[string]*Rendering
}

// randomWorld makes a fleet: Clusters with parts, classes that some share, objects of
// nobody; each revision has some of them, in some order, and objects of its own.
func randomWorld(t *testing.T, r *rand.Rand) world {
	t.Helper()
	names := []string{"a", "b", "c", "d", "e"}[:1+r.IntN(5)]
	w := world{all: map[string]*Rendering{}}
	var revisions []string
	for i := range 1 + r.IntN(4) {
		revision := fmt.Sprintf("r%d", r.IntN(1000)+1000*i)
		revisions = append(revisions, revision)
		var lines []string
		for _, name := range names {
			if r.IntN(5) == 0 {
				continue
			}
			lines = append(lines, cluster(name, revision)...)
			if r.IntN(2) == 0 {
				lines = append(lines, fmt.Sprintf("{%skind: MachineDeployment, metadata: {name: %s-md%d, annotations: {value: %s}}, spec: {clusterName: %s, template: {spec: {infrastructureRef: {kind: AWSMachineTemplate, name: t%d}}}}}",
					core, name, r.IntN(2), revision, name, r.IntN(3)))
			}
			if r.IntN(2) == 0 {
				lines = append(lines, fmt.Sprintf("{%skind: Machine, metadata: {name: %s-m, annotations: {value: %s}}, spec: {clusterName: %s, infrastructureRef: {kind: AWSMachineTemplate, name: t%d}}}",
					core, name, revision, name, r.IntN(3)))
			}
		}
		for j := range 3 {
			if r.IntN(3) > 0 {
				lines = append(lines, fmt.Sprintf("{%skind: AWSMachineTemplate, metadata: {name: t%d, annotations: {value: %s}}}", infra, j, revision))
			}
			if r.IntN(3) > 0 {
				lines = append(lines, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d, annotations: {value: %s}}}", j, revision))
			}
		}
		r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		w.all[revision] = Read(revision, objects(t, lines...), Releases{})
	}
	newest := revisions[r.IntN(len(revisions))]
	w.facts = Facts{
		Newest: w.all[newest], Older: map[string]*Rendering{}, Pins: map[types.NamespacedName]Pin{}, Held: map[types.NamespacedName]bool{},
		Good: map[string]string{"": revisions[r.IntN(len(revisions))]},
	}
	for revision, rendering := range w.all {
		w.facts.Older[revision] = rendering
		for _, u := range rendering.Objects() {
			if r.IntN(2) == 0 && !slices.ContainsFunc(w.facts.Owned, func(e inventory.Entry) bool { return e.ID() == inventory.Of(u).ID() }) {
				w.facts.Owned = append(w.facts.Owned, inventory.Of(u))
			}
		}
	}
	delete(w.facts.Older, newest)
	for _, name := range names {
		switch r.IntN(6) {
		case 0: // a new Cluster
		case 1:
			w.facts.Held[fleet(name)] = true
		case 2:
			w.facts.Pins[fleet(name)] = Pin{Revision: "missing", Run: r.Int64N(4)}
		default:
			w.facts.Pins[fleet(name)] = Pin{Revision: revisions[r.IntN(len(revisions))], Run: r.Int64N(4), Rollout: []string{"one", "two"}[r.IntN(2)]}
		}
	}
	return w
}

// rendering is the one that a Cluster may have; nil if it is held.
func (w world) rendering(c types.NamespacedName) *Rendering {
	pin, pinned := w.facts.Pins[c]
	switch {
	case w.facts.Held[c]:
		return nil
	case !pinned:
		return w.facts.Newest
	}
	return w.all[pin.Revision]
}

// TestInvariants holds compositions of random fleets against what the package promises.
func TestInvariants(t *testing.T) {
	for seed := range uint64(1000) {
		w := randomWorld(t, rand.New(rand.NewPCG(seed, 1)))
		got := Compose(w.facts)
		if again := Compose(w.facts); !cmp.Equal(got, again) {
			t.Fatalf("seed %d: it is composed in two ways: %s", seed, cmp.Diff(got, again))
		}
		count := map[string]int{}
		for _, u := range got.Objects {
			count[inventory.Of(u).ID()]++
		}
		kept := map[string]bool{}
		for _, e := range got.Kept {
			kept[e.ID()] = true
			count[e.ID()]++
		}
		for id, n := range count {
			if n != 1 {
				t.Fatalf("seed %d: %s is there %d times", seed, id, n)
			}
		}
		// What the pin of a Cluster declares of it is there.
		for _, r := range w.all {
			for _, c := range r.Clusters() {
				if w.rendering(c) != r {
					continue
				}
				for _, u := range r.Of(c) {
					if id := inventory.Of(u).ID(); count[id] != 1 {
						t.Fatalf("seed %d: %s of Cluster %s is not there", seed, id, c.Name)
					}
				}
			}
		}
		w.checkOrigins(t, seed, got)
		// What Git has at the newest revision, and for nobody in particular at all that Clusters may have, is never given up.
		for _, u := range w.facts.Newest.Objects() {
			if seed%8 > 0 {
				break // it takes long
			}
			id, everywhere := inventory.Of(u).ID(), true
			for c := range w.facts.Pins {
				if r := w.rendering(c); r != nil && (r.index(id) < 0 || len(r.of[r.index(id)]) > 0 && r != w.facts.Newest) {
					everywhere = false
				}
			}
			if everywhere && len(w.facts.Pins) > 0 && count[id] != 1 && slices.ContainsFunc(w.facts.Owned, func(e inventory.Entry) bool { return e.ID() == id }) {
				t.Fatalf("seed %d: %s is everywhere, and is given up", seed, id)
			}
		}
		// Nothing in place of a Cluster that is held is given up.
		for _, e := range w.facts.Owned {
			for _, r := range w.all {
				i := r.index(e.ID())
				if i >= 0 && slices.ContainsFunc(r.of[i], func(c types.NamespacedName) bool { return w.rendering(c) == nil }) && !kept[e.ID()] {
					t.Fatalf("seed %d: %s may be of a Cluster that is held, and is not kept", seed, e)
				}
			}
		}
	}
}

// index of an object in a rendering, -1 if that does not have it.
func (r *Rendering) index(id string) int {
	return slices.IndexFunc(r.objects, func(u *unstructured.Unstructured) bool { return inventory.Of(u).ID() == id })
}

// checkOrigins: each object is of a revision that a Cluster which it belongs to may have,
// or of the newest.
func (w world) checkOrigins(t *testing.T, seed uint64, got Composition) {
	t.Helper()
	for _, u := range got.Objects {
		from := w.all[u.GetAnnotations()["value"]]
		of := from.of[from.index(inventory.Of(u).ID())]
		entitled := slices.ContainsFunc(of, func(c types.NamespacedName) bool { return w.rendering(c) == from })
		// What nobody needed there, and somebody does at the newest, stays.
		stays := len(of) == 0 && w.facts.Newest.index(inventory.Of(u).ID()) >= 0
		if !entitled && !stays && (len(of) > 0 || from != w.facts.Newest) {
			t.Fatalf("seed %d: %s/%s is of %s, which none of %v may have", seed, u.GetKind(), u.GetName(), from.Revision, of)
		}
		if len(of) == 1 && w.rendering(of[0]) != from {
			t.Fatalf("seed %d: %s/%s of Cluster %s is of %s", seed, u.GetKind(), u.GetName(), of[0].Name, from.Revision)
		}
	}
}

// TestNewestIsItself: with all pins at the newest revision the composition is that, in its
// order, whatever other renderings there are.
func TestNewestIsItself(t *testing.T) {
	for seed := range uint64(200) {
		w := randomWorld(t, rand.New(rand.NewPCG(seed, 2)))
		w.facts.Held, w.facts.Owned = nil, nil
		for c := range w.facts.Pins {
			w.facts.Pins[c] = Pin{Revision: w.facts.Newest.Revision, Run: w.facts.Pins[c].Run}
		}
		got := Compose(w.facts)
		if diff := cmp.Diff(show(w.facts.Newest.Objects()), show(got.Objects)); diff != "" || len(got.Kept) > 0 {
			t.Fatalf("seed %d: it is not the newest rendering, and keeps %v: %s", seed, got.Kept, diff)
		}
	}
}
