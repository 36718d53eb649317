package capibridge

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ClusterKind is the kind of Cluster API's Clusters; the version is whatever
// the API server prefers.
var ClusterKind = schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}

const (
	// ClusterNameLabel is on the objects that belong to a Cluster.
	ClusterNameLabel = "cluster.x-k8s.io/cluster-name"

	pausedAnnotation        = "cluster.x-k8s.io/paused"
	deleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"
	blockMoveAnnotation     = "clusterctl.cluster.x-k8s.io/block-move"
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
	// Moved is set on what clusterctl deletes here after it has created it in
	// another management cluster: the cluster itself lives on.
	Moved bool
	// MoveBlocked says that a controller has not let go of the Cluster yet, for
	// a move that waits for it.
	MoveBlocked bool
	// InfrastructureProvisioned and ControlPlaneInitialized are sticky: once
	// true they never become false again.
	InfrastructureProvisioned bool
	ControlPlaneInitialized   bool
	// Available is a reported fact that may be stale.
	Available bool
	// RollingOut and Remediating say that machines are being replaced, by a
	// change or because they are unhealthy. API servers answer meanwhile.
	RollingOut  bool
	Remediating bool
	// RemoteConnection is whether Cluster API itself reaches the API server, and
	// is as stale as Available. Unknown if it does not say.
	RemoteConnection metav1.ConditionStatus
	// Failure is what a provider of contract v1beta1 gave up on. Available
	// stays true with it.
	Failure Failure

	// Infrastructure and ControlPlane are the objects of the providers.
	Infrastructure Reference
	ControlPlane   Reference

	// Class of a managed topology as namespace/name, else empty.
	Class string
	// Version of a managed topology, else empty.
	Version string
	// Provider in lower case, from the kind of the infrastructure.
	Provider string
	Region   string
	// Endpoint as the Cluster states it; for information only.
	Endpoint    string
	PodCIDR     string
	ServiceCIDR string
	// TopologyVariables of a ClusterClass: scalars as they are, lists and maps as
	// JSON in one line. What the control plane or a pool overrides is there as
	// controlplane_<name> or worker_<pool>_<name>.
	TopologyVariables map[string]string
	// Provided are the variables of the provider, by their whole names; see
	// Facts.Variables.
	Provided map[string]string

	// Object is the whole Cluster, for expressions.
	Object map[string]any
}

// Failure says what went wrong, in the words of whoever says it. Without reason
// and message there is none.
type Failure struct {
	Reason  string
	Message string
}

// IsZero reports whether there is no failure.
func (f Failure) IsZero() bool { return f == Failure{} }

// Reference names an object of a provider.
type Reference struct {
	Group string
	// Version to read it in, if it is not just the one that the API server
	// prefers. Those that v1beta1 of Cluster API refers to are not heeded: they
	// may be served no longer.
	Version   string
	Kind      string
	Namespace string
	Name      string
}

// IsZero reports whether nothing is referred to.
func (r Reference) IsZero() bool { return r == Reference{} }

func (r Reference) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// String names the object for people.
func (r Reference) String() string { return r.Kind + " " + r.Name }

// FromObject reads a Cluster of contract v1beta1 or v1beta2. What is not of the
// type that the contract has is as if it were not there.
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
	_, c.Moved = c.Annotations[deleteForMoveAnnotation]
	_, c.MoveBlocked = c.Annotations[blockMoveAnnotation]
	_, annotated := c.Annotations[pausedAnnotation]
	c.Paused = boolAt(u, "spec", "paused") || annotated

	current, deprecated := conditionsOf(u)
	c.InfrastructureProvisioned = boolAt(u, "status", "initialization", "infrastructureProvisioned") ||
		boolAt(u, "status", "infrastructureReady")
	c.ControlPlaneInitialized = boolAt(u, "status", "initialization", "controlPlaneInitialized") ||
		current.is("ControlPlaneInitialized") || deprecated.is("ControlPlaneInitialized")
	c.Available = current.is("Available")
	c.RollingOut = current.is("RollingOut")
	c.Remediating = current.is("Remediating")
	c.RemoteConnection = current.status("RemoteConnectionProbe")
	c.Failure = failureOf(u, deprecated, "Ready", "ControlPlaneReady", "InfrastructureReady")

	c.Infrastructure = referenceAt(u, "spec", "infrastructureRef")
	c.ControlPlane = referenceAt(u, "spec", "controlPlaneRef")
	c.Class = class(u)
	c.Version = stringAt(u, "spec", "topology", "version")
	c.Provider = provider(c.Infrastructure.Kind)
	c.Region = c.Labels["topology.kubernetes.io/region"]
	c.Endpoint = stringAt(u, "spec", "controlPlaneEndpoint", "host")
	c.PodCIDR = firstOf(u, "spec", "clusterNetwork", "pods", "cidrBlocks")
	c.ServiceCIDR = firstOf(u, "spec", "clusterNetwork", "services", "cidrBlocks")
	c.TopologyVariables = topologyVariables(u)
	return c
}

// provider of an infrastructure kind: AWSManagedCluster is aws, AzureCluster
// azure, LocalCluster local.
func provider(kind string) string {
	kind = strings.TrimSuffix(strings.ToLower(kind), "controlplane") // of EKS, when it was its own infrastructure
	for _, suffix := range []string{"cluster", "managed", "aso"} {
		kind = strings.TrimSuffix(kind, suffix)
	}
	return kind
}

func class(u *unstructured.Unstructured) string {
	name, namespace := stringAt(u, "spec", "topology", "classRef", "name"), stringAt(u, "spec", "topology", "classRef", "namespace")
	if name == "" {
		name, namespace = stringAt(u, "spec", "topology", "class"), stringAt(u, "spec", "topology", "classNamespace")
	}
	if name == "" {
		return ""
	}
	if namespace == "" {
		namespace = u.GetNamespace()
	}
	return namespace + "/" + name
}

// topologyVariables have the overrides first, so that a variable of the cluster
// whose name is made to look like one wins.
func topologyVariables(u *unstructured.Unstructured) map[string]string {
	vars := map[string]string{}
	add := func(prefix string, list []any) {
		for _, item := range list {
			m, _ := item.(map[string]any)
			name, _ := m["name"].(string)
			if value, ok := text(m["value"]); ok && name != "" {
				vars[prefix+name] = value
			}
		}
	}
	for _, kind := range []string{"machineDeployments", "machinePools"} {
		for _, item := range listAt(u.Object, "spec", "topology", "workers", kind) {
			pool, _ := item.(map[string]any)
			name, _ := pool["name"].(string)
			add("worker_"+name+"_", listAt(pool, "variables", "overrides"))
		}
	}
	add("controlplane_", listAt(u.Object, "spec", "topology", "controlPlane", "variables", "overrides"))
	add("", listAt(u.Object, "spec", "topology", "variables"))
	return vars
}

// referenceAt reads a reference of v1beta2, which has a group, or of v1beta1,
// which has a version and may name a namespace.
func referenceAt(u *unstructured.Unstructured, fields ...string) Reference {
	at := func(field string) string { return stringAt(u, append(append([]string{}, fields...), field)...) }
	r := Reference{Group: at("apiGroup"), Kind: at("kind"), Namespace: at("namespace"), Name: at("name")}
	if r.Kind == "" || r.Name == "" {
		return Reference{}
	}
	if r.Group == "" {
		if group, _, ok := strings.Cut(at("apiVersion"), "/"); ok {
			r.Group = group
		}
	}
	if r.Namespace == "" {
		r.Namespace = u.GetNamespace()
	}
	return r
}

func boolAt(u *unstructured.Unstructured, fields ...string) bool {
	v, _, _ := unstructured.NestedBool(u.Object, fields...)
	return v
}

func stringAt(u *unstructured.Unstructured, fields ...string) string {
	v, _, _ := unstructured.NestedString(u.Object, fields...)
	return v
}

// listAt does not copy what it returns.
func listAt(object map[string]any, fields ...string) []any {
	v, _, _ := unstructured.NestedFieldNoCopy(object, fields...)
	list, _ := v.([]any)
	return list
}

func firstOf(u *unstructured.Unstructured, fields ...string) string {
	v, _, _ := unstructured.NestedStringSlice(u.Object, fields...)
	if len(v) == 0 {
		return ""
	}
	return v[0]
}
