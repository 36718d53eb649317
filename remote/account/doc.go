// Package account says as whom a layer is pushed, and what that account may take of this
// tier for it.
//
// A Layer that names a service account is pushed as that account: in a child with the
// rights that the account has there, and here with those that it has here. Others are
// pushed by the parent with all rights, unless the agent has a default account: then they
// are pushed as that, but for those that the account may escalate.
//
// Invariants:
//
//   - a Secret or ConfigMap that was read as one account is never handed to another;
//   - nothing that an account names is taken from another namespace before the API server
//     said that the account may get it;
//   - what stands about an account is asked once for all children, and holds for seconds,
//     so that a right that was taken away shows within a minute;
//   - no lock is held over a call.
//
// Failure model: an account of which the API server does not say what it may do keeps what
// it had a moment ago, and has nothing after that. Not to know deletes nothing: a layer
// that may not be rendered stays in the children as it is.
package account
