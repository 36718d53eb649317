// Package release brings one Helm release to what its HelmRelease declares, on
// the Helm SDK, with the behaviour, the status, the reasons and the messages of
// Flux's helm-controller.
//
// Releases.Sync is the whole way: look at Helm's storage, compare, decide, act,
// look again, until nothing is left to do or a person or time must help. What
// to do is decided by pure functions (StateOf, Decide); everything else carries
// it out.
//
// Invariants:
//
//   - a release that is as it was when it was last verified costs one listing of
//     metadata: its Secret is not read, its chart not loaded;
//   - nothing that carries a real cluster or data is deleted before a person
//     confirmed it on the object: not by an upgrade that no longer has it, not by
//     an uninstall, not by a remediation. Applying goes on; the object stays in
//     status.inventory until it may go;
//   - nothing that belongs to another release is deleted, and each object only as it was
//     judged: what Helm has deleted, the guard deletes;
//   - a chart is data: rendering it is bounded in time, in steps and in output,
//     reaches no network and no files, and ends as an error of this one release;
//   - Helm's storage is Helm's own: Secrets that the helm CLI reads and writes.
//
// A release is locked in Helm's storage while an action runs. A process that is
// killed leaves the lock behind; the next Sync takes it away.
//
// Calls end with their context; requests that Helm makes without one end after
// 30 seconds each. Callers must not run two calls for one HelmRelease at a time.
package release
