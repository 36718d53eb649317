package capibridge

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/clusterapi"
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
	// MoveBlocked: a controller still uses the Cluster, and a move waits for it.
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
	// Failure is a failure that a provider of contract v1beta1 does not retry.
	// Available stays true with it.
	Failure Failure

	// Infrastructure and ControlPlane are the objects of the providers.
	Infrastructure clusterapi.Reference
	ControlPlane   clusterapi.Reference

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

// Failure has the reason and message of the object that reports it. Without both there
// is no failure.
type Failure struct {
	Reason  string
	Message string
}

// IsZero reports whether there is no failure.
func (f Failure) IsZero() bool { return f == Failure{} }

// FromObject reads a Cluster of contract v1beta1 or v1beta2. A field that has another
// type than the contract says counts as not set.
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
	c.Moved, c.MoveBlocked = clusterapi.IsMoved(u), clusterapi.IsMoveBlocked(u)
	c.Paused = clusterapi.IsPaused(u)

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

	c.Infrastructure = unversioned(clusterapi.InfrastructureOf(u))
	c.ControlPlane = unversioned(clusterapi.ControlPlaneOf(u))
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
	class := clusterapi.ClassOf(u)
	if class.Name == "" {
		return ""
	}
	return class.String()
}

// topologyVariables sets the overrides first. A variable of the cluster with the name of
// an override wins.
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

// unversioned is a reference without the version that v1beta1 of Cluster API names: the
// API server may no longer serve that version.
func unversioned(r clusterapi.Reference) clusterapi.Reference {
	r.Version = ""
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
