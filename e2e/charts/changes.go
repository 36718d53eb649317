package charts

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Change is a commit that edits the values of a cluster.
type Change struct {
	Name   string
	Reason string
	Chart  string
	// Set is the value set before; Values are merged into it as Helm merges
	// values, so null takes a key away.
	Set    string
	Values string
	// Diff is what becomes of the objects; see Diff.
	Diff []string
}

// Changes that people make. All of them are to be admitted.
func Changes() []Change {
	return []Change{
		{
			Name: "EKSScale", Reason: "a scale by commit edits a number, and nothing is rolled",
			Chart: "cluster-aws", Set: "eks", Values: `pools: {default: {replicas: 5}}`,
			Diff: []string{
				"~ AWSManagedMachinePool/demo-default spec.scaling.maxSize", "~ AWSManagedMachinePool/demo-default spec.scaling.minSize",
				"~ MachinePool/demo-default spec.replicas",
			},
		},
		{
			Name: "EKSUpgrade", Reason: "a version is one value for control plane and pools",
			Chart: "cluster-aws", Set: "eks", Values: `version: v1.35.0`,
			Diff: []string{"~ AWSManagedControlPlane/demo spec.version", "~ MachinePool/demo-default spec.template.spec.version"},
		},
		{
			Name: "EKSUpgradeOfTheControlPlaneFirst", Reason: "pools may lag behind, so that an upgrade can be taken in two commits",
			Chart: "cluster-aws", Set: "eks", Values: `{version: v1.35.0, pools: {default: {version: v1.34.2}}}`,
			Diff: []string{"~ AWSManagedControlPlane/demo spec.version"},
		},
		{
			Name: "EKSPatchIsNoUpgrade", Reason: "EKS knows no patches: one more is no change",
			Chart: "cluster-aws", Set: "eks", Values: `version: v1.34.3`,
		},
		{
			Name: "EKSAutoscaling", Reason: "a pool of a fixed size is handed over to the autoscaler as it is",
			Chart: "cluster-aws", Set: "eks", Values: `pools: {default: {replicas: null, min: 2, max: 10}}`,
			Diff: []string{
				"~ AWSManagedMachinePool/demo-default spec.scaling.maxSize", "~ AWSManagedMachinePool/demo-default spec.scaling.minSize",
				"~ MachinePool/demo-default metadata.annotations", "~ MachinePool/demo-default spec.replicas",
			},
		},
		{
			Name: "EKSAutoscalerBounds", Reason: "new bounds leave the number of nodes to the autoscaler",
			Chart: "cluster-aws", Set: "eks-spot", Values: `pools: {spot: {max: 80}}`,
			Diff: []string{
				"~ AWSManagedMachinePool/demo-spot spec.scaling.maxSize",
				"~ MachinePool/demo-spot metadata.annotations.cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
			},
		},
		{
			Name: "EKSLabelsAndTaints", Reason: "EKS changes labels and taints of nodes in place",
			Chart: "cluster-aws", Set: "eks-spot", Values: `pools: {spot: {labels: {team: a}, taints: [{key: team, value: a, effect: NoExecute}]}}`,
			Diff: []string{"~ AWSManagedMachinePool/demo-spot spec.labels.team", "~ AWSManagedMachinePool/demo-spot spec.taints"},
		},
		{
			Name: "EKSUnavailableAsPercentage", Reason: "the provider allows only one of number and percentage",
			Chart: "cluster-aws", Set: "eks", Values: `pools: {default: {maxUnavailable: 25%}}`,
			Diff: []string{
				"~ AWSManagedMachinePool/demo-default spec.updateConfig.maxUnavailable",
				"~ AWSManagedMachinePool/demo-default spec.updateConfig.maxUnavailablePercentage",
			},
		},
		{
			Name: "EKSAnotherPool", Reason: "what cannot be changed of a pool is changed by another one, before the old one goes",
			Chart: "cluster-aws", Set: "eks", Values: `pools: {arm: {instanceType: m7g.large, amiType: AL2023_ARM_64_STANDARD, replicas: 3}}`,
			Diff: []string{"+ AWSManagedMachinePool/demo-arm", "+ MachinePool/demo-arm"},
		},
		{
			Name: "EKSPoolIsConfirmed", Reason: "the first of two commits that delete a pool",
			Chart: "cluster-aws", Set: "eks", Values: `pools: {default: {deletion: confirmed}}`,
			Diff: []string{
				"~ AWSManagedMachinePool/demo-default metadata.annotations.cascade.dev/deletion",
				"~ MachinePool/demo-default metadata.annotations",
			},
		},
		{
			Name: "EKSClusterIsConfirmed", Reason: "the first of two commits that delete a cluster confirms every object",
			Chart: "cluster-aws", Set: "eks", Values: `deletion: confirmed`,
			Diff: []string{
				"~ AWSManagedCluster/demo metadata.annotations.cascade.dev/deletion",
				"~ AWSManagedControlPlane/demo metadata.annotations.cascade.dev/deletion",
				"~ AWSManagedMachinePool/demo-default metadata.annotations.cascade.dev/deletion",
				"~ Cluster/demo metadata.annotations", "~ MachinePool/demo-default metadata.annotations",
			},
		},
		{
			Name: "EKSGoesPrivate", Reason: "EKS closes a public endpoint in place",
			Chart: "cluster-aws", Set: "eks", Values: `network: {private: true}`,
			Diff: []string{"~ AWSManagedControlPlane/demo spec.endpointAccess.public", "~ AWSManagedControlPlane/demo spec.restrictPrivateSubnets"},
		},
		{
			Name: "EKSAddons", Reason: "an add-on is upgraded, one comes and one goes",
			Chart: "cluster-aws", Set: "eks-full", Values: `controlPlane: {eks: {addons: {coredns: {version: v1.13.0-eksbuild.1}, kube-proxy: null, metrics-server: {version: v0.8.0-eksbuild.2}}}}`,
			Diff: []string{"~ AWSManagedControlPlane/demo spec.addons"},
		},
		{
			Name: "EKSMachinesOfAnotherType", Reason: "machines of Cluster API are rolled with another template, whatever runs the control plane",
			Chart: "cluster-aws", Set: "eks-full", Values: `pools: {gpu: {instanceType: g6.2xlarge}}`,
			Diff: []string{
				"+ AWSMachineTemplate/demo-gpu-", "- AWSMachineTemplate/demo-gpu-",
				"~ MachineDeployment/demo-gpu-a spec.template.spec.infrastructureRef.name",
				"~ MachineDeployment/demo-gpu-b spec.template.spec.infrastructureRef.name",
			},
		},
		{
			Name: "AWSScale", Reason: "a scale by commit edits a number, and nothing is rolled",
			Chart: "cluster-aws", Set: "self-managed", Values: `{pools: {default: {replicas: 6}}, controlPlane: {selfManaged: {replicas: 5}}}`,
			Diff: []string{"~ KubeadmControlPlane/demo spec.replicas", "~ MachineDeployment/demo-default spec.replicas"},
		},
		{
			Name: "AWSUpgrade", Reason: "the image of a version is looked for by the provider, so no template changes",
			Chart: "cluster-aws", Set: "self-managed", Values: `version: v1.35.0`,
			Diff: []string{"~ KubeadmControlPlane/demo spec.version", "~ MachineDeployment/demo-default spec.template.spec.version"},
		},
		{
			Name: "AWSInstanceType", Reason: "another machine is another template; the old one is left for the rollout",
			Chart: "cluster-aws", Set: "self-managed", Values: `pools: {default: {instanceType: m6i.xlarge}}`,
			Diff: []string{
				"+ AWSMachineTemplate/demo-default-", "- AWSMachineTemplate/demo-default-",
				"~ MachineDeployment/demo-default spec.template.spec.infrastructureRef.name",
			},
		},
		{
			Name: "AWSControlPlaneSize", Reason: "so it is with the control plane",
			Chart: "cluster-aws", Set: "self-managed", Values: `controlPlane: {selfManaged: {instanceType: m6i.2xlarge}}`,
			Diff: []string{
				"+ AWSMachineTemplate/demo-control-plane-", "- AWSMachineTemplate/demo-control-plane-",
				"~ KubeadmControlPlane/demo spec.machineTemplate.spec.infrastructureRef.name",
			},
		},
		{
			Name: "AWSLabelOfTheKubelet", Reason: "a label that only the kubelet may set is in the bootstrap template, and rolls",
			Chart: "cluster-aws", Set: "self-managed", Values: `pools: {default: {labels: {team: a}}}`,
			Diff: []string{
				"+ KubeadmConfigTemplate/demo-default-", "- KubeadmConfigTemplate/demo-default-",
				"~ MachineDeployment/demo-default spec.template.spec.bootstrap.configRef.name",
			},
		},
		{
			Name: "AWSLabelOfTheMachine", Reason: "a label that Cluster API copies is changed in place",
			Chart: "cluster-aws", Set: "self-managed", Values: `pools: {default: {labels: {team.node.cluster.x-k8s.io/name: a}}}`,
			Diff: []string{"~ MachineDeployment/demo-default spec.template.metadata.labels.team.node.cluster.x-k8s.io/name"},
		},
		{
			Name: "AWSLabelsOfTheCluster", Reason: "layers select by labels, which are nobody else's business",
			Chart: "cluster-aws", Set: "self-managed", Values: `{labels: {cascade.dev/tier: tenant}, variables: {domain: example.com}}`,
			Diff: []string{"~ Cluster/demo metadata.annotations", "~ Cluster/demo metadata.labels"},
		},
		{
			Name: "AWSTags", Reason: "tags of the cluster reach everything through its object, without a rollout",
			Chart: "cluster-aws", Set: "self-managed", Values: `tags: {team: a}`,
			Diff: []string{"~ AWSCluster/demo spec.additionalTags"},
		},
		{
			Name: "AWSAnotherZone", Reason: "each zone has its own MachineDeployment",
			Chart: "cluster-aws", Set: "self-managed-multi-az", Values: `pools: {default: {zones: [eu-west-1a, eu-west-1c]}}`,
			Diff: []string{"- MachineDeployment/demo-default-b", "- MachineHealthCheck/demo-default-b"},
		},
		{
			Name: "AWSComponentArguments", Reason: "arguments of components roll the control plane, in place of its own object",
			Chart: "cluster-aws", Set: "self-managed-hardened", Values: `controlPlane: {selfManaged: {apiServer: {args: {audit-log-maxage: "60", audit-log-path: null}}, scheduler: null, kubeletArgs: {max-pods: "200"}, preKubeadmCommands: [], files: []}}`,
			Diff: []string{
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.clusterConfiguration.apiServer.extraArgs",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.clusterConfiguration.scheduler",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.files",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.initConfiguration.nodeRegistration.kubeletExtraArgs",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.joinConfiguration.nodeRegistration.kubeletExtraArgs",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.preKubeadmCommands",
			},
		},
		{
			Name: "AWSHealthChecksGo", Reason: "health checks are switched off, for all or for a pool",
			Chart: "cluster-aws", Set: "self-managed", Values: `healthCheck: {enabled: false}`,
			Diff: []string{"- MachineHealthCheck/demo-control-plane", "- MachineHealthCheck/demo-default"},
		},
		{
			Name: "AWSPoolGoes", Reason: "the second of two commits that delete a pool",
			Chart: "cluster-aws", Set: "self-managed", Values: `pools: {default: null}`,
			Diff: []string{
				"- AWSMachineTemplate/demo-default-", "- KubeadmConfigTemplate/demo-default-",
				"- MachineDeployment/demo-default", "- MachineHealthCheck/demo-default",
			},
		},
		{
			Name: "AWSIdentity", Reason: "a cluster gets a role instead of the controller's own permissions",
			Chart: "cluster-aws", Set: "self-managed", Values: `identity: {kind: AWSClusterRoleIdentity, name: account-b}`,
			Diff: []string{"~ AWSCluster/demo spec.identityRef.kind", "~ AWSCluster/demo spec.identityRef.name"},
		},
		{
			Name: "AWSPublicCIDRs", Reason: "who may reach the API is changed in place",
			Chart: "cluster-aws", Set: "self-managed-hardened", Values: `network: {publicCIDRs: [203.0.113.0/24]}`,
			Diff: []string{"~ AWSCluster/demo spec.controlPlaneLoadBalancer.ingressRules"},
		},
		{
			Name: "AKSScale", Reason: "a scale by commit edits a number: the provider hands it to AKS",
			Chart: "cluster-azure", Set: "aks", Values: `pools: {system: {replicas: 5}}`,
			Diff: []string{"~ MachinePool/demo-system spec.replicas"},
		},
		{
			Name: "AKSUpgrade", Reason: "a version is one value for control plane and pools",
			Chart: "cluster-azure", Set: "aks", Values: `version: v1.35.0`,
			Diff: []string{"~ AzureASOManagedControlPlane/demo spec.version", "~ MachinePool/demo-system spec.template.spec.version"},
		},
		{
			Name: "AKSAutoscaling", Reason: "AKS's own autoscaler takes over",
			Chart: "cluster-azure", Set: "aks", Values: `pools: {system: {replicas: null, min: 2, max: 5}}`,
			Diff: []string{
				"~ AzureASOManagedMachinePool/demo-system spec.resources",
				"~ MachinePool/demo-system metadata.annotations", "~ MachinePool/demo-system spec.replicas",
			},
		},
		{
			Name: "AKSAnotherPool", Reason: "pools come without anything happening to the others",
			Chart: "cluster-azure", Set: "aks", Values: `pools: {spot: {vmSize: Standard_D8s_v5, spot: true, min: 0, max: 10, labels: {capacity: spot}}}`,
			Diff: []string{"+ AzureASOManagedMachinePool/demo-spot", "+ MachinePool/demo-spot"},
		},
		{
			Name: "AKSLabels", Reason: "AKS changes labels and taints of nodes in place",
			Chart: "cluster-azure", Set: "aks-full", Values: `pools: {apps: {labels: {team: a}, taints: [{key: team, value: a, effect: NoSchedule}]}}`,
			Diff: []string{"~ AzureASOManagedMachinePool/demo-apps spec.resources"},
		},
		{
			Name: "AKSTier", Reason: "the tier of the service is changed in place",
			Chart: "cluster-azure", Set: "aks", Values: `controlPlane: {aks: {tier: Premium}}`,
			Diff: []string{"~ AzureASOManagedControlPlane/demo spec.resources"},
		},
		{
			Name: "AzureScale", Reason: "a scale by commit edits a number, and nothing is rolled",
			Chart: "cluster-azure", Set: "self-managed", Values: `{pools: {default: {replicas: 6}}, controlPlane: {selfManaged: {replicas: 5}}}`,
			Diff: []string{"~ KubeadmControlPlane/demo spec.replicas", "~ MachineDeployment/demo-default spec.replicas"},
		},
		{
			Name: "AzureUpgrade", Reason: "the image of a version is looked for by the provider, so no template changes",
			Chart: "cluster-azure", Set: "self-managed", Values: `version: v1.35.0`,
			Diff: []string{"~ KubeadmControlPlane/demo spec.version", "~ MachineDeployment/demo-default spec.template.spec.version"},
		},
		{
			Name: "AzureVMSize", Reason: "the Secret with the cloud's configuration is named after the machine template, so both templates are new",
			Chart: "cluster-azure", Set: "self-managed", Values: `pools: {default: {vmSize: Standard_D8s_v5}}`,
			Diff: []string{
				"+ AzureMachineTemplate/demo-default-", "+ KubeadmConfigTemplate/demo-default-",
				"- AzureMachineTemplate/demo-default-", "- KubeadmConfigTemplate/demo-default-",
				"~ MachineDeployment/demo-default spec.template.spec.bootstrap.configRef.name",
				"~ MachineDeployment/demo-default spec.template.spec.infrastructureRef.name",
			},
		},
		{
			Name: "AzureControlPlaneSize", Reason: "so it is with the control plane, whose configuration is in its own object",
			Chart: "cluster-azure", Set: "self-managed-private", Values: `controlPlane: {selfManaged: {vmSize: Standard_D8s_v5}}`,
			Diff: []string{
				"+ AzureMachineTemplate/demo-control-plane-", "- AzureMachineTemplate/demo-control-plane-",
				"~ KubeadmControlPlane/demo spec.kubeadmConfigSpec.files",
				"~ KubeadmControlPlane/demo spec.machineTemplate.spec.infrastructureRef.name",
			},
		},
		{
			Name: "AzureAutoscalerBounds", Reason: "new bounds leave the number of machines to the autoscaler",
			Chart: "cluster-azure", Set: "self-managed-private", Values: `pools: {default: {max: 20}}`,
			Diff: []string{
				"~ MachineDeployment/demo-default-1 metadata.annotations.cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
				"~ MachineDeployment/demo-default-2 metadata.annotations.cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
				"~ MachineDeployment/demo-default-3 metadata.annotations.cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
			},
		},
		{
			Name: "LocalIsConfirmed", Reason: "the first of two commits that delete a cluster",
			Chart: "cluster-local", Set: "tenant", Values: `deletion: confirmed`,
			Diff: []string{
				"~ Cluster/demo metadata.annotations.cascade.dev/deletion",
				"~ LocalCluster/demo metadata.annotations.cascade.dev/deletion",
				"~ LocalControlPlane/demo metadata.annotations.cascade.dev/deletion",
			},
		},
	}
}

// Merge merges values into others as Helm does: null takes a key away.
func Merge(base, over map[string]any) map[string]any {
	merged := maps.Clone(base)
	for key, value := range over {
		below, isMap := value.(map[string]any)
		was, wasMap := merged[key].(map[string]any)
		switch {
		case value == nil:
			delete(merged, key)
		case isMap && wasMap:
			merged[key] = Merge(was, below)
		default:
			merged[key] = value
		}
	}
	return merged
}

// Diff says what becomes of objects, sorted: "+ Kind/name" for one that comes, "-"
// for one that goes and "~ Kind/name path" for each field that changes. The hash in
// the name of a template is left out. A list is one field.
func Diff(before, after []*unstructured.Unstructured) []string {
	then, now := byName(before), byName(after)
	var diff []string
	for id, u := range now {
		old, known := then[id]
		if !known {
			diff = append(diff, "+ "+label(u))
			continue
		}
		for _, path := range fields(old.Object, u.Object) {
			diff = append(diff, "~ "+label(u)+" "+path)
		}
	}
	for id, u := range then {
		if now[id] == nil {
			diff = append(diff, "- "+label(u))
		}
	}
	slices.Sort(diff)
	return diff
}

func byName(objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	named := map[string]*unstructured.Unstructured{}
	for _, u := range objects {
		named[u.GroupVersionKind().GroupKind().String()+"/"+u.GetName()] = u
	}
	return named
}

func label(u *unstructured.Unstructured) string {
	name := u.GetName()
	if Template(u) {
		name = name[:strings.LastIndex(name, "-")+1]
	}
	return u.GetKind() + "/" + name
}

// Template reports whether an object is one that must never be edited.
func Template(u *unstructured.Unstructured) bool { return strings.HasSuffix(u.GetKind(), "Template") }

func fields(before, after map[string]any) []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(union(before, after))) {
		then, hadMap := before[key].(map[string]any)
		now, hasMap := after[key].(map[string]any)
		switch {
		case hadMap && hasMap:
			for _, below := range fields(then, now) {
				paths = append(paths, fmt.Sprintf("%s.%s", key, below))
			}
		case !reflect.DeepEqual(before[key], after[key]):
			paths = append(paths, key)
		}
	}
	return paths
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return all
}
