// Package fetch has the reconcilers of Flux's sources: GitRepository,
// OCIRepository, Bucket, HelmRepository and HelmChart. One generic loop does what
// all of them do alike; a kind brings how its content is fetched.
//
// Invariants:
//
//   - the last content stays in use when a fetch fails;
//   - whoever is woken by the status of a source finds its snapshot;
//   - a fetch ends at spec.timeout, and one at a time runs for an object;
//   - the status is written once per reconcile, and only if it changed.
//
// Failure model: whatever goes wrong ends as a condition with Flux's reason on the
// one source. Snapshots are lost with the process and fetched again.
package fetch
