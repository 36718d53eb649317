package capibridge

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ClusterKind is the kind of Cluster API's Clusters; the version is whatever
// the API server prefers.
var ClusterKind = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}

const (
	// ClusterNameLabel is on the objects that belong to a Cluster.
	ClusterNameLabel = "cluster.x-k8s.io/cluster-name"
	pausedAnnotation = "cluster.x-k8s.io/paused"
)

// Cluster is what Cluster API says about one cluster.
type Cluster struct {
	Namespace   string
	Name        string
	UID         string
	Labels      map[string]string
	Annotations map[string]string

	Deleting bool
	Paused   bool
	// InfrastructureProvisioned and ControlPlaneInitialized are sticky: once
	// true they never become false again.
	InfrastructureProvisioned bool
	ControlPlaneInitialized   bool
	// Available is a reported fact that may be stale.
	Available bool

	// Version of a managed topology, else empty.
	Version string
	// Provider in lower case, from the kind of the infrastructure.
	Provider string
	Region   string
	// Endpoint as the Cluster states it; for information only.
	Endpoint    string
	PodCIDR     string
	ServiceCIDR string
	// TopologyVariables of a ClusterClass, those that are plain values.
	TopologyVariables map[string]string

	// Object is the whole Cluster, for expressions.
	Object map[string]any
}

// FromObject reads a Cluster of contract v1beta1 or v1beta2.
func FromObject(u *unstructured.Unstructured) Cluster {
	c := Cluster{
		Namespace:   u.GetNamespace(),
		Name:        u.GetName(),
		UID:         string(u.GetUID()),
		Labels:      u.GetLabels(),
		Annotations: u.GetAnnotations(),
		Deleting:    u.GetDeletionTimestamp() != nil,
		Object:      u.Object,
	}
	paused, _, _ := unstructured.NestedBool(u.Object, "spec", "paused")
	_, annotated := c.Annotations[pausedAnnotation]
	c.Paused = paused || annotated

	c.InfrastructureProvisioned = boolAt(u, "status", "initialization", "infrastructureProvisioned") ||
		boolAt(u, "status", "infrastructureReady")
	c.ControlPlaneInitialized = boolAt(u, "status", "initialization", "controlPlaneInitialized") ||
		condition(u, "ControlPlaneInitialized", "status", "conditions")
	c.Available = condition(u, "Available", "status", "conditions") ||
		condition(u, "Available", "status", "v1beta2", "conditions")

	c.Version = stringAt(u, "spec", "topology", "version")
	c.Provider = provider(stringAt(u, "spec", "infrastructureRef", "kind"))
	c.Region = c.Labels["topology.kubernetes.io/region"]
	if host := stringAt(u, "spec", "controlPlaneEndpoint", "host"); host != "" {
		c.Endpoint = host
	}
	c.PodCIDR = firstOf(u, "spec", "clusterNetwork", "pods", "cidrBlocks")
	c.ServiceCIDR = firstOf(u, "spec", "clusterNetwork", "services", "cidrBlocks")
	c.TopologyVariables = topologyVariables(u)
	return c
}

// provider of an infrastructure kind: AWSManagedCluster is aws, AzureCluster
// azure, LocalCluster local.
func provider(kind string) string {
	kind = strings.ToLower(kind)
	for _, suffix := range []string{"cluster", "managed", "aso"} {
		kind = strings.TrimSuffix(kind, suffix)
	}
	return kind
}

func topologyVariables(u *unstructured.Unstructured) map[string]string {
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "topology", "variables")
	vars := map[string]string{}
	for _, item := range list {
		m, _ := item.(map[string]any)
		name, _ := m["name"].(string)
		if value, ok := plain(m["value"]); ok && name != "" {
			vars[name] = value
		}
	}
	return vars
}

func boolAt(u *unstructured.Unstructured, fields ...string) bool {
	v, _, _ := unstructured.NestedBool(u.Object, fields...)
	return v
}

func stringAt(u *unstructured.Unstructured, fields ...string) string {
	v, _, _ := unstructured.NestedString(u.Object, fields...)
	return v
}

func firstOf(u *unstructured.Unstructured, fields ...string) string {
	v, _, _ := unstructured.NestedStringSlice(u.Object, fields...)
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

func condition(u *unstructured.Unstructured, kind string, fields ...string) bool {
	list, _, _ := unstructured.NestedSlice(u.Object, fields...)
	for _, item := range list {
		m, _ := item.(map[string]any)
		if m["type"] == kind {
			return m["status"] == "True"
		}
	}
	return false
}
