// Package link keeps one connection to each child: it probes the child, holds the
// credentials with which the parent calls it, and knows which cluster answers.
//
// A reconcile asks (Link.Ask) what the last probe found. If there is nothing new, a
// probe begins in a goroutine of the link, which calls for another reconcile when it
// is done. A reconcile that has a result calls the child by a Session. While the watch of
// the agent's heartbeat tells that the child is alive, there is a result without a probe.
//
// Invariants:
//
//   - a link is used by a probe or by a session, never by both: Ask starts a probe
//     only when it gives out no result, and gives out a result only when no probe runs,
//     but for the error that one has not ended at its time. The caller reconciles a
//     child in one goroutine at a time;
//   - a session gives out a connection to write with only after it read the identity
//     of the child with the credentials that the link has now, and found the recorded
//     one. Credentials that were read again make it read the identity again;
//   - the token of the parent's own account is preferred; the kubeconfig is read when
//     there is none, when it was refused, or for what the account may not do;
//   - what is known of a cluster is dropped with its endpoint: another server, name or
//     CA may be another cluster;
//   - the lock of the pool guards its map alone, and that of a link what other
//     goroutines read; neither is held over a call.
//
// Failure model: each call has a deadline, and each probe one for all of its calls.
// Failures count towards a breaker, which spaces probes. A child that takes long
// gives up its place among the probes. All calls of a link end when the child is
// forgotten, and all calls of a pool with its life.
package link
