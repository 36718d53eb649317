// Package v1alpha1 has the types of Cascade's own kinds, Layer and Child, and
// the labels, annotations and reasons that are part of the API.
//
// Both kinds are namespaced. A Layer selects among the Cluster API Clusters
// of its own namespace only, so that whoever may write in one environment's
// namespace cannot reach another's clusters. No object grows with the size of
// the fleet: a Layer counts its children, and each Child records its layers.
//
// +kubebuilder:object:generate=true
// +groupName=cascade.dev
package v1alpha1
