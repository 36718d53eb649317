package graph_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/capibridge/shapes"
)

// objects of YAML documents, one on a line. The UID of each is <kind>/<name>, and so owners
// are given as a list of these in the annotation "owners".
func objects(t *testing.T, lines string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	byUID := map[string]*unstructured.Unstructured{}
	for line := range strings.Lines(lines) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(line), &u.Object); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if u.GetNamespace() == "" && !strings.HasPrefix(u.GetName(), "global") {
			u.SetNamespace("fleet")
		}
		u.SetUID(types.UID(u.GetKind() + "/" + u.GetName()))
		byUID[string(u.GetUID())] = u
		out = append(out, u)
	}
	for _, u := range out {
		annotations := u.GetAnnotations()
		var refs []metav1.OwnerReference
		for uid := range strings.FieldsSeq(annotations["owners"]) {
			kind, name, _ := strings.Cut(uid, "/")
			ref := metav1.OwnerReference{APIVersion: "elsewhere.example/v1", Kind: kind, Name: name, UID: types.UID(uid)}
			if owner := byUID[uid]; owner != nil {
				ref.APIVersion = owner.GetAPIVersion()
			}
			refs = append(refs, ref)
		}
		u.SetOwnerReferences(refs)
		delete(annotations, "owners")
		u.SetAnnotations(annotations)
	}
	return out
}

const core, infra = "cluster.x-k8s.io/v1beta2", "infrastructure.cluster.x-k8s.io/v1beta2"

// cluster is one, with what it refers to and what more its spec has.
func cluster(name, spec string) string {
	return fmt.Sprintf("{apiVersion: %s, kind: Cluster, metadata: {name: %s}, spec: {%s}}\n", core, name, spec)
}

// object is any other.
func object(version, kind, name, owners, rest string) string {
	if rest != "" {
		rest = ", " + rest
	}
	return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s, annotations: {owners: %q}}%s}\n", version, kind, name, owners, rest)
}

// drawn writes a graph down: a group on a line, each node with the Clusters that it belongs
// to and its marks.
func drawn(g *graph.Graph) string {
	var b strings.Builder
	for _, group := range g.InOrder() {
		var line []string
		for _, n := range group {
			var of []string
			for _, c := range n.Clusters {
				of = append(of, c.Name)
			}
			text := n.Object.GetKind() + "/" + n.Object.GetName() + "(" + strings.Join(of, ",") + ")"
			if n.Global {
				text += "global"
			}
			if n.Common {
				text += "common"
			}
			if n.Shared {
				text += "shared"
			}
			if n.Circular {
				text += "circular"
			}
			if len(n.Foreign) > 0 {
				text += fmt.Sprintf("foreign%d", len(n.Foreign))
			}
			line = append(line, text)
		}
		b.WriteString(strings.Join(line, " ") + "\n")
	}
	return b.String()
}

func TestOf(t *testing.T) {
	azure := []graph.Kind{
		{GroupVersionKind: schema.GroupVersionKind{Group: "resources.azure.com", Version: "v1api20200601", Kind: "ResourceGroup"}, Namespaced: true, Move: true, MoveHierarchy: true},
	}
	for name, tt := range map[string]struct {
		reason  string
		kinds   []graph.Kind
		objects string
		only    []string
		want    string
	}{
		"Local": {
			reason: "owners lead from the Cluster to its machines and their Secrets",
			objects: cluster("a", "infrastructureRef: {kind: LocalCluster, name: a}") +
				object(infra, "LocalCluster", "a", "Cluster/a", "") +
				object("controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane", "a", "Cluster/a", "") +
				object("v1", "Secret", "a-kubeconfig", "LocalControlPlane/a", "") +
				object(core, "MachineDeployment", "a-md", "Cluster/a", "spec: {clusterName: a}") +
				object(core, "MachineSet", "a-ms", "MachineDeployment/a-md", "spec: {clusterName: a}") +
				object(core, "Machine", "a-m", "MachineSet/a-ms", "spec: {clusterName: a, infrastructureRef: {kind: LocalMachine, name: a-m}}") +
				object(infra, "LocalMachine", "a-m", "Machine/a-m", ""),
			want: `
Cluster/a(a)
MachineDeployment/a-md(a) LocalControlPlane/a(a) LocalCluster/a(a)
Secret/a-kubeconfig(a) MachineSet/a-ms(a)
Machine/a-m(a)
LocalMachine/a-m(a)`,
		},
		"Secrets": {
			reason: "a Secret without owner is a Cluster's by its label or by the name that Cluster API gives; the longer name is another Cluster's, and any other Secret nobody's",
			objects: cluster("a", "") + cluster("a-b", "") +
				object("v1", "Secret", "a-ca", "", "") + object("v1", "Secret", "a-b-ca", "", "") + object("v1", "Secret", "a-database", "", "") +
				object("v1", "Secret", "c-ca", "", "") +
				"{apiVersion: v1, kind: Secret, metadata: {name: x, labels: {cluster.x-k8s.io/cluster-name: a}}}\n" +
				"{apiVersion: v1, kind: Secret, metadata: {name: a-sa, namespace: other}}\n",
			want: `
Secret/a-b-ca(a-b) Secret/a-ca(a) Secret/x(a) Cluster/a(a) Cluster/a-b(a-b)`,
		},
		"Class": {
			reason: "a class comes before the Clusters that use it, and owns its templates; both are of all of them",
			objects: cluster("a", "topology: {classRef: {name: tenant}}") + cluster("b", "topology: {class: tenant}") + cluster("c", "") +
				object(core, "ClusterClass", "tenant", "", "spec: {infrastructure: {templateRef: {kind: LocalClusterTemplate, name: tenant}}}") +
				object(infra, "LocalClusterTemplate", "tenant", "ClusterClass/tenant", "") +
				object(infra, "LocalMachineTemplate", "a-m", "Cluster/a", ""),
			want: `
Cluster/c(c) ClusterClass/tenant(a,b)common
Cluster/a(a) Cluster/b(b) LocalClusterTemplate/tenant(a,b)common
LocalMachineTemplate/a-m(a)`,
		},
		"ClassShared": {
			reason: "of one Cluster, what the other uses as well stays",
			only:   []string{"a"},
			objects: cluster("a", "topology: {classRef: {name: tenant}}") + cluster("b", "topology: {class: tenant}") +
				object(core, "ClusterClass", "tenant", "", "spec: {infrastructure: {templateRef: {kind: LocalClusterTemplate, name: tenant}}}") +
				object(infra, "LocalClusterTemplate", "tenant", "ClusterClass/tenant", "") +
				object(infra, "LocalCluster", "b", "Cluster/b", "") + object(infra, "LocalCluster", "a", "Cluster/a", ""),
			want: `
ClusterClass/tenant(a,b)commonshared
Cluster/a(a) LocalClusterTemplate/tenant(a,b)commonshared
LocalCluster/a(a)`,
		},
		"ClassUnused": {
			reason: "a class that no Cluster uses is of Cluster API, and of no Cluster",
			objects: cluster("a", "") + object(core, "ClusterClass", "tenant", "", "spec: {infrastructure: {templateRef: {kind: LocalClusterTemplate, name: tenant}}}") +
				object(infra, "LocalClusterTemplate", "tenant", "ClusterClass/tenant", ""),
			want: `
Cluster/a(a) ClusterClass/tenant()common
LocalClusterTemplate/tenant()common`,
		},
		"AWS": {
			reason: "an identity has no namespace; it and the Secret that it owns stay, and are made first",
			objects: cluster("a", "infrastructureRef: {kind: AWSCluster, name: a}, controlPlaneRef: {kind: AWSManagedControlPlane, name: a}") +
				object(infra, "AWSCluster", "a", "Cluster/a", "spec: {identityRef: {kind: AWSClusterStaticIdentity, name: global-keys}}") +
				object("controlplane.cluster.x-k8s.io/v1beta2", "AWSManagedControlPlane", "a", "Cluster/a", "") +
				object("v1", "Secret", "a-user-kubeconfig", "AWSManagedControlPlane/a", "") +
				object(infra, "AWSClusterStaticIdentity", "global-keys", "", "spec: {secretRef: keys}") +
				object("v1", "Secret", "keys", "AWSClusterStaticIdentity/global-keys", "") +
				"{apiVersion: v1, kind: Secret, metadata: {name: keys2, namespace: other}}\n" +
				object(core, "MachinePool", "a-mp", "Cluster/a", "spec: {clusterName: a}") +
				object(infra, "AWSMachinePool", "a-mp", "MachinePool/a-mp", ""),
			want: `
AWSClusterStaticIdentity/global-keys(a)globalcommon Cluster/a(a)
Secret/keys(a)globalcommonshared MachinePool/a-mp(a) AWSManagedControlPlane/a(a) AWSCluster/a(a)
Secret/a-user-kubeconfig(a) AWSMachinePool/a-mp(a)`,
		},
		"AzureManagedIdentity": {
			reason: "an identity of Azure that a cluster is made with is a part of it as any other, and no credential",
			kinds: append(slices.Clone(azure), graph.Kind{
				GroupVersionKind: schema.GroupVersionKind{Group: "managedidentity.azure.com", Version: "v1api20230131", Kind: "UserAssignedIdentity"}, Namespaced: true,
			}),
			objects: cluster("a", "controlPlaneRef: {kind: AzureASOManagedControlPlane, name: a}") +
				object(infra, "AzureASOManagedControlPlane", "a", "Cluster/a", `spec: {resources: [{apiVersion: managedidentity.azure.com/v1api20230131, kind: UserAssignedIdentity, metadata: {name: id}}]}`) +
				object("managedidentity.azure.com/v1api20230131", "UserAssignedIdentity", "id", "AzureASOManagedControlPlane/a", ""),
			want: `
Cluster/a(a)
AzureASOManagedControlPlane/a(a)
UserAssignedIdentity/id(a)`,
		},
		"Azure": {
			reason: "resources of the operator are owned, and the credentials that they name go along and stay",
			kinds:  azure,
			objects: cluster("a", "infrastructureRef: {kind: AzureASOManagedCluster, name: a}") +
				object(infra, "AzureASOManagedCluster", "a", "Cluster/a", `spec: {resources: [{apiVersion: resources.azure.com/v1api20200601, kind: ResourceGroup, metadata: {name: group, annotations: {serviceoperator.azure.com/credential-from: key}}}]}`) +
				object("resources.azure.com/v1api20200601", "ResourceGroup", "group", "AzureASOManagedCluster/a", "") +
				object("containerservice.azure.com/v1api20240901", "ManagedCluster", "a", "ResourceGroup/group", "") +
				object("v1", "Secret", "key", "", "") + object("v1", "Secret", "aso-credential", "", "") +
				object("v1", "Secret", "a-aso", "ManagedCluster/a", "") +
				object("v1", "Secret", "unrelated", "", ""),
			want: `
Secret/aso-credential(a)commonshared Secret/key(a)commonshared Cluster/a(a)
AzureASOManagedCluster/a(a)
ResourceGroup/group(a)
ManagedCluster/a(a)
Secret/a-aso(a)`,
		},
		"AzureIdentity": {
			reason: "an identity in another namespace is shared as much as the Secret that it reads",
			objects: cluster("a", "infrastructureRef: {kind: AzureCluster, name: a}") +
				object(infra, "AzureCluster", "a", "Cluster/a", "spec: {identityRef: {kind: AzureClusterIdentity, name: shared, namespace: identities}}") +
				"{apiVersion: infrastructure.cluster.x-k8s.io/v1beta1, kind: AzureClusterIdentity, metadata: {name: shared, namespace: identities}, spec: {clientSecret: {name: key, namespace: identities}}}\n" +
				"{apiVersion: v1, kind: Secret, metadata: {name: key, namespace: identities}}\n",
			want: `
Cluster/a(a) Secret/key(a)commonshared AzureClusterIdentity/shared(a)common
AzureCluster/a(a)`,
		},
		"GCP": {
			reason: "keys that a cluster names by a field of its provider go along and stay",
			objects: cluster("a", "infrastructureRef: {kind: GCPCluster, name: a}") +
				object(infra, "GCPCluster", "a", "Cluster/a", "spec: {credentialsRef: {name: key, namespace: fleet}}") +
				object("v1", "Secret", "key", "", ""),
			want: `
Secret/key(a)commonshared Cluster/a(a)
GCPCluster/a(a)`,
		},
		"CloudStack": {
			reason: "and keys by a field whose name does not say so",
			objects: cluster("a", "infrastructureRef: {kind: CloudStackCluster, name: a}") +
				object(infra, "CloudStackCluster", "a", "Cluster/a", "spec: {failureDomains: [{acsEndpoint: {name: key, namespace: fleet}}]}") +
				object("v1", "Secret", "key", "", ""),
			want: `
Secret/key(a)commonshared Cluster/a(a)
CloudStackCluster/a(a)`,
		},
		"ResourceSets": {
			reason: "a set is of the Clusters that its bindings name, and a binding of its own Cluster alone",
			objects: cluster("a", "") + cluster("b", "") +
				object("addons.cluster.x-k8s.io/v1beta2", "ClusterResourceSet", "cni", "", "spec: {resources: [{kind: ConfigMap, name: cni}]}") +
				object("v1", "ConfigMap", "cni", "ClusterResourceSet/cni", "") +
				object("addons.cluster.x-k8s.io/v1beta2", "ClusterResourceSetBinding", "a", "ClusterResourceSet/cni Cluster/a", "spec: {clusterName: a}") +
				object("addons.cluster.x-k8s.io/v1beta2", "ClusterResourceSetBinding", "b", "ClusterResourceSet/cni Cluster/b", "spec: {clusterName: b}"),
			only: []string{"a"},
			want: `
ClusterResourceSet/cni(a,b)commonshared Cluster/a(a)
ConfigMap/cni(a,b)commonshared ClusterResourceSetBinding/a(a)`,
		},
		"Foreign": {
			reason: "an owner that nobody moves is told, and so is a Cluster that is not asked for",
			objects: cluster("a", "") + cluster("b", "") +
				object(infra, "LocalMachineTemplate", "m", "Cluster/a Cluster/b ExternalSecret/x", ""),
			only: []string{"a"},
			want: `
Cluster/a(a)
LocalMachineTemplate/m(a,b)sharedforeign2`,
		},
		"Bootstrap": {
			reason: "a person's Secret that machines read at their start is needed where they are made, and is not taken away",
			objects: cluster("a", "") +
				object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate", "a", "Cluster/a", "spec: {template: {spec: {files: [{contentFrom: {secret: {name: files, key: x}}}]}}}") +
				object("v1", "Secret", "files", "", ""),
			want: `
Secret/files(a)commonshared Cluster/a(a)
KubeadmConfigTemplate/a(a)`,
		},
		"Circle": {
			reason: "neither can be made before the other, and whoever brings it about holds up nobody else; what hangs on them has its owner",
			objects: cluster("a", "") +
				"{apiVersion: v1, kind: ConfigMap, metadata: {name: p, labels: {clusterctl.cluster.x-k8s.io/move-hierarchy: ''}, annotations: {owners: ConfigMap/q}}}\n" +
				object("v1", "ConfigMap", "q", "ConfigMap/p", "") +
				"{apiVersion: v1, kind: ConfigMap, metadata: {name: r, labels: {clusterctl.cluster.x-k8s.io/move: ''}, annotations: {owners: ConfigMap/q}}}\n" +
				object(infra, "LocalCluster", "a", "Cluster/a", ""),
			want: `
Cluster/a(a)
LocalCluster/a(a)
ConfigMap/p()commonsharedcircularforeign1 ConfigMap/q()commonsharedcircularforeign1
ConfigMap/r()commonshared`,
		},
		"CircleOnly": {
			reason: "of one Cluster, they are told as they are of all",
			objects: cluster("a", "") + cluster("b", "") +
				object(infra, "LocalCluster", "a", "LocalMachineTemplate/a Cluster/a", "") + object(infra, "LocalMachineTemplate", "a", "LocalCluster/a", ""),
			only: []string{"a"},
			want: `
Cluster/a(a) LocalMachineTemplate/a(a)circularforeign1
LocalCluster/a(a)circularforeign1`,
		},
		"CircleOfOne": {
			reason:  "what owns itself could be made nowhere",
			objects: cluster("a", "") + object(infra, "LocalMachineTemplate", "m", "LocalMachineTemplate/m", ""),
			want: `
Cluster/a(a) LocalMachineTemplate/m()commonforeign1`,
		},
		"CircleOfClass": {
			reason: "a class that is to go with its only Cluster is before it all the same",
			objects: cluster("a", "topology: {classRef: {name: tenant}}") +
				object(core, "ClusterClass", "tenant", "Cluster/a", ""),
			want: `
ClusterClass/tenant(a)circularforeign1
Cluster/a(a)`,
		},
		"CircleOfIdentities": {
			reason: "identities that name each other are admitted or not, and are owned by nobody",
			objects: cluster("a", "") +
				object(infra, "AWSClusterRoleIdentity", "global-x", "", "spec: {sourceIdentityRef: {kind: AWSClusterRoleIdentity, name: global-y}}") +
				object(infra, "AWSClusterRoleIdentity", "global-y", "", "spec: {sourceIdentityRef: {kind: AWSClusterRoleIdentity, name: global-x}}"),
			want: `
Cluster/a(a)
AWSClusterRoleIdentity/global-x()globalcommon AWSClusterRoleIdentity/global-y()globalcommon`,
		},
		"Label": {
			reason:  "a label takes along what belongs to no Cluster, and what that owns; from the namespaces of the Clusters only",
			objects: cluster("a", "") + "{apiVersion: v1, kind: Secret, metadata: {name: s, labels: {clusterctl.cluster.x-k8s.io/move: ''}}}\n" + "{apiVersion: v1, kind: ConfigMap, metadata: {name: h, labels: {clusterctl.cluster.x-k8s.io/move-hierarchy: ''}}}\n" + object("v1", "Secret", "below", "ConfigMap/h", "") + "{apiVersion: v1, kind: Secret, metadata: {name: s2, namespace: other, labels: {clusterctl.cluster.x-k8s.io/move: ''}}}\n",
			only:    []string{"a"},
			want: `
ConfigMap/h()commonshared Secret/s()commonshared Cluster/a(a)
Secret/below()commonshared`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			list := objects(t, tt.objects)
			for range 2 { // in any order
				g, err := graph.Of(list, tt.kinds)
				if err != nil {
					t.Fatal(err)
				}
				var only []types.NamespacedName
				for _, name := range tt.only {
					only = append(only, types.NamespacedName{Namespace: "fleet", Name: name})
				}
				if only != nil {
					g = g.Only(only...)
				}
				if got := drawn(g); got != strings.TrimPrefix(tt.want, "\n")+"\n" {
					t.Errorf("%s: got\n%s\nwant%s", tt.reason, got, tt.want)
				}
				slices.Reverse(list)
			}
		})
	}
}

// TestShapes: in each life of a cluster, everything that Cluster API or its provider has
// of it belongs to it, though controllers have set no owners yet.
func TestShapes(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range lives {
		for _, stage := range life.Stages {
			for _, u := range stage.Objects {
				u.SetUID(types.UID(u.GetKind() + u.GetName()))
			}
			g, err := graph.Of(stage.Objects, nil)
			if err != nil {
				t.Fatalf("%s, %s: %v", life.Name, stage.Name, err)
			}
			name := client.ObjectKeyFromObject(stage.Cluster())
			only := g.Only(name)
			for _, u := range stage.Objects {
				if !clusterapi.IsGroup(u.GroupVersionKind().Group) && u.GetNamespace() != name.Namespace {
					continue // of the provider's controller
				}
				if n := only.Node(u.GetUID()); n == nil || !slices.Contains(n.Clusters, name) {
					t.Errorf("%s, %s: %s/%s is not of Cluster %s", life.Name, stage.Name, u.GetKind(), u.GetName(), name)
				}
			}
		}
	}
}

func TestOfFails(t *testing.T) {
	nameless := objects(t, cluster("a", ""))
	nameless[0].SetUID("")
	for name, tt := range map[string]struct {
		reason  string
		objects []*unstructured.Unstructured
		want    string
	}{
		"NoUID": {"owners are found by UID", nameless, "has no UID"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := graph.Of(tt.objects, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

func TestPortable(t *testing.T) {
	u := objects(t, object(infra, "LocalCluster", "a", "Cluster/a ExternalSecret/x", "spec: {x: 1}, status: {ready: true}")+cluster("a", ""))
	u[0].SetResourceVersion("7")
	u[0].SetGeneration(3)
	u[0].SetFinalizers([]string{"local", "foregroundDeletion"})
	g, err := graph.Of(u, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := g.Node(u[0].GetUID()).Portable()
	if out.GetUID() != "" || out.GetResourceVersion() != "" || out.GetGeneration() != 0 || out.Object["status"] != nil {
		t.Errorf("the server's fields are there: %v", out.Object)
	}
	if got := out.GetFinalizers(); !slices.Equal(got, []string{"local"}) {
		t.Errorf("finalizers %v: those of controllers stay", got)
	}
	if err := graph.Rebase(out, map[types.UID]types.UID{"Other/a": "there"}); err == nil || out.GetOwnerReferences()[0].UID != "Cluster/a" {
		t.Errorf("an owner that is not there: %v, %v", err, out.GetOwnerReferences())
	}
	if err := graph.Rebase(out, map[types.UID]types.UID{"Cluster/a": "there"}); err != nil {
		t.Fatal(err)
	}
	if refs := out.GetOwnerReferences(); len(refs) != 1 || refs[0].UID != "there" || refs[0].Kind != "Cluster" {
		t.Errorf("owners %v, want the Cluster of the other side alone", refs)
	}
	if u[0].GetResourceVersion() != "7" || u[0].GetOwnerReferences()[0].UID != "Cluster/a" {
		t.Error("the object of here was changed")
	}
}

func TestKindOf(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, labels, spec string
		want                 string
	}{
		"Core":     {"a group of Cluster API", "{}", "group: cluster.x-k8s.io, scope: Namespaced, names: {kind: Cluster}, versions: [{name: v1beta1}, {name: v1beta2, storage: true}]", "cluster.x-k8s.io/v1beta2, Kind=Cluster true false"},
		"Labelled": {"a definition that clusterctl installed", "{clusterctl.cluster.x-k8s.io: '', clusterctl.cluster.x-k8s.io/move-hierarchy: ''}", "group: resources.azure.com, scope: Namespaced, names: {kind: ResourceGroup}, versions: [{name: v1, storage: true}]", "resources.azure.com/v1, Kind=ResourceGroup true true"},
		"Provider": {"one of a provider's manifests", "{cluster.x-k8s.io/provider: infrastructure-azure}", "group: x.azure.com, scope: Cluster, names: {kind: X}, versions: [{name: v1, storage: true}]", "x.azure.com/v1, Kind=X false false"},
		"Other":    {"anybody's", "{}", "group: example.com, scope: Namespaced, names: {kind: X}, versions: [{name: v1, storage: true}]", ""},
		"Synced":   {"whoever owns the cluster labels what he likes, and nobody's sources go along", "{clusterctl.cluster.x-k8s.io: ''}", "group: kustomize.toolkit.fluxcd.io, scope: Namespaced, names: {kind: Kustomization}, versions: [{name: v1, storage: true}]", ""},
		"Rights":   {"nor does what Kubernetes serves", "{clusterctl.cluster.x-k8s.io: ''}", "group: rbac.authorization.k8s.io, scope: Namespaced, names: {kind: RoleBinding}, versions: [{name: v1, storage: true}]", ""},
		"Layers":   {"nor what Cascade reads", "{clusterctl.cluster.x-k8s.io: ''}", "group: cascade.dev, scope: Namespaced, names: {kind: Layer}, versions: [{name: v1alpha1, storage: true}]", ""},
		"Install":  {"which providers are installed is of this cluster alone", "{clusterctl.cluster.x-k8s.io: ''}", "group: clusterctl.cluster.x-k8s.io, scope: Namespaced, names: {kind: Provider}, versions: [{name: v1, storage: true}]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte("{metadata: {name: x, labels: "+tt.labels+"}, spec: {"+tt.spec+"}}"), &u.Object); err != nil {
				t.Fatal(err)
			}
			got := ""
			if kind, ok := graph.KindOf(u); ok {
				got = fmt.Sprintf("%s %t %t", kind.GroupVersionKind, kind.Namespaced, kind.Move)
			}
			if got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.reason, got, tt.want)
			}
		})
	}
}

// paged is a reader that answers one object at a time, and fails at the last.
type paged struct {
	client.Reader
	objects []*unstructured.Unstructured
	failAt  int
	asked   int
	// content are the objects that were handed out whole.
	content []string
	// changes: each look changes a Secret. endless: there is always another page; repeats: with the
	// same again.
	changes, endless, repeats bool
}

func (p *paged) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	if p.asked++; p.asked == p.failAt {
		return fmt.Errorf("no")
	}
	o := &client.ListOptions{}
	o.ApplyOptions(options)
	kind := strings.TrimSuffix(into.GetObjectKind().GroupVersionKind().Kind, "List")
	var of []*unstructured.Unstructured
	for _, u := range p.objects {
		if u.GetKind() == kind && (o.Namespace == "" || u.GetNamespace() == o.Namespace) {
			of = append(of, u)
		}
	}
	at := 0
	if o.Continue != "" {
		at = len(o.Continue)
	}
	if p.repeats {
		at = 0
	}
	switch list := into.(type) {
	case *unstructured.UnstructuredList:
		if list.Items = nil; at < len(of) {
			list.Items = []unstructured.Unstructured{*of[at].DeepCopy()}
			p.content = append(p.content, of[at].GetNamespace()+"/"+of[at].GetName())
		}
	case *metav1.PartialObjectMetadataList:
		if list.Items = nil; at < len(of) {
			m := metav1.PartialObjectMetadata{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(of[at].Object, &m); err != nil {
				return err
			}
			list.Items = []metav1.PartialObjectMetadata{m}
		}
	}
	if p.changes && at < len(of) && kind == "Secret" {
		of[at].SetResourceVersion(of[at].GetResourceVersion() + "1")
	}
	into.SetContinue("")
	if at+1 < len(of) || p.endless && len(of) > 0 {
		into.SetContinue(strings.Repeat("x", min(at+1, len(of))))
	}
	return nil
}

func TestRead(t *testing.T) {
	list := objects(t, cluster("a", "")+cluster("b", "")+object("v1", "Secret", "a-ca", "", "data: {key: YQ==}")+object("v1", "Secret", "b-ca", "", "data: {key: Yg==}")+
		"{apiVersion: v1, kind: Secret, metadata: {name: b-ca, namespace: other}}\n"+object("v1", "ConfigMap", "database", "", ""))
	list[4].SetUID("Secret/other")
	kinds := graph.Kinds{{GroupVersionKind: schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"}, Namespaced: true}}
	r := &paged{objects: list}
	g, err := graph.Read(t.Context(), r, kinds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if g.Len() != 4 || len(g.Clusters()) != 2 {
		t.Errorf("got\n%s, want two Clusters with a Secret each", drawn(g))
	}
	if key, _, _ := unstructured.NestedString(g.Node("Secret/b-ca").Object.Object, "data", "key"); key != "Yg==" {
		t.Errorf("a Secret that is kept is %v", g.Node("Secret/b-ca").Object)
	}
	if want := []string{"fleet/a", "fleet/b", "fleet/a-ca", "fleet/b-ca"}; !slices.Equal(r.content, want) {
		t.Errorf("read with what is in them are %v, want %v: nothing of namespaces that have none of a Cluster", r.content, want)
	}
	for at := range r.asked {
		if _, err := graph.Read(t.Context(), &paged{objects: list, failAt: at + 1}, kinds, 0); err == nil {
			t.Errorf("call %d failed, and the rest was taken for all", at+1)
		}
	}
	if g, err = graph.Read(t.Context(), r, kinds, 0, types.NamespacedName{Namespace: "fleet", Name: "a"}); err != nil || g.Len() != 2 {
		t.Errorf("of one Cluster there is %v\n%s", err, drawn(g))
	}
}

// TestReadBounds: a server that has ever more, or a stranger's with more than this process can
// hold, ends the reading, and not the process.
func TestReadBounds(t *testing.T) {
	kinds := graph.Kinds{{GroupVersionKind: schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"}, Namespaced: true}}
	for name, tt := range map[string]struct {
		reason  string
		reader  paged
		objects string
		most    int64
		want    string
	}{
		"Endless": {"there is always another page", paged{endless: true}, object("v1", "ConfigMap", "x", "", ""), 0, "more than 500000 objects"},
		"Big":     {"a Cluster is as large as its owner likes", paged{}, cluster("a", "x: "+strings.Repeat("x", 2<<20)), 1 << 20, "more than 1 MB"},
		"Small":   {"many small values take more than their text", paged{}, cluster("a", "x: ["+strings.Repeat("{a: 1}, ", 20_000)+"]"), 4 << 20, "more than 4 MB"},
		"Data":    {"a Secret of a Cluster as well", paged{}, cluster("a", "") + object("v1", "Secret", "a-ca", "", "data: {x: "+strings.Repeat("x", 2<<20)+"}"), 1 << 20, "more than 1 MB"},
		"Others":  {"what belongs to no Cluster is not held", paged{}, cluster("a", "") + object("v1", "Secret", "database", "", "data: {x: "+strings.Repeat("x", 2<<20)+"}"), 1 << 20, ""},
		"Changes": {"what is kept is never what it was", paged{changes: true}, cluster("a", "") + object("v1", "Secret", "a-ca", "", ""), 0, "changes while it is read"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.reader.objects = objects(t, tt.objects)
			_, err := graph.Read(t.Context(), &tt.reader, kinds, tt.most)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}

// TestServedBounds: which kinds it has, a server says as it likes.
func TestServedBounds(t *testing.T) {
	definition := func(kind string) string {
		return `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x, uid: x}, spec: {group: cluster.x-k8s.io, scope: Namespaced, ` +
			`names: {kind: ` + kind + `}, versions: [{name: v1beta2, storage: true}]}}` + "\n"
	}
	for name, tt := range map[string]struct {
		reason string
		reader paged
		kind   string
		want   string
	}{
		"Kinds": {"there is always another kind", paged{endless: true, repeats: true}, "Cluster", "more than 10000 kinds"},
		"Names": {"no name is so long", paged{}, strings.Repeat("x", 1<<20), "longer than 253"},
		"Good":  {"as every management cluster has them", paged{}, "Cluster", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.reader.objects = objects(t, definition(tt.kind))
			_, err := graph.Served(t.Context(), &tt.reader)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.want)
			}
		})
	}
}
