package clusterapi

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// API groups.
const (
	// Group of the core kinds: Cluster, ClusterClass, Machine and so on.
	Group = "cluster.x-k8s.io"
	// InfrastructureGroup, ControlPlaneGroup and BootstrapGroup have the kinds of
	// the providers.
	InfrastructureGroup = "infrastructure." + Group
	ControlPlaneGroup   = "controlplane." + Group
	BootstrapGroup      = "bootstrap." + Group
	// AddonsGroup has the kinds that bring objects into clusters: ClusterResourceSet and its
	// binding.
	AddonsGroup = "addons." + Group
	// clusterctlGroup has the inventory of clusterctl and prefixes its annotations.
	clusterctlGroup = "clusterctl." + Group
	// operatorGroup has the providers that Cluster API Operator installs.
	operatorGroup = "operator." + Group
)

// Core kinds that other packages name.
const (
	Cluster      = "Cluster"
	ClusterClass = "ClusterClass"
)

// WorkerKinds are the core kinds of sets of machines, which have a version of Kubernetes of
// their own where a Cluster has no managed topology.
func WorkerKinds() []string { return []string{"MachineDeployment", "MachinePool", "MachineSet"} }

// ClusterKind is the kind Cluster. VersionOf says in which version it is watched.
var ClusterKind = schema.GroupKind{Group: Group, Kind: Cluster}

// Names of CustomResourceDefinitions.
const (
	// ClusterCRD defines Cluster: where it is, Cluster API is installed.
	ClusterCRD = "clusters." + Group
	// ProviderCRD defines Provider, the kind of clusterctl's inventory.
	ProviderCRD = "providers." + clusterctlGroup
)

// Labels.
const (
	// ClusterNameLabel names the Cluster that an object belongs to.
	ClusterNameLabel = Group + "/cluster-name"
	// ProviderLabel names the provider that an object is a component of. clusterctl
	// and the manifests of the providers set it.
	ProviderLabel = Group + "/provider"
	// ClusterctlLabel is on the definitions whose objects clusterctl looks at when it
	// moves Clusters. clusterctl sets it.
	ClusterctlLabel = clusterctlGroup
	// MoveLabel is on what clusterctl moves although it belongs to no Cluster: on an
	// object, or on a definition for all its objects. With MoveHierarchyLabel what such an
	// object owns goes along. Only the presence counts.
	MoveLabel          = clusterctlGroup + "/move"
	MoveHierarchyLabel = clusterctlGroup + "/move-hierarchy"
)

// Annotations. Of the first four, only the presence counts.
const (
	// PausedAnnotation stops the reconciliation of an object.
	PausedAnnotation = Group + "/paused"
	// DeleteForMoveAnnotation is on an object that clusterctl deletes here after it
	// has created it in another management cluster.
	DeleteForMoveAnnotation = clusterctlGroup + "/delete-for-move"
	// BlockMoveAnnotation makes clusterctl wait before it moves an object.
	BlockMoveAnnotation = clusterctlGroup + "/block-move"
	// AnyVersionAnnotation has core admit any version of a managed topology, lower ones too.
	AnyVersionAnnotation = "unsafe.topology." + Group + "/disable-update-version-check"
)

// Secrets.
const (
	// SecretType is the type of the Secrets that core and the control plane
	// providers make. Not all of them use it.
	SecretType = Group + "/secret"
	// KubeconfigKey is the key of the kubeconfig in its Secret.
	KubeconfigKey = "value"

	kubeconfigSuffix = "-kubeconfig"
)

// secretPurposes are the last parts of the names of the Secrets that core and control
// plane providers look for, without an owner if a person made them: <cluster>-<purpose>.
func secretPurposes() []string {
	return []string{"apiserver-etcd-client", "kubeconfig", "ca", "etcd", "proxy", "sa"}
}

// ClusterResourceSet is a kind of AddonsGroup, and its binding tells to which Cluster
// it was applied.
const (
	ClusterResourceSet        = "ClusterResourceSet"
	ClusterResourceSetBinding = "ClusterResourceSetBinding"
)

// IsGroup reports whether a group is Cluster API's or that of a provider.
func IsGroup(group string) bool { return group == Group || strings.HasSuffix(group, "."+Group) }

// IsAdministrative reports whether the objects of a group tell what is installed in a
// management cluster, and so belong to that cluster alone.
func IsAdministrative(group string) bool { return group == clusterctlGroup || group == operatorGroup }

// BuildsClusters reports whether the objects of a group are what clusters are built
// of. The other groups of Cluster API (add-ons, addresses, hooks) build none.
func BuildsClusters(group string) bool {
	return slices.Contains([]string{Group, InfrastructureGroup, ControlPlaneGroup, BootstrapGroup}, group)
}

// IsCluster reports whether a kind is Cluster.
func IsCluster(kind schema.GroupKind) bool { return kind == ClusterKind }

// The contract asks providers to choose the names of kinds by their roles.

// IsTemplate reports whether other objects are made after those of a kind.
func IsTemplate(kind string) bool { return strings.HasSuffix(kind, "Template") }

// IsClass reports whether objects of a kind describe a class of clusters.
func IsClass(kind string) bool { return strings.HasSuffix(kind, "Class") }

// IsIdentity reports whether objects of a kind hold or lead to cloud credentials.
func IsIdentity(kind string) bool { return strings.HasSuffix(kind, "Identity") }

// MayNameIdentity reports whether objects of a provider's kind may refer to an
// identity, or to the Secret with its keys: its clusters and its control planes do,
// whatever has resources of Azure Service Operator, and what stands alone.
func MayNameIdentity(kind string) bool {
	return strings.HasSuffix(kind, Cluster) || strings.HasSuffix(kind, "ControlPlane") || strings.HasPrefix(kind, AzureOperatorPrefix) || StandsAlone(kind)
}

// StandsAlone reports whether objects of a provider's kind are made in its cloud without being a
// part of a Cluster, as the roles and networks of OpenShift on AWS: before it, and to stay after it.
func StandsAlone(kind string) bool {
	return strings.HasPrefix(kind, rosa) && strings.HasSuffix(kind, "RoleConfig") || kind == rosaNetwork
}
