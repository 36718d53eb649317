// Package credential keeps credentials that lapse fresh in Secrets: it has the reconciler of
// Credentials.
//
// Plan is pure: facts and the time in, the next step out. What an answer means, what of it
// goes into the Secret, and when it ends is pure, too. The reconciler gathers facts, takes
// steps until there is nothing to do, and says in the status how it stands. Invariants:
//
//   - the Secret has a credential that is valid, as long as the source answers: one is renewed
//     or replaced when two thirds of its life are over, and what it replaces stays valid until
//     who reads it had time to;
//   - nothing is leased without a note: a login is written down before anything is asked in
//     it, and what was leased before the Secret had it is revoked by whoever comes next. Two
//     processes of which each takes itself for the leader end up with one credential, and at
//     most one more lease, which is revoked;
//   - a login goes to the server that the owner of its account or Secret names, or the
//     operator: who writes a Credential cannot have one sent elsewhere;
//   - credentials, logins and names of leases are in Secrets, and nowhere else;
//   - the Secret of somebody else is not touched.
//
// Failure model: whatever fails is told as a condition and tried again after a pause that
// grows to a minute; the Secret keeps what it has. A source that does not answer is told
// within a minute, whether anything is due or not. A Credential that is deleted waits until
// what it was leased is revoked, or has lapsed.
package credential
