// Package proxy stands between a client and an API server, for tests of what the
// client does when it is killed in the middle of its work, or when the API server
// fails. Hooks see each request before it goes on, and each answer before it goes
// back; Kill and Faults are the two that there are.
//
// Invariants: without hooks a client cannot tell the proxy from the API server,
// by its answers, its streams and its protocols. What a hook sees after the API
// server has answered is carried out, whatever becomes of the answer. The proxy
// has the client certificate of the kubeconfig that it was made from, so it is
// served on loopback only; tokens stay with the client.
//
// Failure model: a request that the API server does not answer is cut off, as if
// the proxy were not there. Close ends all streams.
package proxy
