// Package source turns origins into snapshots.
//
// An origin is a Git repository and the credential it is read with. All
// objects that name the same origin share one mirror, which fetches only what
// it lacks and keeps objects on disk, bare: nothing is ever checked out. A
// Snapshot is one commit's tree, or an archive that another controller packed;
// it is immutable, safe for concurrent use, and readable as long as somebody
// holds it, whatever the mirror does. A mirror goes with its last snapshot.
//
// A tree is made of nodes that are named by their content: a Git tree as it is,
// the directories of an archive, or directories composed of others (sparse
// checkouts, submodules, includes). The hash of a directory therefore stays the
// same in every commit that does not change it. Which files the ignore rules
// take, and the bytes of a packed archive, are those of Flux.
//
// Failure model: a failed fetch leaves every earlier snapshot as it was. Errors
// carry a Reason that is stable and never the credential; the same failure has
// the same words. Everything that a server or a repository chooses is limited:
// the list of references, the bytes of a pack and what it inflates to, the size
// and number of objects, files, directories, patterns and submodules, and how
// deep they nest. Requests never follow a redirect to another host, and
// submodules get the credential only at the same host, so that it cannot leak to
// one (CVE-2026-41506).
package source
