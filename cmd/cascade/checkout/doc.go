// Package checkout changes files of a Git repository by a commit: it clones, asks what is to
// change, commits and pushes.
//
// Invariants: nothing is force-pushed, and no commit is made without a change. A push that
// lost a race against another one is decided anew, from a new clone. Files are read and
// written below the clone only, also where the repository has symbolic links that lead
// elsewhere. A repository without a commit is begun.
//
// Every call to the server is bounded by the caller's context. On an error nothing was
// pushed, unless the error says that the answer of the server is not known.
package checkout
