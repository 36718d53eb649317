// Package receive serves Flux's Receivers: webhooks of Git servers, registries and pipelines,
// after which the objects that a Receiver names are reconciled at once.
//
// verify is pure: a request, who sent it, the spec of a Receiver and its Secret in, a decision out.
// Reconciler writes the status of Receivers: the path, which nobody can guess, and whether
// the Secret has what the type needs. Handler serves the paths. Objects requests the
// reconciles. Invariants:
//
//   - nothing is requested before the request was verified, and nothing of what it says is
//     believed but by a filter of its Receiver: whoever is woken fetches and verifies by
//     itself;
//   - secrets are compared in constant time, and a path that no Receiver has is answered
//     before the body is read, without a call or a note of it;
//   - what is read and kept is bounded, whoever sends how much: the body, the requests at a
//     time, those of one remote, the refusals that are remembered, the tokens, the issuers;
//   - what the Receivers of one namespace take, by slow issuers, bodies or objects, leaves
//     places to others, also where all requests come from one Ingress;
//   - a Receiver of one namespace requests nothing in another where that is not allowed.
//
// Failure model: a request that cannot be carried out is answered with an error, so that the
// sender may try again; polling at spec.interval finds what no sender told of. Every replica
// serves, whether it leads or not.
package receive
