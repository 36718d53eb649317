// Package installation brings an agent's objects into a cluster by hand, shows what that
// would change, and takes them out again.
//
// Invariants: what is deleted carries the labels of an installation, and is of a kind that
// holds nothing of anybody else: never a definition but on demand, never a Namespace, a volume
// or an admission policy before the agent is gone. A delete carries the UID of what was seen.
// A look writes nothing: it is a dry run of the API server.
//
// Each call has the caller's context. An error says what was not done; everything can be
// repeated.
package installation
