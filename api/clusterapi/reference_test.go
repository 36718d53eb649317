package clusterapi

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

func TestReferenceAt(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ref    string
		want   Reference
	}{
		"Current": {
			"v1beta2 has a group and no namespace", `{apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSCluster, name: a}`,
			Reference{Group: InfrastructureGroup, Kind: "AWSCluster", Namespace: "fleet", Name: "a"},
		},
		"Former": {
			"v1beta1 has a version, and may name a namespace",
			`{apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: AWSCluster, namespace: other, name: a}`,
			Reference{Group: InfrastructureGroup, Version: "v1beta1", Kind: "AWSCluster", Namespace: "other", Name: "a"},
		},
		"Both": {
			"the group counts", `{apiGroup: one.example, apiVersion: two.example/v1, kind: K, name: a}`,
			Reference{Group: "one.example", Kind: "K", Namespace: "fleet", Name: "a"},
		},
		"Malformed": {
			"a version that is none says nothing of the group", `{apiVersion: a/b/c, kind: K, name: a}`,
			Reference{Kind: "K", Namespace: "fleet", Name: "a"},
		},
		"NoName":    {"a kind alone is no object", `{apiGroup: x.example, kind: K}`, Reference{}},
		"NoKind":    {"neither is a name", `{apiGroup: x.example, name: a}`, Reference{}},
		"WrongType": {"a number is no name", `{apiGroup: x.example, kind: K, name: 7}`, Reference{}},
		"NotAMap":   {"text is no reference", `K/a`, Reference{}},
		"Missing":   {"the field is not there", `null`, Reference{}},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, `{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: fleet, name: c}, spec: {infrastructureRef: `+tc.ref+`}}`)
			if got := InfrastructureOf(u); got != tc.want {
				t.Errorf("%s\nInfrastructureOf = %+v, want %+v", tc.reason, got, tc.want)
			}
			if got, want := len(PartsOf(u)), map[bool]int{true: 0, false: 1}[tc.want.IsZero()]; got != want {
				t.Errorf("%s\n%d parts, want %d", tc.reason, got, want)
			}
			if got := ControlPlaneOf(u); !got.IsZero() {
				t.Errorf("ControlPlaneOf = %+v, want none", got)
			}
		})
	}
}

const topologyCluster = `{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {namespace: fleet, name: c}, spec: {
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSCluster, name: c},
  controlPlaneRef: {apiVersion: controlplane.cluster.x-k8s.io/v1beta1, kind: KubeadmControlPlane, namespace: other, name: c},
  topology: {workers: {machinePools: [{bootstrap: {ref: {kind: KubeadmConfig, name: deep}}}]}}}}`

func TestReferences(t *testing.T) {
	u := object(t, topologyCluster)
	got := ReferencesOf(u)
	slices.SortFunc(got, func(a, b Reference) int { return cmp.Compare(a.Kind, b.Kind) })
	want := []Reference{Named("fleet", "AWSCluster", "c"), Named("other", "KubeadmControlPlane", "c"), Named("fleet", "KubeadmConfig", "deep")}
	slices.SortFunc(want, func(a, b Reference) int { return cmp.Compare(a.Kind, b.Kind) })
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("ReferencesOf: %s", diff)
	}
	if got := ReferencesOf(object(t, `{kind: K, metadata: {name: a}, spec: [{kind: K, name: b}]}`)); got != nil {
		t.Errorf("a spec that is a list has the references %v", got)
	}
	for name, tc := range map[string]struct {
		reason                string
		namespace, kind, name string
		part, refers          bool
	}{
		"Infrastructure": {"what core adopts", "fleet", "AWSCluster", "c", true, true},
		"Stated": {
			"a part is in the Cluster's namespace, whatever the reference says", "fleet", "KubeadmControlPlane", "c", true, false,
		},
		"Foreign": {"an object of another namespace is no part, though it is referred to", "other", "KubeadmControlPlane", "c", false, true},
		"Deep":    {"a reference anywhere is one, and no part", "fleet", "KubeadmConfig", "deep", false, true},
		"Name":    {"another name", "fleet", "AWSCluster", "d", false, false},
		"Kind":    {"another kind", "fleet", "AzureCluster", "c", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := HasPart(u, tc.namespace, tc.kind, tc.name); got != tc.part {
				t.Errorf("%s\nHasPart = %t", tc.reason, got)
			}
			if got := RefersTo(u, tc.namespace, tc.kind, tc.name); got != tc.refers {
				t.Errorf("%s\nRefersTo = %t", tc.reason, got)
			}
		})
	}
}
