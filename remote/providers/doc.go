// Package providers renders spec.providers of a Layer: the component manifests of core and
// of the providers that are named, in the order in which they are installed, and nothing
// else.
//
// The manifests are those that providers publish, in the layout of a local repository of
// clusterctl, in a source of this tier. The package does to them what clusterctl does, so
// that clusterctl's verbs work in the child: it expands variables in the text, adds labels
// that name the provider, and adds an object of kind Provider with the version.
//
// Invariants:
//
//   - only the files of the providers that are named are read, and all of their objects
//     are installed: a child gets the definitions of no other provider;
//   - if metadata.yaml does not name the contract of a version, or names one that core in
//     its version does not work with, none of the layer's providers is applied;
//   - a set is built once for the same content, version and values of the variables that it
//     uses, and all children share it; a permanent failure is remembered like a set;
//   - no error of this package contains the value of a variable, except errors that the
//     caller masks.
//
// It reads snapshots, which are in memory or in a local mirror, and makes no
// request. A Library is safe for concurrent use. Two callers that need the same set wait
// until one of them has built it.
package providers
