// Package remote connects to child clusters, seeds them with layers and reads
// back what their own agents report.
//
// One reconcile visits one child: it gathers facts, asks the child who it is and
// what its agent says, seeds each layer and sums up. The asking is done by a
// goroutine of the child's own, which calls for another visit when it is done.
// Every step can be repeated, and a visit that finds nothing to do sends nothing
// but its question. Invariants:
//
//   - nothing is written to a cluster whose identity, the UID of its
//     kube-system Namespace, is not the recorded one; the identity is recorded
//     durably before the first write;
//   - a Cluster that is being deleted is not written to and not waited for:
//     calls that are on their way end, its Child is deleted, and nothing here
//     holds a finalizer on it;
//   - what cannot be reached is kept: records of a child go only when its
//     Cluster is confirmed absent, or going;
//   - a child holds no credential for its parent: the parent dials, the child
//     never does;
//   - a child that does not answer costs the others nothing: each call has a
//     deadline, none is waited for by a worker of the queue before the child
//     has just answered another, and a breaker keeps a dead one from being
//     dialled again and again.
package remote
