package clusterapi

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
)

// TestVocabulary holds our constants to those that Cluster API publishes.
func TestVocabulary(t *testing.T) {
	for name, tc := range map[string]struct{ got, want string }{
		"Group":         {Group, clusterv1.GroupVersion.Group},
		"Infra":         {InfrastructureGroup, clusterv1.GroupVersionInfrastructure.Group},
		"ControlPlane":  {ControlPlaneGroup, clusterv1.GroupVersionControlPlane.Group},
		"Bootstrap":     {BootstrapGroup, clusterv1.GroupVersionBootstrap.Group},
		"Clusterctl":    {clusterctlGroup, clusterctlv1.GroupVersion.Group},
		"Cluster":       {Cluster, clusterv1.ClusterKind},
		"Class":         {ClusterClass, clusterv1.ClusterClassKind},
		"ClusterName":   {ClusterNameLabel, clusterv1.ClusterNameLabel},
		"Provider":      {ProviderLabel, clusterv1.ProviderNameLabel},
		"Paused":        {PausedAnnotation, clusterv1.PausedAnnotation},
		"DeleteForMove": {DeleteForMoveAnnotation, clusterctlv1.DeleteForMoveAnnotation},
		"BlockMove":     {BlockMoveAnnotation, clusterctlv1.BlockMoveAnnotation},
		"AnyVersion":    {AnyVersionAnnotation, clusterv1.ClusterTopologyUnsafeUpdateVersionAnnotation},
		"SecretType":    {SecretType, string(clusterv1.ClusterSecretType)},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %q, Cluster API says %q", name, tc.got, tc.want)
		}
	}
}

func TestGroups(t *testing.T) {
	for group, tc := range map[string]struct {
		reason     string
		is, builds bool
	}{
		"cluster.x-k8s.io":                   {"core", true, true},
		"infrastructure.cluster.x-k8s.io":    {"machines are made of what is here", true, true},
		"controlplane.cluster.x-k8s.io":      {"so are control planes", true, true},
		"bootstrap.cluster.x-k8s.io":         {"so are nodes", true, true},
		"addons.cluster.x-k8s.io":            {"an add-on is put into a cluster that exists", true, false},
		"clusterctl.cluster.x-k8s.io":        {"an inventory of components", true, false},
		"mycluster.x-k8s.io":                 {"the end of a name is not the end of a group", false, false},
		"x-k8s.io":                           {"less than the group", false, false},
		"cluster.x-k8s.io.example.com":       {"somebody else's domain", false, false},
		"":                                   {"Kubernetes' own", false, false},
		"infrastructure.cluster.x-k8s.io.cn": {"somebody else's domain", false, false},
	} {
		if got := IsGroup(group); got != tc.is {
			t.Errorf("%s\nIsGroup(%q) = %t", tc.reason, group, got)
		}
		if got := BuildsClusters(group); got != tc.builds {
			t.Errorf("%s\nBuildsClusters(%q) = %t", tc.reason, group, got)
		}
	}
}

func TestKinds(t *testing.T) {
	for kind, tc := range map[string]struct {
		reason                            string
		template, class, identity, naming bool
	}{
		"Cluster":                    {"core's", false, false, false, true},
		"AzureCluster":               {"it names the identity by which its cloud is reached", false, false, false, true},
		"AWSManagedControlPlane":     {"EKS has the identity here", false, false, false, true},
		"AWSMachineTemplate":         {"machines are made after it", true, false, false, false},
		"AzureASOManagedMachinePool": {"it has resources, each with its credentials", false, false, false, true},
		"ROSARoleConfig":             {"it is made with keys, before a cluster", false, false, false, true},
		"ROSANetwork":                {"so is a network", false, false, false, true},
		"ROSAMachinePool":            {"its control plane has them", false, false, false, false},
		"ROSANetworkTemplate":        {"nothing is made of a template itself", true, false, false, false},
		"ClusterClass":               {"clusters are made after it", false, true, false, false},
		"AWSClusterStaticIdentity":   {"keys", false, false, true, false},
		"AzureClusterIdentity":       {"keys", false, false, true, false},
		"MachineDeployment":          {"no role besides its own", false, false, false, false},
		"KubeadmControlPlaneConfig":  {"a role is the end of the name", false, false, false, false},
	} {
		got := [4]bool{IsTemplate(kind), IsClass(kind), IsIdentity(kind), MayNameIdentity(kind)}
		if want := [4]bool{tc.template, tc.class, tc.identity, tc.naming}; got != want {
			t.Errorf("%s\n%s: template, class, identity, naming = %v, want %v", tc.reason, kind, got, want)
		}
	}
	for kind, want := range map[schema.GroupKind]bool{
		ClusterKind:                         true,
		{Group: Group, Kind: "Machine"}:     false,
		{Group: "x.example", Kind: Cluster}: false,
	} {
		if IsCluster(kind) != want {
			t.Errorf("IsCluster(%s) = %t", kind, !want)
		}
	}
}
