// Package vault speaks with HashiCorp Vault and OpenBao: it logs in, makes one request,
// renews what it was leased, and revokes it. It knows nothing of Kubernetes.
//
// It stands on Vault's own client library and narrows what that does. Invariants:
//
//   - a login goes to the address that it was made for and nowhere else: redirects are
//     errors, and nothing of the process's environment is used;
//   - each call has a deadline, and what is read of an answer has a bound;
//   - an answer is not believed: a lease without an end, one that ends before it begins and
//     one of centuries are errors or cut;
//   - no error has anything in it that was sent or received as a secret.
//
// Failure model: an error has a Kind, by which a caller tells a server that does not answer,
// which is asked again, from one that refuses, and from an answer that cannot be used. A
// Session that is lost is no leak: what was leased in it ends with its token.
package vault
