// Package providers turns what a Layer says about Cluster API into objects: the
// component manifests of core and of the providers that are named, in the order
// in which they are installed, and nothing else.
//
// The manifests are those that providers publish, in the layout of a local
// repository of clusterctl, in a source of this tier. What is done to them is what
// clusterctl does, so that its verbs work in the child: variables are put into
// the text, labels name the provider, and an object of kind Provider records the
// version.
//
// Invariants:
//
//   - only the files of what is named are read, and all of their objects are
//     installed: a child gets the definitions of no other provider;
//   - a version of which metadata.yaml does not name the contract, or names one
//     that core in its version does not work with, is refused as a whole: nothing
//     of the layer's providers is applied;
//   - a set is made once for the same content, version and values of the
//     variables that it uses, whichever children get it, and a failure that would
//     come again is remembered like a set;
//   - values of variables stand in no error of this package, except in those that
//     the caller masks.
//
// It reads snapshots, which are in memory or in a local mirror, and makes no
// request. A Library is safe for concurrent use, and two callers that need the
// same set wait for one of them to make it.
package providers
