// Package rollout decides in which order the clusters of a tier change.
//
// It is pure: facts in, decisions out. VersionStep and what is beside it keep clusters
// from versions of Kubernetes that Cluster API and Kubernetes do not support.
//
// Invariant: no minor version is skipped, and workers do not get a version before their
// control plane runs it.
package rollout
