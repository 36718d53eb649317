// Package provider has what is run and installed of Cluster API and of each of its providers
// where there is no node to run a pod, no cert-manager to issue a certificate and no kustomize
// to put their manifests together: how the unmodified manager is started, and their definitions
// and webhook configurations, as they are in its module, with addresses on loopback.
//
// It is pure: files in, objects and command lines out.
//
// Invariants:
//   - Nothing but definitions and webhook configurations is installed. Rights, Services and
//     Deployments of a module are for a cluster that runs pods.
//   - Each webhook leads to loopback, and is believed by one authority that was made for it.
//   - A description says all that there is to say of a provider; no code knows one by name.
//
// Failure model: what a description or a manifest has that is not understood is an error when
// it is read, before anything is started.
package provider
