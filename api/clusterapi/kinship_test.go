package clusterapi

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// object of YAML.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestClustersOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		object string
		// of is what ClusterOf says, all what ClustersOf does.
		of  string
		all []string
	}{
		"Itself": {
			"a Cluster is a part of none, and names itself",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: a, labels: {cluster.x-k8s.io/cluster-name: b}}}`,
			"", []string{"a"},
		},
		"Label": {
			"what core writes on everything of a Cluster",
			`{apiVersion: v1, kind: Secret, metadata: {name: s, labels: {cluster.x-k8s.io/cluster-name: a}}}`,
			"a", []string{"a"},
		},
		"Field": {
			"what a person writes; only the whole object has it",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: MachineDeployment, metadata: {name: m}, spec: {clusterName: a}}`,
			"", []string{"a"},
		},
		"Owner": {
			"what core adopts",
			`{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: AWSCluster, metadata: {name: i, ownerReferences: [
			  {apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, name: a, uid: u}, {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: b, uid: v}]}}`,
			"a", []string{"a", "b"},
		},
		"ForeignOwner": {
			"another API has Clusters, too",
			`{apiVersion: v1, kind: Secret, metadata: {name: s, ownerReferences: [{apiVersion: postgresql.example/v1, kind: Cluster, name: a, uid: u}]}}`,
			"", nil,
		},
		"Disagree": {
			"the label counts where one answer is wanted; whoever asks for all gets each once",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Machine, metadata: {name: m, labels: {cluster.x-k8s.io/cluster-name: a}, ownerReferences: [
			  {apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, name: b, uid: u}]}, spec: {clusterName: a}}`,
			"a", []string{"a", "b"},
		},
		"WrongType": {
			"a field of another type counts as not set",
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Machine, metadata: {name: m}, spec: {clusterName: 7}}`,
			"", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, tc.object)
			if got := ClusterOf(u); got != tc.of {
				t.Errorf("%s\nClusterOf = %q, want %q", tc.reason, got, tc.of)
			}
			if got := ClustersOf(u); !slices.Equal(got, tc.all) {
				t.Errorf("%s\nClustersOf = %q, want %q", tc.reason, got, tc.all)
			}
		})
	}
}

func TestClusterOfKubeconfig(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		secret metav1.ObjectMeta
		want   string
	}{
		"Contract": {"name and label agree", metav1.ObjectMeta{Name: "a-kubeconfig", Labels: map[string]string{ClusterNameLabel: "a"}}, "a"},
		"NoLabel":  {"a name alone can be taken by anybody", metav1.ObjectMeta{Name: "a-kubeconfig"}, ""},
		"Other":    {"another Secret of the Cluster", metav1.ObjectMeta{Name: "a-ca", Labels: map[string]string{ClusterNameLabel: "a"}}, ""},
		"Neighbour": {
			"the label of one and the name of another",
			metav1.ObjectMeta{Name: "b-kubeconfig", Labels: map[string]string{ClusterNameLabel: "a"}}, "",
		},
		"Empty": {"a label without a value names nobody", metav1.ObjectMeta{Name: "-kubeconfig", Labels: map[string]string{ClusterNameLabel: ""}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ClusterOfKubeconfig(&metav1.PartialObjectMetadata{ObjectMeta: tc.secret})
			if got != tc.want || ok != (tc.want != "") {
				t.Errorf("%s\nClusterOfKubeconfig = %q, %t, want %q", tc.reason, got, ok, tc.want)
			}
		})
	}
}

func TestClusterOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*unstructured.Unstructured)
		want   string
	}{
		"Label": {"core labels what belongs to a Cluster", func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": "prod"})
		}, "prod"},
		"Owner": {"or owns it", func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "prod"}})
		}, "prod"},
		"OtherOwner": {"a Cluster of another group is something else", func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "postgresql.cnpg.io/v1", Kind: "Cluster", Name: "db"}})
		}, ""},
		"Nothing": {"an ordinary object", func(*unstructured.Unstructured) {}, ""},
		"Itself": {"the Cluster is no part of itself, or it could never be deleted", func(u *unstructured.Unstructured) {
			u.SetGroupVersionKind(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"})
			u.SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": "prod"})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, "{apiVersion: infrastructure.cluster.x-k8s.io/v1beta2, kind: LocalMachineTemplate, metadata: {name: x}}")
			tc.change(u)
			if got := ClusterOf(u); got != tc.want {
				t.Errorf("%s\nClusterOf() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestReferredTo(t *testing.T) {
	const head = "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: prod, namespace: fleet}\nspec: "
	infra := Named("fleet", "AWSCluster", "prod")
	for name, tc := range map[string]struct {
		reason, spec string
		of           Reference
		class        string
		want         bool
	}{
		"Infrastructure": {"Cluster API has not adopted it yet", "{infrastructureRef: {kind: AWSCluster, name: prod}}", infra, "", true},
		"ControlPlane":   {"or the control plane", "{controlPlaneRef: {kind: AWSCluster, name: prod}}", infra, "", true},
		"OtherName":      {"of another Cluster", "{infrastructureRef: {kind: AWSCluster, name: test}}", infra, "", false},
		"OtherKind":      {"names are the same for all kinds", "{infrastructureRef: {kind: AWSManagedCluster, name: prod}}", infra, "", false},
		"OtherNamespace": {"and in all namespaces", "{infrastructureRef: {kind: AWSCluster, name: prod}}", Named("test", "AWSCluster", "prod"), "", false},
		"Class":          {"as v1beta2 writes it", "{topology: {classRef: {name: big}}}", Reference{Namespace: "fleet"}, "big", true},
		"OldClass":       {"as v1beta1 does", "{topology: {class: big}}", Reference{Namespace: "fleet"}, "big", true},
		"ClassElsewhere": {"a class of another namespace is another class", "{topology: {classRef: {name: big, namespace: shared}}}", Reference{Namespace: "fleet"}, "big", false},
		"SharedClass":    {"which is used from here", "{topology: {classRef: {name: big, namespace: shared}}}", Reference{Namespace: "shared"}, "big", true},
		"NoTopology":     {"a Cluster without a class uses none", "{}", Reference{Namespace: "fleet"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := object(t, head+tc.spec)
			got := HasPart(c, tc.of.Namespace, tc.of.Kind, tc.of.Name)
			if tc.class != "" {
				got = ClassOf(c) == types.NamespacedName{Namespace: tc.of.Namespace, Name: tc.class}
			}
			if got != tc.want {
				t.Errorf("%s: got %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestClassOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		topology string
		want     types.NamespacedName
	}{
		"Current":   {"v1beta2", `{classRef: {name: a, namespace: classes}}`, types.NamespacedName{Namespace: "classes", Name: "a"}},
		"Former":    {"v1beta1", `{class: a, classNamespace: classes}`, types.NamespacedName{Namespace: "classes", Name: "a"}},
		"Own":       {"without a namespace it is the Cluster's", `{classRef: {name: a}}`, types.NamespacedName{Namespace: "fleet", Name: "a"}},
		"OwnFormer": {"the same", `{class: a}`, types.NamespacedName{Namespace: "fleet", Name: "a"}},
		"Nameless":  {"a namespace alone is no class", `{classRef: {namespace: classes}}`, types.NamespacedName{}},
		"None":      {"a Cluster without managed topology", `null`, types.NamespacedName{}},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, `{kind: Cluster, metadata: {namespace: fleet, name: c}, spec: {topology: `+tc.topology+`}}`)
			if got := ClassOf(u); got != tc.want {
				t.Errorf("%s\nClassOf = %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestStanding(t *testing.T) {
	for name, tc := range map[string]struct {
		reason                 string
		cluster                string
		paused, moved, blocked bool
	}{
		"Plain":     {"nothing is set", `{metadata: {name: a}}`, false, false, false},
		"Spec":      {"a person or clusterctl paused it", `{metadata: {name: a}, spec: {paused: true}}`, true, false, false},
		"Annotated": {"the value does not count", `{metadata: {name: a, annotations: {cluster.x-k8s.io/paused: "false"}}}`, true, false, false},
		"Moved": {
			"clusterctl deletes what it has moved",
			`{metadata: {name: a, annotations: {clusterctl.cluster.x-k8s.io/delete-for-move: ""}}, spec: {paused: true}}`, true, true, false,
		},
		"Blocked": {
			"a controller holds the move",
			`{metadata: {name: a, annotations: {clusterctl.cluster.x-k8s.io/block-move: ""}}}`, false, false, true,
		},
		"WrongType": {"text is not true", `{metadata: {name: a}, spec: {paused: "true"}}`, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, tc.cluster)
			if got, want := [3]bool{IsPaused(u), IsMoved(u), IsMoveBlocked(u)}, [3]bool{tc.paused, tc.moved, tc.blocked}; got != want {
				t.Errorf("%s\npaused, moved, blocked = %v, want %v", tc.reason, got, want)
			}
		})
	}
}

func TestNamesIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		ref       string
		namespace string
		want      bool
	}{
		"Global":    {"AWS's identities have no namespace", `{kind: I, name: a}`, "", true},
		"Own":       {"without a namespace it is in that of the object", `{kind: I, name: a}`, "fleet", true},
		"Stated":    {"a namespace that is named counts", `{kind: I, name: a, namespace: other}`, "other", true},
		"Elsewhere": {"one of the name in another namespace is another", `{kind: I, name: a, namespace: other}`, "fleet", false},
		"Kind":      {"another kind", `{kind: J, name: a}`, "fleet", false},
		"Name":      {"another name", `{kind: I, name: b}`, "fleet", false},
		"None":      {"no reference at all", `null`, "fleet", false},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, `{kind: AWSCluster, metadata: {namespace: fleet, name: c}, spec: {identityRef: `+tc.ref+`}}`)
			if got := NamesIdentity(u, IdentityField, tc.namespace, "I", "a"); got != tc.want {
				t.Errorf("%s\nNamesIdentity = %t", tc.reason, got)
			}
			if NamesIdentity(u, SourceIdentityField, tc.namespace, "I", "a") {
				t.Error("another field names it")
			}
		})
	}
}

func TestReadsSecret(t *testing.T) {
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
		"Foreign":        {"a namespaced identity reads beside itself", "kind: VSphereClusterIdentity\nmetadata: {namespace: other}\nspec: {secretName: keys}", false},
		"OCI":            {"a provider may have a word of its own", "kind: OCIClusterIdentity\nmetadata: {namespace: other}\nspec: {principalSecret: {name: keys, namespace: fleet}}", true},
		"OpenStack":      {"a cluster names it itself, without a kind", "kind: OpenStackCluster\nmetadata: {namespace: fleet}\nspec: {identityRef: {name: keys, cloudName: c}}", true},
		"OfType":         {"or a type", "kind: OpenStackCluster\nmetadata: {namespace: fleet}\nspec: {identityRef: {type: Secret, name: keys, cloudName: c}}", true},
		"OtherType":      {"an identity has that name", "kind: OpenStackCluster\nmetadata: {namespace: fleet}\nspec: {identityRef: {type: ClusterIdentity, name: keys, cloudName: c}}", false},
		"OtherKind":      {"an identity has that name", "kind: VSphereCluster\nmetadata: {namespace: fleet}\nspec: {identityRef: {kind: VSphereClusterIdentity, name: keys}}", false},
		"Nutanix":        {"further down, with a kind", "kind: NutanixCluster\nmetadata: {namespace: fleet}\nspec: {prismCentral: {credentialRef: {kind: Secret, name: keys}}}", true},
		"Hetzner":        {"among others, of which it has keys", "kind: HetznerCluster\nmetadata: {namespace: fleet}\nspec: {hetznerSecretRef: {name: keys, key: {hcloudToken: t}}}", true},
		"CloudStack":     {"a field may have any name", "kind: CloudStackCluster\nmetadata: {namespace: other}\nspec: {failureDomains: [{acsEndpoint: {name: keys, namespace: fleet}}]}", true},
		"Address":        {"which may be an address", "kind: CloudStackCluster\nmetadata: {namespace: fleet}\nspec: {failureDomains: [{acsEndpoint: keys}]}", false},
		"ROSA":           {"a control plane names it at the top", "apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nkind: ROSAControlPlane\nmetadata: {namespace: fleet}\nspec: {credentialsSecretRef: {name: keys}}", true},
		"Login":          {"and further down what users log in with", "apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nkind: ROSAControlPlane\nmetadata: {namespace: fleet}\nspec: {externalAuthProviders: [{oidcClients: [{clientSecret: {name: keys}}]}]}", false},
		"Role":           {"a role has no keys", "kind: AWSClusterRoleIdentity\nspec: {roleARN: keys}", false},
		"Nothing":        {"an identity without a spec", "kind: AWSClusterControllerIdentity", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ReadsSecret(object(t, tc.identity), "fleet", "keys"); got != tc.want {
				t.Errorf("%s: ReadsSecret() = %t, want %t", tc.reason, got, tc.want)
			}
		})
	}
}

func TestAzureSecretsOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, object string
		want           []string
	}{
		"Resource":  {"one of the operator's own", "apiVersion: containerservice.azure.com/v1api20240901\nkind: ManagedCluster\nmetadata: {name: a, annotations: {serviceoperator.azure.com/credential-from: keys}}", []string{"keys"}},
		"Namespace": {"without the annotation it is the Secret of the namespace", "apiVersion: resources.azure.com/v1api20200601\nkind: ResourceGroup\nmetadata: {name: a}", []string{"aso-credential"}},
		"WrittenOut": {"each resource that a control plane is made of", "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: AzureASOManagedControlPlane\nmetadata: {name: a}\nspec: {resources: [" +
			"{apiVersion: containerservice.azure.com/v1, kind: ManagedCluster, metadata: {annotations: {serviceoperator.azure.com/credential-from: keys}}}," +
			"{apiVersion: network.azure.com/v1, kind: VirtualNetwork, metadata: {annotations: {serviceoperator.azure.com/credential-from: keys}}}," +
			"{apiVersion: resources.azure.com/v1, kind: ResourceGroup, metadata: {name: a}}]}", []string{"keys", "aso-credential"}},
		"Other":     {"an AzureCluster has an identity instead", "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: AzureCluster\nmetadata: {name: a, annotations: {serviceoperator.azure.com/credential-from: keys}}\nspec: {identityRef: {name: i}}", nil},
		"WrongType": {"a field of another type counts as not set", "apiVersion: resources.azure.com/v1\nkind: ResourceGroup\nmetadata: {name: a, annotations: [keys]}", []string{"aso-credential"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := AzureSecretsOf(object(t, tc.object)); !slices.Equal(got, tc.want) {
				t.Errorf("%s: AzureSecretsOf() = %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestUsesControllerKeys(t *testing.T) {
	const rosa = "{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: ROSAControlPlane, spec: "
	identities := []unstructured.Unstructured{
		*object(t, "{kind: AWSClusterStaticIdentity, metadata: {name: keys}, spec: {secretRef: keys}}"),
		*object(t, "{kind: AWSClusterRoleIdentity, metadata: {name: role}, spec: {roleARN: a}}"),
	}
	for name, tc := range map[string]struct {
		reason, secret, object string
		want                   bool
	}{
		"None":       {"it names no identity", AWSControllerSecret, "{kind: AWSCluster}", true},
		"Static":     {"the identity has keys", AWSControllerSecret, "{kind: AWSCluster, spec: {identityRef: {kind: AWSClusterStaticIdentity, name: keys}}}", false},
		"Role":       {"a role is assumed with the keys of the controllers", AWSControllerSecret, "{kind: AWSCluster, spec: {identityRef: {kind: AWSClusterRoleIdentity, name: role}}}", true},
		"Named":      {"it names a Secret itself", GCPControllerSecret, "{kind: GCPCluster, spec: {credentialsRef: {name: keys, namespace: fleet}}}", false},
		"Managed":    {"the control plane of EKS says", AWSControllerSecret, "{kind: AWSManagedCluster}", false},
		"EKS":        {"which names none here", AWSControllerSecret, "{kind: AWSManagedControlPlane}", true},
		"Other":      {"controllers of AWS have nothing to do with it", AWSControllerSecret, "{kind: GCPCluster}", false},
		"Nobody":     {"it is a Secret of something else", "keys", "{kind: AWSCluster}", false},
		"ROSA":       {"keys for OpenShift are not those of AWS", AWSControllerSecret, rosa + "{externalAuthProviders: [], credentialsSecretRef: {name: keys}}}", true},
		"ROSAStatic": {"which an identity has", AWSControllerSecret, rosa + "{identityRef: {kind: AWSClusterStaticIdentity, name: keys}}}", false},
		"OpenShift":  {"it names none, and only those of AWS by an identity", ROSAControllerSecret, rosa + "{identityRef: {kind: AWSClusterStaticIdentity, name: keys}, externalAuthProviders: [{oidcClients: [{clientSecret: {name: keys}}]}]}}", true},
		"OwnKeys":    {"it names its own", ROSAControllerSecret, rosa + "{credentialsSecretRef: {name: keys}}}", false},
		"RoleConfig": {"it names none", ROSAControllerSecret, "{kind: ROSARoleConfig, spec: {identityRef: {kind: AWSClusterStaticIdentity, name: keys}}}", true},
		"Network":    {"nothing of OpenShift is in a network", ROSAControllerSecret, "{kind: ROSANetwork}", false},
		"OfNetwork":  {"it is made by AWS", AWSControllerSecret, "{kind: ROSANetwork}", true},
		"ROSAOther":  {"its control plane says", ROSAControllerSecret, "{kind: ROSACluster}", false},
		"Operator":   {"a resource names no Secret", AzureControllerSecret, "{kind: AzureASOManagedCluster, spec: {resources: [{apiVersion: resources.azure.com/v1, kind: ResourceGroup}]}}", true},
		"Credential": {"all resources name one", AzureControllerSecret, "{kind: AzureASOManagedCluster, spec: {resources: [{apiVersion: resources.azure.com/v1, metadata: {annotations: {serviceoperator.azure.com/credential-from: a}}}]}}", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := UsesControllerKeys(object(t, tc.object), tc.secret, identities); got != tc.want {
				t.Errorf("%s: UsesControllerKeys() = %t", tc.reason, got)
			}
		})
	}
}
