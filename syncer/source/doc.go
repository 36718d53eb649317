// Package source turns origins into snapshots.
//
// An origin is a Git repository and the credential it is read with. All
// objects that name the same origin share one Mirror, which fetches only what
// it lacks and keeps objects on disk, bare: nothing is ever checked out. A
// Snapshot is one commit's tree, immutable and safe for concurrent use; it
// stays readable as long as somebody holds it, whatever the mirror does.
//
// Failure model: a failed fetch leaves every earlier snapshot as it was.
// Errors carry a Reason that is stable and never the credential. Requests
// never follow a redirect to another host, so that a credential cannot leak to
// one (CVE-2026-41506).
package source
