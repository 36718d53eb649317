// Package render turns a snapshot and the build fields of a Kustomization or
// Layer into a rendering: the ordered list of objects they produce.
//
// The input is hostile. Invariants, each with tests:
//
//   - no file outside the snapshot is read, and nothing is written to disk:
//     kustomize runs on a file system made of the snapshot;
//   - no network: references to other hosts are refused by name, and
//     DenyNetwork takes away the default transport and the git binary that
//     kustomize would use for those it finds by itself;
//   - no document reaches a YAML library before Check has seen it: an alias
//     cycle overflows the stack of kyaml, which kills a Go process and cannot
//     be recovered from.
//
// Every failure is an error of the one rendering.
package render
