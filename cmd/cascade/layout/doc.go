// Package layout decides which files of a repository declare a tier: the agent, and the
// objects that sync it from there. It knows two layouts: the one of `cascade bootstrap`, and
// the one that `flux bootstrap` leaves, into which it puts the agent and in which it stops
// Flux's controllers.
//
// Invariants: it is pure, from a tree of files to the files that change. The same tree with
// what it decided decides nothing more, so that a second run makes no commit. What a person
// wrote stays, with comments: only what is missing is added to a kustomization, and Flux's own
// files are not touched. What Git must not take away with the agent, the Namespace and the
// definitions, is marked so that neither engine prunes it.
//
// A file that cannot be read as what it has to be is an error that names it.
package layout
