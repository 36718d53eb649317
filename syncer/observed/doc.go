// Package observed reads what there is in a cluster under a name, as far as
// applying an object depends on it.
//
// An Object is the live metadata that decides how an object is applied: its
// identity, the directives that it carries, and whether another tool manages
// fields that have to be taken over. A Reader gets it from one cluster, as one
// user, with metadata requests only.
//
// Invariants:
//
//   - an error is no absence: nil without an error means that the API server
//     said that there is nothing;
//   - what a Reader answers from a list is at most listTTL old.
//
// Every request ends with its context.
package observed
