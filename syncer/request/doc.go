// Package request asks for a reconcile of an object, as `flux reconcile` does: by the
// annotation reconcile.fluxcd.io/requestedAt, so that whoever reconciles the object does so
// at once, and people see that it was asked for.
//
// Invariants: requests for one object that come within a moment are one write, after the
// last of them: none that was made after a reconcile began is lost. What is kept is bounded.
//
// Failure model: a write that fails is the error of all whose request it was.
package request
