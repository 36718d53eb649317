// Package remote connects to child clusters, seeds them with layers and reads
// back what their own agents report.
//
// One reconcile visits one child: it gathers facts, dials, identifies, mints a
// credential of its own, seeds each layer and observes. Every step can be
// repeated, and a visit that finds nothing to do writes nothing. Invariants:
//
//   - nothing is written to a cluster whose identity, the UID of its
//     kube-system Namespace, is not the recorded one; the identity is recorded
//     durably before the first write;
//   - a Cluster that is being deleted is not written to and not waited for, and
//     nothing here holds a finalizer on it;
//   - what cannot be reached is kept: records of a child go only when its
//     Cluster is confirmed absent;
//   - a child holds no credential for its parent: the parent dials, the child
//     never does;
//   - a child that does not answer costs the others nothing: each call has a
//     deadline, each child its own place in the queue, and a breaker keeps a
//     dead one from being dialled again and again.
package remote
