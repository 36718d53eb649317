// Package remote connects to child clusters, seeds them with layers and reads
// back what their own agents report.
//
// One reconcile, a run, is about one child. It gathers facts, takes the result of a
// probe, which read the identity of the child and the report of its agent, seeds each
// layer and sums up. A goroutine for each child probes it and calls for another run
// when it is done. Every step can be repeated, and a run that finds nothing to do
// sends nothing but the probe. Invariants:
//
//   - nothing is written to a cluster whose identity, the UID of its
//     kube-system Namespace, is not the recorded one; the identity is recorded
//     durably before the first write;
//   - nothing is written to a Cluster that is being deleted, and nothing waits for
//     it: open calls end, its Child is deleted, and nothing here holds a finalizer
//     on it;
//   - the records of a child that cannot be reached are kept: they are deleted only
//     when its Cluster is confirmed absent or is being deleted;
//   - what a layer applied to a child that it no longer selects is deleted only where the
//     Layer, as the API server has it, grants that: Layers decides over all children, and
//     records it first;
//   - a child holds no credential for its parent: the parent dials, the child
//     never does;
//   - a child that does not respond costs the others nothing: each call has a
//     deadline, a worker of the queue calls only a child that has just responded to
//     its probe, and a breaker keeps a dead child from being dialled again and again.
package remote
