// Package syncer has no code of its own: its folder holds the sync engine, which
// speaks Flux's API.
//
// Three families of reconcilers (fetch for the sources, kustomization, helmrelease)
// stand on shared ground: status (conditions and the record of an object), wake
// (queues, indexes and predicates), find (the snapshot of a source), depend
// (spec.dependsOn), target (the cluster that is applied to), claim (who else answers
// for an object), events and metrics. The work itself is done below them: source,
// chart, render, decrypt, apply, health, release and firstsync.
//
// Invariants of all reconcilers:
//
//   - status is written once per reconcile, and only if it changed; the one
//     write besides is the inventory, ahead of the first object;
//   - the inventory that a reconcile starts from is the one that was written
//     last: the cache is asked first, and the API server where it lags behind;
//   - a rendering stands while all that it read is unchanged, and nothing is
//     sent for objects that memo.Memo knows to be as they were applied;
//   - no reconcile waits for health or for another object: it returns and is
//     woken, or looks again after a moment;
//   - a spec is carried out with the rights of its service account and in its
//     own cluster, reads for health included.
//
// Failure model: whatever goes wrong ends as a condition with a stable reason on
// the one object. What this process knows beyond the status is lost with it,
// which costs one verification of every object.
package syncer
