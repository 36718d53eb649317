// Package origins runs what sources are fetched from, besides Git, on loopback for
// end-to-end tests: a Helm chart repository, an OCI registry and an S3 server. The
// registry and the S3 server are other people's, kept in memory; only listening,
// authentication, and the record of what was asked are ours.
//
// Invariants:
//
//   - Listeners are on 127.0.0.1.
//   - The same input packs to the same bytes, so digests can be compared.
//   - Every request is recorded before it is answered, with what it was
//     authenticated by: a test can tell what a client sent to whom.
//
// Failure model: wrong credentials get 401 (403 from S3), an unknown name 404. A
// Fault answers instead of a server, for what a hostile one would say.
//
// All methods may be called from several goroutines.
package origins
