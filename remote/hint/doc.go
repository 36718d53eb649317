// Package hint passes on, from tier to tier, that a repository has something new: one
// webhook at the top wakes a fleet whose tenants have no endpoint.
//
// A tier has one ConfigMap of hints, which its agent makes. Its parent writes one entry of it,
// and whichever of the tier's replicas is told by a Receiver another one. Every replica reads
// it: the one that leads requests a reconcile of the tier's own sources of that repository,
// and each passes the hints on to the children that it drives. Invariants:
//
//   - a hint is never more than that: whoever gets one fetches and verifies what its own
//     source says, where its own source says that it is. Nothing of a hint is written anywhere
//     else, and a wrong one costs a fetch that finds nothing new;
//   - a hint names its repository by a digest, so that a tenant learns nothing of the
//     repositories of others;
//   - what is sent, read and kept is bounded, and each hint is passed on once by each process,
//     whatever goes round;
//   - children are told at a rate, in an order by chance, and one child not more often than
//     every other second, so that they do not ask one server at the same moment;
//   - nothing waits for a hint, and no reconcile is delayed by one.
//
// Failure model: a hint that cannot be delivered is dropped and counted; for a minute, children
// that can be reached only now are told of it as well, as those of a process that has just
// begun. Polling finds what nobody hinted at.
package hint
