// Package check tells whether a cluster can become a tier, and whether the agent of one
// works: what is missing, what is broken, and what a person does about it.
//
// Read asks the API server of one cluster and nothing else; Judge decides, and is pure.
//
// Invariants:
//
//   - nothing is written;
//   - unknown is not well: what could not be read is a failure of its own, and never
//     counts as absent;
//   - a finding has a stable reason, and says what to do. What it names is bounded, however
//     large the fleet is.
//
// Failure model: each subject is read by itself. One that cannot be read does not keep the
// others from being judged.
package check
