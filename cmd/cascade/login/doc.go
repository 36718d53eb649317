// Package login is how a person, and the agent after them, log in to a Git server: a password
// or token for HTTPS, a deploy key for SSH.
//
// Invariants: what is secret is in the Secret and nowhere else, in no message and in no file of
// the repository. A URL with a password is refused. An SSH server is known by the keys that
// were given, or that were read once and are kept; another key is refused from then on. A key
// or a login that the cluster has is used again.
//
// The one call to the network, for a server's key, has a deadline.
package login
