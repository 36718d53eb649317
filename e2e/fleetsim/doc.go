// Package fleetsim is a fleet of thousands of child API servers in one process,
// for tests and benchmarks of what a parent costs. Behind one TLS listener every
// cluster has a URL of its own, https://127.0.0.1:PORT/c/NAME, and a server name
// of its own, NAME.fleet.test, so that clients hold a connection for each.
//
// What a client meets is meant to be what kube-apiserver does, as far as an agent
// that applies manifests can tell: server-side apply with managed fields and
// conflicts, merge patches, preconditions, generations, the status subresource,
// lists, watches, definitions of custom resources with their schemas, discovery
// in both forms, tokens, rights, and the errors of all these. A table of requests
// in the tests of package e2e is sent to both and the answers are compared.
//
// Invariants:
//
//   - Clients come over TLS only; nothing in here is called in their place.
//   - Objects are immutable and kept once for all clusters that hold the same,
//     and the outcome of a write is computed once for all clusters in which the
//     same body meets the same object. What differs between two clusters, such
//     as UIDs and times, is kept beside.
//   - A cluster at rest costs memory only: no timer, no goroutine. What moves
//     with the time, as the lease of an agent, is derived from the clock when it
//     is read.
//   - What is random is derived from the seed and the names.
//
// Failure model: faults are set for each cluster at any time, see Faults; those
// of a connection act on connections that are open already. A cluster can be
// created anew under its name, with another identity and other credentials.
//
// Not simulated: admission plugins, webhooks and policies (their objects are
// kept), conversion webhooks, defaults and validation of built-in kinds beyond
// the most common ones, pods, protobuf and tables in answers.
package fleetsim
