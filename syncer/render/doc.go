// Package render turns a snapshot and the build fields of a Kustomization or
// Layer into a rendering: the ordered list of objects they produce.
//
// The input is hostile. Invariants, each with tests:
//
//   - no file outside the snapshot is read, and nothing is written to disk:
//     kustomize runs on a file system that reads the snapshot;
//   - no network: references to other hosts are refused by name, and
//     DenyNetwork takes away the default transport and the git binary that
//     kustomize would use for those it finds by itself;
//   - no document reaches a YAML library before Check has seen it: an alias
//     cycle overflows the stack of kyaml, which kills a Go process and cannot
//     be recovered from.
//   - what is built equals, byte for byte, what Flux's kustomize-controller
//     builds, or both fail. Directories of manifests are built without kustomize, in
//     time linear in their objects; in doubt kustomize builds them;
//   - a rendering, and a permanent failure, has the set of what it read, so that it is
//     reused while that and the Build are unchanged.
//
// Builds run in parallel. One that brings an OpenAPI schema runs alone, because
// kyaml keeps the schema in a variable of the process; nothing else in this
// process may call kyaml's or kustomize's functions that read it without this
// package. No lock is held while a Decrypter is asked.
//
// Every failure is an error of the one rendering. An *Error is permanent: the same input
// fails again. Any other error may pass by itself.
package render
