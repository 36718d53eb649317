// Package source turns origins into snapshots.
//
// An origin is a Git repository, a repository of images or a bucket, and the
// credential it is read with. All objects that name the same Git repository
// share one mirror, which fetches only what it lacks and keeps objects on disk,
// bare: nothing is ever checked out. Images and the objects of a bucket are
// fetched once for all that name them too. A Snapshot is one commit's tree, the
// layer of an image, the objects of a bucket, a packaged chart, or an archive
// that another controller packed; it is immutable, safe for concurrent use, and
// readable as long as somebody holds it, whatever the origin does. A mirror goes
// with its last snapshot, and so does what else was fetched.
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
// deep they nest. Requests to Git never follow a redirect to another host, and
// submodules get the credential only at the same host, so that it cannot leak to
// one (CVE-2026-41506). Registries keep layers elsewhere, so their redirects are
// followed, without the credential. Libraries that read what servers send are
// recovered from: a panic is a fault of one source.
package source
