package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/inventory"
)

func parsed(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestReferredTo(t *testing.T) {
	const head = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: prod, namespace: fleet}\nspec: "
	infra := inventory.Entry{Namespace: "fleet", Name: "prod", Group: infrastructure, Kind: "AWSCluster"}
	for name, tc := range map[string]struct {
		reason, spec string
		of           inventory.Entry
		class        string
		want         bool
	}{
		"Infrastructure": {"Cluster API has not adopted it yet", "{infrastructureRef: {kind: AWSCluster, name: prod}}", infra, "", true},
		"ControlPlane":   {"or the control plane", "{controlPlaneRef: {kind: AWSCluster, name: prod}}", infra, "", true},
		"OtherName":      {"of another Cluster", "{infrastructureRef: {kind: AWSCluster, name: test}}", infra, "", false},
		"OtherKind":      {"names are the same for all kinds", "{infrastructureRef: {kind: AWSManagedCluster, name: prod}}", infra, "", false},
		"OtherNamespace": {"and in all namespaces", "{infrastructureRef: {kind: AWSCluster, name: prod}}", inventory.Entry{Namespace: "test", Name: "prod", Group: infrastructure, Kind: "AWSCluster"}, "", false},
		"Class":          {"as v1beta2 writes it", "{topology: {classRef: {name: big}}}", inventory.Entry{Namespace: "fleet"}, "big", true},
		"OldClass":       {"as v1beta1 does", "{topology: {class: big}}", inventory.Entry{Namespace: "fleet"}, "big", true},
		"ClassElsewhere": {"a class of another namespace is another class", "{topology: {classRef: {name: big, namespace: shared}}}", inventory.Entry{Namespace: "fleet"}, "big", false},
		"SharedClass":    {"which is used from here", "{topology: {classRef: {name: big, namespace: shared}}}", inventory.Entry{Namespace: "shared"}, "big", true},
		"NoTopology":     {"a Cluster without a class uses none", "{}", inventory.Entry{Namespace: "fleet"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := parsed(t, head+tc.spec)
			got := refersTo(c, tc.of)
			if tc.class != "" {
				got = usesClass(c, tc.of.Namespace, tc.class)
			}
			if got != tc.want {
				t.Errorf("%s: got %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestReadsSecret(t *testing.T) {
	secret := inventory.Entry{Namespace: "fleet", Name: "keys", Kind: "Secret"}
	for name, tc := range map[string]struct {
		reason, identity string
		want             bool
	}{
		"AWS":            {"its Secret is beside the controller, wherever that is", "kind: AWSClusterStaticIdentity\nspec: {secretRef: keys}", true},
		"AWSOther":       {"another account", "kind: AWSClusterStaticIdentity\nspec: {secretRef: others}", false},
		"Azure":          {"by name and namespace", "kind: AzureClusterIdentity\nmetadata: {namespace: azure}\nspec: {clientSecret: {name: keys, namespace: fleet}}", true},
		"AzureElsewhere": {"a Secret of another namespace is another Secret", "kind: AzureClusterIdentity\nmetadata: {namespace: azure}\nspec: {clientSecret: {name: keys, namespace: test}}", false},
		"AzureBeside":    {"where it names none, it is beside the identity", "kind: AzureClusterIdentity\nmetadata: {namespace: fleet}\nspec: {clientSecret: {name: keys}}", true},
		"VSphere":        {"once more with another word", "kind: VSphereClusterIdentity\nspec: {secretName: keys}", true},
		"Role":           {"a role has no keys", "kind: AWSClusterRoleIdentity\nspec: {roleARN: keys}", false},
		"Nothing":        {"an identity without a spec", "kind: AWSClusterControllerIdentity", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := readsSecret(parsed(t, tc.identity), secret); got != tc.want {
				t.Errorf("%s: readsSecret() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestUserOf(t *testing.T) {
	static := inventory.Entry{Name: "keys", Group: infrastructure, Kind: "AWSClusterStaticIdentity", Version: "v1beta2"}
	role := *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterRoleIdentity\nmetadata: {name: role}\nspec: {sourceIdentityRef: {kind: AWSClusterStaticIdentity, name: keys}}")
	itself := *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSClusterStaticIdentity\nmetadata: {name: keys}\nspec: {sourceIdentityRef: {kind: AWSClusterStaticIdentity, name: keys}}")
	user := func(ref string) unstructured.Unstructured {
		return *parsed(t, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSCluster\nmetadata: {name: prod-x, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: prod}}\nspec: {identityRef: "+ref+"}")
	}
	for name, tc := range map[string]struct {
		reason string
		kin    kin
		want   string
	}{
		"Used":    {"by the name of the Cluster", kin{users: []unstructured.Unstructured{user("{kind: AWSClusterStaticIdentity, name: keys}")}}, "prod"},
		"Unused":  {"by nobody", kin{users: []unstructured.Unstructured{user("{kind: AWSClusterStaticIdentity, name: others}")}}, ""},
		"Chained": {"by way of a role, which is assumed with the keys", kin{users: []unstructured.Unstructured{user("{kind: AWSClusterRoleIdentity, name: role}")}, identities: []unstructured.Unstructured{role}}, "prod"},
		"Unended": {"a chain that nobody uses", kin{identities: []unstructured.Unstructured{role}}, ""},
		"Circle":  {"a chain that ends nowhere must not hang", kin{identities: []unstructured.Unstructured{itself}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := userOf(static, &tc.kin); got != tc.want {
				t.Errorf("%s: userOf() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, spec string
		want         bool
	}{
		"Prunes":       {"prune: true deletes what was applied", "{prune: true}", false},
		"DoesNotPrune": {"MirrorPrune is the default", "{prune: false}", true},
		"Orphan":       {"whatever prune says", "{prune: true, deletionPolicy: Orphan}", true},
		"Delete":       {"whatever prune says", "{prune: false, deletionPolicy: Delete}", false},
		"Waits":        {"it deletes, too", "{prune: false, deletionPolicy: WaitForTermination}", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := leaves(parsed(t, "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nspec: "+tc.spec)); got != tc.want {
				t.Errorf("%s: leaves() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
	if leaves(parsed(t, "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec: {suspend: true}")) {
		t.Error("a suspended HelmRelease may be resumed to be deleted")
	}
}
