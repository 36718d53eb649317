// Package policy chooses one tag of an image, as an ImagePolicy says: by version, number or
// alphabet, among those that its filter lets through.
//
// Invariants: the choice depends on the set of tags and not on their order; a chosen tag is one
// of those that were given, and passes the filter; expressions are RE2, whose time is linear,
// and bounded in size, as is what they extract.
//
// Failure model: what only a change of the spec can mend is an *Invalid; ErrNone says that no
// tag fits. Everything here is pure.
package policy
