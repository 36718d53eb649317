package provider

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The kinds of this provider, and the one of Cluster API that it reads. The definitions say what the fields mean.
func infrastructureVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}
}

func controlPlaneVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1alpha1"}
}

func clusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: "Cluster"}
}

// addToScheme makes the kinds of this provider known.
func addToScheme(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(infrastructureVersion(), &LocalCluster{}, &LocalClusterList{})
	scheme.AddKnownTypes(controlPlaneVersion(), &LocalControlPlane{}, &LocalControlPlaneList{})
	metav1.AddToGroupVersion(scheme, infrastructureVersion())
	metav1.AddToGroupVersion(scheme, controlPlaneVersion())
}

// Endpoint is where an API server is reached.
type Endpoint struct {
	Host string `json:"host,omitempty"`
	Port int32  `json:"port,omitempty"`
}

// Order says which comes first, the infrastructure or the control plane.
type Order string

// OrderSlow provisions the infrastructure first; everything else is the fast order.
const OrderSlow Order = "Slow"

// LocalCluster fulfils Cluster API's contract for infrastructure clusters.
type LocalCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              LocalClusterSpec   `json:"spec,omitempty"`
	Status            LocalClusterStatus `json:"status,omitempty"`
}

// LocalClusterSpec is the wish.
type LocalClusterSpec struct {
	Order                Order    `json:"order,omitempty"`
	ControlPlaneEndpoint Endpoint `json:"controlPlaneEndpoint,omitzero"`
}

// LocalClusterStatus is what became of it.
type LocalClusterStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Initialization     ClusterInitialized `json:"initialization,omitzero"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterInitialized never goes back to false.
type ClusterInitialized struct {
	Provisioned bool `json:"provisioned,omitempty"`
}

// LocalClusterList is a list of LocalCluster.
type LocalClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LocalCluster `json:"items"`
}

// LocalControlPlane fulfils Cluster API's contract for control planes.
type LocalControlPlane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              LocalControlPlaneSpec   `json:"spec,omitempty"`
	Status            LocalControlPlaneStatus `json:"status,omitempty"`
}

// LocalControlPlaneSpec is the wish.
type LocalControlPlaneSpec struct {
	Version              string   `json:"version,omitempty"`
	ID                   string   `json:"id,omitempty"`
	ControlPlaneEndpoint Endpoint `json:"controlPlaneEndpoint,omitzero"`
}

// LocalControlPlaneStatus is what became of it.
type LocalControlPlaneStatus struct {
	ObservedGeneration          int64                   `json:"observedGeneration,omitempty"`
	Version                     string                  `json:"version,omitempty"`
	ExternalManagedControlPlane bool                    `json:"externalManagedControlPlane,omitempty"`
	Directory                   string                  `json:"directory,omitempty"`
	Initialization              ControlPlaneInitialized `json:"initialization,omitzero"`
	Conditions                  []metav1.Condition      `json:"conditions,omitempty"`
}

// ControlPlaneInitialized never goes back to false.
type ControlPlaneInitialized struct {
	ControlPlaneInitialized bool `json:"controlPlaneInitialized,omitempty"`
}

// LocalControlPlaneList is a list of LocalControlPlane.
type LocalControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LocalControlPlane `json:"items"`
}

func (c *LocalCluster) DeepCopyObject() runtime.Object { return c.deepCopy() }

func (c *LocalCluster) deepCopy() *LocalCluster {
	copied := *c
	c.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	copied.Status.Conditions = slices.Clone(c.Status.Conditions)
	return &copied
}

func (l *LocalClusterList) DeepCopyObject() runtime.Object {
	copied := *l
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	copied.Items = make([]LocalCluster, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].deepCopy()
	}
	return &copied
}

func (c *LocalControlPlane) DeepCopyObject() runtime.Object { return c.deepCopy() }

func (c *LocalControlPlane) deepCopy() *LocalControlPlane {
	copied := *c
	c.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	copied.Status.Conditions = slices.Clone(c.Status.Conditions)
	return &copied
}

func (l *LocalControlPlaneList) DeepCopyObject() runtime.Object {
	copied := *l
	l.ListMeta.DeepCopyInto(&copied.ListMeta)
	copied.Items = make([]LocalControlPlane, len(l.Items))
	for i := range l.Items {
		copied.Items[i] = *l.Items[i].deepCopy()
	}
	return &copied
}
