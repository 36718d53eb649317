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
//     be recovered from. The guard is the first line; it does not see what is in
//     strings of plugins. The worker is the last;
//   - what one rendering reads and makes is bounded in bytes and YAML nodes.
//   - what is built equals, byte for byte, what Flux's kustomize-controller
//     builds, or both fail. Directories of manifests are built without kustomize, in
//     time linear in their objects; in doubt kustomize builds them;
//   - a rendering, and a permanent failure, has the set of what it read, so that it is
//     reused while that and the Build are unchanged;
//   - a Template renders for many sets of variables what Render renders for each, and
//     fails as it does. What renderings of it share must not be modified. What it keeps is
//     bounded in bytes.
//
// kustomize runs in a worker (package worker) that asks for files. What it is told has
// passed the guards and is recorded here; decryption happens here. A worker that a
// build brought an OpenAPI schema to is not used again, because kyaml keeps it in a
// variable of the process. Nothing in this process may replace that schema. No lock
// is held while a Decrypter is asked.
//
// Every failure is an error of the one rendering. An *Error is permanent: the same input
// fails again. Any other error may pass by itself.
package render
